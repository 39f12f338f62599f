# SPDX-License-Identifier: Apache-2.0
"""A disk below the cache, as far as a replay needs one: the books of the NVMe tier without bytes.

Covers what is there and what leaves, decided by the tables and the order that the NVMe tier has.
Not how long anything takes: a copy has ended when the cache asks the next time.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tiercache.blocks import GroupSpec, Key, by_group, key_group
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import Batch, Done, SecondaryTier, SlotMemory, TierStats
from tiercache.tiers.nvme.policy import make_disk_policy
from tiercache.tiers.nvme.space import SlotTable


class DiskModel(SecondaryTier):
    """A disk that keeps up with whatever is written to it.

    Args:
        groups: the groups that are cached.
        slots: slots of the primary tier by group id; the disk is divided in this proportion.
        most: slots on disk of the group that has most.
    """

    kind = "disk model"

    def __init__(self, groups: Sequence[GroupSpec], slots: Mapping[int, int], most: int) -> None:
        # Nobody looks at the bytes.
        super().__init__(
            "disk", SlotMemory(groups, {g.group_id: [memoryview(b"")] for g in groups})
        )
        largest = max(slots.values())
        self._tables = {
            group.group_id: _table(max(1, slots[group.group_id] * most // largest))
            for group in groups
        }
        self._done: list[Done] = []

    def has(self, key: Key) -> bool:
        return key in self._tables[key_group(key)].slot_of

    def missing(self, keys: Collection[Key]) -> list[Key]:
        return [key for key in keys if not self.has(key)]

    def store(self, batch: Batch) -> bool:
        table = self._tables[batch.group_id]
        if table.allocate(batch.keys) is None:
            return False
        table.publish(batch.keys)
        self._end(batch, (), loads=False)
        return True

    def load(self, batch: Batch) -> None:
        self._end(batch, [key for key in batch.keys if not self.has(key)], loads=True)

    def _end(self, batch: Batch, failed: Collection[Key], *, loads: bool) -> None:
        nbytes = (len(batch.keys) - len(failed)) * self.memory.record_bytes[batch.group_id]
        self._done.append(Done(batch.job_id, failed, nbytes, 0.0))

    def poll(self) -> list[Done]:
        done, self._done = self._done, []
        return done

    def touch(self, keys: Collection[Key]) -> None:
        for group_id, run in by_group(keys).items():
            self._tables[group_id].touch(run)

    def demote(self, keys: Collection[Key]) -> None:
        for group_id, run in by_group(keys).items():
            self._tables[group_id].demote(run)

    def clear(self) -> None:
        for table in self._tables.values():
            table.clear()

    @property
    def load_rate(self) -> float | None:
        return None

    def stats(self) -> TierStats:
        sizes = self.memory.record_bytes
        return TierStats(
            capacity=sum(table.slots * sizes[g] for g, table in self._tables.items()),
            used=sum(table.used * sizes[g] for g, table in self._tables.items()),
            entries=sum(len(table.slot_of) for table in self._tables.values()),
            jobs=len(self._done),
            healthy=True,
        )

    def close(self) -> None:
        self.clear()

    def validate(self) -> None:
        """Check the books; raises InvariantError."""
        for table in self._tables.values():
            table.validate()


def _table(slots: int) -> SlotTable:
    # As the NVMe tier is where nothing else is asked for.
    usual = NvmeConfig(path=Path(), capacity=1)
    policy = make_disk_policy(usual.policy, slots)
    return SlotTable(slots, policy, high_water=usual.high_water, low_water=usual.low_water)
