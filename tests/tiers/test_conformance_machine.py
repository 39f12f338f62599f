# SPDX-License-Identifier: Apache-2.0
"""Random jobs at every kind of tier, against a dict: a load never yields wrong bytes."""

from collections.abc import Iterable
from itertools import count
from string import ascii_lowercase
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests import long_runs
from tests.core_helpers import full, key, state
from tests.tier_helpers import Slots, wait
from tests.tiers.conftest import MakeTier
from tiercache.blocks import Key, by_group
from tiercache.tiers.base import Batch, Done, SecondaryTier

GROUPS = [full(0), state(3)]
SLOTS, ROOM = 12, 4
KEYS = [key(name, group.group_id) for group in GROUPS for name in ascii_lowercase[:7]]
some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True)


class Running(NamedTuple):
    """A job, the versions of each key that it may copy, and when it was begun."""

    batch: Batch
    loads: bool
    versions: dict[Key, list[int]]
    era: int


class AnyTier(RuleBasedStateMachine):
    """Stores and loads that overlap, with clears in between."""

    def __init__(self, make_tier: MakeTier) -> None:
        super().__init__()
        self.slots = Slots(GROUPS, {group.group_id: SLOTS for group in GROUPS}, workers=2)
        self.tier: SecondaryTier = make_tier(GROUPS, self.slots.memory, ROOM)
        self.sizes = self.slots.memory.record_bytes
        self.free = {group.group_id: list(range(SLOTS)) for group in GROUPS}
        self.running: dict[int, Running] = {}
        self.stored: dict[Key, list[int]] = {}
        """The versions of each key that may be there.

        The last one; any, if others store as well: what one server forgets is there, and stays.
        """
        self.era = 0
        self.numbers = count(1)

    def batches(self, keys: Iterable[Key]) -> Iterable[Batch]:
        for group_id, run in by_group(keys).items():
            if len(self.free[group_id]) < len(run):
                self.settle()
            slots = [self.free[group_id].pop(0) for _ in run]
            yield Batch(next(self.numbers), group_id, run, slots)

    @rule(keys=some_keys)
    def store(self, keys: list[Key]) -> None:
        for batch in self.batches(self.tier.missing(keys)):
            version = batch.job_id
            for each, slot in zip(batch.keys, batch.slots, strict=True):
                self.slots.write(each, slot, version)
            if self.tier.store(batch):
                versions = {each: self.may_be(each, version) for each in batch.keys}
                self.stored |= versions  # from now on, or once the job has been polled
                self.running[batch.job_id] = Running(batch, False, versions, self.era)
            else:
                self.free[batch.group_id] += batch.slots

    def may_be(self, each: Key, version: int) -> list[int]:
        before = self.stored.get(each, []) if self.tier.seeks else []
        return [*before, version]

    @rule(keys=some_keys)
    def load(self, keys: list[Key]) -> None:
        for batch in self.batches(keys):
            versions = {each: self.stored[each] for each in batch.keys if self.tier.has(each)}
            for each, slot in zip(batch.keys, batch.slots, strict=True):
                self.slots.scribble(each, slot)
            self.tier.load(batch)
            self.running[batch.job_id] = Running(batch, True, versions, self.era)

    @rule()
    def poll(self) -> None:
        for done in self.tier.poll():
            self.ended(done)

    @rule()
    def settle(self) -> None:
        for done in wait(self.tier).values():
            self.ended(done)
        assert not self.running

    def ended(self, done: Done) -> None:
        batch, loads, versions, era = self.running.pop(done.job_id)
        self.free[batch.group_id] += batch.slots
        good = [each for each in batch.keys if each not in done.failed]
        assert len(good) + len(set(done.failed)) == len(batch.keys)
        if not loads:
            assert len(good) == len(versions) or era != self.era
            return
        assert set(good) <= versions.keys()
        assert set(good) == versions.keys() or era != self.era
        for each, slot in zip(batch.keys, batch.slots, strict=True):
            may_be = versions.get(each, ())
            assert each not in good or any(self.slots.holds(each, slot, v) for v in may_be)

    @rule(keys=some_keys)
    def touch(self, keys: list[Key]) -> None:
        self.tier.touch(keys)

    @rule(keys=some_keys)
    def demote(self, keys: list[Key]) -> None:
        self.tier.demote(keys)

    @rule(dice=st.integers(1, 6))
    def clear(self, dice: int) -> None:
        if dice == 6:
            self.tier.clear()
            self.era += 1
            self.stored.clear()
            assert not any(map(self.tier.has, KEYS))

    @invariant()
    def has_what_was_stored_and_nothing_else(self) -> None:
        here = {each for each in KEYS if self.tier.has(each)}
        assert here <= self.stored.keys()
        coming = {k for job in self.running.values() if not job.loads for k in job.batch.keys}
        missing = self.tier.missing(KEYS)
        assert missing == [each for each in KEYS if each in missing]
        assert set(KEYS) - here - coming <= set(missing) <= set(KEYS) - here

    @invariant()
    def what_leads_is_there(self) -> None:
        for run in by_group(KEYS).values():
            for at in range(len(run)):
                there = [self.tier.has(each) for each in run[at:]]
                assert self.tier.leading(run, at) == [*there, False].index(False)

    @invariant()
    def capacity_is_never_exceeded(self) -> None:
        stats = self.tier.stats()
        here = [each for each in KEYS if self.tier.has(each)]
        assert stats.entries == len(here)
        grouped = by_group(here)
        assert sum(len(run) * self.sizes[g] for g, run in grouped.items()) <= stats.used
        assert stats.used <= stats.capacity

    def teardown(self) -> None:
        self.settle()
        self.tier.close()


@pytest.fixture
def machine(make_tier: MakeTier) -> type[RuleBasedStateMachine]:
    class OneTier(AnyTier):
        def __init__(self) -> None:
            super().__init__(make_tier)

    return OneTier


def test_nothing_wrong_is_ever_loaded(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=40))


@pytest.mark.soak
@pytest.mark.timeout(long_runs.SECONDS + long_runs.SHRINKING_S)
def test_nothing_breaks_in_a_long_run(
    machine: type[RuleBasedStateMachine], request: pytest.FixtureRequest
) -> None:
    long_runs.play(machine, long_runs.chosen_seed(request))
