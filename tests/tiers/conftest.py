# SPDX-License-Identifier: Apache-2.0
"""Tiers of every kind, for what is true of all of them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.tier_helpers import ManualTier
from tiercache.blocks import GroupSpec
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import SecondaryTier, SlotMemory
from tiercache.tiers.memory import MemoryTier
from tiercache.tiers.nvme.index import index_bytes
from tiercache.tiers.nvme.space import slack_bytes
from tiercache.tiers.nvme.tier import NvmeTier

#: Takes the groups, the primary tier's slots, and how many records of each group there is room for.
MakeTier = Callable[[Sequence[GroupSpec], SlotMemory, int], SecondaryTier]


def _memory(groups: Sequence[GroupSpec], memory: SlotMemory, room: int, _: Path) -> SecondaryTier:
    return MemoryTier("memory0", memory, capacity=room * sum(memory.record_bytes.values()))


def _manual(groups: Sequence[GroupSpec], memory: SlotMemory, room: int, _: Path) -> SecondaryTier:
    capacity = room * sum(memory.record_bytes.values())
    return ManualTier("manual0", memory, capacity=capacity, auto=True)


def _nvme(groups: Sequence[GroupSpec], memory: SlotMemory, room: int, path: Path) -> SecondaryTier:
    slots = {group.group_id: room for group in groups}
    records = room * sum(memory.record_bytes.values())
    capacity = records + index_bytes(slots) + slack_bytes(slots)
    config = NvmeConfig(path=path, capacity=capacity, min_free=0)
    return NvmeTier("nvme0", memory, groups, slots, config=config, fingerprint={})


@pytest.fixture(params=[_memory, _manual, _nvme], ids=["memory", "manual", "nvme"])
def make_tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeTier]:
    """Makes tiers of one kind, each empty, and closes them after the test."""
    opened: list[SecondaryTier] = []
    numbers = count()

    def make(groups: Sequence[GroupSpec], memory: SlotMemory, room: int) -> SecondaryTier:
        opened.append(request.param(groups, memory, room, tmp_path / str(next(numbers))))
        return opened[-1]

    yield make
    for tier in opened:
        tier.close()
