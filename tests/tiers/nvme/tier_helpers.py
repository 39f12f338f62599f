# SPDX-License-Identifier: Apache-2.0
"""What the tests of the whole tier share: slots in memory with tagged bytes, and a tier over them.

Every byte of a record follows from its key and worker, so that whoever reads it back, in whatever
process, knows what must be there.
"""

import hashlib
import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tiercache.blocks import GroupKind, GroupSpec, Key, key_group, make_key
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import Batch, Done, SlotMemory
from tiercache.tiers.nvme.index import index_bytes
from tiercache.tiers.nvme.space import slack_bytes
from tiercache.tiers.nvme.tier import NvmeTier

#: For what must happen: failing takes this long, passing does not.
PATIENCE_S = 30.0
SLOT_BYTES = {0: 8192, 1: 16384}
#: Slots in memory, and with the default capacity on disk.
PRIMARY = {0: 64, 1: 16}
DISK = {0: 40, 1: 10}
#: Eight slots of group 0, four of group 1.
SEGMENT_BYTES = 1 << 16
FINGERPRINT: Mapping[str, object] = {"model": "m", "hash_seed": "0"}


def keys(names: Iterable[object], group_id: int = 0) -> list[Key]:
    return [make_key(hashlib.sha256(str(name).encode()).digest(), group_id) for name in names]


def content(key: Key, worker: int) -> bytes:
    return hashlib.shake_128(key + bytes([worker])).digest(SLOT_BYTES[key_group(key)])


def capacity_of(slots: Mapping[int, int], workers: int = 1) -> int:
    """The least capacity that holds so many slots."""
    records = sum(n * workers * SLOT_BYTES[group_id] for group_id, n in slots.items())
    return records + index_bytes(slots) + slack_bytes(slots)


