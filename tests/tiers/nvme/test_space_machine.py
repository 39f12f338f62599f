# SPDX-License-Identifier: Apache-2.0
"""Any interleaving of stores, readers, drops and evictions against a model; runs of free slots."""

from collections import Counter
from collections.abc import Iterable
from math import ceil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core_helpers import key
from tiercache.blocks import Key
from tiercache.tiers.nvme.freeslots import FreeSlots
from tiercache.tiers.nvme.policy import DISK_POLICIES, make_disk_policy
from tiercache.tiers.nvme.space import SlotTable


class AgainstModel(RuleBasedStateMachine):
    """Which slots are taken, by whom, and why; who is evicted is the policy's to say."""

    SLOTS = 8
    some = st.lists(st.sampled_from(list(map(key, "abcdefghijklm"))), max_size=6)

    @initialize(
        name=st.sampled_from(DISK_POLICIES),
        marks=st.lists(st.sampled_from([0.1, 0.5, 0.75, 0.9, 1.0]), min_size=2, max_size=2),
        restored=st.permutations(range(SLOTS)),
        n=st.integers(0, SLOTS),
    )
    def begin(self, name: str, marks: list[float], restored: list[int], n: int) -> None:
        policy = make_disk_policy(name, self.SLOTS)
        self.marks = sorted(marks)
        self.withheld: set[int] = set()
        self.table = SlotTable(self.SLOTS, policy, high_water=max(marks), low_water=min(marks))
        keys = [key(name) for name in "abcdefghijklm"[:n]]
        self.table.restore(keys, restored[:n])
        self.published = dict(zip(keys, restored, strict=False))
        self.writing: dict[Key, int] = {}
        self.cancelled: set[Key] = set()
        self.holds: Counter[Key] = Counter()
        self.leaving: list[tuple[Key, int]] = []

    def taken(self) -> list[int]:
        leaving = [slot for _, slot in self.leaving]
        return [*self.published.values(), *self.writing.values(), *leaving]

    @rule(some=some)
    def allocate(self, some: list[Key]) -> None:
        new = self.table.missing(some)
        assert new == [
            k for k in dict.fromkeys(some) if k not in self.published and k not in self.writing
        ]
        used, usable = len(self.taken()), self.SLOTS - len(self.withheld)
        low, high = (ceil(mark * usable) for mark in self.marks)
        evictable = [k for k in self.published if not self.holds[k]]
        room = used + len(new) - len(evictable) <= usable
        assert self.table.room(len(new)) == room
        allocation = self.table.allocate(new)
        assert (allocation is not None) == room
        if allocation is None:
            return
        assert allocation.evicted.keys() <= set(evictable)
        assert all(self.published.pop(k) == slot for k, slot in allocation.evicted.items())
        excess = used + len(new) - low if used + len(new) > high else 0
        assert len(allocation.evicted) == min(excess, len(evictable))
        assert not set(allocation.slots) & {*self.taken(), *self.withheld}
        self.writing.update(zip(new, allocation.slots, strict=True))

    @rule(some=some)
    def publish(self, some: list[Key]) -> None:
        done = [k for k in dict.fromkeys(some) if k in self.writing]
        assert self.table.publish(some) == [k for k in done if k not in self.cancelled]
        for k in done:
            slot = self.writing.pop(k)
            if k not in self.cancelled:
                self.published[k] = slot
        self.cancelled -= set(done)

    @rule(some=some)
    def abandon(self, some: list[Key]) -> None:
        self.table.abandon(some)
        for k in some:
            self.writing.pop(k, None)
        self.cancelled -= set(some)

    @rule(some=some)
    def hold(self, some: list[Key]) -> None:
        found = [k for k in some if k in self.published]
        assert self.table.hold(found) == [self.published[k] for k in found]
        self.holds.update(found)

    @rule(some=some)
    def release(self, some: list[Key]) -> None:
        self.table.release(some)
        self.holds = +(self.holds - Counter(some))
        self.leaving = [(k, slot) for k, slot in self.leaving if self.holds[k]]

    @rule(some=some)
    def drop(self, some: list[Key]) -> None:
        dropped = {k: self.published.pop(k) for k in some if k in self.published}
        assert self.table.drop(some) == dropped
        self.cancelled |= {k for k in some if k in self.writing}
        self.leaving += [(k, slot) for k, slot in dropped.items() if self.holds[k]]

    @rule(dice=st.integers(1, 6))
    def clear(self, dice: int) -> None:
        if dice == 6:
            self.table.clear()
            self.cancelled |= self.writing.keys()
            self.leaving += [(k, slot) for k, slot in self.published.items() if self.holds[k]]
            self.published.clear()

    @rule(bounds=st.tuples(st.integers(0, SLOTS), st.integers(0, SLOTS)))
    def withhold(self, bounds: tuple[int, int]) -> None:
        self.table.withhold([range(*bounds)])
        self.withheld |= set(range(*bounds)) - set(self.taken())

    @rule()
    def bring_back(self) -> None:
        self.table.bring_back()
        self.withheld.clear()

    @rule(some=some)
    def touch(self, some: list[Key]) -> None:
        self.table.touch(some)

    @rule(some=some)
    def demote(self, some: list[Key]) -> None:
        self.table.demote(some)

    @invariant()
    def same_slots(self) -> None:
        self.table.validate()
        assert (dict(self.table.slot_of), self.table.writing) == (self.published, self.writing)
        assert self.table.held == self.holds
        taken = self.taken()
        assert len(set(taken)) == len(taken) == self.table.used <= self.SLOTS

    def teardown(self) -> None:
        """Nothing is lost once everybody is done."""
        if hasattr(self, "table"):
            self.table.abandon(list(self.writing))
            self.table.release([k for k, count in self.holds.items() for _ in range(count)])
            self.table.drop(list(self.published))
            self.table.bring_back()
            self.table.validate()
            assert self.table.used == 0
            assert not self.table.held


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=200)


