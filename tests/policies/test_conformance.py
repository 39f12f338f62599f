# SPDX-License-Identifier: Apache-2.0
"""What every eviction policy promises: `tiercache.policies.base.Policy`.

Slots of equal worth go by recency, whatever else decides.
"""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core_helpers import key
from tests.policies.helpers import A, B, C, D, insert, names
from tiercache.errors import ConfigError
from tiercache.policies import POLICIES, Policy, make_policy

CAPACITY = 8
UNKNOWN = CAPACITY - 1


@pytest.fixture(params=sorted(POLICIES))
def policy(request: pytest.FixtureRequest) -> Policy:
    """A policy that knows a, b and c, inserted in this order."""
    policy = make_policy(request.param, CAPACITY)
    insert(policy, [A, B, C])
    return policy


def order(policy: Policy) -> str:
    return names(policy.peek(CAPACITY).slots)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"eviction_policy: 'fifo'.* arc, cost, lru"):
        make_policy("fifo", CAPACITY)


def test_inserted_first_goes_first(policy: Policy) -> None:
    assert order(policy) == "abc"
    assert len(policy) == 3
    assert A in policy
    assert UNKNOWN not in policy


def test_touched_goes_last(policy: Policy) -> None:
    policy.touch([B, A])
    assert order(policy) == "cba"


def test_touch_ignores_unknown_slots(policy: Policy) -> None:
    policy.touch([UNKNOWN, A])
    assert order(policy) == "bca"
    assert UNKNOWN not in policy


def test_peek_shows_the_next_victims_and_changes_nothing(policy: Policy) -> None:
    assert names(policy.peek(2).slots) == "ab"
    evicted = policy.evict(3)
    assert evicted is not None
    assert names(evicted.slots) == "abc"


def test_peek_shows_fewer_if_there_are_no_more(policy: Policy) -> None:
    assert names(policy.peek(4, {B}).slots) == "ac"


def test_evicted_slots_are_gone(policy: Policy) -> None:
    policy.evict(2)
    assert order(policy) == "c"
    assert len(policy) == 1
    assert A not in policy


def test_evicting_nothing_changes_nothing(policy: Policy) -> None:
    assert policy.evict(0) == ([], 0)
    assert order(policy) == "abc"


@pytest.mark.parametrize(("n", "protected"), [(4, set()), (3, {B}), (1, {A, B, C})])
def test_eviction_is_all_or_nothing(policy: Policy, n: int, protected: set[int]) -> None:
    assert policy.evict(n, protected) is None
    assert order(policy) == "abc"


def test_protected_slots_are_passed_over_and_keep_their_place(policy: Policy) -> None:
    evicted = policy.evict(1, {A})
    assert evicted is not None
    assert names(evicted.slots) == "b"
    assert order(policy) == "ac"


def test_pinned_slots_are_out_of_the_order(policy: Policy) -> None:
    policy.pin([A, C], hit=False)
    assert order(policy) == "b"
    assert len(policy) == 1
    assert A not in policy
    assert policy.evict(2) is None
    policy.unpin([A, C])
    assert sorted(order(policy)) == ["a", "b", "c"]
    assert len(policy) == 3
    assert A in policy


def test_unpinned_hits_are_the_most_recent(policy: Policy) -> None:
    policy.pin([B, A], hit=True)
    policy.unpin([B, A])
    assert order(policy) == "cba"
    assert len(policy) == 3


def test_pins_are_not_counted(policy: Policy) -> None:
    policy.pin([A], hit=True)
    policy.pin([A], hit=False)
    policy.unpin([A])
    assert A in policy


def test_unpin_ignores_slots_that_are_not_pinned(policy: Policy) -> None:
    policy.unpin([A, UNKNOWN])
    assert order(policy) == "abc"


def test_remove_forgets_slots_in_the_order_and_pinned_ones(policy: Policy) -> None:
    policy.pin([B], hit=False)
    policy.remove([A, B, UNKNOWN])
    assert order(policy) == "c"
    policy.unpin([B])
    assert order(policy) == "c"
    insert(policy, [B])
    assert order(policy) == "cb"


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize(("tail_first", "expected"), [(True, "cba"), (False, "abc")])
def test_settle_orders_a_request(
    policy: Policy, reused: bool, tail_first: bool, expected: str
) -> None:
    policy.touch([C, A, B])
    policy.settle([A, B, C], [reused] * 3, tail_first=tail_first)
    assert order(policy) == expected


