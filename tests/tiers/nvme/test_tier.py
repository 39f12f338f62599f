# SPDX-License-Identifier: Apache-2.0
"""The whole tier on a healthy disk: what is stored comes back, also after a restart."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tiers.nvme.tier_helpers import (
    DISK,
    SLOT_BYTES,
    Clock,
    Gate,
    Rig,
    capacity_of,
    full_tier,
    keys,
    published,
    validate,
)
from tiercache.blocks import Key, make_key
from tiercache.tiers.nvme.index import Index
from tiercache.tiers.nvme.records import Records

A, B, C, D, E = (keys([name]) for name in "abcde")


# --- what is there


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("durability", ["crash", "power"])
def test_what_is_stored_comes_back(tmp_path: Path, workers: int, durability: str) -> None:
    with Rig(tmp_path, workers) as rig:
        tier = rig.open(durability=durability)
        for group_id in SLOT_BYTES:
            chosen = keys(range(8), group_id)
            assert tier.missing(chosen) == chosen
            done = rig.store(tier, chosen)
            nbytes = 8 * workers * SLOT_BYTES[group_id]
            assert (done.failed, done.nbytes) == ([], nbytes)
            assert tier.missing(chosen) == []
            assert all(map(tier.has, chosen))
            assert rig.loaded(tier, chosen[::-1]) == chosen[::-1]
        assert rig.loaded(tier, keys([3, 7, 1, 0])) == keys([3, 7, 1, 0])
        validate(tier)


def test_slots_in_memory_need_not_be_neighbours(rig: Rig) -> None:
    tier = rig.open()
    batch = rig.batch(keys(range(6)))._replace(slots=[9, 2, 3, 63, 0, 1])
    rig.fill(batch)
    assert tier.store(batch)
    assert not rig.wait(tier, batch).failed
    assert rig.loaded(tier, batch.keys) == batch.keys
    batch = batch._replace(slots=[40, 41, 5, 4, 3, 20])
    rig.fill(batch, garbage=True)
    tier.load(batch)
    assert not rig.wait(tier, batch).failed
    assert rig.right(batch) == batch.keys


def test_only_what_is_written_and_indexed_is_there(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, Index, "update")
    tier = rig.open()
    batch = rig.begin_store(tier, A)
    assert batch
    assert gate.reached.wait(30)
    assert tier.poll() == []
    assert not tier.has(A[0])
    assert tier.missing([*A, *B]) == B  # it is being stored
    assert rig.load(tier, A)[0].failed == A
    gate.open.set()
    rig.wait(tier, batch)
    assert tier.has(A[0])


def test_what_is_not_there_fails_and_the_others_come_back(rig: Rig) -> None:
    tier = rig.open()
    rig.stored(tier, [*A, *C])
    done, right = rig.load(tier, [*A, *B, *C, *D])
    assert done.failed == [*B, *D]
    assert right == [*A, *C]
    assert done.nbytes == 2 * SLOT_BYTES[0]
    assert rig.load(tier, E)[0].failed == E
    assert published(tier) == [*A, *C]
    assert not tier.has(make_key(b"unknown", 9))


def test_a_load_that_began_before_a_store_ended_does_not_undo_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not there when it was asked for is there when the load ends."""
    tier = rig.open()
    rig.stored(tier, A)
    gate = Gate(monkeypatch, Records, "read")
    load = rig.batch([*A, *B])
    tier.load(load)
    assert gate.reached.wait(30)
    batch = rig.begin_store(tier, B, first=10)
    assert batch
    rig.wait(tier, batch)
    gate.open.set()
    assert rig.wait(tier, load).failed == B
    assert rig.loaded(tier, B) == B


def test_what_is_there_or_on_its_way_is_not_stored_again(rig: Rig) -> None:
    tier = rig.open()
    batch = rig.begin_store(tier, A)
    assert batch
    assert not tier.store(rig.batch([*A, *B]))
    rig.wait(tier, batch)
    assert not tier.store(rig.batch([*B, *A]))
    assert not tier.store(rig.batch([*B, *B]))
    assert tier.stats().counters["declined"] == 6
    rig.stored(tier, B)
    assert rig.loaded(tier, [*A, *B]) == [*A, *B]


# --- restart


