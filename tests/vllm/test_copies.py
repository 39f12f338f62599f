# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic of transfers, by hand-written cases and against an independent model."""

from itertools import product

import numpy as np
import pytest

from tiercache.errors import InvariantError
from tiercache.vllm.copies import GroupLayout, Page, plan_copies, slots_needed

PAGES = (Page(0, 40), Page(2, 24))
BLOCK = 64


def layout(blocks_per_chunk: int = 1, group_id: int = 0, slot_bytes: int = 256) -> GroupLayout:
    return GroupLayout(
        group_id=group_id,
        pages=PAGES,
        blocks=100,
        slots=50,
        slot_bytes=slot_bytes,
        blocks_per_chunk=blocks_per_chunk,
    )


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("blocks", "first", "per_chunk", "slots"),
    [
        (0, 0, 3, 0),
        (0, 2, 3, 0),
        (1, 2, 3, 1),
        (2, 2, 3, 2),
        (3, 0, 3, 1),
        (4, 0, 3, 2),
        (5, 7, 1, 5),
    ],
)
def test_slots_needed(blocks: int, first: int, per_chunk: int, slots: int) -> None:
    assert slots_needed(blocks, first, per_chunk) == slots


def test_one_block_per_chunk() -> None:
    first, second = plan_copies([layout()], ids(7, 3), [2], [5], ids(1, 0))
    assert (first.tensor, first.size, second.tensor, second.size) == (0, 40, 2, 24)
    assert first.rows.tolist() == second.rows.tolist() == [7, 3]
    assert first.offsets.tolist() == [256, 0]
    assert second.offsets.tolist() == [256 + 40, 40]
    assert first.nbytes + second.nbytes == 2 * BLOCK


def test_a_transfer_may_start_and_end_inside_a_chunk() -> None:
    first, _ = plan_copies([layout(3)], ids(9, 8, 7, 6, 5), [5], [5], ids(4, 2, 6))
    at = [(4, 2), (2, 0), (2, 1), (2, 2), (6, 0)]
    assert first.offsets.tolist() == [slot * 256 + block * BLOCK for slot, block in at]
    assert first.rows.tolist() == [9, 8, 7, 6, 5]


def test_groups_follow_one_another_and_may_be_empty() -> None:
    layouts = [layout(2, group_id=0), layout(2, group_id=3), layout(2, group_id=5)]
    copies = plan_copies(layouts, ids(1, 2, 3, 4), [3, 0, 1], [1, 7, 3], ids(10, 11, 20))
    assert [(page.group_id, page.rows.tolist()) for page in copies] == [
        (0, [1, 2, 3]),
        (0, [1, 2, 3]),
        (5, [4]),
        (5, [4]),
    ]
    assert copies[0].offsets.tolist() == [10 * 256 + BLOCK, 11 * 256, 11 * 256 + BLOCK]
    assert copies[2].offsets.tolist() == [20 * 256 + BLOCK]


def test_offsets_beyond_two_gigabytes() -> None:
    (first, _) = plan_copies([layout(slot_bytes=1 << 30)], ids(0), [1], [0], ids(49))
    assert first.offsets.tolist() == [49 << 30]


@pytest.mark.parametrize(
    ("per_chunk", "first", "size"), list(product((1, 2, 3, 4), range(5), range(7)))
)
def test_every_block_lies_where_counting_puts_it(per_chunk: int, first: int, size: int) -> None:
    blocks, slots = ids(*range(20, 20 + size)), ids(*range(9, -1, -1))
    slots = slots[: slots_needed(size, first, per_chunk)]
    copies = plan_copies([layout(per_chunk)], blocks, [size], [first], slots)
    planned = {
        (page.tensor, row, offset)
        for page in copies
        for row, offset in zip(page.rows.tolist(), page.offsets.tolist(), strict=True)
    }
    counted = set()
    for block, position in zip(blocks.tolist(), range(first, first + size), strict=True):
        slot = slots[position // per_chunk - first // per_chunk]
        start = int(slot) * 256 + position % per_chunk * BLOCK
        counted |= {(0, block, start), (2, block, start + 40)}
    assert planned == counted


@pytest.mark.parametrize(
    ("blocks", "sizes", "slots"),
    [
        (ids(1, 2), [2], ids(1)),
        (ids(1, 2), [2], ids(1, 2, 3)),
        (ids(1), [2], ids(1, 2)),
        (ids(1, 2, 3), [2], ids(1, 2)),
        (ids(1, 100), [2], ids(1, 2)),
        (ids(1, -1), [2], ids(1, 2)),
        (ids(1, 2), [2], ids(1, 50)),
        (ids(1, 2), [2], ids(-1, 2)),
    ],
)
def test_what_does_not_add_up_is_never_copied(
    blocks: np.ndarray[tuple[int], np.dtype[np.int32]],
    sizes: list[int],
    slots: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> None:
    with pytest.raises(InvariantError):
        plan_copies([layout()], blocks, sizes, [0], slots)


def test_sizes_of_a_layout() -> None:
    assert (layout(3).block_bytes, layout(3).chunk_bytes) == (64, 192)
