# SPDX-License-Identifier: Apache-2.0
"""The worker on real memory: round trips by every way of copying, checks and life cycle.

The CUDA ways run on CPU memory: streams are imitated by queues that only move when somebody
waits, and the batched operation copies by address, as the device would.
"""

import ctypes
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="the worker implements vLLM's interface")

from vllm import _custom_ops
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

from tiercache.arena import HostArena
from tiercache.errors import InvariantError, UnsupportedError
from tiercache.vllm import worker
from tiercache.vllm.cuda import CudaTransfers
from tiercache.vllm.transfer import SlotsLoadStoreSpec
from tiercache.vllm.worker import TierCacheWorker, group_bytes

BLOCKS = 32
PAGE = 96
#: Group 0 fills its pages; the others are padded, and overlay the same tensors.
GROUP_PAGES = {0: (96, 96), 3: (40, 40), 4: (72,)}


class Queues:
    """Imitates the device: one queue per stream, which runs when a mark on it is waited for."""

    def __init__(self) -> None:
        self.current: QueueStream | None = None
        self.streams: list[QueueStream] = []
        self.any_order: list[bool] = []

    def stream(self) -> "QueueStream":
        self.streams.append(QueueStream(self))
        return self.streams[-1]

    def run(self) -> None:
        for stream in self.streams:
            stream.run(len(stream.queue))

    def swap_blocks_batch(
        self,
        sources: torch.Tensor,
        targets: torch.Tensor,
        sizes: torch.Tensor,
        is_src_access_order_any: bool,
    ) -> None:
        """Queue the copies; the descriptors are only read when they run."""
        assert self.current is not None
        assert {tensor.dtype for tensor in (sources, targets, sizes)} == {torch.int64}
        self.any_order.append(is_src_access_order_any)
        columns = targets.data_ptr(), sources.data_ptr(), sizes.data_ptr()
        self.current.queue.append(partial(copy_by_address, columns, len(sizes)))


def copy_by_address(columns: tuple[int, int, int], count: int) -> None:
    targets, sources, sizes = ((ctypes.c_int64 * count).from_address(at) for at in columns)
    for target, source, size in zip(targets, sources, sizes, strict=True):
        ctypes.memmove(target, source, size)


class QueueStream:
    def __init__(self, device: Queues) -> None:
        self._device = device
        self.queue: list[Callable[[], None]] = []
        self.done = 0

    def wait_for_compute(self) -> None:
        pass

    def mark(self) -> "QueueMark":
        return QueueMark(self, len(self.queue))

    @contextmanager
    def use(self) -> Iterator[None]:
        self._device.current = self
        yield
        self._device.current = None

    def run(self, until: int) -> None:
        while self.done < until:
            self.queue[self.done]()
            self.done += 1


class QueueMark:
    def __init__(self, stream: QueueStream, at: int) -> None:
        self._stream = stream
        self._at = at

    def query(self) -> bool:
        return self._stream.done >= self._at

    def synchronize(self) -> None:
        self._stream.run(self._at)

    def elapsed_time(self, end: "QueueMark", /) -> float:
        return float(end._at - self._at)


@pytest.fixture
def queues() -> Queues:
    return Queues()


@pytest.fixture(params=["inline", "batch", "rows"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, queues: Queues) -> str:
    """Every way of copying, whatever device there is."""
    name: str = request.param
    if name != "inline":
        monkeypatch.setattr(
            worker, "_transfers", lambda memory, device: CudaTransfers(memory, queues.stream)
        )
    if name == "batch":
        add_batch_operation(monkeypatch, queues)
    return name


def add_batch_operation(monkeypatch: pytest.MonkeyPatch, queues: Queues) -> None:
    monkeypatch.setattr(torch.ops._C_cache_ops, "swap_blocks_batch", object(), raising=False)
    monkeypatch.setattr(_custom_ops, "swap_blocks_batch", queues.swap_blocks_batch)


class Setup:
    """A worker over three overlaid groups, its device tensors and its arena."""

    def __init__(self, blocks_per_chunk: int = 1, slack: int = 128) -> None:
        self.blocks_per_chunk = blocks_per_chunk
        self.tensors = [random_bytes(BLOCKS, PAGE, seed) for seed in (1, 2)]
        self.caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(tensor, PAGE) for tensor in self.tensors],
            [
                [CanonicalKVCacheRef(i, size) for i, size in enumerate(sizes)]
                for sizes in GROUP_PAGES.values()
            ],
        )
        self.arena = HostArena(
            {
                group_id: (8, sum(sizes) * blocks_per_chunk + slack)
                for group_id, sizes in GROUP_PAGES.items()
            }
        )
        for group_id in GROUP_PAGES:
            self.arena.region(group_id).fill_(-1)
        self.worker = TierCacheWorker(self.caches, self.arena, list(GROUP_PAGES), blocks_per_chunk)

    def finish(self, job_id: int) -> tuple[int, float]:
        """Wait for a job; its bytes and seconds."""
        self.worker.wait({job_id})
        (result,) = self.worker.get_finished()
        assert (result.job_id, result.success) == (job_id, True)
        assert result.transfer_size is not None
        assert result.transfer_time is not None
        return result.transfer_size, result.transfer_time


