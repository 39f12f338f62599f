# SPDX-License-Identifier: Apache-2.0
"""The same jobs through vLLM's own CPU offloading code: same blocks, slots, sizes and order.

vLLM's handler runs up to its copy operation, which is replaced by one that keeps the addresses.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="compares with vLLM's arithmetic")

from vllm.v1.kv_offload.base import CanonicalKVCacheRef, GPULoadStoreSpec
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from tiercache.vllm.copies import GroupLayout, Page, plan_copies, slots_needed

BLOCKS, SLOTS, ROW = 64, 40, 96
GROUP_PAGES = ((96, 96), (40, 40), (72,))


class Copy(NamedTuple):
    """One copy, in terms that both layouts share."""

    tensor: int
    block: int
    slot: int
    block_in_slot: int
    size: int


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform whose streams and events do nothing."""
    stream = SimpleNamespace(wait_stream=lambda _: None, wait_event=lambda _: None)
    event = SimpleNamespace(record=lambda _: None)
    platform = SimpleNamespace(
        is_xpu=lambda: False,
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda _: nullcontext(),
    )
    monkeypatch.setattr(gpu_worker, "current_platform", platform)
    monkeypatch.setattr(gpu_worker, "PIN_MEMORY", False)
    monkeypatch.setattr(torch, "Event", lambda **_: event)


class Upstream:
    """vLLM's handler of one direction, with its host rows of one page per tensor and block."""

    def __init__(self, blocks_per_chunk: int, to_host: bool) -> None:
        self.to_host = to_host
        self.device = [torch.empty(BLOCKS, ROW, dtype=torch.int8) for _ in range(2)]
        self.host = [torch.empty(SLOTS, ROW * blocks_per_chunk, dtype=torch.int8) for _ in range(2)]
        self.taken: tuple[np.ndarray[Any, Any], ...] = ()
        self.handler = gpu_worker.SingleDirectionOffloadingHandler(
            self.device,
            self.host,
            blocks_per_chunk,
            [
                [CanonicalKVCacheRef(i, size) for i, size in enumerate(sizes)]
                for sizes in GROUP_PAGES
            ],
            to_host,
        )
        self.handler._swap_blocks_batch = self._take

    def _take(self, *tensors: torch.Tensor, is_src_access_order_any: bool) -> None:
        assert is_src_access_order_any is not self.to_host
        self.taken = tuple(tensor.numpy().copy() for tensor in tensors)

    def copies(self, device: GPULoadStoreSpec, slots: list[int]) -> Iterator[Copy]:
        host = CPULoadStoreSpec(slots)
        ends = (device, host) if self.to_host else (host, device)
        assert self.handler.transfer_async(1, *ends)
        if not self.taken:
            return
        sources, targets, sizes = self.taken
        pairs = (sources, targets) if self.to_host else (targets, sources)
        for at, to, size in zip(*pairs, sizes, strict=True):
            tensor, block, inside = locate(self.device, int(at))
            host_tensor, slot, offset = locate(self.host, int(to))
            assert (inside, host_tensor, offset % ROW) == (0, tensor, 0)
            yield Copy(tensor, block, slot, offset // ROW, int(size))


def locate(tensors: list[torch.Tensor], address: int) -> tuple[int, int, int]:
    """(tensor, row, bytes into the row) of an address."""
    for i, tensor in enumerate(tensors):
        distance = address - tensor.data_ptr()
        if 0 <= distance < tensor.nbytes:
            return i, *divmod(distance, tensor.shape[1])
    raise AssertionError("address outside every tensor")


def ours(blocks_per_chunk: int, device: GPULoadStoreSpec, slots: list[int]) -> Iterator[Copy]:
    layouts = [
        GroupLayout(
            group_id=group_id,
            pages=tuple(Page(i, size) for i, size in enumerate(sizes)),
            blocks=BLOCKS,
            slots=SLOTS,
            slot_bytes=4096,
            blocks_per_chunk=blocks_per_chunk,
        )
        for group_id, sizes in enumerate(GROUP_PAGES)
    ]
    host = np.array(slots, dtype=np.int32)
    planned = plan_copies(layouts, device.block_ids, device.group_sizes, device.block_indices, host)
    for page in planned:
        sizes = GROUP_PAGES[page.group_id]
        for row, offset in zip(page.rows.tolist(), page.offsets.tolist(), strict=True):
            slot, inside = divmod(offset, 4096)
            block, rest = divmod(inside, sum(sizes))
            assert rest == sum(sizes[: page.tensor])
            yield Copy(page.tensor, row, slot, block, page.size)


@pytest.mark.parametrize("to_host", [True, False])
@pytest.mark.parametrize("blocks_per_chunk", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.usefixtures("device")
def test_random_jobs_agree(seed: int, blocks_per_chunk: int, to_host: bool) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(0, 9, len(GROUP_PAGES)).tolist()
    firsts = draw.integers(0, 11, len(GROUP_PAGES)).tolist()
    blocks = draw.permutation(BLOCKS)[: sum(sizes)].tolist()
    count = sum(
        slots_needed(size, first, blocks_per_chunk)
        for size, first in zip(sizes, firsts, strict=True)
    )
    slots = draw.permutation(SLOTS)[:count].tolist()
    spec = GPULoadStoreSpec(blocks, sizes, firsts)
    with pytest.MonkeyPatch.context() as patch:
        # The constructor insists on a GPU, though nothing but the copy itself needs one.
        patch.setattr(torch.Tensor, "is_cuda", True)
        upstream = Upstream(blocks_per_chunk, to_host)
    assert list(ours(blocks_per_chunk, spec, slots)) == list(upstream.copies(spec, slots))
