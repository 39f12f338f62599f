# SPDX-License-Identifier: Apache-2.0
"""What every eviction policy promises: `tiercache.policies.base.Policy`.

Keys of equal worth go by recency, whatever else decides.
"""

from string import ascii_lowercase

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core_helpers import key, names
from tiercache.blocks import Key
from tiercache.errors import ConfigError
from tiercache.policies import POLICIES, Policy, make_policy

CAPACITY = 8
A, B, C, D, UNKNOWN = map(key, "abcd?")


@pytest.fixture(params=sorted(POLICIES))
def policy(request: pytest.FixtureRequest) -> Policy:
    """A policy that knows a, b and c, inserted in this order."""
    policy = make_policy(request.param, CAPACITY)
    policy.insert([A, B, C])
    return policy


def order(policy: Policy) -> str:
    return names(policy.peek(CAPACITY).keys)


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


def test_touch_ignores_unknown_keys(policy: Policy) -> None:
    policy.touch([UNKNOWN, A])
    assert order(policy) == "bca"
    assert UNKNOWN not in policy


def test_peek_shows_the_next_victims_and_changes_nothing(policy: Policy) -> None:
    assert names(policy.peek(2).keys) == "ab"
    evicted = policy.evict(3)
    assert evicted is not None
    assert names(evicted.keys) == "abc"


def test_peek_shows_fewer_if_there_are_no_more(policy: Policy) -> None:
    assert names(policy.peek(4, {B}).keys) == "ac"


def test_evicted_keys_are_gone(policy: Policy) -> None:
    policy.evict(2)
    assert order(policy) == "c"
    assert len(policy) == 1
    assert A not in policy


def test_evicting_nothing_changes_nothing(policy: Policy) -> None:
    assert policy.evict(0) == ([], 0)
    assert order(policy) == "abc"


@pytest.mark.parametrize(("n", "protected"), [(4, set()), (3, {B}), (1, {A, B, C})])
def test_eviction_is_all_or_nothing(policy: Policy, n: int, protected: set[Key]) -> None:
    assert policy.evict(n, protected) is None
    assert order(policy) == "abc"


def test_protected_keys_are_passed_over_and_keep_their_place(policy: Policy) -> None:
    evicted = policy.evict(1, {A})
    assert evicted is not None
    assert names(evicted.keys) == "b"
    assert order(policy) == "ac"


def test_pinned_keys_are_out_of_the_order(policy: Policy) -> None:
    policy.pin([A, C], hit=False)
    assert order(policy) == "b"
    assert len(policy) == 1
    assert A not in policy
    assert set(policy.pinned) == {A, C}
    assert policy.evict(2) is None


def test_unpinned_hits_are_the_most_recent(policy: Policy) -> None:
    policy.pin([B, A], hit=True)
    policy.unpin([B, A])
    assert order(policy) == "cba"
    assert not policy.pinned


def test_pins_are_not_counted(policy: Policy) -> None:
    policy.pin([A], hit=True)
    policy.pin([A], hit=False)
    policy.unpin([A])
    assert A in policy


def test_unpin_ignores_keys_that_are_not_pinned(policy: Policy) -> None:
    policy.unpin([A, UNKNOWN])
    assert order(policy) == "abc"


def test_remove_forgets_keys_in_the_order_and_pinned_ones(policy: Policy) -> None:
    policy.pin([B], hit=False)
    policy.remove([A, B, UNKNOWN])
    assert order(policy) == "c"
    assert not policy.pinned


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize(("tail_first", "expected"), [(True, "cba"), (False, "abc")])
def test_settle_orders_a_request(
    policy: Policy, reused: bool, tail_first: bool, expected: str
) -> None:
    policy.touch([C, A, B])
    policy.settle(dict.fromkeys([A, B, C], reused), tail_first=tail_first)
    assert order(policy) == expected


def test_settle_ignores_unknown_keys(policy: Policy) -> None:
    policy.settle({UNKNOWN: False, A: True}, tail_first=True)
    assert order(policy) == "bca"


class AnyPolicy(RuleBasedStateMachine):
    """Random calls: whatever its order, a policy holds each key once, in the order or pinned."""

    some = st.lists(st.sampled_from([key(name) for name in ascii_lowercase[:CAPACITY]]), max_size=6)

    @initialize(name=st.sampled_from(sorted(POLICIES)))
    def begin(self, name: str) -> None:
        self.policy = make_policy(name, CAPACITY)
        self.ordered: set[Key] = set()
        self.pinned: set[Key] = set()

    @rule(some=some)
    def insert(self, some: list[Key]) -> None:
        new = set(some) - self.ordered - self.pinned
        self.policy.insert(new)
        self.ordered |= new

    @rule(some=some)
    def touch(self, some: list[Key]) -> None:
        self.policy.touch(some)

    @rule(some=some, reused=st.booleans(), tail_first=st.booleans())
    def settle(self, some: list[Key], reused: bool, tail_first: bool) -> None:
        self.policy.settle(dict.fromkeys(some, reused), tail_first=tail_first)

    @rule(some=some, first=st.booleans())
    def demote(self, some: list[Key], first: bool) -> None:
        demoted = self.policy.demote(some, first=first)
        assert set(demoted) <= self.ordered | self.pinned
        assert all(map(self.policy.is_demoted, demoted))

    @rule(some=some, worth=st.integers(0, 3))
    def appraise(self, some: list[Key], worth: int) -> None:
        for one in some:
            self.policy.appraise(one, worth)

    @rule(some=some, hit=st.booleans())
    def pin(self, some: list[Key], hit: bool) -> None:
        known = set(some) & (self.ordered | self.pinned)
        self.policy.pin(known, hit=hit)
        self.ordered -= known
        self.pinned |= known

    @rule(some=some)
    def unpin(self, some: list[Key]) -> None:
        self.policy.unpin(set(some))
        self.ordered |= self.pinned & set(some)
        self.pinned -= set(some)

    @rule(some=some)
    def remove(self, some: list[Key]) -> None:
        self.policy.remove(some)
        self.ordered -= set(some)
        self.pinned -= set(some)

    @rule(n=st.integers(0, CAPACITY), protected=st.sets(st.sampled_from([A, B, C, D])))
    def evict(self, n: int, protected: set[Key]) -> None:
        foreseen = self.policy.peek(n, protected)
        evicted = self.policy.evict(n, protected)
        if len(self.ordered - protected) < n:
            assert evicted is None
        else:
            assert evicted == foreseen
            self.ordered -= set(evicted.keys)

    @invariant()
    def each_key_is_known_once(self) -> None:
        found = self.policy.peek(CAPACITY).keys
        assert len(found) == len(set(found)) == len(self.policy)
        assert set(found) == self.ordered
        assert set(self.policy.pinned) == self.pinned
        assert all(k in self.policy for k in found)
        assert not any(k in self.policy for k in self.pinned)

    @invariant()
    def demoted_keys_go_first(self) -> None:
        found, demoted = self.policy.peek(CAPACITY)
        assert demoted == self.policy.demoted
        assert all(self.policy.is_demoted(k) == (i < demoted) for i, k in enumerate(found))


TestAnyPolicy = AnyPolicy.TestCase
TestAnyPolicy.settings = settings(max_examples=50)
