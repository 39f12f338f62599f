# SPDX-License-Identifier: Apache-2.0
"""Who leaves the tier, what the index hears of it, and what is declined."""

import errno
from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

import pytest

from tests.tiers.nvme.tier_helpers import (
    SLOT_BYTES,
    Clock,
    Gate,
    Rig,
    capacity_of,
    full_tier,
    in_index,
    keys,
    published,
    until,
    validate,
)
from tiercache.blocks import Key, make_key
from tiercache.errors import ConfigError
from tiercache.tiers.nvme.index import Entry, Index, Location
from tiercache.tiers.nvme.records import Records

A, B = (keys([name]) for name in "ab")


# --- the order of eviction


def test_the_oldest_are_evicted(rig: Rig) -> None:
    tier, stored = full_tier(rig)
    rig.stored(tier, A)
    gone = tier.stats().counters["evicted"]
    assert gone == 3  # 39 used, down to 36
    assert published(tier) == [*stored[gone:], *A]
    validate(tier)
    assert in_index(tier)[0] == 36


def test_what_was_used_stays(rig: Rig) -> None:
    tier, stored = full_tier(rig)
    tier.touch([*stored[:20], *A, *keys(["x"], 1)])
    rig.stored(tier, keys(range(100, 110)), at_once=1)
    assert all(map(tier.has, stored[:20]))
    assert not any(map(tier.has, stored[20:28]))


def test_what_is_superseded_goes_first(rig: Rig) -> None:
    tier, stored = full_tier(rig)
    tier.demote([*stored[30:33], *B, *keys(["x"], 1)])
    rig.stored(tier, A)
    assert published(tier) == [*stored[:30], *stored[33:], *A]


def test_what_is_superseded_and_used_again_stays(rig: Rig) -> None:
    tier, stored = full_tier(rig)
    tier.demote(stored[30:36])
    tier.touch(stored[30:36])
    rig.stored(tier, A)
    assert published(tier) == [*stored[3:30], *stored[36:], *stored[30:36], *A]


@pytest.mark.parametrize("again", [False, True])
def test_what_is_superseded_while_it_is_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    tier = rig.open()
    gate = Gate(monkeypatch, Records, "write")
    batch = rig.begin_store(tier, keys(range(38)))
    assert batch
    tier.demote(batch.keys[35:])
    if again:
        tier.touch(batch.keys[35:])
    gate.open.set()
    rig.wait(tier, batch)
    assert not tier._superseded
    rig.stored(tier, A)
    left = batch.keys[3:] if again else batch.keys[:35]
    assert published(tier) == [*left, *A]


