# SPDX-License-Identifier: Apache-2.0
"""Eviction orders of the disk, each against a model in plain lists; S3-FIFO against its paper."""

import random
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core_helpers import key, names
from tests.tiers.nvme.policy_helpers import ByKey, by_key
from tiercache.blocks import Key
from tiercache.errors import ConfigError
from tiercache.ghosts import short_names
from tiercache.tiers.nvme.policy import DISK_POLICIES, S3FIFO, make_disk_policy

CAPACITY = 10
A, B, C, UNKNOWN = map(key, "abc?")


@pytest.fixture(params=DISK_POLICIES)
def policy(request: pytest.FixtureRequest) -> ByKey:
    """A policy that knows a, b and c, inserted in this order."""
    policy = by_key(request.param, CAPACITY)
    policy.insert([A, B, C])
    return policy


def order(policy: ByKey) -> str:
    return names(policy.victims(CAPACITY))


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"policy: 'arc' .* 'lru' or 'fifo' or 's3fifo'"):
        make_disk_policy("arc", CAPACITY)


def test_inserted_first_goes_first(policy: ByKey) -> None:
    assert order(policy) == "abc"
    assert len(policy) == 3
    assert A in policy
    assert UNKNOWN not in policy


def test_victims_are_shown_and_stay(policy: ByKey) -> None:
    assert names(policy.victims(2)) == "ab"
    assert names(policy.evict(2)) == "ab"
    assert order(policy) == "c"


def test_there_may_be_fewer(policy: ByKey) -> None:
    assert names(policy.victims(9, {B})) == "ac"
    assert names(policy.evict(9, {B})) == "ac"
    assert order(policy) == "b"
    assert policy.evict(0) == []


def test_held_keys_are_passed_over_and_keep_their_place(policy: ByKey) -> None:
    policy.demote([C])
    assert names(policy.evict(1, {A, C})) == "b"
    assert order(policy) == "ca"


def test_demoted_keys_go_first_in_the_order_of_their_demotion(policy: ByKey) -> None:
    policy.demote([C, UNKNOWN, B])
    policy.demote([B, C])
    assert order(policy) == "cba"
    assert len(policy) == 3
    assert C in policy


def test_a_touch_undoes_a_demotion(policy: ByKey) -> None:
    policy.demote([A, B])
    policy.touch([UNKNOWN, A])
    assert order(policy) == "bca"
    assert len(policy) == 3


def test_removed_keys_are_forgotten(policy: ByKey) -> None:
    policy.demote([B])
    policy.remove([A, B, UNKNOWN])
    assert order(policy) == "c"
    assert A not in policy
    assert B not in policy


@pytest.mark.parametrize(("name", "expected"), [("lru", "bca"), ("fifo", "abc"), ("s3fifo", "abc")])
def test_one_use(name: str, expected: str) -> None:
    policy = by_key(name, CAPACITY)
    policy.insert([A, B, C])
    policy.touch([A])
    assert order(policy) == expected


def test_keys_that_all_move_to_an_empty_main_queue_can_be_evicted() -> None:
    policy = by_key("s3fifo", 10 * CAPACITY)
    policy.insert([A, B])
    policy.touch([A, B] * 2)
    assert names(policy.evict(2)) == "ab"
    assert len(policy) == 0


def test_what_is_used_repeatedly_outlives_a_scan_in_s3fifo() -> None:
    policy = by_key("s3fifo", CAPACITY)
    policy.insert([A, B, C])
    policy.touch([A, B, A, B])
    for i in range(3 * CAPACITY):
        policy.evict(max(0, len(policy) + 1 - CAPACITY))
        policy.insert([key(str(i))])
    assert A in policy
    assert B in policy
    assert C not in policy


# --- the algorithm as it is published, and as nobody would run it