def test_settle_ignores_unknown_slots(policy: Policy) -> None:
    policy.settle([UNKNOWN, A], [False, True], tail_first=True)
    assert order(policy) == "bca"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_slots_can_be_given_as_arrays_and_come_back_as_numbers(name: str) -> None:
    policy = make_policy(name, CAPACITY)
    policy.insert(np.array([A, B, C, D]), [key(each) for each in "abcd"])
    policy.touch(np.array([B, A]))
    policy.settle(np.array([A, C]), [True, True], tail_first=True)
    policy.pin(np.array([A, D]), hit=True)
    policy.unpin(np.array([A, D]))
    policy.remove(np.array([UNKNOWN, B]))
    assert order(policy) == "cad"
    found = [*policy.demote(np.array([C])), *policy.demoted_of(np.array([C]))]
    found += policy.peek(1).slots
    evicted = policy.evict(2)
    assert evicted == ([C, A], evicted.demoted if evicted else 0)
    assert {type(slot) for slot in [*found, *evicted.slots]} == {int}


class AnyPolicy(RuleBasedStateMachine):
    """Random calls: whatever its order, a policy holds each slot once, in the order or pinned."""

    some = st.lists(st.integers(0, CAPACITY - 1), max_size=6, unique=True)

    @initialize(name=st.sampled_from(sorted(POLICIES)))
    def begin(self, name: str) -> None:
        self.policy = make_policy(name, CAPACITY)
        self.ordered: set[int] = set()
        self.pinned: set[int] = set()

    @rule(some=some)
    def insert(self, some: list[int]) -> None:
        new = [slot for slot in some if slot not in self.ordered | self.pinned]
        insert(self.policy, new)
        self.ordered |= set(new)

    @rule(some=some)
    def touch(self, some: list[int]) -> None:
        self.policy.touch(some)

    @rule(some=some, reused=st.booleans(), tail_first=st.booleans())
    def settle(self, some: list[int], reused: bool, tail_first: bool) -> None:
        self.policy.settle(some, [reused] * len(some), tail_first=tail_first)

    @rule(some=some, first=st.booleans())
    def demote(self, some: list[int], first: bool) -> None:
        demoted = self.policy.demote(some, first=first)
        assert set(demoted) <= self.ordered | self.pinned
        assert self.policy.demoted_of(demoted) == demoted

    @rule(some=some, worth=st.integers(0, 3))
    def appraise(self, some: list[int], worth: int) -> None:
        for slot in some:
            self.policy.appraise(slot, worth)

    @rule(some=some, hit=st.booleans())
    def pin(self, some: list[int], hit: bool) -> None:
        known = [slot for slot in some if slot in self.ordered | self.pinned]
        self.policy.pin(known, hit=hit)
        self.ordered -= set(known)
        self.pinned |= set(known)

    @rule(some=some)
    def unpin(self, some: list[int]) -> None:
        self.policy.unpin(some)
        self.ordered |= self.pinned & set(some)
        self.pinned -= set(some)

    @rule(some=some)
    def remove(self, some: list[int]) -> None:
        self.policy.remove(some)
        self.ordered -= set(some)
        self.pinned -= set(some)

    @rule(n=st.integers(0, CAPACITY), protected=st.sets(st.sampled_from([A, B, C, D])))
    def evict(self, n: int, protected: set[int]) -> None:
        foreseen = self.policy.peek(n, protected)
        evicted = self.policy.evict(n, protected)
        if len(self.ordered - protected) < n:
            assert evicted is None
        else:
            assert evicted == foreseen
            self.ordered -= set(evicted.slots)

    @invariant()
    def each_slot_is_known_once(self) -> None:
        found = self.policy.peek(CAPACITY).slots
        assert len(found) == len(set(found)) == len(self.policy)
        assert set(found) == self.ordered
        assert {slot for slot in range(CAPACITY) if slot in self.policy} == self.ordered

    @invariant()
    def demoted_slots_go_first(self) -> None:
        found, demoted = self.policy.peek(CAPACITY)
        assert demoted == self.policy.demoted
        assert self.policy.demoted_of(found) == found[:demoted]
        assert self.policy.has_demoted == bool(self.policy.demoted_of(range(CAPACITY)))


TestAnyPolicy = AnyPolicy.TestCase
TestAnyPolicy.settings = settings(max_examples=50)
