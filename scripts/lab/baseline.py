# SPDX-License-Identifier: Apache-2.0
"""vLLM's own managers, of host memory alone and with tiers, under a worker that copies with torch.

vLLM refuses offloading on the CPU platform only where the worker is made. Everything that decides
(slots, LRU order, sizes) is vLLM's; the worker keeps vLLM's layout of one row per chunk, so that a
budget buys as many chunks as it would on a GPU.
"""

import time
from collections.abc import Iterator

import torch
from typing_extensions import override
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class TorchCPUOffloadingSpec(CPUOffloadingSpec):
    """`CPUOffloadingSpec` that runs without a GPU."""

    @override
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return TorchWorker(kv_caches, self.num_chunks, self.blocks_per_chunk)


class TorchTieringSpec(TieringOffloadingSpec):
    """`TieringOffloadingSpec` that runs without a GPU, with chunks of one block."""

    @override
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return RegionWorker(kv_caches, region)


class TorchWorker(OffloadingWorker):
    """Copies synchronously inside ``submit_*``; a finished job waits to be collected."""

    def __init__(self, kv_caches: CanonicalKVCaches, chunks: int, blocks_per_chunk: int) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._refs = kv_caches.group_data_refs
        self._device = [kv.tensor for kv in kv_caches.tensors]
        rows = chunks * blocks_per_chunk
        self._host = [torch.zeros(rows, t.shape[1], dtype=torch.int8) for t in self._device]
        self._finished: list[TransferResult] = []

    @override
    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        started = time.monotonic()
        size = 0
        for tensor, page, device_row, host_row in self._pages(src_spec, dst_spec):
            self._host[tensor][host_row, :page] = self._device[tensor][device_row, :page]
            size += page
        return self._finish(job_id, size, started)

    @override
    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        started = time.monotonic()
        size = 0
        for tensor, page, device_row, host_row in self._pages(dst_spec, src_spec):
            self._device[tensor][device_row, :page] = self._host[tensor][host_row, :page]
            size += page
        return self._finish(job_id, size, started)

    @override
    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    @override
    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever in flight."""

    def clear_bytes(self) -> None:
        """Zero every row: what the tests do to prove that restored bytes matter."""
        for tensor in self._host:
            tensor.zero_()

    def _finish(self, job_id: int, size: int, started: float) -> bool:
        elapsed = time.monotonic() - started
        done = TransferResult(job_id, success=True, transfer_size=size, transfer_time=elapsed)
        self._finished.append(done)
        return True

    def _pages(
        self, device: GPULoadStoreSpec, host: LoadStoreSpec
    ) -> Iterator[tuple[int, int, int, int]]:
        """Every page of a transfer: tensor, bytes, row on the device, row on the host."""
        assert isinstance(host, CPULoadStoreSpec)
        for group, device_row, host_row in self._blocks(device, host):
            for ref in self._refs[group]:
                yield ref.tensor_idx, ref.page_size_bytes, device_row, host_row

    def _blocks(
        self, device: GPULoadStoreSpec, host: CPULoadStoreSpec
    ) -> Iterator[tuple[int, int, int]]:
        """Every block of a transfer: group, row on the device, row on the host.

        A group's first block may lie inside a chunk; its chunks start at a new one.
        """
        factor = self._blocks_per_chunk
        blocks = iter(device.block_ids.tolist())
        first_chunk = 0
        for group, (size, index) in enumerate(
            zip(device.group_sizes, device.block_indices, strict=True)
        ):
            skipped = index % factor
            for position in range(skipped, skipped + size):
                chunk = host.chunk_ids[first_chunk + position // factor]
                yield group, next(blocks), int(chunk) * factor + position % factor
            first_chunk += -(-(skipped + size) // factor) if size else 0


class RegionWorker(TorchWorker):
    """Copies to and from memory that it shares with the scheduler's side."""

    def __init__(self, kv_caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        super().__init__(kv_caches, chunks=0, blocks_per_chunk=1)
        self._region = region
        self._host = [region.create_next_worker_view(t.shape[1]) for t in self._device]

    @override
    def shutdown(self) -> None:
        self._host.clear()
        self._region.cleanup()
