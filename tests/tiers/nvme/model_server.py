# SPDX-License-Identifier: Apache-2.0
"""A server with an NVMe tier, and beside it a dict of what the tier must have.

Covers what is true whatever the tier does: a load yields the bytes that were stored last, or
nothing; who has been told that a block is stored finds it until it is evicted, and after a restart;
what was not told, because the process died, may be there or not. Which faults there are, and when,
is decided by the machine.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.core_helpers import SLOT_BYTES, full, key, state
from tests.tier_helpers import Clock, Slots
from tests.tiers.nvme.device import Device
from tests.tiers.nvme.tier_helpers import occupied, published, until, validate
from tiercache.blocks import Key, by_group, key_group
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import Batch, Done
from tiercache.tiers.nvme.index import index_bytes
from tiercache.tiers.nvme.segments import segment_name
from tiercache.tiers.nvme.space import Allocation, SlotTable, slack_bytes
from tiercache.tiers.nvme.tier import NvmeTier

GROUPS = [full(0), state(3)]
WORKERS = 2
RECORD_BYTES = WORKERS * SLOT_BYTES
#: Slots on disk by group, four to a segment; more keys than slots, so that they are always full.
DISK = {0: 8, 3: 4}
SEGMENT_SLOTS = 4
SEGMENT_BYTES = SEGMENT_SLOTS * RECORD_BYTES
KEYS = [*(key(name) for name in "abcdefghijkl"), *(key(name, 3) for name in "uvwxyz")]
#: Slots in memory of each group: enough for a few jobs at once.
MEMORY = 32
CAPACITY = sum(DISK.values()) * RECORD_BYTES + index_bytes(DISK) + slack_bytes(DISK)
#: Seconds after which a tier that rests tries again, or for more space.
REST_S = 100.0

Version = int


class Place(NamedTuple):
    """Where a record lies: which segment of its group, and its place in that, in records."""

    number: int
    at: int


class Running(NamedTuple):
    """A job; what a load must yield, or a store makes; and when it was begun."""

    batch: Batch
    loads: bool
    versions: dict[Key, Version]
    era: int


class ModelServer:
    """One server on ``path``. ``name`` is its model's: servers of two names share nothing."""

    def __init__(self, path: Path, name: str, device: Device) -> None:
        self.path, self.name, self.device = path, name, device
        self.clock = Clock()
        self.slots = Slots(GROUPS, dict.fromkeys(DISK, MEMORY), workers=WORKERS)
        self.free = {group_id: list(range(MEMORY)) for group_id in DISK}
        self.numbers = itertools.count(1)
        self.settings: dict[str, object] = {}
        self.acked: dict[Key, Version] = {}
        """What the tier has said to have stored, and has not evicted, dropped or cleared."""
        self.ghosts: dict[Key, set[Version]] = {}
        """What a process that dies may leave beside that: its end was not written down yet."""
        self.damaged: set[tuple[Key, Version]] = set()
        """Records whose bytes the test has changed."""
        self.unlinked: set[tuple[int, int]] = set()
        """Segments, by group and number, that are there until the process ends."""
        self.shortened = False
        """Whether a segment was cut while it was open: reads of its neighbours fail as well."""
        self.running: dict[int, Running] = {}
        self.era = 0
        self.clearing = False
        self.disinherits = False
        """Whether the next process finds nothing of what this one has stored."""
        self.tell: Callable[[str, Iterable[Key], Version], None] = lambda *_: None

    # --- its life

    def config(self) -> NvmeConfig:
        settings = {"queue_depth": 2, "switch_interval": None, "min_free": 0} | self.settings
        return NvmeConfig(path=self.path, capacity=CAPACITY, **settings)  # type: ignore[arg-type]

    def make(self) -> NvmeTier:
        return NvmeTier(
            self.name,
            self.slots.memory,
            GROUPS,
            DISK,
            config=self.config(),
            fingerprint={"model": self.name},
            clock=self.clock,
            segment_bytes=SEGMENT_BYTES,
        )

    def open(self) -> None:
        self.tier = self.make()
        self.directory: Path = self.tier._disk.namespace.directory
        for group in self.tier._groups.values():
            self._watch(group.table)

    def _watch(self, table: SlotTable) -> None:
        allocate = table.allocate

        def watched(keys: Sequence[Key]) -> Allocation | None:
            allocation = allocate(keys)
            if allocation is not None:
                self.tell("gone", allocation.evicted, 0)
                self.gone(allocation.evicted)
            return allocation

        table.allocate = watched  # type: ignore[method-assign, assignment]

    def close(self) -> None:
        """End the process, cleanly or not: the device decides."""
        self.places = {k: self.place(k) for k in self.acked}
        self.tier.close()
        if not self.device.is_dead:
            self.ghosts.clear()
        for job in self.running.values():
            if not job.loads:
                self.may_be_there(job.versions)
        self.running.clear()
        self.free = {group_id: list(range(MEMORY)) for group_id in DISK}

    def place(self, k: Key) -> Place:
        return Place(*divmod(self.tier._groups[key_group(k)].table.slot_of[k], SEGMENT_SLOTS))

    def segment(self, group_id: int, number: int) -> Path:
        return self.directory / f"g{group_id}" / segment_name(number)

    # --- what the engine asks for

    def batches(self, keys: Iterable[Key]) -> Iterable[Batch]:
        for group_id, run in by_group(keys).items():
            if len(self.free[group_id]) < len(run):
                self.settle()
            slots = [self.free[group_id].pop(0) for _ in run]
            yield Batch(next(self.numbers), group_id, run, slots)

    def store(self, keys: Iterable[Key]) -> None:
        for batch in self.batches(self.tier.missing(list(keys))):
            version = batch.job_id
            for k, slot in zip(batch.keys, batch.slots, strict=True):
                self.slots.write(k, slot, version)
            self.tell("begun", batch.keys, version)
            must = self._must_take(batch)
            if self.tier.store(batch):
                versions = dict.fromkeys(batch.keys, version)
                self.running[batch.job_id] = Running(batch, False, versions, self.era)
            else:
                assert not must
                self.free[batch.group_id] += batch.slots

    def _must_take(self, batch: Batch) -> bool:
        """Whether there is no reason to decline: nothing is under way, or wrong, or too much."""
        group = self.tier._groups[batch.group_id]
        fits = len(batch.keys) <= group.table.slots
        idle = not any(job.batch.group_id == batch.group_id for job in self.running.values())
        whole = not len(group.table._withheld)
        return (
            fits and idle and whole and self.tier._ledger.is_current and self.tier.stats().healthy
        )

    def load(self, keys: Iterable[Key]) -> None:
        for batch in self.batches(keys):
            versions = {k: self.acked[k] for k in batch.keys if self.tier.has(k)}
            for k, slot in zip(batch.keys, batch.slots, strict=True):
                self.slots.scribble(k, slot)
            self.tier.load(batch)
            self.running[batch.job_id] = Running(batch, True, versions, self.era)

    def clear(self) -> None:
        self.era += 1
        self.clearing = True
        self.may_be_there(self.acked)
        self.acked.clear()
        self.tier.clear()

    def poll(self) -> None:
        if self.clearing and self.tier._ledger.is_current:
            self.clearing, self.disinherits = False, True
            self.ghosts.clear()
        for done in self.tier.poll():
            self.ended(done)

    def settle(self) -> None:
        """Let all jobs end, and then the pauses of a tier that rests."""
        until(self._is_over)
        self.clock.now += REST_S
        self.poll()
        assert self.tier.stats().healthy

    def _is_over(self) -> bool:
        self.poll()
        return not self.running and self.tier._ledger.is_current

    # --- what comes of it

    def ended(self, done: Done) -> None:
        job = self.running.pop(done.job_id)
        batch = job.batch
        self.free[batch.group_id] += batch.slots
        good = [k for k in batch.keys if k not in done.failed]
        assert len(good) + len(set(done.failed)) == len(batch.keys)
        if job.loads:
            self._loaded(job, good)
        elif job.era == self.era:
            assert len(good) == len(batch.keys) or self.device.faults
            self.acked |= {k: job.versions[k] for k in good}
            self.tell("acked", good, batch.job_id)
        else:
            self.may_be_there(job.versions)

    def _loaded(self, job: Running, good: Sequence[Key]) -> None:
        assert set(good) <= job.versions.keys()
        for k, slot in zip(job.batch.keys, job.batch.slots, strict=True):
            if k in good:
                assert (k, job.versions[k]) not in self.damaged
                assert self.slots.holds(k, slot, job.versions[k])
        for k, version in job.versions.items():
            if k not in good:
                assert (k, version) in self.damaged or self.device.faults or self.shortened
                if self.acked.get(k) == version:
                    self.gone([k])

    def gone(self, keys: Iterable[Key]) -> None:
        for k in keys:
            self.may_be_there({k: self.acked.pop(k)})

    def may_be_there(self, versions: dict[Key, Version]) -> None:
        for k, version in versions.items():
            self.ghosts.setdefault(k, set()).add(version)

    # --- a new process

    def find(self, lost: Iterable[Key] = (), *, at_risk: bool = False) -> None:
        """Open the tier, load everything that it has, and go on with what came back.

        ``lost`` blocks are gone for certain; ``at_risk`` all may be.
        """
        self.open()
        found = published(self.tier)
        if self.disinherits:
            assert found == []
            self.acked.clear()
            self.ghosts.clear()
        must = self.acked.keys() - set(lost)
        assert at_risk or must <= set(found)
        assert set(found) <= must | self.ghosts.keys() | (self.acked.keys() if at_risk else set())
        here = {k: version for run in by_group(found).values() for k, version in self._read(run)}
        intact = {k for k in must if (k, self.acked[k]) not in self.damaged}
        assert at_risk or all(here.get(k) == self.acked[k] for k in intact)
        self.may_be_there(self.acked)
        self.acked = here
        self.unlinked.clear()
        self.shortened = self.clearing = self.disinherits = False

    def _read(self, run: Sequence[Key]) -> Iterable[tuple[Key, Version]]:
        """Load keys that may have failed to survive; which came back, and what they are."""
        for start in range(0, len(run), 4):
            [batch] = self.batches(run[start : start + 4])
            self.tier.load(batch)
            self.running[batch.job_id] = Running(batch, True, {}, self.era)
            done: list[Done] = []
            until(lambda done=done: done.extend(self.tier.poll()) or done)  # type: ignore[misc]
            del self.running[batch.job_id]
            self.free[batch.group_id] += batch.slots
            for k, slot in zip(batch.keys, batch.slots, strict=True):
                if k not in done[0].failed:
                    yield k, self._version(k, slot)
        self.settle()

    def _version(self, k: Key, slot: int) -> Version:
        """Which of the versions that may be there is in a slot; fails if it is none of them."""
        may_be = {*self.ghosts.get(k, ()), *([self.acked[k]] if k in self.acked else ())}
        version: Version
        [version] = [v for v in may_be if self.slots.holds(k, slot, v)]
        assert (k, version) not in self.damaged
        return version

    # --- what is always true

    def check(self) -> None:
        validate(self.tier)
        assert set(published(self.tier)) == self.acked.keys()
        if self.tier.stats().healthy:
            assert [k for k in KEYS if self.tier.has(k)] == [k for k in KEYS if k in self.acked]
        assert occupied(self.directory) <= CAPACITY
        stats = self.tier.stats()
        assert stats.entries == len(self.acked)
        assert stats.entries * RECORD_BYTES <= stats.used <= stats.capacity