# --- free slots


def runs(slots: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of neighbours as their first slot and length, in the order given."""
    found: list[tuple[int, int]] = []
    for slot in slots:
        if found and slot == sum(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((slot, 1))
    return found


def test_the_smallest_run_that_suffices_is_taken() -> None:
    free = FreeSlots([(0, 2), (10, 15), (20, 23), (30, 90)])
    assert free.take(3) == [20, 21, 22]
    assert free.take(4) == [10, 11, 12, 13]
    assert free.take(2) == [0, 1]
    assert free.take(3) == [30, 31, 32]
    assert len(free) == 1 + 57


def test_without_a_run_that_suffices_the_longest_is_taken_first() -> None:
    free = FreeSlots([(0, 2), (10, 15), (20, 23)])
    assert free.take(7) == [10, 11, 12, 13, 14, 0, 1]
    assert free.take(3) == [20, 21, 22]
    assert free.take(0) == []


def test_neighbours_become_one_run() -> None:
    free = FreeSlots([])
    free.give([5, 3])
    free.give([])
    free.give([4, 8, 7])
    free.validate()
    assert sorted(free._end_of.items()) == [(3, 6), (7, 9)]


class Runs(RuleBasedStateMachine):
    SLOTS = 24

    def __init__(self) -> None:
        super().__init__()
        self.slots, self.free = FreeSlots([(0, self.SLOTS)]), set(range(self.SLOTS))

    @rule(n=st.integers(0, 8))
    def take(self, n: int) -> None:
        n = min(n, len(self.free))
        lengths = [length for _, length in runs(sorted(self.free))]
        taken = self.slots.take(n)
        assert len(taken) == n
        assert set(taken) <= self.free
        self.free -= set(taken)
        if n and max(lengths) >= n:
            assert len(runs(taken)) == 1

    @rule(slots=st.sets(st.integers(0, SLOTS - 1)))
    def give(self, slots: set[int]) -> None:
        self.slots.give(slots - self.free)
        self.free |= slots

    @rule(bounds=st.tuples(st.integers(0, SLOTS), st.integers(0, SLOTS)))
    def take_within(self, bounds: tuple[int, int]) -> None:
        taken = [slot for run in self.slots.take_within(range(*bounds)) for slot in range(*run)]
        assert sorted(taken) == sorted(self.free & set(range(*bounds)))
        self.free -= set(taken)

    @invariant()
    def same_slots(self) -> None:
        self.slots.validate()
        assert sorted(self.slots) == sorted(self.free)
        assert len(self.slots) == len(self.free)


TestRuns = Runs.TestCase
