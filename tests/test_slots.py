# SPDX-License-Identifier: Apache-2.0
"""The slots of one group: their states, and what moves between them."""

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core_helpers import full, key
from tiercache.blocks import Key
from tiercache.errors import InvariantError
from tiercache.policies import POLICIES, make_policy
from tiercache.slots import Evicted, Presence, SlotCounts, SlotPool

CAPACITY = 4
A, B, C, D, E = map(key, "abcde")


def make_pool(policy: str = "lru") -> SlotPool:
    return SlotPool(full(3), CAPACITY, make_policy(policy, CAPACITY))


@pytest.fixture
def pool() -> SlotPool:
    return make_pool()


def store(pool: SlotPool, *keys: Key) -> list[int]:
    slots, _ = pool.reserve(keys)
    pool.commit(keys)
    return slots


def pin(pool: SlotPool, keys: list[Key], *, hit: bool) -> None:
    pool.pin(pool.locate(keys), hit=hit)


def test_slots_are_given_out_once_from_the_first(pool: SlotPool) -> None:
    assert pool.reserve([A, B]) == ([0, 1], Evicted([], 0))
    assert pool.reserve([C]) == ([2], Evicted([], 0))


def test_a_key_is_missing_then_storing_then_ready(pool: SlotPool) -> None:
    seen = [pool.state(A)]
    pool.reserve([A])
    seen.append(pool.state(A))
    pool.commit([A])
    seen.append(pool.state(A))
    assert seen == [Presence.MISSING, Presence.STORING, Presence.READY]


def test_missing_keys_are_those_without_a_slot_in_their_order(pool: SlotPool) -> None:
    store(pool, A)
    pool.reserve([C])
    assert pool.missing([D, C, B, A]) == [D, B]


def test_commit_returns_what_was_storing(pool: SlotPool) -> None:
    store(pool, A)
    pool.reserve([B])
    assert pool.commit([A, B, C]) == [B]


def test_a_set_comes_back_in_the_order_in_which_a_prefix_shrinks(pool: SlotPool) -> None:
    prefix = [D, A, C, B]
    store(pool, *prefix)
    pin(pool, prefix, hit=True)
    pool.unpin(set(prefix))
    assert pool.next_victims(CAPACITY).keys == prefix[::-1]


@pytest.mark.parametrize("others", [0, 3])
def test_a_set_of_keys_can_be_committed(pool: SlotPool, others: int) -> None:
    pool.reserve([A])
    pool.reserve([B, C, D][:others])
    assert pool.commit({A}) == [A]


def test_a_set_is_committed_in_the_order_of_its_reservation(pool: SlotPool) -> None:
    reserved = [D, A, C, B]
    pool.reserve(reserved)
    assert pool.commit(set(reserved)) == reserved


def test_fail_frees_what_was_storing(pool: SlotPool) -> None:
    store(pool, A)
    pool.reserve([B])
    assert pool.fail([A, B, C]) == [B]
    assert pool.state(B) is Presence.MISSING
    assert pool.reserve([C])[0] == [1]


def test_a_full_pool_evicts_by_policy_and_reuses_the_slots(pool: SlotPool) -> None:
    store(pool, A, B, C, D)
    slots, evicted = pool.reserve([E])
    assert (slots, evicted) == ([0], Evicted([A], 0))
    assert pool.state(A) is Presence.MISSING


def test_free_slots_are_used_before_anything_is_evicted(pool: SlotPool) -> None:
    store(pool, A, B, C)
    assert pool.reserve([D, E])[1].keys == [A]


def test_storing_pinned_and_protected_keys_are_not_evicted(pool: SlotPool) -> None:
    store(pool, A, B, C)
    pool.reserve([D])
    pin(pool, [A], hit=False)
    assert pool.reserve([E], protected={B})[1].keys == [C]


def test_what_fits_are_free_slots_and_what_can_be_evicted(pool: SlotPool) -> None:
    store(pool, A, B)
    pool.reserve([C])
    assert pool.fits(3)
    assert not pool.fits(4)
    assert not pool.fits(3, [A, C, D])
    pin(pool, [B], hit=False)
    assert not pool.fits(2, [A, B])


