# SPDX-License-Identifier: Apache-2.0
"""The I/O engine: the order of jobs, those that raise or hang, and the end."""

import asyncio
import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from threading import Event

import pytest

from tests.tiers.nvme.io_helpers import PATIENCE_S, Engines, Hung, nothing, run
from tiercache.errors import ConfigError
from tiercache.tiers.nvme.io import IOEngine, Job, in_thread


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as made:
        yield made


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A read from it hangs, in the kernel, until something is written to it."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def not_a_job() -> None:
    """Returns nothing that can be awaited."""


async def raises(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "job",
    [
        lambda: raises(RuntimeError("broken")),
        lambda: raises(SystemExit(3)),
        lambda: raises(KeyboardInterrupt()),
        lambda: raises(asyncio.CancelledError()),
        lambda: in_thread(sys.exit),
        not_a_job,
    ],
    ids=["error", "exit", "interrupt", "cancelled", "exit in a worker", "no coroutine"],
)
def test_a_job_that_raises_is_logged_and_the_next_one_runs(
    engines: Engines, caplog: pytest.LogCaptureFixture, job: Job
) -> None:
    engine = engines(1)
    engine.submit(job, urgent=False)
    run(engine, nothing)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "a job failed" in caplog.text


def test_failed_jobs_are_logged_once_in_a_while(
    engines: Engines, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(1)
    for _ in range(50):
        engine.submit(lambda: raises(RuntimeError("broken")), urgent=False)
    run(engine, nothing)
    assert len(caplog.records) == 1
    engine._report_at = 0.0
    engine.submit(lambda: raises(RuntimeError("broken")), urgent=False)
    run(engine, nothing)
    assert "49 more since the last report" in caplog.text


def test_urgent_jobs_overtake_those_that_wait(engines: Engines, pipe: tuple[int, int]) -> None:
    engine = engines(1)
    hung = Hung(pipe)
    order: list[str] = []

    def named(name: str) -> Job:
        return lambda: in_thread(order.append, name)

    engine.submit(hung, urgent=False)
    assert hung.started.wait(PATIENCE_S)
    for name in ("spill 1", "spill 2"):
        engine.submit(named(name), urgent=False)
    for name in ("restore 1", "restore 2"):
        engine.submit(named(name), urgent=True)
    assert engine.pending == 5
    hung.let_go()
    run(engine, nothing)
    assert order == ["restore 1", "restore 2", "spill 1", "spill 2"]


@pytest.mark.parametrize("urgent", [False, True])
def test_a_hung_operation_holds_up_one_worker(
    engines: Engines, pipe: tuple[int, int], urgent: bool
) -> None:
    engine = engines(3)
    hung = Hung(pipe)
    engine.submit(hung, urgent=urgent)
    assert hung.started.wait(PATIENCE_S)
    for turn in range(20):
        run(engine, lambda: in_thread(lambda: None), urgent=bool(turn % 2))
    assert not hung.finished.is_set()
    while engine.pending != 1:  # the last one is counted until the loop has seen its end
        pass
    hung.let_go()
    assert hung.finished.wait(PATIENCE_S)
    assert hung.error is None


def test_whatever_hangs_an_urgent_job_has_a_worker(engines: Engines, pipe: tuple[int, int]) -> None:
    engine = engines(3)
    hung = [Hung(pipe) for _ in range(5)]
    for job in hung:
        engine.submit(job, urgent=False)
    assert all(job.started.wait(PATIENCE_S) for job in hung[:2])
    run(engine, lambda: in_thread(lambda: None), urgent=True)
    assert not any(job.started.is_set() for job in hung[2:])
    for job in hung:
        job.let_go()


def test_no_more_operations_at_once_than_the_queue_is_deep(engines: Engines) -> None:
    engine = engines(3)
    lock, full, done = threading.Lock(), Event(), Event()
    running: list[int] = []
    most: list[int] = []

    def operation(number: int) -> None:
        with lock:
            running.append(number)
            most.append(len(running))
            if len(running) == 3:
                full.set()
        full.wait(PATIENCE_S)
        with lock:
            running.remove(number)
            if len(most) == 40:
                done.set()

    for number in range(40):
        engine.submit(partial(in_thread, operation, number), urgent=True)
    assert done.wait(PATIENCE_S)
    assert max(most) == 3


def test_a_thousand_jobs_from_many_threads(engines: Engines) -> None:
    engine = engines(4)
    ran: list[int] = []

    def submit(first: int) -> None:
        for number in range(first, first + 125):
            assert engine.submit(partial(in_thread, ran.append, number), urgent=bool(number % 3))

    threads = [threading.Thread(target=submit, args=(125 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(engine, nothing)  # started after all others; close() waits for those that still run
    assert engine.close(PATIENCE_S)
    assert sorted(ran) == list(range(1000))
    assert engine.pending == 0


def test_a_job_may_submit_another(engines: Engines) -> None:
    engine = engines(1)
    done = Event()

    async def second() -> None:
        done.set()

    async def first() -> None:
        engine.submit(second, urgent=False)

    engine.submit(first, urgent=False)
    assert done.wait(PATIENCE_S)


def test_an_operation_given_up_before_its_turn_never_starts(
    engines: Engines, pipe: tuple[int, int]
) -> None:
    engine = engines(1)
    hung = Hung(pipe)
    engine.submit(hung, urgent=False)
    assert hung.started.wait(PATIENCE_S)
    ran: list[int] = []

    async def impatient() -> None:
        await asyncio.wait_for(in_thread(ran.append, 1), timeout=0)

    with pytest.raises(TimeoutError):
        run(engine, impatient, urgent=True)
    hung.let_go()
    run(engine, lambda: in_thread(ran.append, 2))
    assert ran == [2]


def test_outside_an_engine_the_loops_own_threads_serve() -> None:
    async def main() -> str:
        return await in_thread(lambda: threading.current_thread().name)

    assert "test-io" not in asyncio.run(main())


def test_a_depth_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="queue_depth"):
        IOEngine(0, "test-io")


@pytest.mark.parametrize("started", [0, 1, 2])
def test_threads_that_cannot_be_started(started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves none of those that could: conftest looks. The third is the loop's."""
    start = threading.Thread.start
    left = iter(range(started))

    def refused(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        IOEngine(2, "test-io")


def test_close_finishes_what_runs_and_drops_what_waits(
    engines: Engines, pipe: tuple[int, int]
) -> None:
    engine = engines(1)
    hung = Hung(pipe)
    ran: list[int] = []
    engine.submit(hung, urgent=False)
    assert hung.started.wait(PATIENCE_S)
    for number in range(10):
        engine.submit(partial(in_thread, ran.append, number), urgent=False)
    closer = threading.Thread(target=engine.close, args=(PATIENCE_S,))
    closer.start()
    while engine.pending > 1:  # until close() has begun
        pass
    hung.let_go()
    closer.join()
    assert engine.close(0)
    assert hung.error is None
    assert ran == []
    assert engine.pending == 0


def test_close_leaves_a_hung_operation_behind(engines: Engines, pipe: tuple[int, int]) -> None:
    engine = engines(2)
    hung = Hung(pipe)
    engine.submit(hung, urgent=False)
    assert hung.started.wait(PATIENCE_S)
    assert not engine.close(0.01)
    assert not engine.submit(nothing, urgent=True)
    assert engine.pending == 1
    hung.let_go()
    assert engine.close(PATIENCE_S)
    assert hung.error is not None, "it began another operation, perhaps on a closed descriptor"
    assert hung.error.errno == errno.ECANCELED


def test_after_close_nothing_is_accepted(engines: Engines) -> None:
    engine = engines(1)
    assert engine.close(PATIENCE_S)
    assert engine.close(PATIENCE_S)
    assert not engine.submit(nothing, urgent=False)
    assert engine.pending == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(engines: Engines) -> None:
    engine = engines(2)
    run(engine, lambda: in_thread(lambda: None))
    child = os.fork()
    if not child:
        # In the child nothing may run that pytest has set up for the end of a process.
        os._exit(0 if not engine.submit(nothing, urgent=True) and engine.close(1) else 1)
    assert os.waitpid(child, 0) == (child, 0)
    run(engine, lambda: in_thread(lambda: None))


ENDS = {
    "idle": "",
    "closed": "engine.submit(work, urgent=True); engine.close(10)",
    "at work": "engine.submit(work, urgent=True)",
    "hung": "engine.submit(hang, urgent=True); started.wait()",
    "hung and closed": "engine.submit(hang, urgent=True); started.wait(); engine.close(0.01)",
    "waiting": "[engine.submit(hang, urgent=False) for _ in range(50)]; started.wait()",
    "dropped": "engine.submit(hang, urgent=True); started.wait(); del engine",
}
PROGRAM = """
import os, threading
from tiercache.tiers.nvme.io import IOEngine, in_thread
started = threading.Event()
reader, writer = os.pipe()
def block():
    started.set()
    os.read(reader, 1)
async def hang():
    await in_thread(block)
async def work():
    for _ in range(1000):
        await in_thread(os.getpid)
engine = IOEngine(3, "test-io")
"""


@pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))
def test_the_interpreter_ends_without_a_word(end: str) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM + end]
    ended = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
