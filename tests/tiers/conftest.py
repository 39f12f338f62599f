# SPDX-License-Identifier: Apache-2.0
"""Tiers of every kind, for what is true of all of them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lab.store import Master, machine
from tests import mooncake_helpers
from tests.mooncake_helpers import config, connect_all, lend, raw_store
from tests.tier_helpers import ManualTier
from tiercache.blocks import GroupSpec
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import SecondaryTier, SlotMemory
from tiercache.tiers.memory import MemoryTier
from tiercache.tiers.mooncake.tier import MooncakeTier
from tiercache.tiers.nvme.index import index_bytes
from tiercache.tiers.nvme.space import slack_bytes
from tiercache.tiers.nvme.tier import NvmeTier

#: Takes the groups, the primary tier's slots, and how many records of each group there is room for.
MakeTier = Callable[[Sequence[GroupSpec], SlotMemory, int], SecondaryTier]
Opener = Callable[[Sequence[GroupSpec], SlotMemory, int, Path], SecondaryTier]


MOONCAKE = Path(__file__).parent / "mooncake"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What calls the package of a Mooncake store, whose faults end the process."""
    for item in items:
        if item.path.is_relative_to(MOONCAKE):
            item.add_marker(pytest.mark.mooncake)


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


def _mooncake(raw: Any) -> Opener:
    def opener(
        groups: Sequence[GroupSpec], memory: SlotMemory, room: int, path: Path
    ) -> SecondaryTier:
        return MooncakeTier(
            "mooncake0",
            memory,
            config=config(capacity=room * sum(memory.record_bytes.values())),
            fingerprint={"path": str(path)},
            connect=lend(raw),
        )

    return opener


@pytest.fixture(
    scope="session",
    params=["memory", "manual", "nvme", pytest.param("mooncake", marks=pytest.mark.mooncake)],
)
def opener(request: pytest.FixtureRequest) -> Opener:
    """Opens tiers of one kind. Of the session: a store's connections are there before a test."""
    local: dict[str, Opener] = {"memory": _memory, "manual": _manual, "nvme": _nvme}
    return local.get(request.param) or _mooncake(request.getfixturevalue("raw"))


@pytest.fixture
def make_tier(opener: Opener, tmp_path: Path) -> Iterator[MakeTier]:
    """Makes tiers of one kind, each empty, and closes them after the test."""
    opened: list[SecondaryTier] = []
    numbers = count()

    def make(groups: Sequence[GroupSpec], memory: SlotMemory, room: int) -> SecondaryTier:
        opened.append(opener(groups, memory, room, tmp_path / str(next(numbers))))
        return opened[-1]

    yield make
    for tier in opened:
        tier.close()


@pytest.fixture(scope="session")
def master() -> Iterator[Master]:
    """A master of a Mooncake store that nobody stops."""
    with mooncake_helpers.master() as running:
        yield running


@pytest.fixture(scope="session")
def raw(master: Master) -> Iterator[Any]:
    """A connection to a store with the memory of one machine."""
    with machine(master):
        store = raw_store(master.address)
        connect_all(store)
        yield store
        store.close()
