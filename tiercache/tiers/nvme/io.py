# SPDX-License-Identifier: Apache-2.0
"""File operations off the caller's thread: an asyncio loop for jobs, workers for what blocks.

Covers running jobs by priority, a bounded number at once, and whole vectored reads and writes
straight into and from the caller's memory. Does not know slots, records or the index; it retries
nothing and sets no deadlines.
"""

import asyncio
import errno
import fcntl
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import ParamSpec, TypeVar

from aiofiles.os import wrap

from tiercache.blocks import SLOT_ALIGNMENT
from tiercache.errors import ConfigError
from tiercache.tiers.nvme import interpreter

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Job = Callable[[], Awaitable[None]]

#: Buffers that one system call takes.
IOV_MAX = os.sysconf("SC_IOV_MAX")
#: Urgent jobs at once, per worker: one is in its hands, one in the line, so that it goes on without
#: waiting for the loop. With 7 MiB per operation beside a busy thread: 0.75 of fio instead of 0.59.
JOBS_PER_WORKER = 2
#: Failed jobs are logged once in this many seconds: a broken disk fails every one of them.
REPORT_INTERVAL_S = 10.0


class IOEngine:
    """Runs jobs on an asyncio loop in a thread of its own, and ``queue_depth`` operations at once.

    A job is called and awaited on that thread. What blocks in it goes through ``read``, ``write``,
    ``flush`` and ``in_thread`` to one of ``queue_depth`` workers, one operation at a time; a job
    awaits all that it starts. Urgent jobs overtake those that wait. The others never take the last
    worker (if there are two): however many of them hang, an urgent one still runs.

    Beside a busy Python thread each return to the interpreter costs milliseconds: one for every
    system call, two more for every ``in_thread``. A run of 64 MiB does not notice; short ones are
    best done several at a time, by a function that calls ``read_now`` or ``write_now``.

    As long as its threads run, they ask for ``switch_interval``: see ``interpreter``.

    All threads are daemons: neither a hung operation nor a missing ``close`` keeps the interpreter
    from ending, which cuts off the jobs that run.

    Locking: call it from any thread, ``close`` not from a job. The lock is held for moments only.
    Raises: ConfigError for a depth below 1, RuntimeError when a thread cannot be started. Nothing
    afterwards; a job that raises is logged.
    """

    pending: int
    """Jobs that wait or run."""

    def __init__(self, queue_depth: int, name: str, switch_interval: float | None = None) -> None:
        if queue_depth < 1:
            raise ConfigError("queue_depth", queue_depth, "at least 1")
        self.pending = 0
        self._switch_interval = switch_interval
        self._name = name
        self._pid = os.getpid()
        self._places = queue_depth * JOBS_PER_WORKER
        self._ordinary_places = max(1, queue_depth - 1)
        self._urgent: deque[Job] = deque()
        self._ordinary: deque[Job] = deque()
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself refers to them weakly
        self._lock = Lock()
        self._woken = False
        self._closing = False
        self._report_at = time.monotonic()
        self._unreported = 0
        self._workers = _Workers(queue_depth, name)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        if switch_interval is not None:
            interpreter.ask(switch_interval)
        try:
            self._thread.start()
        except RuntimeError:
            self._stop()
            raise

    def submit(self, job: Job, *, urgent: bool) -> bool:
        """Have ``job`` run; never blocks.

        False if it never will: the engine is closed, or this is a forked child, where its threads
        do not exist. A job that was accepted is dropped unseen if ``close`` comes before its turn.
        """
        if os.getpid() != self._pid:
            return False
        with self._lock:
            if self._closing:
                return False
            (self._urgent if urgent else self._ordinary).append(job)
            self.pending += 1
            self._wake()
        return True

    def close(self, timeout: float) -> bool:
        """Drop the jobs that wait and give those that run ``timeout`` seconds to finish.

        False if one did not: its threads are left behind and end when it does, and it begins no
        further operation. The system call that hangs still owns its descriptor and its memory:
        close and unmap neither. May be called again, to look once more.
        """
        if os.getpid() != self._pid:
            return True
        with self._lock:
            dropped = self._urgent, self._ordinary
            self.pending -= len(self._urgent) + len(self._ordinary)
            self._urgent, self._ordinary = deque(), deque()
            if not self._closing:
                self._closing = True
                self._wake()
        del dropped  # outside the lock: who knows what their destructors do
        self._thread.join(timeout)
        self._workers.refusing = True
        return not self._thread.is_alive()

    def _wake(self) -> None:
        """With the lock held. One wake-up serves all that was submitted until it is heard."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._start)

    def _serve(self) -> None:
        self._loop.run_forever()
        self._stop()

    def _stop(self) -> None:
        # The workers first: one that finishes late reports to the loop.
        self._workers.shutdown()
        self._loop.close()
        if self._switch_interval is not None:
            interpreter.withdraw(self._switch_interval)

    def _start(self) -> None:
        """On the loop: start what may run, or stop when nothing will."""
        with self._lock:
            self._woken = False
            while job := self._next():
                self._running += 1
                task = self._loop.create_task(self._run(job))
                self._tasks.add(task)
                task.add_done_callback(self._finished)
            if self._closing and not self._running:
                self._loop.stop()

    def _next(self) -> Job | None:
        if self._urgent and self._running < self._places:
            return self._urgent.popleft()
        if self._ordinary and self._running < self._ordinary_places:
            return self._ordinary.popleft()
        return None

    async def _run(self, job: Job) -> None:
        _workers.set(self._workers)
        try:
            await job()
        except BaseException as error:  # noqa: BLE001 - the loop must survive even SystemExit
            self._report(error)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with self._lock:
            self._running -= 1
            self.pending -= 1
        self._start()

    def _report(self, error: BaseException) -> None:
        now = time.monotonic()
        if now < self._report_at:
            self._unreported += 1
            return
        more = f" ({self._unreported} more since the last report)" if self._unreported else ""
        logger.error("%s: a job failed: %r%s", self._name, error, more, exc_info=error)
        self._report_at = now + REPORT_INTERVAL_S
        self._unreported = 0


async def read(fd: int, offset: int, buffers: Sequence[memoryview]) -> None:
    """Fill ``buffers`` with what lies at ``offset`` bytes, whole.

    Buffers are contiguous and writable. If ``fd`` is open for direct I/O, their addresses and
    lengths and the offset are multiples of 4096. Raises OSError, EIO if the file ends too early.
    """
    await in_thread(read_now, fd, offset, buffers)


async def write(fd: int, offset: int, buffers: Sequence[memoryview]) -> None:
    """Write ``buffers`` at ``offset`` bytes, whole. Rules and errors are those of ``read``."""
    await in_thread(write_now, fd, offset, buffers)


async def flush(fd: int) -> None:
    """Return when the device has what was written. Raises OSError."""
    await in_thread(os.fdatasync, fd)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``function`` returns or raises, called by a worker of the engine that runs this job.

    In a loop that is no engine's, by that loop's default executor.
    """
    return await wrap(partial(function, *args, **kwargs))(executor=_workers.get())


