# SPDX-License-Identifier: Apache-2.0
"""Records of one group between slots in memory and slots on disk, with their checksums.

Covers what a worker thread does in one go, blocking. Does not decide which slot, and keeps no
books.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import xxhash

from tiercache.blocks import BlockHash, Key, key_hash
from tiercache.errors import TierCacheError
from tiercache.tiers.base import SlotMemory
from tiercache.tiers.nvme.io import read_now, write_now
from tiercache.tiers.nvme.segments import RUN_BYTES, Run, Segments


class DiskFullError(TierCacheError):
    """There is no space for another segment. What lies in those there are can be replaced."""


class Records:
    """The records of ``group_id`` in ``segments``.

    ``min_free``: bytes that the file system keeps free of us. Locking: none; jobs of different
    slots may run at once. Raises: OSError; DiskFullError from ``write``, which wrote nothing.
    """

    def __init__(
        self, group_id: int, segments: Segments, memory: SlotMemory, path: Path, min_free: int
    ) -> None:
        self.record_bytes = memory.record_bytes[group_id]
        self._group_id = group_id
        self._segments = segments
        self._memory = memory
        self._path = path
        self._min_free = min_free

    def write(
        self, keys: Sequence[Key], slots: Sequence[int], disk: Sequence[int], *, durable: bool
    ) -> list[int]:
        """Write ``slots[i]`` to ``disk[i]``; returns the checksums."""
        self._allocate(disk)
        checksums = [self._checksum(key, slot) for key, slot in zip(keys, slots, strict=True)]
        runs = self._segments.runs(disk)
        for run in runs:
            write_now(run.fd, run.offset, self._buffers(slots, run))
        for fd in {run.fd for run in runs} if durable else ():
            os.fdatasync(fd)
        return checksums

    def _allocate(self, disk: Sequence[int]) -> None:
        needed = self._segments.missing(disk)
        if not needed:
            return
        stat = os.statvfs(self._path)
        # A file system that lives in memory may not know its size.
        if stat.f_blocks and stat.f_bavail * stat.f_frsize < needed + self._min_free:
            raise DiskFullError(f"{self._path} has no {needed} bytes beyond min_free")
        try:
            self._segments.prepare(disk)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(f"{self._path} is full") from error
            raise

    def lacking(self) -> list[range]:
        """Slots on disk whose segments are not allocated."""
        return self._segments.lacking()

    def parts(self, disk: Sequence[int]) -> Iterator[slice]:
        """Divide a long job into slices of at most RUN_BYTES, or of one record."""
        step = max(1, RUN_BYTES // self.record_bytes)
        return (slice(first, first + step) for first in range(0, len(disk), step))

    def read(
        self,
        keys: Sequence[Key],
        slots: Sequence[int],
        disk: Sequence[int],
        checksums: Sequence[int],
    ) -> tuple[list[Key], OSError | None]:
        """Read ``disk[i]`` into ``slots[i]``; returns what did not verify, and what went wrong.

        Keys that an error kept from being read are among the first.
        """
        corrupt: list[Key] = []
        error: OSError | None = None
        for run in self._segments.runs(disk):
            part = range(run.start, run.start + run.count)
            try:
                read_now(run.fd, run.offset, self._buffers(slots, run))
            except OSError as found:
                error = found
                corrupt += (keys[i] for i in part)
            else:
                corrupt += (
                    keys[i] for i in part if self._checksum(keys[i], slots[i]) != checksums[i]
                )
        return corrupt, error

    def _buffers(self, slots: Sequence[int], run: Run) -> list[memoryview]:
        return self._memory.buffers(self._group_id, slots[run.start : run.start + run.count])

    def _checksum(self, key: Key, slot: int) -> int:
        return checksum(key_hash(key), self._memory.buffers(self._group_id, [slot]))


def checksum(block_hash: BlockHash, parts: Iterable[memoryview]) -> int:
    """XXH3 of a record, seeded with its key: what belongs to another key does not verify.

    A call for each worker's part, which releases the interpreter lock if it is over 64 KiB.
    """
    digest = int.from_bytes(block_hash[:8], "little")
    for part in parts:
        digest = xxhash.xxh3_64_intdigest(part, digest)
    return digest
