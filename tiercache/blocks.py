# SPDX-License-Identifier: Apache-2.0
"""The vocabulary: keys, group kinds, groups and the lineage of a request.

Covers names only: nothing here knows slots, policies or an engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import NewType, cast

#: Block hash followed by the group id, 4 bytes big-endian.
Key = NewType("Key", bytes)
BlockHash = bytes

GROUP_SUFFIX_BYTES = 4
#: Slots are multiples of this many bytes, so that direct I/O can address each of them.
SLOT_ALIGNMENT = 4096


class GroupKind(StrEnum):
    """What a prefix needs from a KV-cache group."""

    FULL = "full"
    """Every block of the prefix (full attention)."""
    WINDOW = "window"
    """The trailing blocks of the prefix (sliding window)."""
    STATE = "state"
    """One recurrent state, exactly at the boundary (Mamba, GDN, linear attention)."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One KV-cache group of the engine.

    ``tokens_per_chunk`` tokens share a slot of ``slot_bytes`` bytes (per worker). ``window_chunks``
    is the number of trailing chunks that a ``WINDOW`` group needs. A ``draft`` group
    (speculative decoding) is looked up one chunk beyond the boundary that is served.
    """

    group_id: int
    kind: GroupKind
    tokens_per_chunk: int
    slot_bytes: int
    window_chunks: int | None = None
    draft: bool = False

    @property
    def lookahead(self) -> int:
        """Tokens that the group is looked up further than it serves."""
        return self.tokens_per_chunk if self.draft else 0


def make_key(block_hash: BlockHash, group_id: int) -> Key:
    return Key(block_hash + group_suffix(group_id))


def key_hash(key: Key) -> BlockHash:
    return key[:-GROUP_SUFFIX_BYTES]


def key_group(key: Key) -> int:
    return int.from_bytes(key[-GROUP_SUFFIX_BYTES:], "big")


def group_suffix(group_id: int) -> bytes:
    return group_id.to_bytes(GROUP_SUFFIX_BYTES, "big")


def by_group(keys: Iterable[Key]) -> dict[int, list[Key]]:
    """Sort keys into groups, keeping their order; a key given twice counts once."""
    grouped: dict[int, list[Key]] = {}
    for suffix, run in groupby(dict.fromkeys(keys), key=_SUFFIX):
        grouped.setdefault(int.from_bytes(suffix, "big"), []).extend(run)
    return grouped


_SUFFIX = itemgetter(slice(-GROUP_SUFFIX_BYTES, None))


def align_slot(size: int) -> int:
    """Round ``size`` bytes up to what a slot occupies."""
    return -(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


class Lineage:
    """The block hashes of one request, oldest first.

    Hash ``i`` stands for the whole prefix of ``(i + 1) * tokens_per_hash`` tokens, as hashes are
    chained: two lineages that share hash ``i`` share everything before it. The sequence may grow
    while its request runs; what it holds never changes.
    """

    __slots__ = ("_last", "hashes", "tokens_per_hash")

    def __init__(self, hashes: Sequence[BlockHash], tokens_per_hash: int) -> None:
        self.hashes = hashes
        self.tokens_per_hash = tokens_per_hash
        self._last = 0

    def index(self, block_hash: BlockHash) -> int | None:
        """Index of ``block_hash``, or None if it is not on this lineage.

        O(hashes) comparisons, or as many as lie between it and the one before it that was found.
        """
        for start, end in ((self._last, len(self.hashes)), (0, self._last)):
            try:
                self._last = self.hashes.index(block_hash, start, end)
            except ValueError:
                continue
            return self._last
        return None

    def is_before(self, block_hash: BlockHash, other: BlockHash) -> bool:
        """Whether both are on this lineage, ``block_hash`` first."""
        try:
            self.hashes.index(block_hash, 0, self.hashes.index(other))
        except ValueError:
            return False
        return True

    def key(self, group_id: int, tokens: int) -> Key | None:
        """Key of the block of ``group_id`` that ends at ``tokens``, or None beyond the hashes."""
        index = tokens // self.tokens_per_hash - 1
        return make_key(self.hashes[index], group_id) if index < len(self.hashes) else None

    def keys(self, group_id: int, ends: range) -> Iterator[Key]:
        """Keys of the blocks that end at ``ends``, in tokens, without those beyond the hashes."""
        if not ends:
            return iter(())
        suffix, per_hash = group_suffix(group_id), self.tokens_per_hash
        indexes = slice(ends[0] // per_hash - 1, ends[-1] // per_hash, ends.step // per_hash or 1)
        # A call of ``Key`` for each of 30,000 keys would take as long as all the rest.
        return cast(Iterator[Key], (block_hash + suffix for block_hash in self.hashes[indexes]))