@pytest.mark.parametrize(("n", "expected"), [(1, True), (2, True), (3, False)])
def test_what_fits_needs_no_protected_key_gone(pool: SlotPool, n: int, expected: bool) -> None:
    store(pool, A, B)
    pool.reserve([C])
    assert pool.fits(n, [B]) is expected


def test_more_than_there_is_room_for_is_a_fault_that_changes_nothing(pool: SlotPool) -> None:
    store(pool, A, B, C, D)
    pin(pool, [A], hit=False)
    with pytest.raises(InvariantError, match="group 3 cannot evict 4 keys"):
        pool.reserve([E, *map(key, "xyz")])
    assert pool.counts() == SlotCounts(free=0, storing=0, live=3, demoted=0, pinned=1)


@pytest.mark.parametrize("order", list(permutations([A, B, C, D])))
def test_slots_are_located_in_the_order_of_the_keys(pool: SlotPool, order: list[Key]) -> None:
    store(pool, C, A, D, B)
    assert pool.locate(list(order)).tolist() == [pool.ready[k] for k in order]


def test_nothing_is_located_nowhere(pool: SlotPool) -> None:
    assert pool.locate([]).tolist() == []


@pytest.mark.parametrize("absent", [C, E])
def test_a_key_that_is_not_ready_cannot_be_located(pool: SlotPool, absent: Key) -> None:
    store(pool, A)
    pool.reserve([C])
    with pytest.raises(KeyError):
        pool.locate([A, absent])


def test_pins_nest(pool: SlotPool) -> None:
    store(pool, A, B)
    for _ in range(3):
        pin(pool, [A], hit=True)
    pool.unpin([A])
    assert pool.pins == 2
    assert not pool.fits(4)
    pool.unpin([A])
    pool.unpin([A])
    assert pool.pins == 0
    assert pool.fits(4)


def test_unpin_ignores_keys_that_are_not_pinned(pool: SlotPool) -> None:
    store(pool, A, B)
    pin(pool, [A], hit=True)
    pool.unpin([B, E])
    assert pool.pins == 1


def test_a_key_given_twice_is_committed_once(pool: SlotPool) -> None:
    pool.reserve([A])
    assert pool.commit([A, A]) == [A]


def test_a_set_of_keys_can_be_unpinned(pool: SlotPool) -> None:
    store(pool, A, B, C)
    pin(pool, [A, B, C], hit=True)
    pin(pool, [B], hit=True)
    pool.unpin({A, B, C})
    assert pool.pins == 1


def test_counts_add_up(pool: SlotPool) -> None:
    store(pool, A, B)
    pool.reserve([C])
    pool.demote([A])
    assert pool.counts() == SlotCounts(free=1, storing=1, live=1, demoted=1, pinned=0)


def test_a_demoted_slot_that_is_pinned_counts_as_pinned(pool: SlotPool) -> None:
    store(pool, A)
    pool.demote([A])
    pin(pool, [A], hit=False)
    assert pool.counts() == SlotCounts(free=3, storing=0, live=0, demoted=0, pinned=1)


def test_spare_is_what_can_be_stored_before_a_live_entry_goes(pool: SlotPool) -> None:
    store(pool, A, B, C)
    pool.demote([B])
    assert pool.counts().spare == 2


def test_clear_drops_everything(pool: SlotPool) -> None:
    store(pool, A, B)
    pool.reserve([C])
    pin(pool, [A], hit=True)
    pin(pool, [A], hit=True)
    pool.clear()
    assert pool.counts() == SlotCounts(free=CAPACITY, storing=0, live=0, demoted=0, pinned=0)
    assert pool.pins == 0
    assert pool.reserve([D])[0] == [0]
    pool.validate()


def test_what_was_pinned_for_a_copy_comes_back_where_it_was(pool: SlotPool) -> None:
    store(pool, A, B, C)
    pin(pool, [A, B], hit=False)
    pin(pool, [B], hit=False)
    pool.unpin([B, A], hit=False)
    assert pool.pins == 1
    assert pool.next_victims(4).keys == [A, C]
    pool.unpin([B], hit=False)
    assert pool.next_victims(4).keys == [A, B, C]


