# SPDX-License-Identifier: Apache-2.0
"""The caches that scripts/bench_nvme compares ours with: vLLM's fs tier and LMCache's local disk.

Covers how each is driven: as its own cache does it, in its default set-up, over memory of its own
kind. Where neither is installed, nothing here is imported but when it is used.
"""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np

from lab.bench_nvme_contenders import (
    POLL_S,
    REQUEST_BYTES,
    Contender,
    InMemory,
    Workload,
    block_key,
)
from tiercache.spilling import BATCH_BYTES

GIB = 1 << 30


class VllmFs(InMemory):
    """vLLM's fs tier over its region in /dev/shm, a file per block, direct I/O, 16 + 16 threads.

    It never removes a file: somebody else has to, and it is not charged for that.
    """

    name = "vllm_fs"
    memory = "/dev/shm"

    def __init__(self, work: Workload) -> None:
        from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

        super().__init__(work)
        size = work.block_bytes
        # With a barrier the file is unlinked as soon as it is mapped, as in an engine.
        self._region = SharedOffloadRegion(
            uuid4().hex, work.blocks, None, size, size, barrier=lambda: None
        )
        self._view = self._region.create_kv_memoryview()
        self.fill(np.asarray(self._view).view(np.uint8))

    def open(self, directory: Path) -> None:
        from vllm.v1.kv_offload.base import ReqContext
        from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

        self._directory = directory
        self._context = ReqContext("bench")
        self._manager = FileSystemTierManager(_spec(), self._view, "fs", root_dir=str(directory))

    def store(self, generation: int) -> float:
        return self._run(generation, BATCH_BYTES, self._manager.submit_store, loads=False)

    def timed_load(self) -> float:
        return self._run(0, REQUEST_BYTES, self._manager.submit_load, loads=True)

    def recycle(self) -> None:
        for file in self._directory.rglob("*.bin"):
            file.unlink()

    def _run(
        self, generation: int, nbytes: int, submit: Callable[[Any], None], *, loads: bool
    ) -> float:
        from vllm.v1.kv_offload.tiering.base import TransferJob

        jobs = [
            TransferJob(
                job_id,
                [block_key(generation, n) for n in numbers],
                np.array(numbers, np.int32),
                loads,
                self._context,
            )
            for job_id, numbers in enumerate(self.work.batches(nbytes))
        ]
        start = time.perf_counter()
        for job in jobs:
            submit(job)
        ended = 0
        while ended < len(jobs):
            time.sleep(POLL_S)
            for result in self._manager.get_finished_jobs():
                ended += 1
                if not result.success:
                    raise RuntimeError("a job of vLLM's fs tier failed")
        return time.perf_counter() - start

    def close(self) -> None:
        self._manager.shutdown()
        del self._manager

    def release(self) -> None:
        del self.blocks, self._view
        gc.collect()  # the manager's cycles refer to the region
        self._region.cleanup()


def _spec() -> Any:
    """What the fs tier asks of vLLM's offloading spec."""
    from vllm.v1.kv_offload import config

    return SimpleNamespace(
        blocks_per_chunk=1,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=False),
        config=SimpleNamespace(
            groups=(config.OffloadingGroupConfig(16, ("layer",), 0),),
            model=config.OffloadingModelConfig("bench", "bfloat16"),
            cache=config.OffloadingCacheConfig(16, 1),
            parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
            replicated_layout=False,
            canonical_layout=False,
            kv_cache_layout=None,
        ),
    )


class LMCache(InMemory):
    """LMCache's LocalDiskBackend over its pinned allocator, with direct I/O.

    Its default goes through the page cache, where a short run never meets the disk.
    """

    name = "lmcache"
    memory = "its allocator"

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        allocators = import_module("lmcache.v1.memory_allocators.mixed_memory_allocator")
        # What is stored stays in memory, as in a cache, and loads need as much again.
        self._allocator = allocators.MixedMemoryAllocator(2 * work.nbytes + (1 << 20))
        self._objects = [self._allocate() for _ in range(work.blocks)]
        self.fill(np.empty((work.blocks, work.block_bytes), np.uint8))
        for memory, block in zip(self._objects, self.blocks, strict=True):
            np.copyto(memory.tensor.numpy(), block)

    def _allocate(self) -> Any:
        import torch

        layout = import_module("lmcache.v1.memory_management").MemoryFormat.KV_2LTD
        return self._allocator.allocate(torch.Size([self.work.block_bytes]), torch.uint8, layout)

    def open(self, directory: Path) -> None:
        backends = "lmcache.v1.storage_backend"
        config = import_module("lmcache.v1.config").LMCacheEngineConfig.from_defaults(
            local_cpu=False,
            local_disk=str(directory),
            max_local_disk_size=self.work.nbytes / GIB,
            extra_config={"use_odirect": True},
        )
        memory = import_module(f"{backends}.local_cpu_backend").LocalCPUBackend(
            config, memory_allocator=self._allocator, dst_device="cpu"
        )
        make = import_module(f"{backends}.local_disk_backend").LocalDiskBackend
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._disk = make(config, self._loop, memory, dst_device="cpu")

    def store(self, generation: int) -> float:
        written: Future[None] = Future()
        left = set(self._keys(generation))

        def stored(key: Any) -> None:
            left.discard(key)
            if not left:
                written.set_result(None)

        batches = self._batches(generation, BATCH_BYTES)
        start = time.perf_counter()
        for keys, numbers in batches:
            objects = [self._objects[n] for n in numbers]
            self._disk.batched_submit_put_task(keys, objects, on_complete_callback=stored)
        written.result()
        return time.perf_counter() - start

    def timed_load(self) -> float:
        batches = self._batches(0, REQUEST_BYTES)
        start = time.perf_counter()
        loaded = [self._disk.batched_get_blocking(keys) for keys, _ in batches]
        seconds = time.perf_counter() - start
        for block, memory in zip(self.blocks, chain(*loaded), strict=True):
            np.copyto(block, memory.tensor.numpy())
            memory.ref_count_down()
        return seconds

    def _keys(self, generation: int) -> list[Any]:
        import torch

        key_of = import_module("lmcache.utils").CacheEngineKey
        hashes = [block_key(generation, n)[:8] for n in range(self.work.blocks)]
        return [key_of("bench", 1, 0, int.from_bytes(h, "big"), torch.uint8) for h in hashes]

    def _batches(self, generation: int, nbytes: int) -> list[tuple[list[Any], list[int]]]:
        keys = self._keys(generation)
        return [([keys[n] for n in numbers], numbers) for numbers in self.work.batches(nbytes)]

    def close(self) -> None:
        self._disk.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def release(self) -> None:
        self._objects.clear()
        self._allocator.close()


#: What has to be there for each of them.
MODULES: dict[type[Contender], str] = {
    VllmFs: "vllm.v1.kv_offload.tiering.fs.manager",
    LMCache: "lmcache.v1.storage_backend.local_disk_backend",
}


def missing(kind: type[Contender]) -> str | None:
    """Why a contender of this kind cannot take part; None if it can."""
    try:
        import_module(MODULES[kind])
    except ImportError as error:
        return f"cannot be imported ({error})"
    return None
