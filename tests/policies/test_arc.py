# SPDX-License-Identifier: Apache-2.0
"""The ARC policy: its balance, its ghosts, and random calls against a small model."""

import logging
from collections.abc import Container
from itertools import chain

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.core_helpers import key
from tests.policies.helpers import A, B, C, D, insert, names
from tiercache.blocks import Key
from tiercache.ghosts import short_names
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


@pytest.mark.parametrize(("target", "back", "expected"), [(0, [A, B], 3), (4, [C, D], 1)])
def test_ghosts_that_come_back_together_are_weighed_one_after_the_other(
    arc: ARC, target: int, back: list[int], expected: int
) -> None:
    arc.evict(4)
    arc.target = target
    insert(arc, back)
    assert arc.target == expected


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


def test_of_keys_that_begin_alike_each_is_a_ghost_of_the_other() -> None:
    arc = ARC(CAPACITY)
    arc.insert([A], [key("12345678 a")])
    arc.evict(1)
    arc.insert([A, B, C], [key("12345678 b"), key("12345678 c"), key("new")])
    assert arc.target == 2
    arc.target = 0
    assert order(arc) == "cab"


@pytest.mark.parametrize("capacity", [0, 1])
def test_the_smallest_pools(capacity: int) -> None:
    arc = ARC(capacity)
    insert(arc, range(capacity))
    assert arc.evict(capacity + 1) is None
    assert arc.evict(capacity) == (list(range(capacity)), 0)
    assert arc.evict(0) == ([], 0)
    assert len(arc) == 0


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


SIZE = 6


class Model:
    """The same a slot and a key at a time, in lists that begin with the one to go first."""

    def __init__(self) -> None:
        self.target = 0.0
        self.once: list[int] = []
        self.again: list[int] = []
        self.once_ghosts: list[Key] = []
        self.again_ghosts: list[Key] = []
        self.keys: dict[int, Key] = {}
        self.pinned: dict[int, bool] = {}
        """Whether a pinned slot is out of its list."""

    def insert(self, slot: int, k: Key) -> None:
        once, again = len(self.once_ghosts), len(self.again_ghosts)
        if k in self.once_ghosts:
            self.target = min(SIZE, self.target + max(1.0, again / once))
            self.once_ghosts.remove(k)
            self.again.append(slot)
        elif k in self.again_ghosts:
            self.target = max(0.0, self.target - max(1.0, once / again))
            self.again_ghosts.remove(k)
            self.again.append(slot)
        else:
            self.once.append(slot)
        self.keys[slot] = k

    def take_out(self, slot: int) -> bool:
        for queue in (self.once, self.again):
            if slot in queue:
                queue.remove(slot)
                return True
        return False

    def touch(self, slot: int) -> None:
        if self.take_out(slot):
            self.again.append(slot)

    def settle(self, slot: int, reused: bool) -> None:
        if reused or slot in self.again:
            self.touch(slot)
        elif self.take_out(slot):
            self.once.append(slot)

    def pin(self, slot: int, hit: bool) -> None:
        self.pinned[slot] = self.pinned.get(slot, False) or (hit and self.take_out(slot))

    def unpin(self, slot: int) -> None:
        if self.pinned.pop(slot, False):
            self.again.append(slot)

    def remove(self, slot: int) -> None:
        self.unpin(slot)
        self.take_out(slot)
        self.keys.pop(slot, None)

    def victims(self, n: int, protected: Container[int] = ()) -> list[int]:
        once, again = (
            [slot for slot in queue if slot not in protected and slot not in self.pinned]
            for queue in (self.once, self.again)
        )
        left, victims = len(self.once), list[int]()
        while len(victims) < n and (once or again):
            first, second = (once, again) if left > self.target else (again, once)
            victims.append((first or second).pop(0))
            left -= victims[-1] in self.once
        return victims

    def evict(self, slot: int) -> None:
        ghosts = self.once_ghosts if slot in self.once else self.again_ghosts
        ghosts.append(self.keys[slot])
        del ghosts[:-SIZE]
        self.remove(slot)


class AgainstModel(RuleBasedStateMachine):
    some = st.lists(st.integers(0, SIZE - 1), max_size=SIZE, unique=True)
    some_keys = st.lists(st.sampled_from(list(map(key, "abcdefghijklmn"))), unique=True)

    def __init__(self) -> None:
        super().__init__()
        self.arc, self.model = ARC(SIZE), Model()

    def known(self, some: list[int]) -> list[int]:
        return [slot for slot in some if slot in self.model.keys]

    @rule(some=some, some_keys=some_keys)
    def insert(self, some: list[int], some_keys: list[Key]) -> None:
        slots = [slot for slot in some if slot not in self.model.keys]
        new = [k for k in some_keys if k not in self.model.keys.values()]
        pairs = list(zip(slots, new, strict=False))
        self.arc.insert([slot for slot, _ in pairs], [k for _, k in pairs])
        for slot, k in pairs:
            self.model.insert(slot, k)

    @rule(some=some)
    def touch(self, some: list[int]) -> None:
        self.arc.touch(some)
        for slot in some:
            self.model.touch(slot)

    @rule(some=some, reused=st.sets(st.integers(0, SIZE - 1)), tail_first=st.booleans())
    def settle(self, some: list[int], reused: set[int], tail_first: bool) -> None:
        self.arc.settle(some, map(reused.__contains__, some), tail_first=tail_first)
        for slot in reversed(some) if tail_first else some:
            self.model.settle(slot, slot in reused)

    @rule(some=some, hit=st.booleans())
    def pin(self, some: list[int], hit: bool) -> None:
        known = self.known(some)
        self.arc.pin(known, hit=hit)
        for slot in known:
            self.model.pin(slot, hit)

    @rule(some=some)
    def unpin(self, some: list[int]) -> None:
        self.arc.unpin(some)
        for slot in some:
            self.model.unpin(slot)

    @rule(some=some)
    def remove(self, some: list[int]) -> None:
        self.arc.remove(some)
        for slot in some:
            self.model.remove(slot)

    @rule(size=st.floats(0, SIZE))
    def aim(self, size: float) -> None:
        self.arc.target = self.model.target = size

    @rule(n=st.integers(0, SIZE), protected=st.sets(st.sampled_from([A, B, C])))
    def evict(self, n: int, protected: set[int]) -> None:
        victims = self.model.victims(n, protected)
        assert self.arc.peek(n, protected) == (victims, 0)
        if len(victims) < n:
            assert self.arc.evict(n, protected) is None
            return
        assert self.arc.evict(n, protected) == (victims, 0)
        for slot in victims:
            self.model.evict(slot)

    @invariant()
    def same_order(self) -> None:
        order = self.model.victims(SIZE)
        assert self.arc.peek(SIZE) == (order, 0)
        assert len(self.arc) == len(order)
        assert [slot for slot in range(SIZE) if slot in self.arc] == sorted(order)

    @invariant()
    def same_balance(self) -> None:
        arc, model = self.arc, self.model
        assert arc.target == model.target
        for ghosts, expected in (
            (arc._once_ghosts, model.once_ghosts),
            (arc._again_ghosts, model.again_ghosts),
        ):
            found = ghosts._place_of.keys_in(chain.from_iterable(ghosts._order))
            assert found == short_names(expected).tolist()


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=100)
