# SPDX-License-Identifier: Apache-2.0
"""How a tier reaches slots: in their order, and none that is not there."""

import pytest

from tests.core_helpers import FULL, full
from tiercache.errors import InvariantError
from tiercache.tiers.base import SlotMemory

GROUP = full(FULL)
SIZE = GROUP.slot_bytes
SLOTS = 4


def memory(*workers: int) -> SlotMemory:
    """Memory of as many slots as is said for each worker."""
    return SlotMemory([GROUP], {FULL: [memoryview(bytearray(n * SIZE)) for n in workers]})


def test_neighbours_are_one_buffer_and_workers_have_their_own() -> None:
    alone, shared = memory(SLOTS), memory(SLOTS, SLOTS)
    assert [len(part) for part in alone.buffers(FULL, [1, 2, 0])] == [2 * SIZE, SIZE]
    assert [len(part) for part in shared.buffers(FULL, [1, 2])] == [SIZE] * 4
    assert alone.buffers(FULL, []) == []


@pytest.mark.parametrize("slots", [[SLOTS], [2, 3, 4], [0, -1], [9]])
@pytest.mark.parametrize("workers", [(SLOTS,), (SLOTS, SLOTS), (SLOTS + 1, SLOTS)])
def test_a_slot_that_is_not_there_is_refused(workers: tuple[int, ...], slots: list[int]) -> None:
    """A slice would be short or empty, and a record with it."""
    with pytest.raises(InvariantError, match=f"not all below {SLOTS}"):
        memory(*workers).buffers(FULL, slots)
