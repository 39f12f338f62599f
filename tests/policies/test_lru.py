# SPDX-License-Identifier: Apache-2.0
"""The LRU policy: what demotion does to its order, and random calls against a small model."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.core_helpers import key, names
from tiercache.blocks import Key
from tiercache.policies.lru import LRU

CAPACITY = 8
A, B, C, D = map(key, "abcd")


@pytest.fixture
def lru() -> LRU:
    """An LRU that knows a, b, c and d, inserted in this order."""
    lru = LRU(CAPACITY)
    lru.insert([A, B, C, D])
    return lru


def order(lru: LRU) -> str:
    """The order, demoted keys in capitals."""
    found, demoted = lru.peek(CAPACITY)
    return names(found[:demoted]).upper() + names(found[demoted:])


def test_demoted_keys_are_the_next_victims_the_first_one_first(lru: LRU) -> None:
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


def test_a_demoted_key_can_be_moved_to_the_front(lru: LRU) -> None:
    lru.demote([C, A])
    assert lru.demote([A], first=True) == []
    assert order(lru) == "ACbd"


def test_unknown_keys_are_not_demoted(lru: LRU) -> None:
    assert lru.demote([key("?"), A]) == [A]
    assert order(lru) == "Abcd"


def test_a_touch_undoes_a_demotion(lru: LRU) -> None:
    lru.demote([A, B])
    lru.touch([A])
    assert order(lru) == "Bcda"
    assert not lru.is_demoted(A)


def test_eviction_tells_how_many_victims_were_demoted(lru: LRU) -> None:
    lru.demote([C])
    assert lru.evict(2) == ([C, A], 1)
    assert lru.demoted == 0


def test_protected_keys_are_passed_over_in_both_queues(lru: LRU) -> None:
    lru.demote([D, C])
    assert lru.evict(2, {D, A}) == ([C, B], 1)
    assert order(lru) == "Da"


def test_a_key_that_was_read_for_another_tier_keeps_its_place(lru: LRU) -> None:
    lru.pin([B], hit=False)
    assert order(lru) == "acd"
    lru.unpin([B])
    assert order(lru) == "abcd"


def test_a_hit_of_a_key_that_is_read_for_another_tier_is_a_hit(lru: LRU) -> None:
    lru.pin([B], hit=True)
    lru.pin([B], hit=False)
    lru.unpin([B])
    assert order(lru) == "acdb"


def test_eviction_passes_a_pinned_key_once(lru: LRU) -> None:
    lru.pin([A, B], hit=True)
    assert lru.evict(1) == ([C], 0)
    assert list(lru._live) == [D, A, B]
    lru.unpin([A, B])
    assert order(lru) == "dab"


def test_a_pinned_key_can_be_demoted(lru: LRU) -> None:
    lru.pin([A], hit=False)
    assert lru.demote([A]) == [A]
    assert lru.is_demoted(A)
    assert lru.demoted == 0
    lru.unpin([A])
    assert order(lru) == "Abcd"


def test_a_touch_undoes_the_demotion_of_a_pinned_key(lru: LRU) -> None:
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


def test_a_hit_on_a_pinned_key_undoes_its_demotion(lru: LRU) -> None:
    lru.pin([A], hit=False)
    lru.demote([A])
    lru.pin([A], hit=True)
    assert not lru.is_demoted(A)


class Model:
    """Two lists of keys, the next victim first, pinned ones included; pins with their kind."""

    def __init__(self) -> None:
        self.demoted: list[Key] = []
        self.live: list[Key] = []
        self.pinned: dict[Key, bool] = {}

    def drop(self, k: Key) -> bool:
        """Take ``k`` out of its queue; returns whether it was in one."""
        for queue in (self.demoted, self.live):
            if k in queue:
                queue.remove(k)
                return True
        return False

    def touch(self, k: Key) -> None:
        if self.drop(k):
            self.live.append(k)

    def demote(self, k: Key) -> None:
        if k in self.live:
            self.live.remove(k)
            self.demoted.append(k)

    def pin(self, k: Key, *, hit: bool) -> None:
        self.pinned[k] = hit or self.pinned.get(k, False)
        if hit and k in self.demoted:
            self.touch(k)

    def unpin(self, k: Key) -> None:
        if self.pinned.pop(k) and k in self.live:
            self.touch(k)

    def order(self) -> tuple[list[Key], list[Key]]:
        demoted, live = (
            [k for k in queue if k not in self.pinned] for queue in (self.demoted, self.live)
        )
        return demoted, live


class AgainstModel(RuleBasedStateMachine):
    some = st.lists(st.sampled_from(list(map(key, "abcdefgh"))), max_size=5, unique=True)

    def __init__(self) -> None:
        super().__init__()
        self.lru, self.model = LRU(CAPACITY), Model()

    def known(self, some: list[Key]) -> list[Key]:
        model = self.model
        return [k for k in some if k in (*model.live, *model.demoted)]

    @rule(some=some)
    def insert(self, some: list[Key]) -> None:
        new = [k for k in some if k not in self.known(some)]
        self.lru.insert(new)
        self.model.live += new

    @rule(some=some)
    def touch(self, some: list[Key]) -> None:
        self.lru.touch(some)
        for k in some:
            self.model.touch(k)

    @rule(some=some)
    def settle(self, some: list[Key]) -> None:
        self.lru.settle(dict.fromkeys(some, True), tail_first=True)
        for k in reversed(some):
            self.model.touch(k)

    @rule(some=some)
    def demote(self, some: list[Key]) -> None:
        self.lru.demote(some)
        for k in some:
            self.model.demote(k)

    @rule(some=some, hit=st.booleans())
    def pin(self, some: list[Key], hit: bool) -> None:
        known = self.known(some)
        self.lru.pin(known, hit=hit)
        for k in known:
            self.model.pin(k, hit=hit)

    @rule(some=some)
    def unpin(self, some: list[Key]) -> None:
        self.lru.unpin(some)
        for k in some:
            if k in self.model.pinned:
                self.model.unpin(k)

    @rule(n=st.integers(0, CAPACITY), protected=st.sets(st.sampled_from([A, B, C])))
    def evict(self, n: int, protected: set[Key]) -> None:
        demoted, live = self.model.order()
        victims = [k for k in demoted + live if k not in protected][:n]
        evicted = self.lru.evict(n, protected)
        if len(victims) < n:
            assert evicted is None
            return
        assert evicted is not None
        assert evicted.keys == victims
        for k in victims:
            self.model.drop(k)

    @invariant()
    def same_order(self) -> None:
        found, demoted = self.lru.peek(CAPACITY)
        assert (found[:demoted], found[demoted:]) == self.model.order()
        assert set(self.lru.pinned) == self.model.pinned.keys()
        assert set(filter(self.lru.is_demoted, map(key, "abcdefgh"))) == set(self.model.demoted)


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=50)
