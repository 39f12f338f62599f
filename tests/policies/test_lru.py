# SPDX-License-Identifier: Apache-2.0
"""The LRU policy: what demotion does to its order, and random calls against a small model."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.policies.helpers import A, B, C, D, insert, names
from tiercache.policies.lru import LRU

CAPACITY = 8
UNKNOWN = CAPACITY - 1


@pytest.fixture
def lru() -> LRU:
    """An LRU that knows a, b, c and d, inserted in this order."""
    lru = LRU(CAPACITY)
    insert(lru, [A, B, C, D])
    return lru


def order(lru: LRU) -> str:
    """The order, demoted slots in capitals."""
    found, demoted = lru.peek(CAPACITY)
    return names(found[:demoted]).upper() + names(found[demoted:])


def test_demoted_slots_are_the_next_victims_the_first_one_first(lru: LRU) -> None:
    assert lru.demote([D, B]) == [D, B]
    assert order(lru) == "DBac"


def test_a_second_demotion_lines_up_behind_the_first(lru: LRU) -> None:
    lru.demote([C])
    lru.demote([A])
    assert order(lru) == "CAbd"


def test_demoting_again_keeps_the_place_in_the_line(lru: LRU) -> None:
    lru.demote([C, A])
    assert lru.demote([A, C]) == []
    assert order(lru) == "CAbd"


def test_a_demotion_to_the_front_goes_ahead_of_all(lru: LRU) -> None:
    lru.demote([C])
    assert lru.demote([A, D], first=True) == [A, D]
    assert order(lru) == "ADCb"


def test_a_demoted_slot_can_be_moved_to_the_front(lru: LRU) -> None:
    lru.demote([C, A])
    assert lru.demote([A], first=True) == []
    assert order(lru) == "ACbd"


def test_unknown_are_not_demoted(lru: LRU) -> None:
    assert lru.demote([UNKNOWN, A]) == [A]
    assert order(lru) == "Abcd"


def test_a_touch_undoes_a_demotion(lru: LRU) -> None:
    lru.demote([A, B])
    lru.touch([A])
    assert order(lru) == "Bcda"
    assert lru.demoted_of([A, B]) == [B]


def test_eviction_tells_how_many_victims_were_demoted(lru: LRU) -> None:
    lru.demote([C])
    assert lru.evict(2) == ([C, A], 1)
    assert lru.demoted == 0


def test_protected_slots_are_passed_over_in_both_queues(lru: LRU) -> None:
    lru.demote([D, C])
    assert lru.evict(2, {D, A}) == ([C, B], 1)
    assert order(lru) == "Da"


def test_a_slot_that_was_read_for_another_tier_keeps_its_place(lru: LRU) -> None:
    lru.pin([B], hit=False)
    assert order(lru) == "acd"
    lru.unpin([B])
    assert order(lru) == "abcd"


def test_a_hit_of_a_slot_that_is_read_for_another_tier_is_a_hit(lru: LRU) -> None:
    lru.pin([B], hit=True)
    lru.pin([B], hit=False)
    lru.unpin([B])
    assert order(lru) == "acdb"


def test_eviction_passes_pinned_slots_over_and_they_stay_where_they_are(lru: LRU) -> None:
    lru.pin([A], hit=True)
    lru.pin([B], hit=False)
    assert lru.evict(1) == ([C], 0)
    assert np.concatenate(list(lru._live)).tolist() == [A, B, D]
    lru.unpin([B])
    assert order(lru) == "bd"
    lru.unpin([A])
    assert order(lru) == "bda"


def test_a_slot_that_was_pinned_and_removed_is_new(lru: LRU) -> None:
    lru.pin([A], hit=True)
    lru.demote([A])
    lru.remove([A])
    insert(lru, [A])
    assert order(lru) == "bcda"
    lru.unpin([A])
    assert order(lru) == "bcda"


@pytest.mark.parametrize("capacity", [0, 1])
def test_the_smallest_pools(capacity: int) -> None:
    lru = LRU(capacity)
    insert(lru, range(capacity))
    assert lru.evict(capacity + 1) is None
    assert lru.evict(capacity) == (list(range(capacity)), 0)
    assert lru.evict(0) == ([], 0)
    assert len(lru) == lru.demoted == 0


def test_a_pinned_slot_can_be_demoted(lru: LRU) -> None:
    lru.pin([A], hit=False)
    assert lru.demote([A]) == [A]
    assert lru.demoted_of([A, B]) == [A]
    assert lru.has_demoted
    assert lru.demoted == 0
    lru.unpin([A])
    assert order(lru) == "Abcd"


def test_a_touch_undoes_the_demotion_of_a_pinned_slot(lru: LRU) -> None:
    lru.pin([A], hit=False)
    lru.demote([A])
    lru.touch([A])
    lru.unpin([A])
    assert order(lru) == "bcda"


@pytest.mark.parametrize(("hit", "expected"), [(True, "Bcda"), (False, "ABcd")])
def test_only_a_hit_undoes_a_demotion(lru: LRU, hit: bool, expected: str) -> None:
    lru.demote([A, B])
    lru.pin([A], hit=hit)
    lru.unpin([A])
    assert order(lru) == expected


def test_a_hit_on_a_pinned_slot_undoes_its_demotion(lru: LRU) -> None:
    lru.pin([A], hit=False)
    lru.demote([A])
    lru.pin([A], hit=True)
    assert lru.demoted_of([A]) == []


class Model:
    """Two lists of slots, the next victim first, pinned ones included; pins with their kind."""

    def __init__(self) -> None:
        self.demoted: list[int] = []
        self.live: list[int] = []
        self.pinned: dict[int, bool] = {}

    def drop(self, slot: int) -> bool:
        """Take ``slot`` out of its queue; returns whether it was in one."""
        for queue in (self.demoted, self.live):
            if slot in queue:
                queue.remove(slot)
                return True
        return False

    def touch(self, slot: int) -> None:
        if self.drop(slot):
            self.live.append(slot)

    def demote(self, slot: int) -> None:
        if slot in self.live:
            self.live.remove(slot)
            self.demoted.append(slot)

    def pin(self, slot: int, *, hit: bool) -> None:
        self.pinned[slot] = hit or self.pinned.get(slot, False)
        if hit and slot in self.demoted:
            self.touch(slot)

    def unpin(self, slot: int) -> None:
        if self.pinned.pop(slot) and slot in self.live:
            self.touch(slot)

    def order(self) -> tuple[list[int], list[int]]:
        demoted, live = (
            [slot for slot in queue if slot not in self.pinned]
            for queue in (self.demoted, self.live)
        )
        return demoted, live


class AgainstModel(RuleBasedStateMachine):
    some = st.lists(st.integers(0, CAPACITY - 1), max_size=5, unique=True)

    def __init__(self) -> None:
        super().__init__()
        self.lru, self.model = LRU(CAPACITY), Model()

    def known(self, some: list[int]) -> list[int]:
        model = self.model
        return [slot for slot in some if slot in (*model.live, *model.demoted)]

    @rule(some=some)
    def insert(self, some: list[int]) -> None:
        new = [slot for slot in some if slot not in self.known(some)]
        insert(self.lru, new)
        self.model.live += new

    @rule(some=some)
    def touch(self, some: list[int]) -> None:
        self.lru.touch(some)
        for slot in some:
            self.model.touch(slot)

    @rule(some=some)
    def settle(self, some: list[int]) -> None:
        self.lru.settle(some, [True] * len(some), tail_first=True)
        for slot in reversed(some):
            self.model.touch(slot)

    @rule(some=some, first=st.booleans())
    def demote(self, some: list[int], first: bool) -> None:
        new = [slot for slot in some if slot in self.model.live]
        assert self.lru.demote(some, first=first) == new
        for slot in some:
            self.model.demote(slot)
        if first:
            ahead = [slot for slot in some if slot in self.model.demoted]
            others = [slot for slot in self.model.demoted if slot not in some]
            self.model.demoted = ahead + others

    @rule(some=some, hit=st.booleans())
    def pin(self, some: list[int], hit: bool) -> None:
        known = self.known(some)
        self.lru.pin(known, hit=hit)
        for slot in known:
            self.model.pin(slot, hit=hit)

    @rule(some=some)
    def unpin(self, some: list[int]) -> None:
        self.lru.unpin(some)
        for slot in some:
            if slot in self.model.pinned:
                self.model.unpin(slot)

    @rule(some=some)
    def remove(self, some: list[int]) -> None:
        self.lru.remove(some)
        for slot in some:
            self.model.drop(slot)
            self.model.pinned.pop(slot, None)

    @rule(n=st.integers(0, CAPACITY), protected=st.sets(st.sampled_from([A, B, C])))
    def evict(self, n: int, protected: set[int]) -> None:
        demoted, live = self.model.order()
        victims = [slot for slot in demoted + live if slot not in protected][:n]
        evicted = self.lru.evict(n, protected)
        if len(victims) < n:
            assert evicted is None
            return
        assert evicted is not None
        assert evicted.slots == victims
        for slot in victims:
            self.model.drop(slot)

    @invariant()
    def same_order(self) -> None:
        found, demoted = self.lru.peek(CAPACITY)
        assert (found[:demoted], found[demoted:]) == self.model.order()
        assert len(self.lru) == len(found)
        assert [slot for slot in range(CAPACITY) if slot in self.lru] == sorted(found)
        assert self.lru.demoted_of(range(CAPACITY)) == sorted(self.model.demoted)


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=50)
