# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic of a transfer: which bytes of which slot belong to which block of the device.

Covers positions only, in numpy: no memory, no device and no vLLM. It follows the arithmetic of
vLLM's own CPU worker, except that a slot here holds one group and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiercache.errors import InvariantError


class Page(NamedTuple):
    """What one layer keeps per block: ``size`` unpadded bytes at the start of a tensor's row."""

    tensor: int
    size: int


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """How a chunk of one group lies in a slot.

    Its ``blocks_per_chunk`` blocks follow one another, and in each of them the ``pages`` of the
    group's layers, all without padding. The device has ``blocks`` blocks, the host region
    ``slots`` slots of ``slot_bytes`` bytes.
    """

    group_id: int
    pages: tuple[Page, ...]
    blocks: int
    slots: int
    slot_bytes: int
    blocks_per_chunk: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: the sum of its pages."""
        return sum(page.size for page in self.pages)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk, which a slot must hold."""
        return self.block_bytes * self.blocks_per_chunk


class PageCopies(NamedTuple):
    """The copies of one layer in one transfer, one for each block.

    Copy ``i`` pairs the first ``size`` bytes of row ``rows[i]`` of device tensor ``tensor`` with
    those from byte ``offsets[i]`` of the region of group ``group_id``.
    """

    group_id: int
    tensor: int
    size: int
    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        return self.size * len(self.rows)


def slots_needed(blocks: int, first_block: int, blocks_per_chunk: int) -> int:
    """Slots that ``blocks`` blocks of a request take, of which the first is ``first_block``."""
    return -(-(blocks + first_block % blocks_per_chunk) // blocks_per_chunk) if blocks else 0


def plan_copies(
    layouts: Iterable[GroupLayout],
    block_ids: NDArray[Any],
    group_sizes: Sequence[int],
    block_indices: Sequence[int],
    slots: NDArray[Any],
) -> list[PageCopies]:
    """All copies of one transfer, in either direction.

    ``block_ids`` are device blocks, ``group_sizes[g]`` of them for the group of ``layouts[g]``,
    the first being block ``block_indices[g]`` of its request, perhaps inside a chunk. ``slots``
    are as many as ``slots_needed`` says for each group in turn.

    Raises: InvariantError if counts do not add up or an index is out of range: a copy made all
    the same would overwrite somebody else's memory.
    """
    copies: list[PageCopies] = []
    block_at = slot_at = 0
    for layout, size, first in zip(layouts, group_sizes, block_indices, strict=True):
        count = slots_needed(size, first, layout.blocks_per_chunk)
        rows = block_ids[block_at : block_at + size].astype(np.int64)
        held = slots[slot_at : slot_at + count].astype(np.int64)
        _check(layout, "block", rows, size, layout.blocks)
        _check(layout, "slot", held, count, layout.slots)
        copies += _group_copies(layout, rows, held, first % layout.blocks_per_chunk)
        block_at += size
        slot_at += count
    expected, got = (block_at, slot_at), (len(block_ids), len(slots))
    if got != expected:
        raise InvariantError(f"a transfer of {expected} blocks and slots came with {got}")
    return copies


def _group_copies(
    layout: GroupLayout, rows: NDArray[np.int64], slots: NDArray[np.int64], skipped: int
) -> list[PageCopies]:
    if not len(rows):
        return []
    chunks, blocks = np.divmod(np.arange(skipped, skipped + len(rows)), layout.blocks_per_chunk)
    starts = slots[chunks] * layout.slot_bytes + blocks * layout.block_bytes
    before = accumulate((page.size for page in layout.pages), initial=0)
    return [
        PageCopies(layout.group_id, page.tensor, page.size, rows, starts + offset)
        for page, offset in zip(layout.pages, before, strict=False)
    ]


def _check(
    layout: GroupLayout, kind: str, ids: NDArray[np.int64], expected: int, limit: int
) -> None:
    if len(ids) != expected or (expected and not 0 <= ids.min() <= ids.max() < limit):
        raise InvariantError(
            f"group {layout.group_id}: {expected} {kind}s below {limit} expected, got {ids}"
        )