class Paper:
    """S3-FIFO by the letter, on lists, the oldest first; counts and queues of one cache."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small: list[Key] = []
        self.main: list[Key] = []
        self.ghosts: list[Key] = []
        self.uses: dict[Key, int] = {}

    def read(self, k: Key) -> bool:
        if k in self.small or k in self.main:
            self.uses[k] = min(self.uses[k] + 1, 3)
            return True
        while len(self.small) + len(self.main) >= self.capacity:
            self.evict()
        self.insert(k)
        return False

    def insert(self, k: Key) -> None:
        if k in self.ghosts:
            self.ghosts.remove(k)
            self.main.append(k)
        else:
            self.small.append(k)
        self.uses[k] = 0

    def evict(self) -> None:
        if len(self.small) >= 0.1 * self.capacity:
            self.evict_small()
        else:
            self.evict_main()

    def evict_small(self) -> None:
        while self.small:
            k = self.small.pop(0)
            if self.uses[k] > 1:
                self.main.append(k)
                self.uses[k] = 0
            else:
                self.bury(k)
                return

    def bury(self, k: Key) -> None:
        self.ghosts.append(k)
        if len(self.ghosts) > self.capacity * 9 // 10:
            self.ghosts.pop(0)

    def evict_main(self) -> None:
        while self.main:
            k = self.main.pop(0)
            if self.uses[k] == 0:
                return
            self.main.append(k)
            self.uses[k] -= 1


def play(capacity: int, trace: Sequence[Key]) -> int:
    """Read a trace through both and compare them after each step; returns how many hits."""
    inner, paper = S3FIFO(capacity), Paper(capacity)
    policy, hits = ByKey(inner), 0
    for k in trace:
        hit = k in policy
        if hit:
            policy.touch([k])
        else:
            policy.evict(max(0, len(policy) + 1 - capacity))
            policy.insert([k])
        assert hit == paper.read(k)
        assert policy.keys(chain.from_iterable(inner._small)) == paper.small
        assert policy.keys(chain.from_iterable(inner._main)) == paper.main
        ghosts = inner._ghosts._place_of.keys_in(chain.from_iterable(inner._ghosts._order))
        assert ghosts == short_names(paper.ghosts).tolist()
        assert all(inner._uses[slot] == paper.uses[k] for slot, k in policy.holder.items())
        hits += hit
    return hits


@given(st.integers(1, 25), st.lists(st.integers(0, 30), max_size=150))
def test_s3fifo_is_the_one_of_the_paper(capacity: int, trace: list[int]) -> None:
    play(capacity, [key(str(k)) for k in trace])


@pytest.mark.parametrize("capacity", [5, 10, 33, 100])
def test_s3fifo_is_the_one_of_the_paper_on_a_long_trace(capacity: int) -> None:
    """Skewed, so that keys move through all queues: the k-th key is read 1/k as often."""
    dice = random.Random(capacity)
    keys = [key(str(k)) for k in range(300)]
    trace = dice.choices(keys, [1 / (k + 1) for k in range(300)], k=5_000)
    assert 0 < play(capacity, trace) < len(trace)


# --- random calls against models


class Model:
    """FIFO and LRU on lists, the oldest first."""

    def __init__(self, *, moves: bool) -> None:
        self.moves = moves
        self.demoted: list[Key] = []
        self.live: list[Key] = []

    def known(self) -> list[Key]:
        return [*self.demoted, *self.live]

    def insert(self, k: Key) -> None:
        self.live.append(k)

    def touch(self, k: Key) -> None:
        if k in self.demoted or (self.moves and k in self.live):
            self.remove(k)
            self.live.append(k)

    def demote(self, k: Key) -> None:
        if k in self.live:
            self.remove(k)
            self.demoted.append(k)

    def remove(self, k: Key) -> None:
        for queue in (self.demoted, self.live):
            if k in queue:
                queue.remove(k)

    def evict(self, held: Collection[Key]) -> Key | None:
        victim = next((k for k in self.known() if k not in held), None)
        if victim is not None:
            self.remove(victim)
        return victim


class S3Model(Model):
    """The paper's queues with demotion and held keys."""

    def __init__(self, capacity: int) -> None:
        super().__init__(moves=False)
        self.paper = Paper(capacity)

    def known(self) -> list[Key]:
        return [*self.demoted, *self.paper.small, *self.paper.main]

    def insert(self, k: Key) -> None:
        self.paper.insert(k)

    def touch(self, k: Key) -> None:
        if k in self.demoted:
            self.demoted.remove(k)
            self.paper.main.append(k)
            self.paper.uses[k] = 0
        elif k in self.known():
            self.paper.uses[k] = min(self.paper.uses[k] + 1, 3)

    def demote(self, k: Key) -> None:
        if k in self.known() and k not in self.demoted:
            self.remove(k)
            self.demoted.append(k)

    def remove(self, k: Key) -> None:
        for queue in (self.demoted, self.paper.small, self.paper.main):
            if k in queue:
                queue.remove(k)

    def evict(self, held: Collection[Key]) -> Key | None:
        for k in self.demoted:
            if k not in held:
                self.demoted.remove(k)
                return k
        queues = [self.small, self.main]
        if len(self.paper.small) < 0.1 * self.paper.capacity:
            queues.reverse()
        return queues[0](held) or queues[1](held) or self.main(held)

    def small(self, held: Collection[Key]) -> Key | None:
        for k in [k for k in self.paper.small if k not in held]:
            self.paper.small.remove(k)
            if self.paper.uses[k] <= 1:
                self.paper.bury(k)
                return k
            self.paper.main.append(k)
            self.paper.uses[k] = 0
        return None

    def main(self, held: Collection[Key]) -> Key | None:
        while free := [k for k in self.paper.main if k not in held]:
            self.paper.main.remove(free[0])
            if self.paper.uses[free[0]] == 0:
                return free[0]
            self.paper.main.append(free[0])
            self.paper.uses[free[0]] -= 1
        return None


