# SPDX-License-Identifier: Apache-2.0
"""What the tests of tiers share: slots with tagged bytes, and a tier that the test drives.

Every byte of a slot follows from key and worker, so that whoever finds it knows whose it is.
"""

import hashlib
import mmap
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiercache.blocks import GroupSpec, Key, key_group
from tiercache.tiers.base import Batch, Done, SecondaryTier, SlotMemory, Spill, TierStats
from tiercache.tiers.memory import MemoryTier

#: For what must happen: failing takes this long, passing does not.
PATIENCE_S = 30.0
GARBAGE = b"\xff"


class Slots:
    """The primary tier's slots in memory that direct I/O can address."""

    def __init__(
        self, groups: Sequence[GroupSpec], slots: Mapping[int, int], *, workers: int = 1
    ) -> None:
        self.memory = SlotMemory(
            groups,
            {
                group.group_id: [
                    memoryview(mmap.mmap(-1, slots[group.group_id] * group.slot_bytes))
                    for _ in range(workers)
                ]
                for group in groups
            },
        )

    def write(self, key: Key, slot: int, version: int = 0) -> None:
        for worker, part in enumerate(self.memory.buffers(key_group(key), [slot])):
            part[:] = tag(key, worker, version, len(part))

    def scribble(self, key: Key, slot: int) -> None:
        """Fill what is to receive the block of ``key`` with what no block holds."""
        for part in self.memory.buffers(key_group(key), [slot]):
            part[:] = GARBAGE * len(part)

    def holds(self, key: Key, slot: int, version: int = 0) -> bool:
        return all(
            part == tag(key, worker, version, len(part))
            for worker, part in enumerate(self.memory.buffers(key_group(key), [slot]))
        )


def wait(tier: SecondaryTier) -> dict[int, Done]:
    """Poll until all jobs have ended; returns what became of them."""
    done: list[Done] = []
    give_up = time.monotonic() + PATIENCE_S
    while tier.stats().jobs and time.monotonic() < give_up:
        done += tier.poll()
        time.sleep(0)  # a tier's threads may need the interpreter lock
    assert not tier.stats().jobs
    done += tier.poll()
    assert len({each.job_id for each in done}) == len(done)
    return {each.job_id: each for each in done}


def tag(key: Key, worker: int, version: int, nbytes: int) -> bytes:
    return hashlib.shake_128(key + bytes([worker, version % 256])).digest(nbytes)


def record(key: Key, memory: SlotMemory, version: int = 0) -> bytes:
    """What a tier has of ``key``."""
    parts = memory.buffers(key_group(key), [0])
    return b"".join(tag(key, worker, version, len(part)) for worker, part in enumerate(parts))


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False, slots=True)
class Job:
    """A batch, and what it copies: what the slots held, or the records that were there."""

    batch: Batch
    loads: bool
    records: dict[Key, bytes]
    cleared: bool = False


