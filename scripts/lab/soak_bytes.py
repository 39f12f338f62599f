# SPDX-License-Identifier: Apache-2.0
"""The arena of a soak, and the bytes of its blocks: each follows from key, epoch and place.

Covers writing them and finding those that are not what they should be. The epoch stands for what
blocks are worth, such as the weights: it changes with each reset, and the bytes with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from tiercache.arena import HostArena
from tiercache.blocks import GroupSpec, Key
from tiercache.sharing import attach
from tiercache.tiers.base import SlotMemory

WORD_BYTES: Final = 8
#: Odd, so that no two words of a slot are alike, nor the tags of two epochs or groups.
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_EPOCH: Final = 0xC2B2AE3D27D4EB4F
_GROUP: Final = 0x165667B19E3779F9
_MASK: Final = (1 << 64) - 1

Words = NDArray[np.uint64]


class Bytes:
    """The slots of all groups, seen as words. Locking: none; one thread plays the engine."""

    def __init__(self, groups: Sequence[GroupSpec], regions: Mapping[int, memoryview]) -> None:
        self._words: dict[int, Words] = {}
        self._ramps: dict[int, Words] = {}
        for group in groups:
            count = group.slot_bytes // WORD_BYTES
            region = np.frombuffer(regions[group.group_id], np.uint64)
            self._words[group.group_id] = region.reshape(-1, count)
            self._ramps[group.group_id] = np.arange(count, dtype=np.uint64) * _STEP

    def write(self, group_id: int, keys: Sequence[Key], slots: Sequence[int], epoch: int) -> None:
        """Have ``slots[i]`` hold the block of ``keys[i]``."""
        self._words[group_id][slots] = _tags(group_id, keys, epoch) + self._ramps[group_id]

    def scribble(self, group_id: int, slots: Sequence[int]) -> None:
        """Have slots hold what no block does."""
        self._words[group_id][slots] = 0

    def wrong(
        self, group_id: int, keys: Sequence[Key], slots: Sequence[int], epochs: range
    ) -> list[Key]:
        """Those of ``keys`` whose slots hold, of none of ``epochs``, every byte of their block."""
        found = self._words[group_id][slots]
        found -= self._ramps[group_id]
        right = np.zeros(len(keys), np.bool_)
        for epoch in reversed(epochs):
            right |= (found == _tags(group_id, keys, epoch)).all(axis=1)
            if right.all():
                return []
        return [keys[at] for at in np.flatnonzero(~right)]

    def close(self) -> None:
        """Let go of the memory."""
        self._words.clear()


def _tags(group_id: int, keys: Sequence[Key], epoch: int) -> Words:
    """What each word of a block has beyond its place, as a column."""
    tags = np.frombuffer(b"".join(key[:WORD_BYTES] for key in keys), np.uint64)
    return (tags ^ np.uint64((epoch * _EPOCH + group_id * _GROUP) & _MASK))[:, None]


@contextmanager
def arena(
    groups: Sequence[GroupSpec], slots: Mapping[int, int]
) -> Iterator[tuple[SlotMemory, Bytes]]:
    """Shared memory as a server has it, pinned where there is a GPU."""
    shapes = {group.group_id: (slots[group.group_id], group.slot_bytes) for group in groups}
    pin = torch.cuda.is_available()
    with HostArena(shapes, pin=pin, shared=True) as made, attach(made.ticket()) as attached:
        regions = {group.group_id: attached.region(group.group_id) for group in groups}
        found = Bytes(groups, regions)
        try:
            yield SlotMemory(groups, {group: [region] for group, region in regions.items()}), found
        finally:
            found.close()