def occupied(path: Path) -> int:
    """What ``du`` would say; files may vanish meanwhile."""
    total = 0
    for directory, _, files in os.walk(path):
        for name in (".", *files):
            try:
                total += os.lstat(Path(directory, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Rig(ExitStack):
    """The primary tier's slots, and the tiers that are opened over them; closes them at its end."""

    def __init__(self, path: Path, workers: int = 1) -> None:
        super().__init__()
        self.path = path
        self.workers = workers
        self.groups = [GroupSpec(g, GroupKind.FULL, 16, size) for g, size in SLOT_BYTES.items()]
        self.regions = {
            g: [memoryview(mmap.mmap(-1, n * SLOT_BYTES[g])) for _ in range(workers)]
            for g, n in PRIMARY.items()
        }
        self.memory = SlotMemory(self.groups, self.regions)
        self.done: dict[int, Done] = {}
        self._ids = count()

    def config(self, **settings: Any) -> NvmeConfig:
        settings.setdefault("capacity", capacity_of(DISK, self.workers))
        settings.setdefault("min_free", 0)
        return NvmeConfig(path=settings.pop("path", self.path), **settings)

    def open(
        self,
        *,
        fingerprint: Mapping[str, object] = FINGERPRINT,
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> NvmeTier:
        tier = NvmeTier(
            "nvme0",
            self.memory,
            self.groups,
            PRIMARY,
            config=self.config(**settings),
            fingerprint=fingerprint,
            clock=clock,
            segment_bytes=SEGMENT_BYTES,
        )
        self.callback(tier.close)
        return tier

    def batch(self, chosen: Sequence[Key], first: int = 0) -> Batch:
        """A job for keys of one group, in the slots from ``first`` on."""
        slots = list(range(first, first + len(chosen)))
        return Batch(next(self._ids), key_group(chosen[0]), list(chosen), slots)

    def fill(self, batch: Batch, *, garbage: bool = False) -> None:
        """Write into the slots of a job what its keys stand for, or what nothing stands for."""
        for key, slot in zip(batch.keys, batch.slots, strict=True):
            size = SLOT_BYTES[batch.group_id]
            for worker, region in enumerate(self.regions[batch.group_id]):
                region[slot * size : (slot + 1) * size] = (
                    b"\xaa" * size if garbage else content(key, worker)
                )

    def right(self, batch: Batch) -> list[Key]:
        """The keys of a job whose slots hold what they stand for."""
        size = SLOT_BYTES[batch.group_id]
        return [
            key
            for key, slot in zip(batch.keys, batch.slots, strict=True)
            if all(
                region[slot * size : (slot + 1) * size] == content(key, worker)
                for worker, region in enumerate(self.regions[batch.group_id])
            )
        ]

    def begin_store(self, tier: NvmeTier, chosen: Sequence[Key], first: int = 0) -> Batch | None:
        batch = self.batch(chosen, first)
        self.fill(batch)
        return batch if tier.store(batch) else None

    def store(self, tier: NvmeTier, chosen: Sequence[Key]) -> Done:
        batch = self.begin_store(tier, chosen)
        assert batch is not None
        return self.wait(tier, batch)

    def stored(self, tier: NvmeTier, chosen: Sequence[Key], at_once: int = 8) -> None:
        """Store all keys, which must succeed."""
        for start in range(0, len(chosen), at_once):
            assert not self.store(tier, chosen[start : start + at_once]).failed

    def load(self, tier: NvmeTier, chosen: Sequence[Key]) -> tuple[Done, list[Key]]:
        """Load keys into slots of garbage; the job's end, and which keys' bytes are right."""
        batch = self.batch(chosen)
        self.fill(batch, garbage=True)
        tier.load(batch)
        return self.wait(tier, batch), self.right(batch)

    def loaded(self, tier: NvmeTier, chosen: Sequence[Key], at_once: int = 8) -> list[Key]:
        """The keys that come back. Asserts that none comes back wrong."""
        good: list[Key] = []
        for start in range(0, len(chosen), at_once):
            done, right = self.load(tier, chosen[start : start + at_once])
            served = [k for k in chosen[start : start + at_once] if k not in done.failed]
            assert set(served) <= set(right)
            good += served
        return good

    def wait(self, tier: NvmeTier, batch: Batch) -> Done:
        until(lambda: self.poll(tier).get(batch.job_id))
        return self.done.pop(batch.job_id)

    def poll(self, tier: NvmeTier) -> dict[int, Done]:
        self.done.update({done.job_id: done for done in tier.poll()})
        return self.done


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def validate(tier: NvmeTier) -> None:
    for group in tier._groups.values():
        group.table.validate()


def published(tier: NvmeTier) -> list[Key]:
    """All keys that can be loaded, group by group, in the order in which they would leave."""
    tables = [group.table for group in tier._groups.values()]
    orders = [table.slot_of.keys_in(table._policy.victims(table.slots)) for table in tables]
    return [key for order in orders for key in order]


def in_index(tier: NvmeTier) -> dict[int, int]:
    """Entries of the index by group."""
    return {g: len(tier._disk.index.load(g).keys) for g in tier._groups}


def namespace_of(path: Path) -> Path:
    [directory] = path.iterdir()
    return directory


def wait_cleared(rig: Rig, tier: NvmeTier) -> None:
    until(lambda: (rig.poll(tier), tier._ledger.is_current)[1])


def segment(rig: Rig, number: int, group_id: int = 0) -> Path:
    return namespace_of(rig.path) / f"g{group_id}" / f"{number:06d}.seg"


class Gate:
    """Holds back every call of a method until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.reached, self.open = Event(), Event()
        method: Callable[..., object] = getattr(owner, name)

        def gated(*args: object, **kwargs: object) -> object:
            self.reached.set()
            assert self.open.wait(30)
            return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, gated)


def full_tier(rig: Rig, **settings: Any) -> tuple[NvmeTier, list[Key]]:
    """A tier whose group 0 has used all that it uses before it evicts: 38 of 40 slots."""
    tier = rig.open(**settings)
    stored = keys(range(38))
    rig.stored(tier, stored, at_once=2)
    assert published(tier) == stored
    return tier, stored
