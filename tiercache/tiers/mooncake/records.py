# SPDX-License-Identifier: Apache-2.0
"""Records between slots in memory and objects in the store, with their checksums.

Covers what a thread does in one go, blocking. An object is the parts of all workers, straight
from and into their slots, and a trailer with the checksum. Decides nothing and keeps no books.
"""

import mmap
from collections.abc import Collection, Iterator, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import xxhash

from tiercache.blocks import Key
from tiercache.tiers.base import SlotMemory
from tiercache.tiers.mooncake.client import EXISTS, NOT_FOUND, Client, Parts, is_unreached
from tiercache.tiers.nvme.records import checksum

#: Bytes of one call: long enough to be worth it, short enough that others get a turn.
CALL_BYTES = 32 << 20
#: Parts of records on their way at once. The package queues 1,024 for each machine over TCP, turns
#: away what does not fit, and then spins for 60 s before it says so.
PARTS_AT_ONCE = 512
TRAILER_BYTES = 8


class Result(NamedTuple):
    """What became of the keys of a job, or of a part of it."""

    failed: list[Key]
    corrupt: int = 0
    """How many of the failed ones did not verify."""
    gone: Collection[Key] = ()
    """Those that were not there."""
    code: int = 0
    """The last error that was neither."""


class Records:
    """The records of all groups in the store of ``client``.

    ``depth``: calls at once. ``space`` is the namespace of each call, a prefix of the objects'
    names. Locking: none; jobs of different slots may run at once, up to ``depth``. Raises what the
    package raises, TierCacheError at the start.
    """

    def __init__(self, client: Client, memory: SlotMemory, depth: int) -> None:
        self._client = client
        self._memory = memory
        self._call_parts = max(1, PARTS_AT_ONCE // depth)
        self._trailers: SimpleQueue[memoryview] = SimpleQueue()
        size = self._call_parts * TRAILER_BYTES
        trailers = memoryview(mmap.mmap(-1, depth * size))
        for region in (*memory.regions(), trailers):
            client.register(region)
        for place in range(depth):
            self._trailers.put(trailers[place * size : (place + 1) * size])

    def calls(self, group_id: int, count: int) -> Iterator[slice]:
        """Divide ``count`` records into slices for one call each."""
        parts = len(self._memory.buffers(group_id, [0])) + 1
        fitting = CALL_BYTES // self._memory.record_bytes[group_id]
        step = max(1, min(self._call_parts // parts, fitting))
        return (slice(first, first + step) for first in range(0, count, step))

    def exist(self, space: str, keys: Sequence[Key]) -> tuple[list[Key], int]:
        """Which keys are there, and the last error."""
        codes = self._client.exist([_name(space, key) for key in keys])
        found = [key for key, code in zip(keys, codes, strict=True) if code == EXISTS]
        return found, next((code for code in reversed(codes) if code < 0), 0)

    def store(
        self,
        space: str,
        group_id: int,
        keys: Sequence[Key],
        slots: Sequence[int],
        forks: Collection[Key] = (),
    ) -> Result:
        """Store what nobody else has stored, ``forks`` among it to be kept the longest."""
        here, code = self.exist(space, keys)
        if is_unreached(code):
            return Result(list(keys), code=code)
        known = frozenset(here)
        pairs = [(k, s) for k, s in zip(keys, slots, strict=True) if k not in known]
        failed: list[Key] = []
        for pinned in (True, False):
            some = [pair for pair in pairs if (pair[0] in forks) is pinned]
            for part in self.calls(group_id, len(some)):
                codes = self._put(space, group_id, some[part], pinned=pinned)
                failed += [key for (key, _), found in zip(some[part], codes, strict=True) if found]
                code = next(filter(None, codes), code)
        return Result(failed, code=code if failed else 0)

    def _put(
        self, space: str, group_id: int, pairs: Sequence[tuple[Key, int]], *, pinned: bool
    ) -> list[int]:
        names = [_name(space, key) for key, _ in pairs]
        trailers = self._trailers.get()
        try:
            records = list(self._records(group_id, [slot for _, slot in pairs], trailers))
            for name, (*parts, trailer) in zip(names, records, strict=True):
                trailer[:] = _sum(name, parts)
            return self._client.put(names, records, pinned=pinned)
        finally:
            self._trailers.put(trailers)

    def load(self, space: str, group_id: int, keys: Sequence[Key], slots: Sequence[int]) -> Result:
        """Fill ``slots``; what does not verify is removed from the store."""
        names = [_name(space, key) for key in keys]
        size = self._memory.record_bytes[group_id] + TRAILER_BYTES
        trailers = self._trailers.get()
        try:
            records = list(self._records(group_id, slots, trailers))
            codes = self._client.get(names, records)
            corrupt = [
                i
                for i, (name, (*parts, trailer)) in enumerate(zip(names, records, strict=True))
                if codes[i] == size and trailer != _sum(name, parts)
            ]
        finally:
            self._trailers.put(trailers)
        if corrupt:
            self._client.remove([names[i] for i in corrupt])
        bad = frozenset(corrupt)
        failed = [key for i, key in enumerate(keys) if codes[i] != size or i in bad]
        gone = [key for key, code in zip(keys, codes, strict=True) if code == NOT_FOUND]
        errors = [code for code in codes if code not in (size, NOT_FOUND)]
        return Result(failed, len(corrupt), gone, errors[-1] if errors else 0)

    def _records(
        self, group_id: int, slots: Sequence[int], trailers: memoryview
    ) -> Iterator[Parts]:
        for place, slot in enumerate(slots):
            trailer = trailers[place * TRAILER_BYTES : (place + 1) * TRAILER_BYTES]
            yield [*self._memory.buffers(group_id, [slot]), trailer]


def _name(space: str, key: Key) -> str:
    return f"{space}/{key.hex()}"


def _sum(name: str, parts: Parts) -> bytes:
    """Of a record that is called ``name``, group and namespace included."""
    return checksum(xxhash.xxh3_64_digest(name.encode()), parts).to_bytes(TRAILER_BYTES, "little")