MODELS: dict[str, Callable[[int], Model]] = {
    "lru": lambda capacity: Model(moves=True),
    "fifo": lambda capacity: Model(moves=False),
    "s3fifo": S3Model,
}


class AgainstModel(RuleBasedStateMachine):
    some = st.lists(st.sampled_from(list(map(key, "abcdefghijkl"))), max_size=6, unique=True)
    held = st.sets(st.sampled_from(list(map(key, "abcdefghijkl"))), max_size=6)

    @initialize(name=st.sampled_from(DISK_POLICIES), capacity=st.sampled_from([10, 30, 50]))
    def begin(self, name: str, capacity: int) -> None:
        self.policy = by_key(name, capacity)
        self.model = MODELS[name](capacity)

    @rule(some=some)
    def insert(self, some: list[Key]) -> None:
        new = [k for k in some if k not in self.model.known()][: len(self.policy.free)]
        self.policy.insert(new)
        for k in new:
            self.model.insert(k)

    @rule(some=some, times=st.integers(1, 4))
    def touch(self, some: list[Key], times: int) -> None:
        self.policy.touch(some * times)
        for k in some * times:
            self.model.touch(k)

    @rule(some=some)
    def demote(self, some: list[Key]) -> None:
        self.policy.demote(some)
        for k in some:
            self.model.demote(k)

    @rule(some=some)
    def remove(self, some: list[Key]) -> None:
        self.policy.remove(some)
        for k in some:
            self.model.remove(k)

    @rule(n=st.integers(0, 6), held=held)
    def evict(self, n: int, held: set[Key]) -> None:
        shown = self.policy.victims(n, held)
        victims = [victim for _ in range(n) if (victim := self.model.evict(held))]
        assert self.policy.evict(n, held) == victims == shown

    @invariant()
    def same_order(self) -> None:
        model = deepcopy(self.model)
        everything = [k for _ in range(len(model.known())) if (k := model.evict(()))]
        assert self.policy.victims(99) == everything
        assert len(self.policy) == len(everything)
        assert all(k in self.policy for k in everything)


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=150)
