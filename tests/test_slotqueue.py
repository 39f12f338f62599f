# SPDX-License-Identifier: Apache-2.0
"""The order of slots behind LRU: random calls against a list, and how long its log gets."""

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tiercache import slotqueue
from tiercache.slotqueue import SlotQueue, Slots

CAPACITY = 24
FEW = 4


def order(slots: SlotQueue) -> list[int]:
    return [slot for some in slots for slot in some.tolist()]


def check_parts(slots: SlotQueue) -> None:
    """Parts lie in order and are not too long, and the log is not much longer than the queue."""
    parts, limit = slots._parts, slotqueue.PART
    assert all(part.end <= following.start for part, following in pairwise(parts))
    assert all(len(part.slots) <= limit for part in parts)
    assert sum(len(part.slots) for part in parts) == slots._written
    assert slots._written <= 3 * len(slots) + 4 * limit
    assert len(parts) <= 8 * len(slots) / limit + 12


class AgainstList(RuleBasedStateMachine):
    """A list holds the order; with parts of few slots, there are many of them."""

    lists = st.lists(st.integers(0, CAPACITY - 1), max_size=CAPACITY, unique=True)
    some = lists.map(lambda slots: np.array(slots, np.int64))

    @initialize(part=st.sampled_from([1, FEW, CAPACITY]))
    def begin(self, part: int) -> None:
        self.patch = mock.patch.object(slotqueue, "PART", part)
        self.patch.start()
        self.queue, self.model = SlotQueue(CAPACITY), list[int]()

    def teardown(self) -> None:
        self.patch.stop()

    def without(self, some: Slots) -> list[int]:
        return [slot for slot in self.model if slot not in some]

    @rule(some=some)
    def put_last(self, some: Slots) -> None:
        self.queue.put_last(some)
        self.model = self.without(some) + some.tolist()

    @rule(some=some)
    def put_first(self, some: Slots) -> None:
        self.queue.put_first(some)
        self.model = some.tolist() + self.without(some)

    @rule(some=some)
    def remove(self, some: Slots) -> None:
        self.queue.remove(some)
        self.model = self.without(some)

    @rule(some=some)
    def put_last_one_by_one(self, some: Slots) -> None:
        for slot in some:
            self.put_last(np.array([slot]))
            check_parts(self.queue)

    @rule(some=some)
    def put_first_one_by_one(self, some: Slots) -> None:
        for slot in some:
            self.put_first(np.array([slot]))
            check_parts(self.queue)

    @rule(n=st.integers(0, CAPACITY))
    def remove_the_first(self, n: int) -> None:
        self.remove(np.array(self.model[:n], np.int64))

    @rule()
    def see_the_order(self) -> None:
        """Not after each call: to look at it drops parts."""
        assert order(self.queue) == self.model

    @rule(n=st.integers(1, CAPACITY))
    def see_the_first(self, n: int) -> None:
        found: list[int] = []
        for some in self.queue:
            found += some.tolist()
            if len(found) >= n:
                break
        assert found[:n] == self.model[:n]

    @invariant()
    def it_holds_the_same(self) -> None:
        held = self.queue.holds(np.arange(CAPACITY))
        assert np.flatnonzero(held).tolist() == sorted(self.model)
        assert len(self.queue) == len(self.model)
        places = self.queue._place[np.array(self.model, np.int64)]
        assert np.all(np.diff(places) > 0)

    @invariant()
    def its_parts_are_in_order(self) -> None:
        check_parts(self.queue)


TestAgainstList = AgainstList.TestCase
TestAgainstList.settings = settings(max_examples=100)


def filled(size: int) -> SlotQueue:
    slots = SlotQueue(size)
    slots.put_last(np.arange(size))
    return slots


@pytest.mark.parametrize("size", [0, 1, slotqueue.PART - 1, slotqueue.PART, slotqueue.PART + 1])
def test_sizes_around_that_of_a_part(size: int) -> None:
    slots = filled(size)
    slots.put_first(np.arange(size // 2))
    slots.put_last(np.arange(size // 2))
    assert order(slots) == [*range(size // 2, size), *range(size // 2)]
    slots.remove(np.arange(size))
    assert order(slots) == []


def runs(random: np.random.Generator, size: int) -> Iterator[Slots]:
    """A million slots, up to 30,000 at once, at random or next to each other."""
    left = 1_000_000
    while left > 0:
        n = min(int(random.integers(1, 30_000)), size)
        first = random.integers(0, size - n + 1)
        yield random.permutation(size)[:n] if n % 2 else np.arange(first, first + n)
        left -= n


@pytest.mark.parametrize("size", [100, 5_000, 100_000])
@pytest.mark.parametrize("move", [SlotQueue.put_last, SlotQueue.put_first])
def test_the_log_stays_short(size: int, move: Callable[[SlotQueue, Slots], None]) -> None:
    slots, random = filled(size), np.random.default_rng(7)
    for some in runs(random, size) if size > 100 else np.full((10_000, 1), 7):
        move(slots, some)
        check_parts(slots)
    assert sorted(order(slots)) == list(range(size))


@pytest.mark.parametrize("move", [SlotQueue.put_last, SlotQueue.put_first])
def test_slots_that_are_moved_one_by_one_share_parts(
    move: Callable[[SlotQueue, Slots], None],
) -> None:
    slots = SlotQueue(10 * slotqueue.PART)
    for slot in range(10 * slotqueue.PART):
        move(slots, np.array([slot]))
    assert len(slots._parts) <= 11
    for slot in np.random.default_rng(7).integers(0, 10 * slotqueue.PART, 20_000):
        move(slots, np.array([slot]))
    check_parts(slots)


def test_what_is_left_of_many_parts_shares_some() -> None:
    slots = filled(100 * slotqueue.PART)
    left = np.arange(0, 100 * slotqueue.PART, slotqueue.PART)
    slots.remove(np.setdiff1d(np.arange(100 * slotqueue.PART), left))
    assert order(slots) == left.tolist()
    check_parts(slots)


def test_what_went_from_behind_the_first_is_looked_at_once() -> None:
    """As eviction leaves it behind pinned slots."""
    slots = filled(100 * slotqueue.PART)
    slots.remove(np.arange(1, 30 * slotqueue.PART))
    assert len(slots._parts) >= 100
    first = [some[0] for some in islice(slots, 2)]
    assert first == [0, 30 * slotqueue.PART]
    assert len(slots._parts) == 71


def test_what_it_was_given_stays_the_caller_s() -> None:
    slots, given = SlotQueue(3 * slotqueue.PART), np.arange(3 * slotqueue.PART)
    slots.put_last(given)
    given[:] = 0
    assert order(slots) == list(range(3 * slotqueue.PART))


def test_the_sweep_goes_on_where_it_was_whatever_comes_or_goes_before_it() -> None:
    slots = filled(10 * slotqueue.PART)
    slots._next, part = 5, slots._parts[5]
    slots.put_first(np.arange(2 * slotqueue.PART))
    assert slots._parts[slots._next] is part
    slots.remove(np.arange(3 * slotqueue.PART))
    assert order(slots) == list(range(3 * slotqueue.PART, 10 * slotqueue.PART))
    assert slots._parts[slots._next] is part
