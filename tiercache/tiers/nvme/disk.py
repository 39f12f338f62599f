# SPDX-License-Identifier: Apache-2.0
"""What a tier has open on its disk: the namespace, the index, and each group's slots and records.

Covers opening, taking over what an earlier process left, and closing. What happens in between is
the tier's business.
"""

import os
import resource
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import compress
from typing import NamedTuple, cast

from tiercache.blocks import GroupSpec, Key
from tiercache.errors import TierCacheError
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import SlotMemory
from tiercache.tiers.nvme.index import Index, Location, index_bytes
from tiercache.tiers.nvme.namespace import Namespace
from tiercache.tiers.nvme.policy import make_disk_policy
from tiercache.tiers.nvme.records import Records
from tiercache.tiers.nvme.segments import SEGMENT_BYTES, Segments
from tiercache.tiers.nvme.space import SlotTable, split_capacity


class Group(NamedTuple):
    """What the tier has of one group."""

    group_id: int
    table: SlotTable
    records: Records
    checksums: "array[int]"
    """By slot on disk."""

    def locations(self, slots: Iterable[int]) -> set[Location]:
        return {Location(self.group_id, slot) for slot in slots}


class Disk:
    """The open namespace of a fingerprint below ``config.path``.

    ``groups`` and ``slots`` are those of the primary tier: the disk is divided in its proportion.
    Locking: none. Raises: ConfigError, TierCacheError if it cannot be opened.
    """

    groups: dict[int, Group]
    index: Index
    stale: set[Location]
    """Entries of the index for which there is no record any more."""

    def __init__(
        self,
        config: NvmeConfig,
        fingerprint: Mapping[str, object],
        memory: SlotMemory,
        groups: Sequence[GroupSpec],
        slots: Mapping[int, int],
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._config = config
        self._memory = memory
        self._segment_bytes = segment_bytes
        self.stale = set()
        demand = {g.group_id: (slots[g.group_id], memory.record_bytes[g.group_id]) for g in groups}
        disk_slots = split_capacity(config.capacity, demand, index_bytes)
        with ExitStack() as undo:
            try:
                self._open(fingerprint, disk_slots, undo)
            except OSError as error:
                raise TierCacheError(f"{config.path} cannot be used: {error}") from error
            self._release = undo.pop_all()

    def _open(
        self, fingerprint: Mapping[str, object], slots: Mapping[int, int], undo: ExitStack
    ) -> None:
        config = self._config
        self.namespace = Namespace.open(config.path, fingerprint, self._memory.record_bytes)
        undo.callback(self.namespace.close)
        durable = config.durability == "power"
        self.index = Index(self.namespace.index_directory, slots, durable=durable)
        undo.callback(self.index.close)
        self.groups = {
            group_id: self._open_group(group_id, count, undo) for group_id, count in slots.items()
        }

    def _open_group(self, group_id: int, slots: int, undo: ExitStack) -> Group:
        config = self._config
        segments = Segments(
            self.namespace.group_directory(group_id),
            self._memory.record_bytes[group_id],
            slots,
            segment_bytes=self._segment_bytes,
        )
        undo.callback(segments.close)
        _raise_limit(segments.count)
        policy = make_disk_policy(config.policy, slots)
        table = SlotTable(slots, policy, high_water=config.high_water, low_water=config.low_water)
        records = Records(group_id, segments, self._memory, config.path, config.min_free)
        group = Group(group_id, table, records, array("Q", bytes(8 * slots)))
        self._take_over(group, segments)
        return group

    def _take_over(self, group: Group, segments: Segments) -> None:
        """Publish what the index has, but for what no file holds any more."""
        keys, slots, checksums = self.index.load(group.group_id)
        import numpy as np

        # A view of the array: a million assignments, one by one, take a fifth of a second.
        np.frombuffer(group.checksums, np.uint64)[slots] = checksums
        if absent := set(segments.absent(slots)):
            self.stale |= group.locations(absent)
            there = [slot not in absent for slot in slots]
            keys, slots = list(compress(keys, there)), list(compress(slots, there))
        group.table.restore(cast(list[Key], keys), slots)

    def describe(self) -> str:
        found = sum(len(group.table.slot_of) for group in self.groups.values())
        slots = ", ".join(f"{g.table.slots} of group {i}" for i, g in self.groups.items())
        return f"{os.fspath(self.namespace.directory)}, slots: {slots}; {found} blocks found"

    def close(self) -> None:
        """Close everything. No job may run any more. Does nothing the second time."""
        self._release.close()


def _raise_limit(descriptors: int) -> None:
    """Let the process have so many descriptors more: each segment needs one, as it is written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = soft + descriptors
    if soft != resource.RLIM_INFINITY:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
