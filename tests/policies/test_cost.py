# SPDX-License-Identifier: Apache-2.0
"""The cost policy: worth and age decide; a model keeps no queues."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.policies.helpers import A, B, C, D, E, insert, names
from tiercache.blocks import GroupKind
from tiercache.policies import Victims, make_policy
from tiercache.policies.cost import FRESH_S, VICTIM_S, Cost, checkpoint_worth, grade
from tiercache.policies.lru import LRU

CAPACITY = 8


@pytest.fixture
def cost() -> Cost:
    """A policy that knows a, b and c, worth 30, 10 and 20."""
    cost = Cost(CAPACITY)
    insert(cost, [A, B, C])
    for known, worth in ((A, 30), (B, 10), (C, 20)):
        cost.appraise(known, worth)
    return cost


def order(cost: Cost) -> str:
    return names(cost.peek(CAPACITY).slots)


def evicted(cost: Cost, n: int) -> str:
    victims = cost.evict(n)
    assert victims is not None
    return names(victims.slots)


def test_the_least_worth_goes_first(cost: Cost) -> None:
    assert order(cost) == "bca"


def test_a_slot_that_was_not_appraised_is_worth_nothing(cost: Cost) -> None:
    insert(cost, [D])
    assert order(cost) == "dbca"


def test_unknown_slots_are_not_appraised(cost: Cost) -> None:
    cost.appraise(D, 1)
    insert(cost, [D])
    cost.appraise(A, 0.5)
    assert order(cost) == "dabc"


def test_what_is_idle_falls_behind(cost: Cost) -> None:
    cost.tell(100)
    insert(cost, [D, E])
    cost.appraise(D, 9)
    cost.appraise(E, 3)
    assert order(cost) == "becad"


def test_idle_for_twice_as_long_is_worth_half(cost: Cost) -> None:
    cost.tell(FRESH_S)
    insert(cost, [D, E])
    cost.appraise(D, 12)
    cost.appraise(E, 17)
    assert order(cost) == "bcdae"


def test_use_makes_up_for_age(cost: Cost) -> None:
    cost.tell(100)
    cost.touch([C])
    assert order(cost) == "bac"
    cost.touch([A])
    assert order(cost) == "bca"


def test_a_new_worth_is_no_use(cost: Cost) -> None:
    cost.tell(100)
    insert(cost, [D])
    cost.appraise(A, 32)
    cost.appraise(D, 7)
    assert order(cost) == "bcad"


def test_time_does_not_go_back(cost: Cost) -> None:
    cost.tell(100)
    cost.touch([C])
    cost.tell(0)
    cost.touch([B])
    assert order(cost) == "abc"


def test_without_times_victims_make_what_is_idle_fall_behind(cost: Cost) -> None:
    for _ in range(500):
        insert(cost, [D])
        assert evicted(cost, 1) == "d"
    insert(cost, [D])
    cost.appraise(D, 4)
    assert order(cost) == "bcad"


def test_worths_of_one_grade_go_by_age(cost: Cost) -> None:
    cost.tell(1)
    insert(cost, [D, E])
    cost.appraise(D, 20.5)
    cost.appraise(E, 19.5)
    assert order(cost) == "bcdea"


@pytest.mark.parametrize("worth", [0.08, 1, 3, 1_632, 505_001, 1e9])
def test_grades(worth: float) -> None:
    assert worth / 2**0.25 < grade(worth) <= worth
    assert grade(grade(worth) * 1.001) == grade(worth)


def test_demoted_slots_go_first_and_age_the_others(cost: Cost) -> None:
    assert cost.demote([A, B]) == [A, B]
    assert order(cost) == "abc"
    before = cost.time
    assert cost.evict(1) == Victims([A], 1)
    assert cost.time == before + VICTIM_S


def test_a_demoted_slot_comes_back_for_what_it_is_worth_now(cost: Cost) -> None:
    cost.demote([B])
    cost.appraise(B, 25)
    assert order(cost) == "bca"
    cost.touch([B])
    assert order(cost) == "cba"


def test_a_pinned_slot_is_appraised_and_comes_back_where_it_belongs(cost: Cost) -> None:
    cost.pin([A, B], hit=False)
    cost.appraise(A, 5)
    assert order(cost) == "c"
    cost.unpin([A, B])
    assert order(cost) == "abc"


def test_what_is_worth_nothing_goes_by_age_whenever_it_was_queued() -> None:
    cost = Cost(CAPACITY)
    insert(cost, [A])
    cost.tell(1)
    insert(cost, [B])
    cost.pin([A], hit=False)
    cost.unpin([A])
    assert order(cost) == "ab"


@pytest.mark.parametrize(("hit", "expected"), [(True, "bca"), (False, "bac")])
def test_only_a_load_is_a_use(cost: Cost, hit: bool, expected: str) -> None:
    cost.pin([A], hit=hit)
    cost.tell(100)
    cost.touch([C])
    cost.unpin([A])
    assert order(cost) == expected


def test_nothing_is_left_of_what_was(cost: Cost) -> None:
    for worth in range(100):
        cost.tell(worth)
        cost.appraise(A, worth)
        cost.touch([A, B, C])
    assert sum(map(len, cost._queues.values())) == 3
    cost.pin([A], hit=True)
    cost.demote([B])
    assert sum(map(len, cost._queues.values())) == 1
    cost.remove([A, B, C])
    assert not cost._queues


def test_blocks_go_by_recency() -> None:
    assert type(make_policy("cost", CAPACITY, GroupKind.STATE)) is Cost
    assert type(make_policy("cost", CAPACITY, GroupKind.FULL)) is LRU
    assert type(make_policy("cost", CAPACITY, GroupKind.WINDOW)) is LRU


class Model(RuleBasedStateMachine):
    """Random calls against dictionaries that are sorted whenever an order is asked for."""

    one = st.integers(0, CAPACITY - 1)

    def __init__(self) -> None:
        super().__init__()
        self.cost = Cost(CAPACITY)
        self.now = 0.0
        self.told = 0.0
        self.used: dict[int, float] = {}
        self.worth: dict[int, int] = {}
        self.turn: dict[int, int] = {}
        self.demoted: list[int] = []
        self.pinned: dict[int, bool] = {}
        self.turns = 0

    def place(self, one: int, *, used: bool) -> None:
        if used:
            self.used[one] = self.now
        self.turns += 1
        self.turn[one] = self.turns

    def value(self, one: int) -> float:
        return grade(self.worth[one]) / (self.now - self.used[one] + FRESH_S)

    def expected(self) -> list[int]:
        live = [slot for slot in self.used if slot not in self.demoted]
        live.sort(key=lambda slot: (self.value(slot), self.used[slot], self.turn[slot]))
        return [slot for slot in [*self.demoted, *live] if slot not in self.pinned]

    def forget(self, one: int) -> None:
        for table in (self.used, self.worth, self.turn, self.pinned):
            table.pop(one, None)
        if one in self.demoted:
            self.demoted.remove(one)

    @rule(seconds=st.integers(-5, 40))
    def tell(self, seconds: int) -> None:
        self.cost.tell(self.told + seconds)
        self.told += max(seconds, 0)
        self.now += max(seconds, 0)

    @rule(one=one)
    def insert(self, one: int) -> None:
        if one not in self.used:
            insert(self.cost, [one])
            self.worth[one] = 0
            self.place(one, used=True)

    @rule(one=one)
    def touch(self, one: int) -> None:
        self.cost.touch([one])
        if one in self.used:
            self.place(one, used=True)
            if one in self.demoted:
                self.demoted.remove(one)

    @rule(one=one, worth=st.integers(0, 9))
    def appraise(self, one: int, worth: int) -> None:
        self.cost.appraise(one, worth)
        if one in self.used and self.worth[one] != worth:
            kept = grade(self.worth[one]) == grade(worth)
            self.worth[one] = worth
            if not kept:
                self.place(one, used=False)

    @rule(one=one, first=st.booleans())
    def demote(self, one: int, first: bool) -> None:
        self.cost.demote([one], first=first)
        if one in self.used and (first or one not in self.demoted):
            self.demoted = [slot for slot in self.demoted if slot != one]
            self.demoted.insert(0 if first else len(self.demoted), one)

    @rule(one=one, hit=st.booleans())
    def pin(self, one: int, hit: bool) -> None:
        if one in self.used:
            self.cost.pin([one], hit=hit)
            self.pinned[one] = hit or self.pinned.get(one, False)
            if hit and one in self.demoted:
                self.demoted.remove(one)

    @rule(one=one)
    def unpin(self, one: int) -> None:
        self.cost.unpin([one])
        if one in self.pinned:
            used = self.pinned.pop(one) and one not in self.demoted
            self.place(one, used=used)

    @rule(one=one)
    def remove(self, one: int) -> None:
        self.cost.remove([one])
        self.forget(one)

    @rule(n=st.integers(0, 3), protected=st.sets(one, max_size=3))
    def evict(self, n: int, protected: set[int]) -> None:
        victims = [slot for slot in self.expected() if slot not in protected][:n]
        evicted = self.cost.evict(n, protected)
        if len(victims) < n:
            assert evicted is None
            return
        assert evicted is not None
        assert evicted.slots == victims
        self.now += VICTIM_S * n
        for victim in victims:
            self.forget(victim)

    @invariant()
    def the_order_is_that_of_the_model(self) -> None:
        assert self.cost.peek(CAPACITY).slots == self.expected()
        assert self.cost.time == self.now
        assert self.cost.demoted == sum(slot not in self.pinned for slot in self.demoted)
        assert self.cost.demoted_of(range(CAPACITY)) == sorted(self.demoted)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60)


def test_worth_of_checkpoints() -> None:
    newest, superseded, fork = (checkpoint_worth(1_000, children) for children in range(3))
    assert newest == 1_000
    assert 0 < superseded <= 20
    assert fork == superseded + newest
