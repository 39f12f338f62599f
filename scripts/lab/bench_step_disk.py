# SPDX-License-Identifier: Apache-2.0
"""A disk for scripts/bench_step: a real tier, full of entries, that is read slowly.

Covers making it. Records are small and all alike, as only calls are timed; each read takes as long
as one of a disk that is busy with something else.
"""

import mmap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from lab.bench_nvme_contenders import block_key, capacity_of
from lab.bench_nvme_index import RECORDS_PER_SEGMENT, Large
from tiercache.blocks import SLOT_ALIGNMENT, BlockHash, Key, key_hash
from tiercache.cache import TieredCache
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import SlotMemory
from tiercache.tiers.nvme.records import Records
from tiercache.tiers.nvme.tier import NvmeTier

#: Added to each read: the tail of a disk under load.
DELAY_S = 0.05
#: Seconds that a request waits for the disk.
PATIENCE_S = 120.0
_RECORD = bytes(SLOT_ALIGNMENT)


class Disk:
    """What a request can find there."""

    def __init__(self, entries: int) -> None:
        self._entries = entries

    def request(self, number: int, blocks: int) -> list[BlockHash]:
        """Hashes of request ``number``, which no other request has; the youngest come first."""
        first = self._entries - (number + 1) * blocks
        if first < 0:
            raise ValueError(f"the disk has {self._entries} entries, too few for these requests")
        return [key_hash(block_key(0, n)) for n in range(first, first + blocks)]


@contextmanager
def slow_disk(path: Path, cache: TieredCache, entries: int) -> Iterator[Disk]:
    """Attach a tier with ``entries`` entries, in ``path``, to a cache of one group."""
    large = Large(path / "large", entries, checksum=_checksum)
    large.path.mkdir(mode=0o700)
    large.make()
    [(group_id, pool)] = cache.primary.pools.items()
    region = memoryview(mmap.mmap(-1, pool.capacity * SLOT_ALIGNMENT))
    memory = SlotMemory([pool.spec], {group_id: [region]})
    capacity = capacity_of(entries, SLOT_ALIGNMENT)
    config = NvmeConfig(path=large.path, capacity=capacity, min_free=0)
    slots = {group_id: pool.capacity}
    tier = NvmeTier(
        *("slow", memory, [pool.spec], slots),
        config=config,
        fingerprint={},
        segment_bytes=RECORDS_PER_SEGMENT * SLOT_ALIGNMENT,
    )
    cache.attach([tier], patience_s=PATIENCE_S, restore="always")
    try:
        with _slowly():
            yield Disk(entries)
    finally:
        cache.close()


def _checksum(number: int) -> int:
    """Of a record of zeros, as ``Records`` has it."""
    seed = int.from_bytes(key_hash(block_key(0, number))[:8], "little")
    return xxhash.xxh3_64_intdigest(_RECORD, seed)


@contextmanager
def _slowly() -> Iterator[None]:
    read = Records.read

    def slow(records: Records, keys: Sequence[Key], *args: Any) -> Any:
        time.sleep(DELAY_S)
        return read(records, keys, *args)

    Records.read = slow  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Records.read = read  # type: ignore[method-assign]