def read_now(fd: int, offset: int, buffers: Sequence[memoryview]) -> None:
    """``read``, blocking: for a function that does more before it leaves its worker."""
    _transfer(os.preadv, fd, offset, buffers, "short read")


def write_now(fd: int, offset: int, buffers: Sequence[memoryview]) -> None:
    """``write``, blocking: for a function that does more before it leaves its worker."""
    _transfer(os.pwritev, fd, offset, buffers, "short write")


def _transfer(
    call: Callable[[int, Sequence[memoryview], int], int],
    fd: int,
    offset: int,
    buffers: Sequence[memoryview],
    short: str,
) -> None:
    left = sum(buffer.nbytes for buffer in buffers)
    while left:
        done = call(fd, buffers[:IOV_MAX], offset)
        left -= done
        if not done or (left and done % SLOT_ALIGNMENT and _is_direct(fd)):
            raise OSError(errno.EIO, f"{short}: {left} bytes missing at {offset + done}")
        offset += done
        if left:
            buffers = _rest(buffers, done)


def _is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def _rest(buffers: Sequence[memoryview], done: int) -> list[memoryview]:
    """What ``buffers`` are without their first ``done`` bytes."""
    rest = deque(buffers)
    while done >= rest[0].nbytes:
        done -= rest.popleft().nbytes
    rest[0] = rest[0].cast("B")[done:]
    return list(rest)


class _Workers(Executor):
    """A pool of threads that the interpreter does not wait for at its end.

    ThreadPoolExecutor's are joined, so that one hung operation would keep the process alive.
    """

    def __init__(self, count: int, name: str) -> None:
        self.refusing = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        try:
            for number in range(count):
                thread = Thread(target=self._work, name=f"{name}-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError:
            self.shutdown()
            raise

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put(partial(self._execute, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the base's signature
        """End the threads, after all that was submitted; ``cancel_futures`` is not heeded."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while call := self._calls.get():
            call()
            del call  # while it waits, a worker keeps nobody's memory from being unmapped

    def _execute(self, future: Future[T], call: Callable[[], T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            if self.refusing:
                raise OSError(errno.ECANCELED, "the I/O engine is closed")  # noqa: TRY301
            result = call()
        except BaseException as error:  # noqa: BLE001 - it is the job's
            future.set_exception(error)
            # The traceback refers to this frame: a cycle would keep the buffers until collected.
            del future
        else:
            future.set_result(result)


_workers: ContextVar[Executor | None] = ContextVar("workers", default=None)