def test_foreign_slots_stay_out_of_use_until_they_are_given_back(pool: SlotPool) -> None:
    store(pool, A, B, C)
    pool.clear(foreign=[1])
    pool.clear(foreign=[2])
    assert pool.counts() == SlotCounts(free=2, storing=2, live=0, demoted=0, pinned=0)
    assert pool.free == 2
    assert not pool.fits(3)
    assert store(pool, D, E) == [0, 3]
    pool.validate()
    pool.give_back([1, 0])
    assert pool.free == 1
    assert store(pool, A) == [1]
    pool.give_back([1, 2])
    assert store(pool, B) == [2]
    pool.validate()


class Slots(RuleBasedStateMachine):
    """Random calls against dicts: no slot is lost or held twice, no key that is held is evicted."""

    some = st.lists(st.sampled_from(list(map(key, "abcdefg"))), max_size=5, unique=True)
    slots = st.sets(st.integers(0, CAPACITY - 1), max_size=2)

    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def begin(self, policy: str) -> None:
        self.pool = make_pool(policy)
        self.ready: dict[Key, int] = {}
        self.storing: dict[Key, int] = {}
        self.foreign: set[int] = set()
        self.pins: Counter[Key] = Counter()

    def free(self) -> set[int]:
        taken = {*self.ready.values(), *self.storing.values(), *self.foreign}
        return set(range(CAPACITY)) - taken

    @rule(some=some, protected=st.sets(st.sampled_from([A, B, C])))
    def reserve(self, some: list[Key], protected: set[Key]) -> None:
        missing = self.pool.missing(some)
        assert missing == [k for k in some if k not in self.ready and k not in self.storing]
        free, evictable = self.free(), self.ready.keys() - protected - (+self.pins).keys()
        fits = len(missing) <= len(free) + len(evictable)
        assert self.pool.fits(len(missing), protected) == fits
        if not fits:
            return
        slots, evicted = self.pool.reserve(missing, protected)
        assert len(evicted.keys) == max(0, len(missing) - len(free))
        assert set(evicted.keys) <= evictable
        free |= {self.ready.pop(k) for k in evicted.keys}
        assert set(slots) <= free
        self.storing.update(zip(missing, slots, strict=True))

    @rule(some=some, as_set=st.booleans())
    def commit(self, some: list[Key], as_set: bool) -> None:
        stored = {k: self.storing.pop(k) for k in some if k in self.storing}
        assert set(self.pool.commit(set(some) if as_set else some)) == stored.keys()
        self.ready |= stored

    @rule(some=some)
    def fail(self, some: list[Key]) -> None:
        failed = {k: self.storing.pop(k) for k in some if k in self.storing}
        assert set(self.pool.fail(some)) == failed.keys()

    @rule(some=some, hit=st.booleans())
    def pin(self, some: list[Key], hit: bool) -> None:
        known = [k for k in some if k in self.ready]
        assert self.pool.locate(known).tolist() == [self.ready[k] for k in known]
        pin(self.pool, known, hit=hit)
        self.pins.update(known)

    @rule(some=some, as_set=st.booleans(), hit=st.booleans())
    def unpin(self, some: list[Key], as_set: bool, hit: bool) -> None:
        self.pool.unpin(set(some) if as_set else some, hit=hit)
        self.pins.subtract(k for k in some if self.pins[k])

    @rule(some=some)
    def demote(self, some: list[Key]) -> None:
        self.pool.demote(some)

    @rule(foreign=slots, dice=st.integers(1, 4))
    def clear(self, foreign: set[int], dice: int) -> None:
        if dice == 1:
            self.pool.clear(foreign)
            self.foreign |= foreign
            for table in (self.ready, self.storing, self.pins):
                table.clear()

    @rule(slots=slots)
    def give_back(self, slots: set[int]) -> None:
        self.pool.give_back(slots)
        self.foreign -= slots

    @invariant()
    def is_what_the_model_says(self) -> None:
        self.pool.validate()
        assert dict(self.pool.ready) == self.ready
        assert self.pool.storing == self.storing
        assert self.pool.free == len(self.free())
        assert self.pool.pins == self.pins.total()
        assert set(self.pool.pinned()) == (+self.pins).keys()


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=50)
