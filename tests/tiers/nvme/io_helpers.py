# SPDX-License-Identifier: Apache-2.0
"""What the tests of the I/O engine share."""

import os
from contextlib import ExitStack
from threading import Event

from tiercache.tiers.nvme.io import IOEngine, Job, in_thread

#: For what must happen: failing takes this long, passing does not.
PATIENCE_S = 30.0


class Engines(ExitStack):
    """Makes engines and closes them at its own end, when nothing may hang any more."""

    def __call__(self, queue_depth: int) -> IOEngine:
        engine = IOEngine(queue_depth, "test-io")
        self.callback(_close, engine)
        return engine


def _close(engine: IOEngine) -> None:
    assert engine.close(PATIENCE_S)


class Hung:
    """A job that hangs in a system call until it is let go, and what became of it."""

    def __init__(self, pipe: tuple[int, int]) -> None:
        self._reader, self._writer = pipe
        self.started = Event()
        self.finished = Event()
        self.error: OSError | None = None

    async def __call__(self) -> None:
        try:
            await in_thread(self._hang)
            await in_thread(lambda: None)
        except OSError as error:
            self.error = error
        self.finished.set()

    def _hang(self) -> None:
        self.started.set()
        os.read(self._reader, 1)

    def let_go(self) -> None:
        os.write(self._writer, b"x")


def run(engine: IOEngine, job: Job, *, urgent: bool = False) -> None:
    """Run a job to its end; what it raises is raised here."""
    done = Event()
    errors: list[BaseException] = []

    async def wrapped() -> None:
        try:
            await job()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)
        done.set()

    assert engine.submit(wrapped, urgent=urgent)
    assert done.wait(PATIENCE_S)
    if errors:
        raise errors.pop()


async def nothing() -> None:
    pass
