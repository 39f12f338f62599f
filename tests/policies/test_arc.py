# SPDX-License-Identifier: Apache-2.0
"""The ARC policy: its balance, its ghosts, and that it does not demote."""

import logging

import pytest

from tests.core_helpers import key, names
from tiercache.policies.arc import ARC

CAPACITY = 4
A, B, C, D, E = map(key, "abcde")


@pytest.fixture
def arc() -> ARC:
    """An ARC that has seen a and b once, c and d again."""
    arc = ARC(CAPACITY)
    arc.insert([A, B, C, D])
    arc.touch([C, D])
    return arc


def order(arc: ARC) -> str:
    return names(arc.peek(2 * CAPACITY).keys)


def test_keys_seen_once_go_before_keys_seen_again(arc: ARC) -> None:
    arc.touch([C])
    assert order(arc) == "abdc"


def test_a_scan_does_not_evict_keys_seen_again(arc: ARC) -> None:
    for i in range(10):
        arc.evict(1)
        arc.insert([key(str(i))])
    assert C in arc
    assert D in arc


def test_a_key_that_comes_back_counts_as_seen_again(arc: ARC) -> None:
    arc.evict(1)
    arc.insert([A])
    arc.target = 0
    assert order(arc) == "bcda"


def test_the_return_of_a_key_seen_once_makes_room_for_such_keys(arc: ARC) -> None:
    arc.evict(2)
    arc.insert([A])
    assert arc.target == 1
    arc.insert([E])
    assert order(arc) == "cdae"


def test_the_return_of_a_key_seen_again_takes_room_from_keys_seen_once(arc: ARC) -> None:
    arc.evict(3)
    arc.insert([A, B])
    assert arc.target == 2
    arc.insert([C])
    assert arc.target == 1


def test_the_rarer_ghosts_weigh_more() -> None:
    arc = ARC(CAPACITY)
    arc.insert([A, B, C, D])
    arc.touch([B, C, D])
    arc.evict(4)
    arc.insert([A])
    assert arc.target == 3


def test_the_rarer_ghosts_weigh_more_on_the_other_side_too() -> None:
    arc = ARC(CAPACITY)
    arc.insert([A, B, C, D])
    arc.touch([D])
    arc.evict(4)
    arc.target = 4
    arc.insert([D])
    assert arc.target == 1


def test_the_target_is_at_least_nothing(arc: ARC) -> None:
    arc.evict(4)
    arc.insert([C])
    assert arc.target == 0


def test_the_target_is_at_most_the_capacity() -> None:
    arc = ARC(CAPACITY)
    arc.insert([A, B, C, D])
    arc.evict(4)
    arc.insert([A, B, C, D])
    assert arc.target == CAPACITY
    arc.insert([E])
    arc.evict(5)
    arc.insert([E])
    assert arc.target == CAPACITY


def test_a_batch_is_taken_from_both_sides(arc: ARC) -> None:
    arc.target = 1
    assert order(arc) == "acdb"


def test_ghosts_are_bounded(arc: ARC) -> None:
    for i in range(3 * CAPACITY):
        arc.insert([key(f"once {i}"), key(f"again {i}")])
        arc.touch([key(f"again {i}")])
        arc.evict(2)
    assert len(arc._once_ghosts) <= CAPACITY
    assert len(arc._again_ghosts) <= CAPACITY


def test_a_key_evicted_too_long_ago_is_new(arc: ARC) -> None:
    arc.evict(1)
    for i in range(CAPACITY):
        arc.insert([key(str(i))])
        arc.evict(1)
    arc.insert([A])
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


def test_a_hit_on_a_pinned_key_counts(arc: ARC) -> None:
    arc.pin([A], hit=False)
    arc.pin([A], hit=True)
    arc.unpin([A])
    assert order(arc) == "bcda"


def test_settling_its_own_insertions_is_not_seeing_them_again(arc: ARC) -> None:
    arc.settle({A: False, B: False}, tail_first=True)
    assert order(arc) == "bacd"


def test_settling_a_reuse_is_seeing_it_again(arc: ARC) -> None:
    arc.settle({A: True}, tail_first=True)
    assert order(arc) == "bcda"


def test_settling_its_own_insertion_while_it_is_copied_is_not_seeing_it_again(arc: ARC) -> None:
    arc.pin([A], hit=False)
    arc.settle({A: False}, tail_first=True)
    arc.unpin([A])
    assert order(arc) == "bacd"


def test_demotion_changes_nothing(arc: ARC) -> None:
    assert arc.demote([D, A], first=True) == []
    assert order(arc) == "abcd"
    assert not arc.is_demoted(D)


def test_it_says_once_that_it_does_not_demote(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ARC, "_said_no_demotion", False)
    caplog.set_level(logging.INFO)
    for arc in (ARC(CAPACITY), ARC(CAPACITY)):
        arc.demote([A])
        arc.demote([B])
    assert caplog.messages == ["the arc policy does not demote superseded states; lru does"]