def random_bytes(rows: int, row_bytes: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, (rows, row_bytes), dtype=torch.int8, generator=generator)


@pytest.fixture(params=[1, 3])
def setup(request: pytest.FixtureRequest, way: str) -> Iterator[Setup]:
    setup = Setup(request.param)
    yield setup
    setup.worker.shutdown()


def test_blocks_of_all_groups_come_back_in_other_places(setup: Setup) -> None:
    stored = GPULoadStoreSpec([3, 9, 4, 30, 7, 21, 5], (5, 1, 1), (5, 8, 2))
    count = 5 if setup.blocks_per_chunk == 1 else 3
    slots = SlotsLoadStoreSpec([*[6, 0, 5, 2, 7][:count], 4, 1])
    setup.worker.submit_store(1, stored, slots)
    nbytes, seconds = setup.finish(1)
    assert nbytes == 5 * 192 + 80 + 72
    assert seconds >= 0

    before = [tensor.clone() for tensor in setup.tensors]
    loaded = GPULoadStoreSpec([10, 11, 12, 13, 14, 15, 16], (5, 1, 1), (5, 8, 2))
    setup.worker.submit_load(2, slots, loaded)
    assert setup.finish(2)[0] == nbytes

    expected = [tensor.clone() for tensor in before]
    sizes = [GROUP_PAGES[0]] * 5 + [GROUP_PAGES[3], GROUP_PAGES[4]]
    for source, target, pages in zip(stored.block_ids, loaded.block_ids, sizes, strict=True):
        for i, size in enumerate(pages):
            expected[i][target, :size] = before[i][source, :size]
    for tensor, wanted in zip(setup.tensors, expected, strict=True):
        assert torch.equal(tensor, wanted)


def test_a_slot_holds_its_blocks_without_padding_and_nothing_else_changes(setup: Setup) -> None:
    per_chunk = setup.blocks_per_chunk
    blocks, slots = [8, 2], [5, 3] if per_chunk == 1 else [5]
    spec = GPULoadStoreSpec(blocks, (0, 2, 0), (0, 1, 0))
    setup.worker.submit_store(1, spec, SlotsLoadStoreSpec(slots))
    setup.finish(1)
    expected = torch.full((8, 80 * per_chunk + 128), -1, dtype=torch.int8)
    for position, block in enumerate(blocks, start=1):
        row = torch.cat([tensor[block, :40] for tensor in setup.tensors])
        slot = slots[position - 1] if per_chunk == 1 else 5
        start = position % per_chunk * 80
        expected[slot, start : start + 80] = row
    assert torch.equal(setup.arena.region(3), expected)
    for group_id in (0, 4):
        assert bool((setup.arena.region(group_id) == -1).all())


def test_a_load_may_take_a_part_of_what_was_stored(setup: Setup) -> None:
    per_chunk = setup.blocks_per_chunk
    chunks = 6 // per_chunk
    stored = GPULoadStoreSpec([1, 2, 3, 4, 5, 6], (6, 0, 0), (0, 0, 0))
    setup.worker.submit_store(1, stored, SlotsLoadStoreSpec(range(chunks)))
    setup.finish(1)
    loaded = GPULoadStoreSpec([20, 21, 22], (3, 0, 0), (2, 0, 0))
    slots = range(2, 5) if per_chunk == 1 else range(2)
    setup.worker.submit_load(2, SlotsLoadStoreSpec(slots), loaded, True)
    setup.finish(2)
    for tensor in setup.tensors:
        assert torch.equal(tensor[20:23], tensor[3:6])


def test_rows_further_apart_than_they_are_long(way: str) -> None:
    wide = random_bytes(BLOCKS, 256, 1)
    packed = wide[:, 16:80]
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(packed, 64)], [[CanonicalKVCacheRef(0, 64)]])
    with HostArena({0: (4, 4096)}) as arena:
        made = TierCacheWorker(caches, arena, [0], 1)
        wanted = wide.clone()
        wanted[9, 16:80] = wide[2, 16:80]
        made.submit_store(1, GPULoadStoreSpec([2], (1,), (0,)), SlotsLoadStoreSpec([3]))
        made.wait({1})
        made.submit_load(2, SlotsLoadStoreSpec([3]), GPULoadStoreSpec([9], (1,), (0,)))
        made.wait({2})
        assert torch.equal(wide, wanted)
        made.shutdown()


