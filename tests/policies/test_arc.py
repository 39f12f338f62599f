# SPDX-License-Identifier: Apache-2.0
"""The ARC policy: its balance, its ghosts, and that it does not demote."""

import logging

import pytest

from tests.core_helpers import key
from tests.policies.helpers import A, B, C, D, insert, names
from tiercache.policies.arc import ARC

CAPACITY = 4


@pytest.fixture
def arc() -> ARC:
    """An ARC that has seen a and b once, c and d again."""
    arc = ARC(CAPACITY)
    insert(arc, [A, B, C, D])
    arc.touch([C, D])
    return arc


def order(arc: ARC) -> str:
    return names(arc.peek(CAPACITY).slots)


def replace(arc: ARC, name: str) -> int:
    """Evict a slot, to hold the key of this name from now on; returns the slot."""
    evicted = arc.evict(1)
    assert evicted is not None
    arc.insert(evicted.slots, [key(name)])
    return evicted.slots[0]


def test_slots_seen_once_go_before_slots_seen_again(arc: ARC) -> None:
    arc.touch([C])
    assert order(arc) == "abdc"


def test_a_scan_does_not_evict_slots_seen_again(arc: ARC) -> None:
    assert {replace(arc, str(i)) for i in range(10)} == {A, B}
    assert C in arc
    assert D in arc


def test_a_ghost_is_known_again_by_its_key_whatever_its_slot(arc: ARC) -> None:
    arc.evict(2)
    arc.insert([B, A], [key("a"), key("new")])
    arc.target = 0
    assert order(arc) == "acdb"


def test_a_key_that_comes_back_counts_as_seen_again(arc: ARC) -> None:
    arc.evict(1)
    insert(arc, [A])
    arc.target = 0
    assert order(arc) == "bcda"


def test_the_return_of_a_key_seen_once_makes_room_for_such_slots(arc: ARC) -> None:
    arc.evict(2)
    insert(arc, [A])
    assert arc.target == 1
    arc.insert([B], [key("new")])
    assert order(arc) == "cdab"


def test_the_return_of_a_key_seen_again_takes_room_from_slots_seen_once(arc: ARC) -> None:
    arc.evict(3)
    insert(arc, [A, B])
    assert arc.target == 2
    insert(arc, [C])
    assert arc.target == 1


def test_the_rarer_ghosts_weigh_more() -> None:
    arc = ARC(CAPACITY)
    insert(arc, [A, B, C, D])
    arc.touch([B, C, D])
    arc.evict(4)
    insert(arc, [A])
    assert arc.target == 3


def test_the_rarer_ghosts_weigh_more_on_the_other_side_too() -> None:
    arc = ARC(CAPACITY)
    insert(arc, [A, B, C, D])
    arc.touch([D])
    arc.evict(4)
    arc.target = 4
    insert(arc, [D])
    assert arc.target == 1


def test_the_target_is_at_least_nothing(arc: ARC) -> None:
    arc.evict(4)
    insert(arc, [C])
    assert arc.target == 0


def test_the_target_is_at_most_the_capacity() -> None:
    arc = ARC(CAPACITY)
    insert(arc, [A, B, C, D])
    arc.evict(4)
    insert(arc, [A, B, C, D])
    assert arc.target == CAPACITY
    replace(arc, "new")
    arc.evict(4)
    arc.insert([A], [key("new")])
    assert arc.target == CAPACITY


def test_a_batch_is_taken_from_both_sides(arc: ARC) -> None:
    arc.target = 1
    assert order(arc) == "acdb"


def test_ghosts_are_bounded(arc: ARC) -> None:
    for i in range(3 * CAPACITY):
        evicted = arc.evict(2)
        assert evicted is not None
        arc.insert(evicted.slots, [key(f"once {i}"), key(f"again {i}")])
        arc.touch(evicted.slots[1:])
    assert len(arc._once_ghosts) <= CAPACITY
    assert len(arc._again_ghosts) <= CAPACITY


def test_a_key_evicted_too_long_ago_is_new(arc: ARC) -> None:
    for i in range(CAPACITY):
        replace(arc, str(i))
    replace(arc, "a")
    assert arc.target == 0


@pytest.mark.parametrize(("hit", "expected"), [(True, "bcda"), (False, "abcd")])
def test_only_a_hit_counts_as_seen_again(arc: ARC, hit: bool, expected: str) -> None:
    arc.pin([A], hit=hit)
    arc.unpin([A])
    assert order(arc) == expected


def test_what_is_copied_is_passed_over_and_keeps_its_place(arc: ARC) -> None:
    arc.pin([A, C], hit=False)
    assert order(arc) == "bd"
    arc.unpin([C, A])
    assert order(arc) == "abcd"


def test_a_hit_on_a_pinned_slot_counts(arc: ARC) -> None:
    arc.pin([A], hit=False)
    arc.pin([A], hit=True)
    arc.unpin([A])
    assert order(arc) == "bcda"


def test_settling_its_own_insertions_is_not_seeing_them_again(arc: ARC) -> None:
    arc.settle([A, B], [False, False], tail_first=True)
    assert order(arc) == "bacd"


def test_settling_a_reuse_is_seeing_it_again(arc: ARC) -> None:
    arc.settle([A], [True], tail_first=True)
    assert order(arc) == "bcda"


def test_settling_its_own_insertion_while_it_is_copied_is_not_seeing_it_again(arc: ARC) -> None:
    arc.pin([A], hit=False)
    arc.settle([A], [False], tail_first=True)
    arc.unpin([A])
    assert order(arc) == "bacd"


def test_demotion_changes_nothing(arc: ARC) -> None:
    assert arc.demote([D, A], first=True) == []
    assert order(arc) == "abcd"
    assert arc.demoted_of([D, A]) == []


def test_it_says_once_that_it_does_not_demote(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ARC, "_said_no_demotion", False)
    caplog.set_level(logging.INFO)
    for arc in (ARC(CAPACITY), ARC(CAPACITY)):
        arc.demote([A])
        arc.demote([B])
    assert caplog.messages == ["the arc policy does not demote superseded states; lru does"]
