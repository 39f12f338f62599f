# SPDX-License-Identifier: Apache-2.0
"""What every secondary tier promises, whatever it is made of: `tiercache.tiers.base`."""

import time
from collections.abc import Collection, Sequence
from itertools import count

import pytest

from tests.core_helpers import full, key, state
from tests.tier_helpers import PATIENCE_S, Slots, wait
from tests.tiers.conftest import MakeTier
from tiercache.blocks import GroupSpec, Key
from tiercache.tiers.base import Batch, Done, SecondaryTier

#: Slots of each group in memory: stores are from the first ones in turn, loads into the last.
SLOTS, FIRST = 40, 30
#: Records of each group that the tier has room for.
ROOM = 8
ATTENTION, STATE = 0, 5
GROUPS: Sequence[GroupSpec] = (
    full(ATTENTION),
    GroupSpec(STATE, state(STATE).kind, 16, slot_bytes=12288),
)
A, B, C, D = map(key, "abcd")


class Shelf:
    """A tier, and the slots of the primary one."""

    def __init__(self, make_tier: MakeTier, *, workers: int = 1, room: int = ROOM) -> None:
        self.slots = Slots(GROUPS, {group.group_id: SLOTS for group in GROUPS}, workers=workers)
        self.tier: SecondaryTier = make_tier(GROUPS, self.slots.memory, room)
        self._job_ids = count(1)
        self._from = count()

    def begin_store(
        self, keys: Sequence[Key], *, group_id: int = ATTENTION, version: int = 0
    ) -> int | None:
        """Begin to store what is missing of ``keys``; returns the job, None if it is declined."""
        missing = self.tier.missing(keys)
        slots = [next(self._from) % FIRST for _ in missing]
        for each, slot in zip(missing, slots, strict=True):
            self.slots.write(each, slot, version)
        batch = Batch(next(self._job_ids), group_id, missing, slots)
        return batch.job_id if missing and self.tier.store(batch) else None

    def begin_load(self, keys: Sequence[Key], *, group_id: int = ATTENTION) -> Batch:
        slots = [SLOTS - 1 - i for i in range(len(keys))]
        for each, slot in zip(keys, slots, strict=True):
            self.slots.scribble(each, slot)
        batch = Batch(next(self._job_ids), group_id, list(keys), slots)
        self.tier.load(batch)
        return batch

    def store(self, *keys: Key, group_id: int = ATTENTION, version: int = 0) -> bool:
        """Store ``keys``; whether all of them are there now."""
        self.begin_store(keys, group_id=group_id, version=version)
        wait(self.tier)
        return all(map(self.tier.has, keys))

    def store_at_last(self, *keys: Key, version: int) -> None:
        """A cleared tier may decline until nothing of what it had can come back."""
        give_up = time.monotonic() + PATIENCE_S
        while not self.store(*keys, version=version):
            assert time.monotonic() < give_up

    def load(self, *keys: Key, group_id: int = ATTENTION, version: int = 0) -> Done:
        """Load ``keys`` and look at what came."""
        batch = self.begin_load(keys, group_id=group_id)
        done = wait(self.tier)[batch.job_id]
        self.check(batch, done.failed, version)
        return done

    def check(self, batch: Batch, failed: Collection[Key], version: int = 0) -> None:
        assert set(failed) <= set(batch.keys)
        for each, slot in zip(batch.keys, batch.slots, strict=True):
            assert each in failed or self.slots.holds(each, slot, version)

    def fill_until_gone(self, watched: Collection[Key]) -> list[Key]:
        """Store new keys one by one until none of ``watched`` is there; returns them as they go."""
        gone: list[Key] = []
        for number in range(100 * ROOM):
            assert self.store(key(f"filler {number}"))
            gone += [each for each in watched if each not in gone and not self.tier.has(each)]
            if len(gone) == len(watched):
                return gone
        pytest.fail("nothing is evicted")


@pytest.fixture(params=[1, 2], ids=["one worker", "two workers"])
def shelf(request: pytest.FixtureRequest, make_tier: MakeTier) -> Shelf:
    return Shelf(make_tier, workers=request.param)


def test_it_is_empty_at_first(shelf: Shelf) -> None:
    assert not shelf.tier.has(A)
    assert shelf.tier.missing([B, A]) == [B, A]
    stats = shelf.tier.stats()
    assert (stats.used, stats.entries, stats.jobs, stats.healthy) == (0, 0, 0, True)


