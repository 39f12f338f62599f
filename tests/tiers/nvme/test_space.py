# SPDX-License-Identifier: Apache-2.0
"""Slots of a group on disk: allocation, eviction, holds, drops, and what ``validate`` catches."""

import sys
from collections.abc import Callable, Iterable

import pytest

from tests.core_helpers import key
from tiercache.blocks import Key
from tiercache.errors import InvariantError
from tiercache.tiers.nvme.policy import DISK_POLICIES, FIFO, make_disk_policy
from tiercache.tiers.nvme.space import MAX_VICTIMS, SlotTable

A, B, C, D = map(key, "abcd")


def some_keys(n: int, first: int = 0) -> list[Key]:
    return [key(str(i)) for i in range(first, first + n)]


def table(slots: int, *, high_water: float = 1.0, low_water: float = 1.0) -> SlotTable:
    return SlotTable(slots, FIFO(slots), high_water=high_water, low_water=low_water)


def store(table: SlotTable, keys: Iterable[Key]) -> dict[Key, int]:
    """Allocate and publish; returns what was evicted."""
    keys = list(keys)
    allocation = table.allocate(keys)
    assert allocation is not None
    assert table.publish(keys) == keys
    table.validate()
    return allocation.evicted


# --- slots of a group


def test_a_key_is_findable_once_it_is_published() -> None:
    slots = table(4)
    assert slots.allocate([A, B]) == ([0, 1], {})
    assert slots.missing([C, A, C, B]) == [C]
    assert (slots.used, dict(slots.slot_of), slots.writing) == (2, {}, {A: 0, B: 1})
    assert slots.publish([A]) == [A]
    assert (slots.used, dict(slots.slot_of), slots.writing) == (2, {A: 0}, {B: 1})
    assert slots.missing([C, A, C, B]) == [C]
    slots.abandon([A, B, B])
    assert (slots.used, dict(slots.slot_of), slots.writing) == (1, {A: 0}, {})
    slots.validate()


def test_evicted_keys_leave_their_slots_to_those_that_come() -> None:
    slots = table(3)
    store(slots, [A, B, C])
    assert slots.allocate([D]) == ([0], {A: 0})
    assert slots.slot_of == {B: 1, C: 2}


def test_an_allocation_is_all_or_nothing() -> None:
    slots = table(3)
    store(slots, [A, B])
    slots.hold([A])
    assert not slots.room(3)
    assert slots.allocate(some_keys(3)) is None
    assert (dict(slots.slot_of), slots.writing) == ({A: 0, B: 1}, {})
    assert slots.room(2)
    assert slots.allocate(some_keys(2)) is not None


def test_writing_keys_are_not_evicted() -> None:
    slots = table(2)
    slots.allocate([A, B])
    assert slots.allocate([C]) is None


def test_above_high_water_keys_leave_down_to_low_water_in_one_go() -> None:
    slots = table(100, high_water=0.9, low_water=0.8)
    assert store(slots, some_keys(90)) == {}
    assert list(store(slots, [A]).values()) == list(range(11))
    assert slots.used == 80


def test_an_eviction_takes_no_longer_than_a_step_may() -> None:
    slots = table(10 * MAX_VICTIMS, low_water=0.5)
    store(slots, some_keys(10 * MAX_VICTIMS))
    assert len(store(slots, [A])) == MAX_VICTIMS
    assert store(slots, [B]) == {}
    n = MAX_VICTIMS + 1
    store(slots, some_keys(n, 10**6))
    assert len(store(slots, some_keys(n, 2 * 10**6))) == n


def test_low_water_asks_for_no_more_than_can_leave() -> None:
    slots = table(4, high_water=0.5, low_water=0.25)
    store(slots, [A, B])
    slots.hold([A])
    assert store(slots, [C, D]) == {B: 1}


def test_a_single_slot_is_used_whatever_the_marks() -> None:
    slots = table(1, high_water=0.95, low_water=0.9)
    store(slots, [A])
    assert store(slots, [B]) == {A: 0}


@pytest.mark.parametrize("keys", [[C, C], [C, A], [C, B]])
def test_a_key_gets_no_second_slot(keys: list[Key]) -> None:
    slots = table(8)
    store(slots, [A])
    slots.allocate([B])
    with pytest.raises(InvariantError):
        slots.allocate(keys)
    assert (dict(slots.slot_of), slots.writing) == ({A: 0}, {B: 1})


def test_holds_nest() -> None:
    slots = table(1)
    store(slots, [A])
    assert slots.hold([A]) == slots.hold([A]) == [0]
    slots.release([A])
    assert slots.allocate([B]) is None
    slots.release([A, A, B])
    assert slots.allocate([B]) == ([0], {A: 0})


def test_what_is_not_published_cannot_be_held() -> None:
    slots = table(2)
    store(slots, [A])
    slots.allocate([B])
    for unknown in (B, C):
        with pytest.raises(KeyError):
            slots.hold([A, unknown])
    assert not slots.held


def test_a_dropped_key_is_unknown_and_its_slot_free_unless_held() -> None:
    slots = table(2)
    store(slots, [A, B])
    slots.hold([B])
    assert slots.drop([A, B, C, A]) == {A: 0, B: 1}
    assert (dict(slots.slot_of), slots.used) == ({}, 1)
    slots.validate()
    slots.release([B])
    assert slots.used == 0
    slots.validate()


def test_a_slot_is_not_written_while_somebody_may_read_what_it_held() -> None:
    """The key is stored again and read again before its first reader is done."""
    slots = table(2)
    store(slots, [A])
    slots.hold([A])
    slots.drop([A])
    store(slots, [A])
    slots.hold([A])
    slots.release([A])
    assert (dict(slots.slot_of), slots.used) == ({A: 1}, 2)
    slots.release([A])
    assert (dict(slots.slot_of), slots.used) == ({A: 1}, 1)
    slots.validate()