def test_tensors_made_in_inference_mode_can_be_written_outside_it(way: str) -> None:
    with torch.inference_mode():
        tensor = random_bytes(BLOCKS, 64, 1)
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(tensor, 64)], [[CanonicalKVCacheRef(0, 64)]])
    made = TierCacheWorker(caches, HostArena({0: (4, 4096)}), [0], 1)
    made.submit_load(1, SlotsLoadStoreSpec([0]), GPULoadStoreSpec([5], (1,), (0,)))
    made.wait({1})
    assert not tensor[5].any()
    made.shutdown()


def test_an_empty_transfer_finishes(setup: Setup) -> None:
    setup.worker.submit_store(1, GPULoadStoreSpec([], (0, 0, 0), (0, 0, 0)), SlotsLoadStoreSpec([]))
    assert setup.finish(1)[0] == 0


def test_waiting_for_unknown_and_finished_jobs(setup: Setup) -> None:
    setup.worker.wait({77})
    spec = GPULoadStoreSpec([1], (1, 0, 0), (0, 0, 0))
    setup.worker.submit_store(1, spec, SlotsLoadStoreSpec([0]))
    setup.finish(1)
    setup.worker.wait({1, 77})
    assert setup.worker.get_finished() == []


def test_shutdown_finishes_what_runs_and_may_be_repeated(way: str) -> None:
    setup = Setup()
    kept = setup.arena.region(0)[2]
    spec = GPULoadStoreSpec([1], (1, 0, 0), (0, 0, 0))
    setup.worker.submit_store(1, spec, SlotsLoadStoreSpec([2]))
    setup.worker.shutdown()
    assert torch.equal(kept[:PAGE], setup.tensors[0][1])
    setup.worker.shutdown()
    setup.worker.wait({1})
    with pytest.raises(KeyError):
        setup.arena.region(0)


def test_shutdown_leaves_no_view_behind(way: str, caplog: pytest.LogCaptureFixture) -> None:
    Setup().worker.shutdown()
    assert "stay mapped" not in caplog.text


def test_indices_out_of_range_move_nothing(setup: Setup) -> None:
    before = [tensor.clone() for tensor in setup.tensors]
    spec = GPULoadStoreSpec([1, BLOCKS], (2, 0, 0), (0, 0, 0))
    slots = SlotsLoadStoreSpec([0, 1] if setup.blocks_per_chunk == 1 else [0])
    with pytest.raises(InvariantError, match="group 0"):
        setup.worker.submit_load(1, slots, spec)
    assert all(map(torch.equal, setup.tensors, before))
    assert setup.worker.get_finished() == []


@pytest.mark.parametrize("way", ["batch"], indirect=True)
def test_lanes_do_not_wait_for_each_other_and_only_loads_read_ahead(
    way: str, queues: Queues
) -> None:
    setup = Setup()
    spec = GPULoadStoreSpec([1], (1, 0, 0), (0, 0, 0))
    setup.worker.submit_store(1, spec, SlotsLoadStoreSpec([0]))
    setup.worker.submit_load(2, SlotsLoadStoreSpec([1]), spec)
    setup.worker.submit_load(3, SlotsLoadStoreSpec([2]), spec, expedited=True)
    assert queues.any_order == [False, True, True]
    assert setup.worker.get_finished() == []
    setup.worker.wait({3})
    assert [result.job_id for result in setup.worker.get_finished()] == [3]
    queues.run()
    assert [result.job_id for result in setup.worker.get_finished()] == [1, 2]
    setup.worker.shutdown()


def test_bytes_of_each_group() -> None:
    setup = Setup()
    assert group_bytes(setup.caches) == (192, 80, 72)
    setup.worker.shutdown()


def refused(slot_bytes: int = 4096, groups: int = 1, page: int = 64, device: str = "cpu") -> str:
    tensor = torch.empty(BLOCKS, 64, dtype=torch.int8, device=device)
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, 64)], [[CanonicalKVCacheRef(0, page)]]
    )
    regions = dict.fromkeys(range(groups), (4, slot_bytes))
    with HostArena(regions) as arena, pytest.raises(UnsupportedError) as error:
        TierCacheWorker(caches, arena, list(regions), 3)
    return str(error.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slot_bytes": 191}, "takes 192 bytes in this worker, its slots have 191"),
        ({"groups": 2}, "offloads 1 groups, the cache was set up for 2"),
        ({"page": 65}, "65 bytes does not fit"),
        ({"device": "meta"}, "'meta'"),
    ],
)
def test_what_does_not_fit_together_is_refused(wrong: dict[str, Any], message: str) -> None:
    assert message in refused(**wrong)


def test_a_spec_pickles_small() -> None:
    spec = SlotsLoadStoreSpec(range(1000))
    data = pickle.dumps(spec)
    assert len(data) < 4 * 1000 + 400
    copy = pickle.loads(data)
    assert copy.slots.dtype == np.int32
    assert copy.slots.tolist() == list(range(1000))
    view = SlotsLoadStoreSpec(np.arange(100_000, dtype=np.int32)[:3])
    assert len(pickle.dumps(view)) < 400
    assert repr(view) == "SlotsLoadStoreSpec([0, 1, 2])"
