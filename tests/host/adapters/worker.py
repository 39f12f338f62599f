# SPDX-License-Identifier: Apache-2.0
"""``TierCacheWorker`` in the place of vLLM's worker, on the CPU.

Covers translation only: constructor arguments, vLLM's name for slots, and the memory of both
directions as vLLM's tests look at it: one tensor per layer, a row per block.
"""

from typing import Any

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from tiercache.arena import HostArena
from tiercache.vllm.transfer import SlotsLoadStoreSpec
from tiercache.vllm.worker import TierCacheWorker, group_bytes

OURS = (TierCacheWorker,)


def install() -> None:
    from vllm.v1.kv_offload.cpu import gpu_worker

    gpu_worker.CPUOffloadingWorker = HostWorker


class HostWorker(TierCacheWorker):
    """Takes vLLM's arguments. A region that is handed in is left alone: ours makes its own."""

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        num_cpu_chunks: int,
        mmap_region: Any = None,
    ) -> None:
        sizes = group_bytes(kv_caches)
        # Not rounded up to what direct I/O can address: rows must follow one another.
        shapes = {
            group: (num_cpu_chunks, nbytes * blocks_per_chunk) for group, nbytes in enumerate(sizes)
        }
        arena = HostArena(shapes, shared=mmap_region is not None)
        super().__init__(kv_caches, arena, list(shapes), blocks_per_chunk)
        self._region = mmap_region
        device = [cache.tensor for cache in kv_caches.tensors]
        host = [torch.empty(0)] * len(device)
        for group, refs in enumerate(kv_caches.group_data_refs):
            rows, start = arena.region(group).view(-1, sizes[group]), 0
            for ref in refs:
                end = start + ref.page_size_bytes
                host[ref.tensor_idx] = rows[:, start:end]
                start = end
        refs_of = kv_caches.group_data_refs
        self._store_handler = Direction(self, device, host, refs_of)
        self._load_handler = Direction(self, host, device, refs_of)

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Any) -> bool:
        return super().submit_store(job_id, src_spec, _slots(dst_spec))

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        return super().submit_load(job_id, _slots(src_spec), dst_spec, expedited)

    def shutdown(self) -> None:
        for direction in (self._store_handler, self._load_handler):
            direction.src_tensors.clear()
            direction.dst_tensors.clear()
        super().shutdown()
        if self._region is not None:
            self._region.cleanup()


class Direction:
    """What vLLM's tests read of one direction."""

    def __init__(
        self,
        worker: HostWorker,
        src_tensors: list[torch.Tensor],
        dst_tensors: list[torch.Tensor],
        layer_refs_per_group: Any,
    ) -> None:
        self._worker = worker
        self.src_tensors = list(src_tensors)
        self.dst_tensors = list(dst_tensors)
        self.layer_refs_per_group = layer_refs_per_group

    @property
    def _transfers(self) -> list[Any]:
        """On the CPU they are done already, and wait to be told of."""
        transfers: Any = self._worker._transfers
        return list(transfers._finished)


def _slots(spec: Any) -> SlotsLoadStoreSpec:
    assert isinstance(spec, CPULoadStoreSpec)
    return SlotsLoadStoreSpec(spec.chunk_ids)