def test_a_key_that_is_dropped_while_it_is_written_is_not_published() -> None:
    slots = table(3)
    slots.allocate([A, B])
    assert slots.drop([A]) == {}
    with pytest.raises(InvariantError):
        slots.allocate([A])
    assert slots.publish([A, B]) == [B]
    assert (dict(slots.slot_of), slots.used) == ({B: 1}, 1)
    store(slots, [A])
    assert slots.slot_of == {B: 1, A: 0}


@pytest.mark.parametrize("name", DISK_POLICIES)
def test_restored_keys_leave_by_age(name: str) -> None:
    slots = SlotTable(6, make_disk_policy(name, 6), high_water=1, low_water=1)
    slots.restore([C, A, B], [4, 0, 2])
    slots.validate()
    assert slots.slot_of == {C: 4, A: 0, B: 2}
    allocation = slots.allocate(some_keys(4))
    assert allocation is not None
    assert allocation.evicted == {C: 4}
    assert sorted(allocation.slots) == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("keys", "restored"),
    [([A, B], [2, 2]), ([A, B], [0, 4]), ([A, B], [-1, 0]), ([A, A], [0, 1]), ([A, A], [2, 2])],
)
def test_a_restored_key_has_a_slot_of_its_own(keys: list[Key], restored: list[int]) -> None:
    slots = table(4)
    with pytest.raises(InvariantError):
        slots.restore(keys, restored)
    slots.validate()
    assert slots.used == 0


def calls(function: Callable[[], object]) -> int:
    """How many functions are called, those in C included."""
    count = 0

    def notice(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(notice)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", DISK_POLICIES)
def test_the_effort_of_an_allocation_does_not_grow_with_the_table(name: str) -> None:
    effort = []
    for resident in (2_000, 50_000):
        slots = SlotTable(resident, make_disk_policy(name, resident), high_water=1, low_water=1)
        store(slots, some_keys(resident))
        new = some_keys(1_000, resident)
        effort.append(calls(lambda slots=slots, new=new: slots.allocate(new)))  # type: ignore[misc]
        slots.validate()
    assert effort[1] <= effort[0] + 100


def _lose_a_slot(slots: SlotTable) -> None:
    slots.slot_of.take([A])


def _give_a_slot_twice(slots: SlotTable) -> None:
    slots.slot_of.put([A], [slots.slot_of[B]])


def _publish_what_is_written(slots: SlotTable) -> None:
    slots.slot_of.put([C], [slots.writing[C]])


def _forget_who_holds_a_slot(slots: SlotTable) -> None:
    slots.slot_of.holders[slots.slot_of[A]] = None


def _have_a_free_slot_held(slots: SlotTable) -> None:
    slots.slot_of.holders[slots.slots - 1] = key("?")


def _hold_what_is_unknown(slots: SlotTable) -> None:
    slots.held[key("?")] = 1


def _lose_the_last_holder(slots: SlotTable) -> None:
    slots.held.clear()


def _cancel_what_is_not_written(slots: SlotTable) -> None:
    slots._cancelled.add(A)


def _forget_the_order(slots: SlotTable) -> None:
    slots._policy.remove([slots.slot_of[A]])


def _miscount_what_is_free(slots: SlotTable) -> None:
    slots._free._count += 1


def _cut_a_run(slots: SlotTable) -> None:
    start, end = slots._free._end_of.popitem()
    slots._free._end_of.update({start: end - 1, end - 1: end})


@pytest.mark.parametrize(
    "damage",
    [
        _lose_a_slot,
        _give_a_slot_twice,
        _publish_what_is_written,
        _forget_who_holds_a_slot,
        _have_a_free_slot_held,
        _hold_what_is_unknown,
        _lose_the_last_holder,
        _cancel_what_is_not_written,
        _forget_the_order,
        _miscount_what_is_free,
        _cut_a_run,
    ],
)
def test_validate_finds_damage(damage: Callable[[SlotTable], None]) -> None:
    slots = table(8)
    store(slots, [A, B, D])
    slots.allocate([C])
    slots.hold([D])
    slots.drop([D])
    slots.validate()
    damage(slots)
    with pytest.raises(InvariantError, match="violated"):
        slots.validate()


# --- slots that the disk has no room for


def test_slots_that_are_withheld_are_neither_given_nor_counted() -> None:
    slots = table(10)
    store(slots, some_keys(3))
    slots.withhold([range(1, 5), range(7, 10)])
    slots.validate()
    assert slots.used == 3
    assert not slots.room(6)
    assert store(slots, some_keys(2, first=3)) == {}  # 5 and 6
    assert store(slots, some_keys(1, first=5)) == {key("0"): 0}
    slots.bring_back()
    assert slots.room(10)
    assert store(slots, some_keys(5, first=6)) == {}
    assert slots.used == 10


def test_water_marks_are_shares_of_what_is_not_withheld() -> None:
    slots = table(100, high_water=0.9, low_water=0.5)
    store(slots, some_keys(9))
    slots.withhold([range(10, 100)])
    assert store(slots, some_keys(1, first=9)) == {key(str(i)): i for i in range(5)}
    slots.bring_back()
    assert store(slots, some_keys(80, first=10)) == {}


def test_slots_that_leave_a_withheld_part_are_free_until_they_are_withheld_again() -> None:
    slots = table(4)
    assert slots.allocate([A, B]) == ([0, 1], {})
    slots.withhold([range(4)])
    assert not slots.room(1)
    slots.abandon([A])
    assert slots.room(1)
    slots.withhold([range(4)])
    assert not slots.room(1)
    slots.validate()
