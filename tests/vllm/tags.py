# SPDX-License-Identifier: Apache-2.0
"""Memory that holds tags instead of bytes, and a worker that copies them as late as it may.

A tag says which tokens a block was computed from, so that a block that ended up in the wrong
place, or was read too early, gives itself away when a model would use it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from tiercache.vllm.transfer import SlotsLoadStoreSpec


class Block:
    """One block: the group that wrote it last, and a tag per position (a single one of states)."""

    def __init__(self, group_id: int, tags: list[int]) -> None:
        self.group_id = group_id
        self.tags = tags

    def copy(self) -> "Block":
        return Block(self.group_id, list(self.tags))


def chain(tokens: Sequence[int], start: Sequence[int] = (0,)) -> list[int]:
    """Tags of the prefixes of ``tokens``: entry n stands for its first n tokens.

    ``start`` is the chain of the first of them, as far as it is known.
    """
    tags = list(start)
    for token in tokens[len(tags) - 1 :]:
        tags.append(hash((tags[-1], token)))
    return tags


class Device:
    """The blocks of the device by id; block 0 is vLLM's null block and holds nothing."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}

    def read(self, block_id: int) -> Block | None:
        return self._blocks.get(block_id)

    def write(self, block_id: int, block: Block) -> None:
        assert block_id, "nothing may be written into the null block"
        self._blocks[block_id] = block

    def tag(self, block_id: int, group_id: int, position: int, tag: int, positions: int) -> None:
        """Write one position; what another group left in the block is lost."""
        block = self._blocks.get(block_id)
        if block is None or block.group_id != group_id or len(block.tags) != positions:
            block = Block(group_id, [0] * positions)
            self.write(block_id, block)
        block.tags[position] = tag

    def copy(self, source: int, target: int) -> None:
        block = self._blocks.get(source)
        if block is None:
            self._blocks.pop(target, None)
        else:
            self.write(target, block.copy())

    def zero(self, block_id: int) -> None:
        self._blocks.pop(block_id, None)


class Place(NamedTuple):
    """Both ends of the copy of one block."""

    block_id: int
    group_id: int
    slot: int
    part: int
    """Number of the block within its chunk."""


class Job(NamedTuple):
    job_id: int
    places: list[Place]
    to_host: bool


Pace = Callable[[int], int]


class TaggedWorker(OffloadingWorker):
    """Copies tags between a device and host slots, in the order of submission per direction.

    ``pace`` is asked at every poll, for each direction, how many of the jobs that are running
    have come to their end; nothing moves before. ``slots`` are the slots per group id.
    """

    def __init__(
        self,
        device: Device,
        slots: dict[int, int],
        *,
        blocks_per_chunk: int = 1,
        pace: Pace = lambda running: running,
    ) -> None:
        self.device = device
        self.pace = pace
        self.host: dict[tuple[int, int], list[Block | None]] = {}
        self.loads = 0
        self.slots = slots
        self.blocks_per_chunk = blocks_per_chunk
        self._stores: deque[Job] = deque()
        self._loads: deque[Job] = deque()
        self._ended: list[int] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        self._stores.append(Job(job_id, list(self._places(src_spec, dst_spec)), to_host=True))
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        self.loads += 1
        self._loads.append(Job(job_id, list(self._places(dst_spec, src_spec)), to_host=False))
        return True

    def _places(self, device: GPULoadStoreSpec, host: LoadStoreSpec) -> Iterator[Place]:
        assert isinstance(host, SlotsLoadStoreSpec)
        slots, block_ids = iter(host.slots.tolist()), iter(device.block_ids.tolist())
        groups = zip(self.slots, device.group_sizes, device.block_indices, strict=True)
        for group_id, size, first in groups:
            part, slot = first % self.blocks_per_chunk, -1
            for number in range(size):
                if number == 0 or part == self.blocks_per_chunk:
                    slot, part = next(slots), part % self.blocks_per_chunk
                assert 0 <= slot < self.slots[group_id]
                yield Place(next(block_ids), group_id, slot, part)
                part += 1
        assert next(slots, None) is None, "more slots than blocks"

    def get_finished(self) -> list[TransferResult]:
        for lane in self._stores, self._loads:
            for _ in range(self.pace(len(lane))):
                self._run(lane.popleft())
        ended, self._ended = self._ended, []
        return [TransferResult(job_id, True, 1, 0.001) for job_id in ended]

    def wait(self, job_ids: set[int]) -> None:
        for lane in self._stores, self._loads:
            while any(job.job_id in job_ids for job in lane):
                self._run(lane.popleft())

    def _run(self, job: Job) -> None:
        for place in job.places:
            chunk = self.host.setdefault(
                (place.group_id, place.slot), [None] * self.blocks_per_chunk
            )
            if job.to_host:
                block = self.device.read(place.block_id)
                chunk[place.part] = block.copy() if block else None
            elif (kept := chunk[place.part]) is not None:
                self.device.write(place.block_id, kept.copy())
            else:
                self.device.zero(place.block_id)
        self._ended.append(job.job_id)