class ManualTier(MemoryTier):
    """A tier whose jobs end when the test says so, with the failures that it asks for.

    As a real one might, it uses the slots of a job to the last moment: what is stored is read when
    the job ends, and must still be what it was; what is loaded into is garbage until then. With
    ``auto`` jobs end at the next poll. A job that is never ended hangs.
    """

    kind = "manual"

    def __init__(
        self,
        name: str,
        memory: SlotMemory,
        *,
        capacity: int = 1 << 40,
        spill: Spill = "on_store",
        auto: bool = False,
    ) -> None:
        super().__init__(name, memory, capacity=capacity)
        self.spill = spill
        self.auto = auto
        self.jobs: dict[int, Job] = {}
        self.declines = False
        self.rate: float | None = None
        """What `load_rate` says, if the test sets it."""
        self.touched: list[Key] = []
        self.offered: list[Batch] = []
        self._superseded: set[Key] = set()

    # --- what the test drives

    @property
    def stores(self) -> list[Batch]:
        return [job.batch for job in self.jobs.values() if not job.loads]

    @property
    def loads(self) -> list[Batch]:
        return [job.batch for job in self.jobs.values() if job.loads]

    @property
    def keys(self) -> list[Key]:
        """What could be loaded, in the order of eviction."""
        return list(self._records)

    def hold(self, keys: Iterable[Key]) -> None:
        """Have blocks, as if they had been stored."""
        for key in keys:
            self._records[key] = record(key, self.memory)
            self._stats.used += len(self._records[key])

    def forget(self, keys: Iterable[Key]) -> None:
        """Evict keys."""
        for key in keys:
            self._stats.used -= len(self._records.pop(key))

    def sicken(self, *, healthy: bool = False) -> None:
        """As a device that fails: it declines, and says so."""
        self._stats.healthy = healthy

    def end(
        self, *job_ids: int, failed: Callable[[Key], bool] = lambda _: False, drop: bool = True
    ) -> None:
        """End these jobs, or all. What failed to be read is dropped, as what does not verify is."""
        for job_id in job_ids or tuple(self.jobs):
            job = self.jobs.pop(job_id)
            lost = [key for key in job.batch.keys if failed(key)]
            (self._end_load if job.loads else self._end_store)(job, lost)
            if job.loads and drop:
                self.forget(filter(self.has, lost))

    def _end_store(self, job: Job, lost: Collection[Key]) -> None:
        if job.cleared:
            lost = job.batch.keys
        elif self._read(job.batch) != job.records:
            raise AssertionError("a slot was given away while it was read")
        for key in job.batch.keys:
            self._stats.used -= len(job.records[key]) * (key in lost)
            if key not in lost:
                self._records[key] = job.records[key]
                if key in self._superseded:
                    self.demote([key])
        self._superseded.difference_update(job.batch.keys)
        self._end("stored", job.batch, lost, 1e-3)

    def _end_load(self, job: Job, lost: Collection[Key]) -> None:
        failed = [key for key in job.batch.keys if key in lost or key not in job.records]
        for key, slot in zip(job.batch.keys, job.batch.slots, strict=True):
            if key not in failed:
                self._fill(job.batch.group_id, slot, job.records[key])
        self._seconds += 1e-3
        self._end("loaded", job.batch, failed, 1e-3)

    def _read(self, batch: Batch) -> dict[Key, bytes]:
        return {
            key: b"".join(self.memory.buffers(batch.group_id, [slot]))
            for key, slot in zip(batch.keys, batch.slots, strict=True)
        }

    def _fill(self, group_id: int, slot: int, record: bytes) -> None:
        at = 0
        for part in self.memory.buffers(group_id, [slot]):
            part[:] = record[at : at + len(part)]
            at += len(part)

    # --- what the cache calls

    def has(self, key: Key) -> bool:
        return self._stats.healthy and super().has(key)

    def missing(self, keys: Collection[Key]) -> list[Key]:
        coming = {key for batch in self.stores for key in batch.keys}
        return [key for key in keys if key not in self._records and key not in coming]

    def store(self, batch: Batch) -> bool:
        self.offered.append(batch)
        nbytes = self.memory.record_bytes[batch.group_id] * len(batch.keys)
        coming = self._stats.used - sum(map(len, self._records.values()))
        if self.declines or not self._stats.healthy or coming + nbytes > self._stats.capacity:
            self._stats.counters["declined"] += len(batch.keys)
            return False
        self._make_room(nbytes)
        self._stats.used += nbytes
        self.jobs[batch.job_id] = Job(batch, loads=False, records=self._read(batch))
        return True

    def load(self, batch: Batch) -> None:
        records = {key: self._records[key] for key in batch.keys if self.has(key)}
        self.jobs[batch.job_id] = Job(batch, loads=True, records=records)
        for slot in batch.slots:
            self._fill(batch.group_id, slot, GARBAGE * self.memory.record_bytes[batch.group_id])

    def poll(self) -> list[Done]:
        if self.auto:
            self.end()
        return super().poll()

    def touch(self, keys: Collection[Key]) -> None:
        self.touched += keys
        super().touch(keys)

    def demote(self, keys: Collection[Key]) -> None:
        self._superseded.update(key for batch in self.stores for key in batch.keys if key in keys)
        super().demote(keys)

    def clear(self) -> None:
        for job in self.jobs.values():
            job.cleared = True
        self._stats.used -= sum(map(len, self._records.values()))
        self._records.clear()

    def stats(self) -> TierStats:
        self._stats.jobs = len(self.jobs)
        return super().stats()

    @property
    def load_rate(self) -> float | None:
        return super().load_rate if self.rate is None else self.rate
