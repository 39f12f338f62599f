# SPDX-License-Identifier: Apache-2.0
"""The NVMe tier: what it keeps where, and its jobs.

Covers the decisions and the books, all in the scheduler's thread: slots on disk, who is evicted,
what is written and when a disk is left alone. The bytes and the index are handled by ``records``
and ``index`` in the threads of ``io``; what they did comes back through ``poll``.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf

from tiercache.blocks import GROUP_SUFFIX_BYTES, GroupSpec, Key, by_group, group_suffix, key_hash
from tiercache.errors import TierCacheError
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import Batch, Done, SecondaryTier, SlotMemory, TierStats
from tiercache.tiers.nvme.breaker import Breaker
from tiercache.tiers.nvme.disk import Disk, Group
from tiercache.tiers.nvme.index import HASH_BYTES, Entry, Location
from tiercache.tiers.nvme.io import IOEngine, in_thread
from tiercache.tiers.nvme.ledger import Ledger
from tiercache.tiers.nvme.records import DiskFullError
from tiercache.tiers.nvme.segments import SEGMENT_BYTES
from tiercache.tiers.nvme.space import WriteBudget
from tiercache.tiers.nvme.transfers import Job, Outcome

logger = logging.getLogger(__name__)

#: A job that takes longer means a device that hangs.
HUNG_S = 30.0
#: How long ``close`` lets waiting stores go on, and then running ones.
CLOSE_S = 3.0
REPORT_INTERVAL_S = 10.0
#: How long a full disk is not asked for more, while what is allocated there is used again.
GROWTH_PAUSE_S = 10.0


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
        self._rate: float | None = None
        self._next_report = self._heard = -inf
        self._full_at: float | None = None
        """When the disk was found full, if part of the slots is withheld since."""
        self._clearing = self._closed = False
        self._disk = Disk(config, fingerprint, memory, groups, slots, segment_bytes=segment_bytes)
        self.index_info = self._disk.index.info
        self._groups = self._disk.groups
        self._removals = self._disk.stale
        """Entries that the index still has and the tables do not, for the next job to take."""
        self._ledger = Ledger(self._disk.index, self._groups)
        self._stamp = self._disk.index.next_stamp
        self._published = {
            group_suffix(group_id): group.table.slot_of for group_id, group in self._groups.items()
        }
        self._readable = self._published
        """What can be loaded: everything, or nothing while reads rest."""
        try:
            self._engine = IOEngine(config.queue_depth, f"tiercache-{name}", config.switch_interval)
        except BaseException:
            self._disk.close()
            raise
        logger.info("tiercache tier %s: %s", name, self._disk.describe())

    # --- what is there

    def has(self, key: Key) -> bool:
        slot_of = self._readable.get(key[-GROUP_SUFFIX_BYTES:])
        return slot_of is not None and key in slot_of

    def leading(self, keys: list[Key], at: int = 0) -> int:
        slot_of = self._readable.get(keys[at][-GROUP_SUFFIX_BYTES:]) if at < len(keys) else None
        return slot_of.leading(keys, at) if slot_of is not None else 0

    def missing(self, keys: Collection[Key]) -> list[Key]:
        sorted_out = by_group(keys).items()
        absent = {key for g, run in sorted_out for key in self._groups[g].table.missing(run)}
        return [key for key in keys if key in absent]

    def touch(self, keys: Collection[Key]) -> None:
        self._superseded.difference_update(keys)
        for group_id, run in by_group(keys).items():
            self._groups[group_id].table.touch(run)

    def demote(self, keys: Collection[Key]) -> None:
        for group_id, run in by_group(keys).items():
            table = self._groups[group_id].table
            table.demote(run)
            self._superseded.update(filter(table.writing.__contains__, run))

    # --- jobs

    def store(self, batch: Batch) -> bool:
        group = self._groups[batch.group_id]
        now = self._now()
        if not self._accepts(group, batch, now) or not self._write(group, batch, now):
            self._counters["declined"] += len(batch.keys)
            return False
        return True

    def _accepts(self, group: Group, batch: Batch, now: float) -> bool:
        count = len(batch.keys)
        return (
            self._writing.allows(now)
            and self._ledger.is_current
            and all(0 < len(key_hash(key)) <= HASH_BYTES for key in batch.keys)
            and len(group.table.missing(batch.keys)) == count
            and group.table.room(count)
            and self._budget.take(count * group.records.record_bytes, now)
        )

    def _write(self, group: Group, batch: Batch, now: float) -> bool:
        """Give the keys slots and a job; False if that will never run."""
        allocation = group.table.allocate(batch.keys)
        assert allocation is not None
        self._counters["evicted"] += len(allocation.evicted)
        self._removals |= group.locations(allocation.evicted.values())
        job = Job(
            batch, batch.keys, allocation.slots, loads=False, era=self._ledger.era, started=now
        )
        stamps = range(self._stamp, self._stamp + len(batch.keys))
        self._stamp += len(batch.keys)
        store = partial(self._store, group, job, stamps, self._removals)
        if not self._engine.submit(store, urgent=False):
            group.table.abandon(batch.keys)
            return False
        self._removals = set()
        self._jobs[job] = None
        return True

    async def _store(
        self, group: Group, job: Job, stamps: Sequence[int], removals: set[Location]
    ) -> None:
        batch, disk = job.batch, job.disk
        self._ledger.unpublish(removals)
        try:
            checksums = await in_thread(
                group.records.write, batch.keys, batch.slots, disk, durable=self._durable
            )
            entries = zip(batch.keys, checksums, stamps, strict=True)
            changes = {
                Location(group.group_id, slot): Entry(key_hash(key), checksum, stamp)
                for slot, (key, checksum, stamp) in zip(disk, entries, strict=True)
            }
            await self._ledger.publish(group.group_id, changes, job.era)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was stored
            self._outcomes.append(Outcome(job, batch.keys, batch.keys, error))
        else:
            self._outcomes.append(Outcome(job, batch.keys, checksums=checksums))

    def load(self, batch: Batch) -> None:
        group = self._groups[batch.group_id]
        here = dict(zip(batch.keys, batch.slots, strict=True))
        if self.leading(batch.keys) < len(batch.keys):
            here = {key: slot for key, slot in here.items() if self.has(key)}
        keys, slots = list(here), list(here.values())
        disk = group.table.hold(keys)
        job = Job(batch, keys, disk, loads=True, era=self._ledger.era, started=self._now())
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
            outcome = self._outcomes.popleft()
            outcome.job.parts -= 1
            outcome.job.failed += outcome.failed
            if outcome.keys:  # else it does not come from the device
                self._heard = now
                self._judge(outcome, now)
            if not outcome.job.parts:
                ended.append(self._end(outcome, now))
            if isinstance(outcome.error, DiskFullError):
                self._make_do(self._groups[outcome.job.batch.group_id], now)
        if self._jobs and now - max(self._heard, next(iter(self._jobs)).started) > HUNG_S:
            self._rest(TierCacheError(f"no answer for {HUNG_S:.0f} s"), now)
        if self._full_at is not None and abs(now - self._full_at) >= GROWTH_PAUSE_S:
            self._grow()
        if not self._ledger.is_current:
            self._clear_index()
        self._readable = self._published if self._reading.allows(now) else {}
        return ended

    def _judge(self, outcome: Outcome, now: float) -> None:
        """Tell a broken device from broken records."""
        breaker = self._reading if outcome.job.loads else self._writing
        if outcome.job.era != self._ledger.era:
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
        if not isinstance(outcome.error, DiskFullError) and breaker.failed(now):
            logger.warning("tiercache tier %s: blocks are not %s for a while", self.name, verb)

    def _make_do(self, group: Group, now: float) -> None:
        """Go on with the slots that have a place on disk; more is tried later."""
        group.table.withhold(group.records.lacking())
        self._full_at = now

    def _grow(self) -> None:
        self._full_at = None
        for group in self._groups.values():
            group.table.bring_back()

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
        elif job.failed or job.era != self._ledger.era:
            group.table.abandon(job.keys)
        else:
            self._stored(group, job, outcome.checksums)
        if not job.loads:
            self._superseded.difference_update(job.keys)
        count = len(job.batch.keys) - len(job.failed)
        nbytes = count * group.records.record_bytes
        what = "loaded" if job.loads else "stored"
        self._counters.update({what: count, f"{what}_bytes": nbytes})
        seconds = max(0.0, now - job.started)
        if job.loads and nbytes and seconds:
            rate = nbytes / seconds
            self._rate = rate if self._rate is None else self._rate + (rate - self._rate) / 8
        return Done(job.batch.job_id, job.failed, nbytes, seconds)

    def _loaded(self, group: Group, job: Job) -> None:
        failed, slot_of = set(job.failed), group.table.slot_of
        # Not what was stored anew meanwhile: after a clear, or after another job dropped it.
        pairs = zip(job.keys, job.disk, strict=True)
        bad = [key for key, slot in pairs if key in failed and slot_of.get(key) == slot]
        dropped = group.table.drop(bad)
        self._removals |= group.locations(dropped.values())
        group.table.release(job.keys)

    def _stored(self, group: Group, job: Job, checksums: Sequence[int]) -> None:
        for slot, checksum in zip(job.disk, checksums, strict=True):
            group.checksums[slot] = checksum
        group.table.publish(job.keys)
        group.table.demote(filter(self._superseded.__contains__, job.keys))

    # --- the whole tier

    def clear(self) -> None:
        self._ledger.era += 1
        for group in self._groups.values():
            group.table.clear()
        self._removals.clear()
        self._clear_index()

    def _clear_index(self) -> None:
        """Nothing is stored until this is done: it would go as well."""
        if not self._clearing:
            self._clearing = True
            if not self._engine.submit(self._clear, urgent=True):
                self._clearing = False

    async def _clear(self) -> None:
        try:
            await self._ledger.clear()
        except TierCacheError as error:
            self._report("%s", error)
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
        if self._closed:
            return
        self._published = self._readable = {}
        deadline = time.monotonic() + CLOSE_S
        while self._engine.pending and time.monotonic() < deadline:
            time.sleep(0.001)
        if not self._engine.close(CLOSE_S):
            # A call that hangs owns its descriptor and its memory: nothing can be closed.
            logger.warning("tiercache tier %s: the device hangs, left open", self.name)
            return
        self._ledger.close(self._removals)
        self._disk.close()
        self._closed = True
