# SPDX-License-Identifier: Apache-2.0
"""Transfers of the CPU platform: device and host are the same memory, so copies are immediate.

Covers copying inside the submitting call and remembering the results. Order is program order.
"""

from collections.abc import Callable, Collection, Sequence
from ctypes import memmove
from time import perf_counter

from tiercache.vllm.copies import PageCopies
from tiercache.vllm.lanes import Finished
from tiercache.vllm.memory import Memory


class InlineTransfers:
    """Copies when told to; what was copied is reported by the next ``finished``.

    ``clock`` returns seconds. Locking: none, one thread calls.
    """

    def __init__(self, memory: Memory, clock: Callable[[], float] = perf_counter) -> None:
        self._memory = memory
        self._clock = clock
        self._finished: list[Finished] = []

    def store(self, job_id: int, copies: Sequence[PageCopies]) -> None:
        self._copy(job_id, copies, to_host=True)

    def load(self, job_id: int, copies: Sequence[PageCopies], *, expedited: bool) -> None:
        self._copy(job_id, copies, to_host=False)

    def finished(self) -> list[Finished]:
        """The transfers made since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        """Return at once: nothing is ever running."""

    def drain(self) -> None:
        """Return at once: nothing is ever running."""

    def _copy(self, job_id: int, copies: Sequence[PageCopies], *, to_host: bool) -> None:
        start = self._clock()
        columns = (column.tolist() for column in self._memory.addresses(copies, to_host=to_host))
        # By address, not between tensors: torch spreads each row over its threads, and where
        # other processes want the cores too, rows of 64 KiB take ten times as long.
        for source, target, size in zip(*columns, strict=True):
            memmove(target, source, size)
        nbytes = sum(page.nbytes for page in copies)
        self._finished.append(Finished(job_id, nbytes, self._clock() - start))
