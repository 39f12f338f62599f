# SPDX-License-Identifier: Apache-2.0
"""Book-keeping of transfers that run beside the engine: order, waiting, what has finished.

Covers one lane per stream of copies, on top of a small protocol that CUDA streams implement and
tests imitate. What a transfer copies, and how, is handed in by the caller.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol


class Finished(NamedTuple):
    """A transfer that is done."""

    job_id: int
    nbytes: int
    seconds: float


class Mark(Protocol):
    """A point on a stream (a CUDA event with timing)."""

    def query(self) -> bool:
        """Whether the stream has passed it."""

    def synchronize(self) -> None:
        """Block until the stream has passed it."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from here to ``end``; both must have been passed."""


class SideStream(Protocol):
    """A stream beside the one that the engine computes on. What is queued on it runs in order."""

    def wait_for_compute(self) -> None:
        """Let what is queued from now on wait for what the engine has queued so far."""

    def mark(self) -> Mark:
        """Mark the current end of the stream."""

    def use(self) -> AbstractContextManager[object]:
        """Queue the copies made inside the context on this stream."""


class _Running(NamedTuple):
    nbytes: int
    start: Mark
    end: Mark
    #: Whatever the queued copies still read, such as their descriptors.
    kept: object


class Lane:
    """Transfers of one direction on one stream, each after the one before it.

    Locking: none, one thread calls.
    """

    def __init__(self, stream: SideStream) -> None:
        self._stream = stream
        self._running: dict[int, _Running] = {}

    def submit(self, job_id: int, nbytes: int, launch: Callable[[], object]) -> None:
        """Queue a transfer: ``launch`` queues its copies and returns what they need kept alive.

        It starts after everything that the engine has queued so far. A store must see blocks
        that are still being computed; a load must come after pending writes to its blocks, since
        the engine may have queued them to be zeroed when they still belonged to another request.
        """
        self._stream.wait_for_compute()
        with self._stream.use():
            start = self._stream.mark()
            kept = launch()
            end = self._stream.mark()
        self._running[job_id] = _Running(nbytes, start, end, kept)

    def finished(self) -> list[Finished]:
        """The transfers that ended since the last call, in the order they were submitted."""
        finished: list[Finished] = []
        for job_id, transfer in list(self._running.items()):
            if not transfer.end.query():
                break
            seconds = transfer.start.elapsed_time(transfer.end) / 1000
            finished.append(Finished(job_id, transfer.nbytes, seconds))
            del self._running[job_id]
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        """Block until these transfers are done. Others, and those long finished, are ignored."""
        for job_id in job_ids:
            if transfer := self._running.get(job_id):
                transfer.end.synchronize()

    def drain(self) -> None:
        """Block until the lane is empty. What it ran is no longer reported."""
        self.wait(list(self._running))
        self._running.clear()