def test_bytes_come_back(shelf: Shelf) -> None:
    assert shelf.store(C, A, B)
    assert not shelf.load(A, B, C).failed
    assert not shelf.load(B).failed


def test_bytes_of_several_groups_come_back(shelf: Shelf) -> None:
    states = [key(name, STATE) for name in "abc"]
    assert shelf.store(A, B)
    assert shelf.store(*states, group_id=STATE)
    assert not shelf.load(*reversed(states), group_id=STATE).failed
    assert not shelf.load(B, A).failed


def test_bytes_are_those_of_the_time_of_the_store(shelf: Shelf) -> None:
    assert shelf.store(A, version=1)
    shelf.slots.write(A, slot=0, version=2)
    assert not shelf.load(A, version=1).failed


def test_slots_of_no_job_are_left_alone(shelf: Shelf) -> None:
    assert shelf.store(A, B)
    shelf.slots.write(C, SLOTS - 3)
    shelf.slots.write(D, SLOTS - 1)
    batch = Batch(1000, ATTENTION, [B], [SLOTS - 2])
    shelf.tier.load(batch)
    wait(shelf.tier)
    shelf.check(batch, ())
    assert shelf.slots.holds(C, SLOTS - 3)
    assert shelf.slots.holds(D, SLOTS - 1)


def test_what_leads_could_be_loaded_up_to_the_first_key_that_could_not(shelf: Shelf) -> None:
    assert shelf.store(A, B, D)
    assert shelf.store(key("a", STATE), group_id=STATE)
    assert [shelf.tier.leading([A, B, C, D, A], at) for at in range(6)] == [2, 1, 0, 2, 1, 0]
    assert shelf.tier.leading([D, B, A]) == 3
    assert shelf.tier.leading([key("a", STATE), key("b", STATE)]) == 1
    assert shelf.tier.leading([]) == 0


def test_what_is_missing_comes_in_order(shelf: Shelf) -> None:
    assert shelf.store(B)
    assert shelf.tier.missing([D, B, A, C]) == [D, A, C]


def test_what_is_being_stored_is_not_missing(shelf: Shelf) -> None:
    assert shelf.begin_store([A, B])
    assert shelf.tier.missing([A, C, B]) == [C]
    wait(shelf.tier)
    assert shelf.tier.missing([A, C, B]) == [C]


def test_the_same_key_stored_a_hundred_times_is_there_once(shelf: Shelf) -> None:
    for _ in range(100):
        assert shelf.store(A)
    stats = shelf.tier.stats()
    record = shelf.slots.memory.record_bytes[ATTENTION]
    assert (stats.entries, stats.used) == (1, record)
    assert (stats.counters["stored"], stats.counters["stored_bytes"]) == (1, record)
    assert not shelf.load(A).failed


def test_capacity_is_never_exceeded(shelf: Shelf) -> None:
    """What is in flight is counted; a tier may decline, but not for ever."""
    taken = 0
    for number in range(12 * ROOM):
        batch = [key(f"{number}.{i}") for i in range(1 + number % 3)]
        taken += shelf.begin_store(batch) is not None
        stats = shelf.tier.stats()
        assert stats.used <= stats.capacity
        if number % 4 == 3:
            wait(shelf.tier)  # its slots are written to again
    assert taken >= 3 * ROOM
    stats = shelf.tier.stats()
    assert stats.counters["evicted"] >= taken - 2 * ROOM
    assert stats.entries * shelf.slots.memory.record_bytes[ATTENTION] <= stats.used


def test_more_than_there_is_room_for_is_declined_and_changes_nothing(make_tier: MakeTier) -> None:
    shelf = Shelf(make_tier, room=2)
    assert shelf.store(A)
    too_many = [key(f"{number}") for number in range(FIRST)]
    assert shelf.begin_store(too_many) is None
    assert shelf.tier.has(A)
    assert not any(map(shelf.tier.has, too_many))
    assert shelf.tier.stats().counters["declined"] == FIRST
    assert shelf.tier.stats().jobs == 0
    assert not shelf.load(A).failed


def test_demoted_keys_go_first(shelf: Shelf) -> None:
    assert shelf.store(A, B, C, D)
    shelf.tier.demote([C])
    gone = shelf.fill_until_gone([A, B, C, D])
    assert gone[0] == C


def test_a_key_that_was_demoted_while_it_was_stored_goes_first(shelf: Shelf) -> None:
    assert shelf.store(A, B)
    shelf.begin_store([C, D])
    shelf.tier.demote([D])
    wait(shelf.tier)
    assert not shelf.load(D).failed
    assert shelf.fill_until_gone([A, B, D])[0] == D


