# SPDX-License-Identifier: Apache-2.0
"""The NVMe tier: what it keeps where, and its jobs.

Covers the decisions and the books, all in the scheduler's thread: slots on disk, who is evicted,
what is written and when a disk is left alone. The bytes and the index are handled by ``records``
and ``index`` in the threads of ``io``; what they did comes back through ``poll``.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from tiercache.blocks import GROUP_SUFFIX_BYTES, GroupSpec, Key, group_suffix, key_hash
from tiercache.errors import TierCacheError
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import Batch, Done, SecondaryTier, SlotMemory, TierStats
from tiercache.tiers.nvme.breaker import Breaker
from tiercache.tiers.nvme.disk import Disk, Group
from tiercache.tiers.nvme.index import HASH_BYTES, Entry, Location
from tiercache.tiers.nvme.io import IOEngine, in_thread
from tiercache.tiers.nvme.segments import SEGMENT_BYTES
from tiercache.tiers.nvme.space import WriteBudget

logger = logging.getLogger(__name__)

#: A job that takes longer means a device that hangs.
HUNG_S = 30.0
#: How long ``close`` lets waiting stores go on, and then running ones.
CLOSE_S = 3.0
REPORT_INTERVAL_S = 10.0


@dataclass(eq=False, slots=True)
class Job:
    """A batch on its way: how many parts are still out, and what became of the others."""

    batch: Batch
    disk: list[int]
    loads: bool
    era: int
    started: float
    parts: int = 1
    failed: list[Key] = field(default_factory=list)


class Outcome(NamedTuple):
    """What an I/O thread reports of a part of a job: its ``keys``, and those that ``failed``."""

    job: Job
    keys: Sequence[Key]
    failed: Sequence[Key] = ()
    error: Exception | None = None
    checksums: Sequence[int] = ()


class NvmeTier(SecondaryTier):
    """Blocks in preallocated files, indexed by LMDB, there again after a restart.

    Args:
        name: what the tier is called in logs and metrics.
        memory, groups: the primary tier's slots.
        slots: slots of the primary tier by group; the disk is divided in this proportion.
        config: the settings.
        fingerprint: all that changes what the bytes of a block mean.
        clock: seconds that only grow.
        segment_bytes: size of a file.

    Raises: ConfigError and TierCacheError if it cannot be opened; nothing afterwards.
    """

    kind = "nvme"

    def __init__(
        self,
        name: str,
        memory: SlotMemory,
        groups: Sequence[GroupSpec],
        slots: Mapping[int, int],
        *,
        config: NvmeConfig,
        fingerprint: Mapping[str, object],
        clock: Callable[[], float] = time.monotonic,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        super().__init__(name, memory, spill=config.spill)
        self._config = config
        self._now = clock
        self._durable = config.durability == "power"
        self._budget = WriteBudget(config.write_budget)
        self._counters: Counter[str] = Counter()
        self._jobs: dict[Job, None] = {}
        self._outcomes: deque[Outcome] = deque()
        self._superseded: set[Key] = set()
        """Demoted keys that are still being written."""
        self._reading, self._writing = Breaker(), Breaker()
        self._era = 0
        self._rate: float | None = None
        self._next_report = self._heard = -inf
        self._to_clear = self._clearing = False
        self._disk = Disk(config, fingerprint, memory, groups, slots, segment_bytes=segment_bytes)
        self._groups = self._disk.groups
        self._removals = self._disk.stale
        """Entries that the index still has and the tables do not."""
        self._stamp = self._disk.index.next_stamp
        self._published = {
            group_suffix(group_id): group.table.slot_of for group_id, group in self._groups.items()
        }
        self._readable = self._published
        """What can be loaded: everything, or nothing while reads rest."""
        self._index_lock = asyncio.Lock()
        self._engine = IOEngine(config.queue_depth, f"tiercache-{name}")
        logger.info("tiercache tier %s: %s", name, self._disk.describe())

    # --- what is there

    def has(self, key: Key) -> bool:
        slot_of = self._readable.get(key[-GROUP_SUFFIX_BYTES:])
        return slot_of is not None and key in slot_of

    def missing(self, keys: Collection[Key]) -> list[Key]:
        by_suffix: dict[bytes, list[Key]] = {}
        for key in keys:
            by_suffix.setdefault(key[-GROUP_SUFFIX_BYTES:], []).append(key)
        groups = {group_suffix(group_id): group for group_id, group in self._groups.items()}
        absent = {key for s, run in by_suffix.items() for key in groups[s].table.missing(run)}
        return [key for key in keys if key in absent]

    def touch(self, keys: Collection[Key]) -> None:
        for group, known in self._known(keys):
            group.table.policy.touch(known)

    def demote(self, keys: Collection[Key]) -> None:
        for group, known in self._known(keys):
            group.table.policy.demote(known)
            self._superseded.update(filter(group.table.writing.__contains__, keys))

    def _known(self, keys: Collection[Key]) -> list[tuple[Group, list[Key]]]:
        slot_of = ((g, g.table.slot_of) for g in self._groups.values())
        return [(group, [key for key in keys if key in known]) for group, known in slot_of]

    # --- jobs

    def store(self, batch: Batch) -> bool:
        group = self._groups[batch.group_id]
        keys = [key for key in batch.keys if len(key_hash(key)) <= HASH_BYTES]
        nbytes = len(keys) * group.records.record_bytes
        now = self._now()
        allowed = len(keys) == len(batch.keys) and self._writing.allows(now) and not self._to_clear
        if not allowed or not group.table.room(len(keys)) or not self._budget.take(nbytes, now):
            self._counters["declined"] += len(batch.keys)
            return False
        allocation = group.table.allocate(keys)
        assert allocation is not None
        self._counters["evicted"] += len(allocation.evicted)
        self._removals |= group.locations(list(allocation.evicted.values()))
        job = Job(batch, allocation.slots, loads=False, era=self._era, started=now)
        stamps = range(self._stamp, self._stamp + len(keys))
        self._stamp += len(keys)
        removals, self._removals = self._removals, set()
        if not self._engine.submit(
            partial(self._store, group, job, stamps, removals), urgent=False
        ):
            group.table.abandon(keys)
            self._removals = removals
            return False
        self._jobs[job] = None
        return True

    async def _store(
        self, group: Group, job: Job, stamps: Sequence[int], removals: set[Location]
    ) -> None:
        """On the I/O loop. The index lock is fair: removals are in the order of allocation."""
        batch, disk = job.batch, job.disk
        try:
            if removals:
                # Should this fail, what it left in the index does not verify after a restart.
                await self._update(job, dict.fromkeys(removals))
            checksums = await in_thread(
                group.records.write, batch.keys, batch.slots, disk, durable=self._durable
            )
            entries = zip(batch.keys, checksums, stamps, strict=True)
            changes = {
                Location(group.group_id, slot): Entry(key_hash(key), checksum, stamp)
                for slot, (key, checksum, stamp) in zip(disk, entries, strict=True)
            }
            await self._update(job, changes)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was stored
            self._outcomes.append(Outcome(job, batch.keys, batch.keys, error))
        else:
            self._outcomes.append(Outcome(job, batch.keys, checksums=checksums))

    async def _update(self, job: Job, changes: Mapping[Location, Entry | None]) -> None:
        async with self._index_lock:
            if job.era != self._era:
                raise TierCacheError("the tier was cleared meanwhile")
            await in_thread(self._disk.index.update, changes)

    def load(self, batch: Batch) -> None:
        group = self._groups[batch.group_id]
        pairs = zip(batch.keys, batch.slots, strict=True)
        here = {key: slot for key, slot in pairs if self.has(key)}
        keys, slots = list(here), list(here.values())
        job = Job(batch, group.table.hold(keys), loads=True, era=self._era, started=self._now())
        parts = list(group.records.parts(job.disk))
        job.parts = len(parts) + 1
        self._jobs[job] = None
        self._outcomes.append(Outcome(job, (), [key for key in batch.keys if key not in here]))
        for part in parts:
            read = partial(self._load, group, job, keys[part], slots[part], job.disk[part])
            if not self._engine.submit(read, urgent=True):
                error = TierCacheError("the tier is closed")
                self._outcomes.append(Outcome(job, keys[part], keys[part], error))

    async def _load(
        self,
        group: Group,
        job: Job,
        keys: Sequence[Key],
        slots: Sequence[int],
        disk: Sequence[int],
    ) -> None:
        checksums = [group.checksums[slot] for slot in disk]
        try:
            failed, error = await in_thread(group.records.read, keys, slots, disk, checksums)
        except Exception as found:  # noqa: BLE001 - whatever it is, nothing was read
            self._outcomes.append(Outcome(job, keys, keys, found))
        else:
            self._outcomes.append(Outcome(job, keys, failed, error))

    # --- what came of them

    def poll(self) -> list[Done]:
        now = self._now()
        ended = []
        while self._outcomes:
            self._heard = now
            outcome = self._outcomes.popleft()
            outcome.job.parts -= 1
            outcome.job.failed += outcome.failed
            if outcome.keys:
                self._judge(outcome, now)
            if not outcome.job.parts:
                ended.append(self._end(outcome, now))
        if self._jobs and now - max(self._heard, next(iter(self._jobs)).started) > HUNG_S:
            self._rest(TierCacheError(f"no answer for {HUNG_S:.0f} s"), now)
        if self._to_clear:
            self._clear_index()
        self._readable = self._published if self._reading.allows(now) else {}
        return ended

    def _judge(self, outcome: Outcome, now: float) -> None:
        """Tell a broken device from broken records."""
        breaker = self._reading if outcome.job.loads else self._writing
        if outcome.job.era != self._era:
            return
        if outcome.error is None:
            breaker.succeeded()
            if outcome.failed:
                self._counters["corrupt"] += len(outcome.failed)
                self._report("%d blocks do not match their checksums", len(outcome.failed))
            return
        self._counters["failed"] += len(outcome.failed)
        verb = "read" if outcome.job.loads else "stored"
        self._report("%d blocks were not %s: %s", len(outcome.failed), verb, outcome.error)
        if breaker.failed(now):
            logger.warning("tiercache tier %s: blocks are not %s for a while", self.name, verb)

    def _rest(self, error: Exception, now: float) -> None:
        """Leave the whole device alone for a while."""
        if self._reading.trip(now) | self._writing.trip(now):
            logger.warning("tiercache tier %s rests for a while: %s", self.name, error)

    def _report(self, text: str, *args: object) -> None:
        now = self._now()
        if now >= self._next_report:
            self._next_report = now + REPORT_INTERVAL_S
            logger.warning("tiercache tier %s: " + text, self.name, *args)  # noqa: G003

    def _end(self, outcome: Outcome, now: float) -> Done:
        job = outcome.job
        del self._jobs[job]
        group = self._groups[job.batch.group_id]
        if job.loads:
            self._loaded(group, job)
        elif job.failed or job.era != self._era:
            group.table.abandon(job.batch.keys)
        else:
            self._stored(group, job, outcome.checksums)
        count = len(job.batch.keys) - len(job.failed)
        nbytes = count * group.records.record_bytes
        what = "loaded" if job.loads else "stored"
        self._counters.update({what: count, f"{what}_bytes": nbytes})
        seconds = now - job.started
        if job.loads and nbytes and seconds > 0:
            rate = nbytes / seconds
            self._rate = rate if self._rate is None else self._rate + (rate - self._rate) / 8
        return Done(job.batch.job_id, job.failed, nbytes, seconds)

    def _loaded(self, group: Group, job: Job) -> None:
        if job.era == self._era:
            dropped = group.table.drop(job.failed)
            self._removals |= group.locations(list(dropped.values()))
        group.table.release(key for key in job.batch.keys if key in group.table.held)

    def _stored(self, group: Group, job: Job, checksums: Sequence[int]) -> None:
        for slot, checksum in zip(job.disk, checksums, strict=True):
            group.checksums[slot] = checksum
        published = set(group.table.publish(job.batch.keys))
        pairs = zip(job.batch.keys, job.disk, strict=True)
        self._removals |= group.locations([slot for key, slot in pairs if key not in published])
        superseded = self._superseded & published
        group.table.policy.demote([key for key in job.batch.keys if key in superseded])
        self._superseded -= superseded

    # --- the whole tier

    def clear(self) -> None:
        self._era += 1
        for group in self._groups.values():
            group.table.drop([*group.table.slot_of, *group.table.writing])
        self._removals.clear()
        self._to_clear = True
        self._clear_index()

    def _clear_index(self) -> None:
        """Nothing is stored until this is done: it would go as well."""
        if not self._clearing:
            self._clearing = self._engine.submit(self._clear, urgent=True)

    async def _clear(self) -> None:
        era = self._era
        try:
            async with self._index_lock:
                await in_thread(self._disk.index.clear)
        except TierCacheError as error:
            self._report("%s", error)
        else:
            self._to_clear = era != self._era
        finally:
            self._clearing = False

    @property
    def load_rate(self) -> float | None:
        return self._rate

    def stats(self) -> TierStats:
        now = self._now()
        tables = [(group.table, group.records.record_bytes) for group in self._groups.values()]
        return TierStats(
            capacity=self._config.capacity,
            used=sum(table.used * size for table, size in tables),
            entries=sum(len(table.slot_of) for table, _ in tables),
            jobs=len(self._jobs),
            healthy=self._reading.allows(now) and self._writing.allows(now),
            counters=self._counters,
        )

    def close(self) -> None:
        self._published = self._readable = {}
        deadline = self._now() + CLOSE_S
        while self._engine.pending and self._now() < deadline:
            time.sleep(0.001)
        if not self._engine.close(CLOSE_S):
            # A call that hangs owns its descriptor and its memory: nothing can be closed.
            logger.warning("tiercache tier %s: the device hangs, left open", self.name)
            return
        with suppress(TierCacheError):
            self._disk.index.update(dict.fromkeys(self._removals))
        self._removals.clear()
        self._disk.close()
