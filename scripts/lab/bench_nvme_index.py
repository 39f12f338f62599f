# SPDX-License-Identifier: Apache-2.0
"""A tier with a million entries, for scripts/bench_nvme: how soon it is open, how fast it answers.

Covers making one: an index with all entries, and segment files that are there in full but empty,
with small records, as nobody reads them. Loads nothing.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.bench_nvme_contenders import block_key, capacity_of
from tiercache.blocks import SLOT_ALIGNMENT, GroupKind, GroupSpec, Key, key_hash
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import SlotMemory
from tiercache.tiers.nvme.index import Entry, Index, Location
from tiercache.tiers.nvme.tier import NvmeTier

#: As many files as records of 1 MiB would need.
RECORDS_PER_SEGMENT = 1024
#: Entries of one transaction.
CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class Large:
    """A tier of ``entries`` records in ``path``, all of them in its index."""

    path: Path
    entries: int
    checksum: Callable[[int], int] = int
    """Of the record of an entry, which is never read unless somebody gives the right one."""

    def make(self) -> None:
        with self.open():
            pass  # makes the namespace
        (home,) = self.path.iterdir()
        index = Index(home / "index", {0: self.entries}, durable=False)
        for first in range(0, self.entries, CHUNK):
            slots = range(first, min(first + CHUNK, self.entries))
            index.update({Location(0, n): Entry(_hash(n), self.checksum(n), n) for n in slots})
        index.close()
        for number, first in enumerate(range(0, self.entries, RECORDS_PER_SEGMENT)):
            records = min(RECORDS_PER_SEGMENT, self.entries - first)
            file = home / "g0" / f"{number:06d}.seg"
            file.touch(0o600)
            os.truncate(file, records * SLOT_ALIGNMENT)

    @contextmanager
    def open(self) -> Iterator[NvmeTier]:
        spec = GroupSpec(0, GroupKind.FULL, 16, SLOT_ALIGNMENT)
        memory = SlotMemory([spec], {0: [memoryview(bytearray(SLOT_ALIGNMENT))]})
        slots = {0: self.entries}
        capacity = capacity_of(self.entries, SLOT_ALIGNMENT)
        tier = NvmeTier(
            "bench",
            memory,
            [spec],
            slots,
            config=NvmeConfig(path=self.path, capacity=capacity, min_free=0),
            fingerprint={},
            segment_bytes=RECORDS_PER_SEGMENT * SLOT_ALIGNMENT,
        )
        try:
            yield tier
        finally:
            tier.close()

    def restart(self) -> float:
        """Seconds to open it, with the index read from the disk."""
        forget(self.path)
        gc.collect()
        start = time.perf_counter()
        with self.open() as tier:
            seconds = time.perf_counter() - start
            if not (tier.has(self._key(0)) and tier.has(self._key(self.entries - 1))):
                raise RuntimeError("the tier did not find what the index holds")
        return seconds

    def lookups(self, keys: int, rounds: int) -> list[float]:
        """Milliseconds to find out that a prefix of ``keys`` keys is there, once per round."""
        with self.open() as tier:
            return [self._lookup(tier, keys, number) for number in range(rounds)]

    def _lookup(self, tier: NvmeTier, keys: int, number: int) -> float:
        first = number * keys % max(1, self.entries - keys)
        # New objects: nobody has hashed these before.
        prefix = [self._key(n) for n in range(first, min(first + keys, self.entries))]
        gc.collect()
        start = time.perf_counter()
        found = tier.leading(prefix)
        seconds = time.perf_counter() - start
        if found < len(prefix):
            raise RuntimeError("the tier did not find what the index holds")
        return seconds * 1e3

    def _key(self, number: int) -> Key:
        return block_key(0, number)


def _hash(number: int) -> bytes:
    return key_hash(block_key(0, number))


def forget(path: Path) -> None:
    """Have the page cache drop what it has of the files below ``path``."""
    for file in path.rglob("*.mdb"):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
