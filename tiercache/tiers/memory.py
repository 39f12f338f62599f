# SPDX-License-Identifier: Apache-2.0
"""The smallest real tier: records as bytes in a dict, copied at once and gone with the process.

It shows what a tier has to do, and stands in for slower ones in tests.
"""

from collections import OrderedDict
from collections.abc import Collection
from time import perf_counter

from tiercache.blocks import Key
from tiercache.tiers.base import Batch, Done, SecondaryTier, SlotMemory, TierStats


class MemoryTier(SecondaryTier):
    """Keeps up to ``capacity`` bytes; demoted records go first, then the least recent ones."""

    kind = "memory"

    def __init__(self, name: str, memory: SlotMemory, *, capacity: int) -> None:
        super().__init__(name, memory)
        self._records: OrderedDict[Key, bytes] = OrderedDict()
        self._done: list[Done] = []
        self._stats = TierStats(capacity, used=0, entries=0, jobs=0, healthy=True)
        self._seconds = 0.0

    def has(self, key: Key) -> bool:
        return key in self._records

    def missing(self, keys: Collection[Key]) -> list[Key]:
        return [key for key in keys if key not in self._records]

    def store(self, batch: Batch) -> bool:
        size = self.memory.record_bytes[batch.group_id]
        if size * len(batch.keys) > self._stats.capacity or not self._stats.healthy:
            self._stats.counters["declined"] += len(batch.keys)
            return False
        start = perf_counter()
        for key, slot in zip(batch.keys, batch.slots, strict=True):
            self._make_room(size)
            self._records[key] = b"".join(self.memory.buffers(batch.group_id, [slot]))
            self._stats.used += size
        self._end("stored", batch, (), perf_counter() - start)
        return True

    def _make_room(self, nbytes: int) -> None:
        while self._stats.used + nbytes > self._stats.capacity:
            _, record = self._records.popitem(last=False)
            self._stats.used -= len(record)
            self._stats.counters["evicted"] += 1

    def load(self, batch: Batch) -> None:
        start = perf_counter()
        failed = [key for key in batch.keys if key not in self._records]
        for key, slot in zip(batch.keys, batch.slots, strict=True):
            at = 0
            for buffer in self.memory.buffers(batch.group_id, [slot]) if self.has(key) else ():
                buffer[:] = self._records[key][at : at + len(buffer)]
                at += len(buffer)
        self._seconds += perf_counter() - start
        self._end("loaded", batch, failed, perf_counter() - start)

    def _end(self, what: str, batch: Batch, failed: Collection[Key], seconds: float) -> None:
        count = len(batch.keys) - len(failed)
        nbytes = count * self.memory.record_bytes[batch.group_id]
        self._stats.counters.update({what: count, f"{what}_bytes": nbytes})
        self._done.append(Done(batch.job_id, failed, nbytes, seconds))

    def poll(self) -> list[Done]:
        done, self._done = self._done, []
        return done

    def touch(self, keys: Collection[Key]) -> None:
        for key in filter(self.has, keys):
            self._records.move_to_end(key)

    def demote(self, keys: Collection[Key]) -> None:
        for key in filter(self.has, keys):
            self._records.move_to_end(key, last=False)

    def clear(self) -> None:
        self._records.clear()
        self._stats.used = 0

    @property
    def load_rate(self) -> float | None:
        loaded = self._stats.counters["loaded_bytes"]
        return loaded / self._seconds if loaded and self._seconds else None

    def stats(self) -> TierStats:
        self._stats.entries = len(self._records)
        return self._stats

    def close(self) -> None:
        self.clear()
        self._stats.healthy = False