def test_what_is_superseded_and_not_written_is_forgotten(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = rig.open()
    with monkeypatch.context() as broken:
        gate = Gate(broken, Records, "write")
        batch = rig.begin_store(tier, A)
        assert batch
        tier.demote(A)
        tier.clear()
        gate.open.set()
        rig.wait(tier, batch)
    assert not tier._superseded


@pytest.mark.parametrize("policy", ["lru", "fifo", "s3fifo"])
def test_every_policy_keeps_what_it_says(rig: Rig, policy: str) -> None:
    tier = rig.open(policy=policy)
    rig.stored(tier, keys(range(200)), at_once=3)
    left = published(tier)
    assert 33 <= len(left) <= 38
    assert rig.loaded(tier, left) == left
    validate(tier)
    tier.close()
    assert published(rig.open(policy=policy)) == left


def test_what_is_read_is_not_evicted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, stored = full_tier(rig)
    gate = Gate(monkeypatch, Records, "read")
    load = rig.batch(stored[:5])
    rig.fill(load, garbage=True)
    tier.load(load)
    batch = rig.begin_store(tier, keys(range(100, 130)), first=5)
    assert batch
    rig.wait(tier, batch)
    assert all(map(tier.has, stored[:5]))
    assert not tier.store(rig.batch(keys(range(200, 236))))  # 35 are not held
    assert rig.poll(tier) == {}
    gate.open.set()
    assert not rig.wait(tier, load).failed
    assert rig.right(load) == stored[:5]
    validate(tier)
    assert tier.store(rig.batch(keys(range(200, 236))))


def test_a_load_that_finds_nothing_does_not_release_what_another_one_holds(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes while reads rest, so that it reads nothing."""
    clock = Clock()
    tier = rig.open(clock=clock)
    rig.stored(tier, A)
    gate = Gate(monkeypatch, Records, "read")
    first, second = rig.batch(A), rig.batch(A, first=1)
    tier.load(first)
    tier._reading.trip(clock.now)
    tier.poll()
    tier.load(second)
    assert rig.wait(tier, second).failed == A
    assert tier._groups[0].table.held == {A[0]: 1}
    gate.open.set()
    assert not rig.wait(tier, first).failed
    assert tier.has(A[0])  # the success ended the rest, and nothing was dropped
    validate(tier)


# --- the index


def test_a_job_is_one_transaction_with_the_removals_since_the_last(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, stored = full_tier(rig)
    updates: list[Mapping[Location, Entry | None]] = []
    update = Index.update

    def noted(index: Index, changes: Mapping[Location, Entry | None]) -> None:
        updates.append(changes)
        update(index, changes)

    monkeypatch.setattr(Index, "update", noted)
    for name in "uvwxyz":
        rig.stored(tier, keys([name]))
        assert in_index(tier)[0] == len(published(tier))
    assert len(updates) == 6
    assert [*updates[0].values()].count(None) == 3  # 39 used, down to 36
    assert stored[6] in published(tier)


@pytest.mark.parametrize("fails", [False, True])
def test_a_late_removal_does_not_unpublish_who_came_into_the_slot(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """The first job evicts and is held back; the second writes where the evicted one was."""
    tier, _ = full_tier(rig)
    held, write = keys(["slow"]), Records.write
    reached, may_go = Event(), Event()

    def gated(records: Records, chosen: Sequence[Key], *args: Any, **kwargs: Any) -> list[int]:
        if list(chosen) == held:
            reached.set()
            assert may_go.wait(30)
            if fails:
                raise OSError(errno.EIO, "the disk")
        return write(records, chosen, *args, **kwargs)

    monkeypatch.setattr(Records, "write", gated)
    slow = rig.begin_store(tier, held, first=30)
    assert slow
    assert reached.wait(30)
    quick = keys(range(100, 104))
    rig.stored(tier, quick)  # both slots that were left, and two of those of the evicted
    may_go.set()
    assert bool(rig.wait(tier, slow).failed) == fails
    rig.stored(tier, keys(["last"]))
    assert in_index(tier)[0] == len(published(tier))
    left = published(tier)
    assert set(quick) <= set(left)
    tier.close()
    assert set(published(rig.open())) == set(left)


def test_what_was_dropped_leaves_the_index_when_the_tier_is_closed(rig: Rig) -> None:
    tier = rig.open()
    rig.stored(tier, [*A, *B])
    tier._groups[0].checksums[0] ^= 1
    assert rig.loaded(tier, [*A, *B]) == B
    tier.close()
    tier = rig.open()
    assert published(tier) == B
    assert in_index(tier) == {0: 1, 1: 0}


# --- limits


def test_more_than_the_group_holds_is_declined(rig: Rig) -> None:
    tier = rig.open()
    assert not tier.store(rig.batch(keys(range(41))))
    assert tier.store(rig.batch(keys(range(40))))
    assert not tier.store(rig.batch(keys(range(100, 101))))  # all are being written
    until(tier.poll)
    assert tier.store(rig.batch(keys(range(100, 101))))
    assert tier.stats().counters["declined"] == 42


def test_hashes_that_the_index_cannot_hold_are_declined(rig: Rig) -> None:
    tier = rig.open()
    assert not tier.store(rig.batch([*A, make_key(bytes(41), 0)]))
    assert not tier.store(rig.batch([make_key(b"", 0)]))
    longest = [make_key(bytes(40), 0), make_key(bytes(1), 0), make_key(bytes(39), 0)]
    rig.stored(tier, longest)
    tier.close()
    tier = rig.open()
    assert published(tier) == longest
    assert rig.loaded(tier, longest) == longest


def test_no_more_is_written_than_the_budget_allows_and_reads_go_on(rig: Rig) -> None:
    clock = Clock()
    tier = rig.open(clock=clock, write_budget=24 * 4 * SLOT_BYTES[0])
    rig.stored(tier, keys(range(4)), at_once=2)
    assert not tier.store(rig.batch(A))
    assert tier.stats().counters["declined"] == 1
    assert rig.loaded(tier, keys(range(4))) == keys(range(4))
    clock.now += 900
    rig.stored(tier, A)
    assert not tier.store(rig.batch(B))


def test_a_store_that_is_declined_evicts_nothing(rig: Rig) -> None:
    tier, stored = full_tier(rig, write_budget=24 * 38 * SLOT_BYTES[0], clock=Clock())
    assert not tier.store(rig.batch(A))
    assert published(tier) == stored
    assert tier.stats().counters["evicted"] == 0


def test_a_capacity_without_room_for_a_slot_of_each_group_is_refused(rig: Rig) -> None:
    least = capacity_of({0: 1, 1: 1})
    with pytest.raises(ConfigError, match=f"capacity: {least - 1} .* at least {least} bytes"):
        rig.open(capacity=least - 1)
    tier = rig.open(capacity=least)
    rig.stored(tier, keys(range(5)), at_once=1)
    assert published(tier) == keys([4])
    assert rig.loaded(tier, keys([4])) == keys([4])