def test_touched_keys_go_last(shelf: Shelf) -> None:
    assert shelf.store(A)
    assert shelf.store(B)
    assert shelf.store(C)
    shelf.tier.touch([A])
    assert shelf.fill_until_gone([A, B, C])[-1] == A


def test_a_touch_undoes_a_demotion(shelf: Shelf) -> None:
    assert shelf.store(A, B, C)
    shelf.tier.demote([A])
    shelf.tier.touch([A])
    assert shelf.fill_until_gone([A, B, C])[-1] == A


def test_unknown_keys_are_ignored(shelf: Shelf) -> None:
    shelf.tier.touch([A])
    shelf.tier.demote([A])
    assert not shelf.tier.has(A)
    assert shelf.store(A)
    assert not shelf.load(A).failed


def test_a_key_that_is_not_there_fails_alone(shelf: Shelf) -> None:
    assert shelf.store(A, C)
    assert list(shelf.load(A, B, C).failed) == [B]
    assert list(shelf.load(B).failed) == [B]
    assert not shelf.load(A).failed


def test_a_cleared_tier_has_nothing_and_takes_everything(shelf: Shelf) -> None:
    assert shelf.store(A, B, version=1)
    shelf.tier.clear()
    assert not shelf.tier.has(A)
    assert shelf.tier.missing([A, B]) == [A, B]
    assert (shelf.tier.stats().used, shelf.tier.stats().entries) == (0, 0)
    assert set(shelf.load(A, B).failed) == {A, B}
    shelf.store_at_last(A, version=2)
    assert not shelf.load(A, version=2).failed


def test_what_is_stored_while_it_is_cleared_leaves_nothing(shelf: Shelf) -> None:
    job = shelf.begin_store([A], version=1)
    shelf.tier.clear()
    assert not shelf.tier.has(A)
    assert job in wait(shelf.tier)
    assert not shelf.tier.has(A)
    assert shelf.tier.stats().used == 0
    shelf.store_at_last(A, version=2)
    assert not shelf.load(A, version=2).failed


def test_a_load_that_runs_while_it_is_cleared_ends(shelf: Shelf) -> None:
    assert shelf.store(A)
    batch = shelf.begin_load([A])
    shelf.tier.clear()
    shelf.check(batch, wait(shelf.tier)[batch.job_id].failed)


def test_each_job_is_handed_back_once(shelf: Shelf) -> None:
    jobs = [shelf.begin_store([A, B]), shelf.begin_load([C]).job_id]
    assert sorted(wait(shelf.tier)) == jobs
    jobs = [shelf.begin_load([each]).job_id for each in (A, B, D)]
    assert sorted(wait(shelf.tier)) == jobs
    assert shelf.tier.poll() == []


def test_what_it_did_is_counted(shelf: Shelf) -> None:
    record = shelf.slots.memory.record_bytes[ATTENTION]
    before = shelf.tier.load_rate
    assert before is None
    assert shelf.store(A, B)
    done = shelf.load(A, C, B)
    assert done.nbytes == 2 * record
    assert done.seconds >= 0
    stats = shelf.tier.stats()
    assert (stats.entries, stats.used, stats.jobs) == (2, 2 * record, 0)
    expected = {"stored": 2, "stored_bytes": 2 * record, "loaded": 2, "loaded_bytes": 2 * record}
    assert {name: stats.counters[name] for name in expected} == expected
    assert stats.counters["corrupt"] == stats.counters["failed"] == stats.counters["declined"] == 0
    assert (shelf.tier.load_rate or 0) > 0


def test_a_closed_tier_has_nothing_and_takes_nothing(shelf: Shelf) -> None:
    assert shelf.store(A)
    shelf.tier.close()
    shelf.tier.close()
    assert not shelf.tier.has(A)
    assert shelf.tier.leading([A]) == 0
    assert shelf.begin_store([B]) is None
    batch = shelf.begin_load([A])
    assert list(wait(shelf.tier)[batch.job_id].failed) == [A]
    shelf.tier.touch([A])
    shelf.tier.demote([A])


def test_what_runs_when_it_is_closed_ends(shelf: Shelf) -> None:
    jobs = [shelf.begin_store([A, B]), shelf.begin_load([A]).job_id]
    shelf.tier.close()
    assert sorted(wait(shelf.tier)) == jobs