@pytest.mark.parametrize("workers", [1, 2])
def test_a_restart_finds_all_in_the_order_of_age(tmp_path: Path, workers: int) -> None:
    stored = [*keys(range(30)), *keys(range(9), 1)]
    with Rig(tmp_path, workers) as rig:
        tier = rig.open()
        rig.stored(tier, stored[:30], at_once=7)
        rig.stored(tier, stored[30:], at_once=3)
        tier.close()
        with Rig(tmp_path, workers) as other:
            again = other.open()
            assert published(again) == stored
            assert other.loaded(again, stored[:30]) == stored[:30]
            assert other.loaded(again, stored[30:]) == stored[30:]
            assert again.stats().entries == 39
            validate(again)


def test_what_is_stored_after_a_restart_replaces_the_oldest_and_nothing_else(rig: Rig) -> None:
    tier, old = full_tier(rig)
    tier.close()
    tier = rig.open()
    new = keys(range(100, 110))
    rig.stored(tier, new, at_once=1)
    gone = tier.stats().counters["evicted"]
    assert gone >= 8
    assert published(tier) == [*old[gone:], *new]
    tier.close()
    tier = rig.open()
    assert published(tier) == [*old[gone:], *new]
    left = [*old[gone:], *new]
    assert rig.loaded(tier, left) == left


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n", "hash_seed": "0"},
        {"model": "m", "hash_seed": "1"},
        {"model": "m", "hash_seed": "0", "rank": 1},
        {"model": "m"},
    ],
)
def test_another_fingerprint_never_hits(rig: Rig, other: Mapping[str, object]) -> None:
    rig.stored(tier := rig.open(), A)
    tier.close()
    tier = rig.open(fingerprint=other)
    assert not tier.has(A[0])
    rig.stored(tier, B)
    tier.close()
    assert published(rig.open()) == A


def test_a_larger_capacity_keeps_everything(rig: Rig) -> None:
    tier, stored = full_tier(rig)
    tier.close()
    tier = rig.open(capacity=capacity_of({0: 160, 1: 40}))
    assert published(tier) == stored
    more = keys(range(100, 200))
    rig.stored(tier, more)
    assert rig.loaded(tier, [*stored, *more]) == [*stored, *more]


# --- stats


def test_stats(rig: Rig) -> None:
    clock = Clock()
    tier = rig.open(clock=clock)
    rate = tier.load_rate
    assert rate is None
    stats = tier.stats()
    assert (stats.used, stats.entries, stats.jobs, stats.healthy) == (0, 0, 0, True)
    assert stats.capacity == capacity_of(DISK)
    batch = rig.begin_store(tier, keys(range(4)))
    assert batch
    stats = tier.stats()
    assert (stats.used, stats.entries, stats.jobs) == (4 * SLOT_BYTES[0], 0, 1)
    rig.wait(tier, batch)
    load = rig.batch(keys(range(4)))
    tier.load(load)
    clock.now += 0.5
    rig.wait(tier, load)
    assert tier.load_rate == 4 * SLOT_BYTES[0] / 0.5
    rig.load(tier, A)
    stats = tier.stats()
    assert (stats.used, stats.entries, stats.jobs) == (4 * SLOT_BYTES[0], 4, 0)
    nbytes = 4 * SLOT_BYTES[0]
    assert +stats.counters == {
        "stored": 4,
        "stored_bytes": nbytes,
        "loaded": 4,
        "loaded_bytes": nbytes,
    }


# --- close


def test_close_finishes_what_runs_and_can_be_called_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = rig.open()
    batches = [rig.begin_store(tier, keys([n]), n) for n in range(30)]
    tier.close()
    tier.close()
    assert {done.job_id for done in tier.poll()} == {b.job_id for b in batches if b}
    assert not tier.has(keys([0])[0])
    assert published(rig.open()) == keys(range(30))


def test_after_close_everything_is_a_miss(rig: Rig) -> None:
    tier = rig.open()
    rig.stored(tier, A)
    tier.close()
    assert not tier.has(A[0])
    assert not tier.store(rig.batch(B))
    done, _ = rig.load(tier, A)
    assert done.failed == A
    tier.touch(A)
    tier.demote(A)
    assert tier.poll() == []
    assert tier.stats().jobs == 0
    tier.clear()
    tier.close()
    assert published(rig.open()) == A


def test_a_tier_that_cannot_start_threads_leaves_nothing_open(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("tiercache.tiers.nvme.tier.IOEngine", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            rig.open()
    rig.open()


def test_the_loop_is_not_that_of_the_caller(rig: Rig) -> None:
    """A scheduler may have an event loop of its own."""

    async def play() -> list[Key]:
        tier = rig.open()
        rig.stored(tier, A)
        return rig.loaded(tier, A)

    assert asyncio.run(play()) == A
