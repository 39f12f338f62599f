# SPDX-License-Identifier: Apache-2.0
"""The worker's half of the connector: carries out transfers between device blocks and slots.

Covers vLLM's OffloadingWorker and the check that both halves agree on the size of a slot. Which
block goes to which slot is decided in the scheduler's process; nothing is decided here.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from tiercache.arena import HostArena
from tiercache.errors import UnsupportedError
from tiercache.sharing import ArenaTicket
from tiercache.vllm.copies import GroupLayout, Page, PageCopies, plan_copies
from tiercache.vllm.inline import InlineTransfers
from tiercache.vllm.lanes import Finished
from tiercache.vllm.memory import Memory
from tiercache.vllm.transfer import SlotsLoadStoreSpec


class Transfers(Protocol):
    """Makes copies, at once or in the background."""

    def store(self, job_id: int, copies: Sequence[PageCopies]) -> None:
        """Start copying from device to host."""

    def load(self, job_id: int, copies: Sequence[PageCopies], *, expedited: bool) -> None:
        """Start copying from host to device."""

    def finished(self) -> list[Finished]:
        """The transfers that ended since the last call."""

    def wait(self, job_ids: Collection[int]) -> None:
        """Block until these transfers are done; unknown ids are ignored."""

    def drain(self) -> None:
        """Block until nothing is running."""


def group_bytes(kv_caches: CanonicalKVCaches) -> tuple[int, ...]:
    """Unpadded bytes of one block of each group, all its layers together."""
    return tuple(sum(ref.page_size_bytes for ref in refs) for refs in kv_caches.group_data_refs)


class TierCacheWorker(OffloadingWorker):
    """Copies blocks of ``kv_caches`` to and from ``arena``; owns the arena once constructed.

    ``group_ids[g]`` is the arena's name for the group at position ``g`` of vLLM's transfers.

    Locking: none; vLLM calls from the model runner's thread only. A copy has nothing left that
    could fail: sizes are checked here, and indices before any byte moves. vLLM treats a failed
    transfer as fatal.

    Raises: UnsupportedError if the groups, the device or the slots do not suit the caches.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        arena: HostArena,
        group_ids: Sequence[int],
        blocks_per_chunk: int,
    ) -> None:
        self._layouts = _layouts(kv_caches, arena, group_ids, blocks_per_chunk)
        self._arena = arena
        tensors = [cache.tensor for cache in kv_caches.tensors]
        self._memory = Memory(tensors, {group: arena.region(group) for group in group_ids})
        self._transfers = _transfers(self._memory, tensors[0].device)

    @property
    def ticket(self) -> ArenaTicket:
        """How the scheduler's process reaches the arena."""
        return self._arena.ticket()

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        self._transfers.store(job_id, self._plan(src_spec, dst_spec))
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        self._transfers.load(job_id, self._plan(dst_spec, src_spec), expedited=expedited)
        return True

    def get_finished(self) -> list[TransferResult]:
        return [
            TransferResult(done.job_id, True, done.nbytes, done.seconds)
            for done in self._transfers.finished()
        ]

    def wait(self, job_ids: set[int]) -> None:
        """Block until these jobs are done; unknown ids, such as finished ones, are ignored."""
        self._transfers.wait(job_ids)

    def shutdown(self) -> None:
        """Finish what is running and release the arena. Does nothing the second time."""
        try:
            self._transfers.drain()
        finally:
            self._memory.clear()
            self._arena.close()

    def _plan(self, device: GPULoadStoreSpec, host: LoadStoreSpec) -> list[PageCopies]:
        assert isinstance(host, SlotsLoadStoreSpec)
        return plan_copies(
            self._layouts, device.block_ids, device.group_sizes, device.block_indices, host.slots
        )


def _layouts(
    kv_caches: CanonicalKVCaches, arena: HostArena, group_ids: Sequence[int], blocks_per_chunk: int
) -> list[GroupLayout]:
    if len(group_ids) != len(kv_caches.group_data_refs):
        raise UnsupportedError(
            f"the engine offloads {len(kv_caches.group_data_refs)} groups, "
            f"the cache was set up for {len(group_ids)}: {list(group_ids)}"
        )
    shapes = [cache.tensor.shape for cache in kv_caches.tensors]
    layouts = []
    for group_id, refs in zip(group_ids, kv_caches.group_data_refs, strict=True):
        slots, slot_bytes = arena.region(group_id).shape
        layout = GroupLayout(
            group_id=group_id,
            pages=tuple(Page(ref.tensor_idx, ref.page_size_bytes) for ref in refs),
            blocks=min((shapes[ref.tensor_idx][0] for ref in refs), default=0),
            slots=slots,
            slot_bytes=slot_bytes,
            blocks_per_chunk=blocks_per_chunk,
        )
        _check_sizes(layout, [shape[1] for shape in shapes])
        layouts.append(layout)
    return layouts


def _check_sizes(layout: GroupLayout, row_bytes: Sequence[int]) -> None:
    if layout.chunk_bytes > layout.slot_bytes:
        raise UnsupportedError(
            f"group {layout.group_id}: a chunk of {layout.blocks_per_chunk} blocks takes "
            f"{layout.chunk_bytes} bytes in this worker, its slots have {layout.slot_bytes}"
        )
    for page in layout.pages:
        if page.size > row_bytes[page.tensor]:
            raise UnsupportedError(
                f"group {layout.group_id}: a page of {page.size} bytes does not fit into the "
                f"rows of tensor {page.tensor}, {row_bytes[page.tensor]} bytes"
            )


def _transfers(memory: Memory, device: torch.device) -> Transfers:
    if device.type == "cpu":
        return InlineTransfers(memory)
    if device.type == "cuda":
        # Loads vLLM's compiled operations. The API server imports the spec, and with it this
        # module, only to learn the names of metrics.
        from tiercache.vllm.cuda import CudaStream, CudaTransfers

        return CudaTransfers(memory, partial(CudaStream, device))
    raise UnsupportedError(f"copies to and from devices of type {device.type!r} are not supported")
