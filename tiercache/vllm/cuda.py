# SPDX-License-Identifier: Apache-2.0
"""Transfers of CUDA devices: copies on side streams while the engine computes.

Covers the streams, the choice of copy operation and its descriptors. Order and completion are
``tiercache.vllm.lanes``. ROCm presents itself as CUDA and takes the same path.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

import torch
from vllm import _custom_ops as ops

from tiercache.vllm.copies import PageCopies
from tiercache.vllm.lanes import Finished, Lane, SideStream
from tiercache.vllm.memory import Memory

logger = logging.getLogger(__name__)


class CudaStream:
    """A side stream of one device; satisfies ``SideStream``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def wait_for_compute(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def use(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)


class CudaTransfers:
    """Stores, loads and expedited loads, each in a lane of its own.

    ``new_stream`` makes the stream of one lane.

    Invariant: lanes are not ordered against each other, and need not be. The manager exposes a
    slot to loads only after its store was reported by ``finished``, and pins it until the load
    was, so no slot is written in one lane while another uses it; vLLM waits for the transfers of
    a block before it hands the block on. Locking: none, one thread calls.
    """

    def __init__(self, memory: Memory, new_stream: Callable[[], SideStream]) -> None:
        self._memory = memory
        self._stores, self._loads, self._expedited = (Lane(new_stream()) for _ in range(3))
        batched = hasattr(torch.ops._C_cache_ops, "swap_blocks_batch")
        self._copy = self._copy_batch if batched else self._copy_rows
        logger.info(
            "tiercache copies: %s", "one batch per transfer" if batched else "one call per page"
        )

    def store(self, job_id: int, copies: Sequence[PageCopies]) -> None:
        self._submit(self._stores, job_id, copies, to_host=True)

    def load(self, job_id: int, copies: Sequence[PageCopies], *, expedited: bool) -> None:
        """Queue a load; an ``expedited`` one does not wait for those queued before it."""
        lane = self._expedited if expedited else self._loads
        self._submit(lane, job_id, copies, to_host=False)

    def finished(self) -> list[Finished]:
        """The transfers that ended since the last call."""
        return [done for lane in self._lanes() for done in lane.finished()]

    def wait(self, job_ids: Collection[int]) -> None:
        """Block until these transfers are done; unknown ids are ignored."""
        for lane in self._lanes():
            lane.wait(job_ids)

    def drain(self) -> None:
        """Block until nothing is running; what ran is no longer reported."""
        for lane in self._lanes():
            lane.drain()

    def _lanes(self) -> tuple[Lane, ...]:
        return self._stores, self._loads, self._expedited

    def _submit(
        self, lane: Lane, job_id: int, copies: Sequence[PageCopies], *, to_host: bool
    ) -> None:
        nbytes = sum(page.nbytes for page in copies)
        lane.submit(job_id, nbytes, lambda: self._copy(copies, to_host=to_host))

    def _copy_batch(self, copies: Sequence[PageCopies], *, to_host: bool) -> object:
        if not copies:
            return None
        addresses = self._memory.addresses(copies, to_host=to_host)
        source, target, sizes = map(torch.from_numpy, addresses)
        # Nobody writes a slot that is being loaded, so its bytes may be read ahead of the stream.
        # The blocks of a store are written by the engine and must be read in stream order.
        ops.swap_blocks_batch(source, target, sizes, is_src_access_order_any=not to_host)
        return source, target, sizes

    def _copy_rows(self, copies: Sequence[PageCopies], *, to_host: bool) -> object:
        self._memory.copy_rows(copies, to_host=to_host)
        return None
