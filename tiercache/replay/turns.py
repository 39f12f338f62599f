# SPDX-License-Identifier: Apache-2.0
"""Turns: what a trace or a workload is made of, whatever it was read from.

Covers the one form of a request in memory, its block hashes and streams of them. Where they come
from is in ``traces`` and ``workloads``, what is done with them in ``simulate``.
"""

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from tiercache.blocks import BlockHash

#: Two prefixes among 10**12 blocks share a hash by chance once in 10**14 traces.
HASH_BYTES = 16
#: Ends a block in what is hashed, so that blocks without ids of their own differ too.
_SEPARATOR = b"\xff"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its prompt, and how long the answer was.

    Two turns share ``hashes[i]`` if and only if they share the first ``i + 1`` blocks.
    """

    time: float
    """Seconds since the trace began."""
    conversation: str
    """Which conversation it belongs to; empty if the trace does not say."""
    hashes: Sequence[BlockHash]
    """Of the whole blocks of the prompt; fewer if the trace names fewer."""
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Stream:
    """Turns in the order in which they are played; each iteration begins anew.

    Iterating reads or makes one turn after the other and keeps none of them.
    """

    name: str
    block_tokens: int
    """Tokens that one hash of a turn stands for."""
    begin: Callable[[], Iterator[Turn]] = field(repr=False)
    turns: int | None = None
    """How many there will be, None if that is not known beforehand."""
    idle: str | None = None
    """The conversation whose last turn is the question, in scenarios that ask one."""

    def __iter__(self) -> Iterator[Turn]:
        return self.begin()


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a conversation that others with the same ``name`` share."""

    name: bytes
    tokens: int
    ids: "array[int]"
    """Ids of the prompt that began with it: one that differs from these left the head."""


@dataclass(frozen=True, slots=True)
class Chainer:
    """Turns the ids that a trace gives to its blocks into chained hashes of blocks of ours.

    A block of ours that ends within a block of the trace counts as shared only if all of that
    block is, so a shared prefix is never overestimated.

    Args:
        id_tokens: tokens that one id of the trace stands for.
        block_tokens: tokens of a block of ours.
    """

    id_tokens: int
    block_tokens: int

    def hashes(
        self, ids: "array[int]", tokens: int, *, scope: bytes = b"", head: Head | None = None
    ) -> list[BlockHash]:
        """Hashes of the whole blocks of a prompt of ``tokens`` tokens, as far as it has ids.

        Equal ids mean equal blocks within one ``scope``, and at the ``head`` beyond it.
        """
        blocks = min(tokens, len(ids) * self.id_tokens) // self.block_tokens
        shared = 0 if head is None else self._shared(ids, head)
        running = blake2b(head.name if head is not None else b"", digest_size=HASH_BYTES)
        packed, size = memoryview(ids).cast("B"), ids.itemsize
        hashes = []
        begin = 0
        for index in range(blocks):
            end = -(-(index + 1) * self.block_tokens // self.id_tokens) * size
            if index == shared:
                running.update(scope + _SEPARATOR)
            if index >= shared:
                running.update(packed[begin:end])
            running.update(_SEPARATOR)
            hashes.append(running.digest())
            begin = end
        return hashes

    def _shared(self, ids: "array[int]", head: Head) -> int:
        """How many blocks at the beginning of ``ids`` are those of ``head``."""
        blocks = head.tokens // self.block_tokens
        while blocks:
            end = -(-blocks * self.block_tokens // self.id_tokens)
            if ids[:end] == head.ids[:end]:
                return blocks
            blocks -= 1
        return 0


def interleave(conversations: Iterable[tuple[float, Iterator[Turn]]]) -> Iterator[Turn]:
    """Turns of many conversations in order of time, then of conversation.

    Each is given with the time before which it has no turn; those times must not decrease. It is
    taken when that time has come, and dropped when it is over.
    """
    waiting = enumerate(conversations)
    upcoming = next(waiting, None)
    running: list[tuple[float, int, Turn, Iterator[Turn]]] = []
    while running or upcoming:
        if upcoming and not (running and running[0][0] < upcoming[1][0]):
            index, (_, turns) = upcoming
            upcoming = next(waiting, None)
        else:
            _, index, turn, turns = heapq.heappop(running)
            yield turn
        following = next(turns, None)
        if following is not None:
            heapq.heappush(running, (following.time, index, following, turns))
