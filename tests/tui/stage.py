# SPDX-License-Identifier: Apache-2.0
"""A monitor on a screen that is not there, with a source and a clock that tests move by hand."""

import asyncio
from collections.abc import Awaitable, Callable
from queue import Queue

from textual.pilot import Pilot

from tests.tui.servers import START, qwen
from tiercache.stats.model import Snapshot
from tiercache.tui.monitor import Monitor, Reported
from tiercache.tui.poller import Report
from tiercache.tui.settings import MIN_INTERVAL_S
from tiercache.tui.state import UiState
from tiercache.tui.text import ASCII
from tiercache.tui.trouble import SourceError, Trouble
from tiercache.tui.widgets import Lines

REFUSED = SourceError(Trouble.UNREACHABLE, "connection refused")


class Watched(Monitor):
    """Tells when it has taken in a report."""

    heard: asyncio.Event

    def on_reported(self, message: Reported) -> None:
        message.prevent_default()
        self.heard.set()
        super().on_reported(message)


class Stage:
    """A monitor whose source and clock a test moves by hand."""

    target = "qwen3-next"
    notice = ""

    def __init__(self, ui: UiState | None, span: tuple[float, float] | None) -> None:
        self.span = span
        self.now = START
        self.reports: Queue[Report] = Queue()
        self.monitor = Watched(self, MIN_INTERVAL_S, ASCII, ui=ui, clock=lambda: self.now)
        self.monitor._poller.every(0.0)
        self.pilot: Pilot[None]

    def fetch(self) -> Snapshot:
        report = self.reports.get()
        if isinstance(report, Exception):
            raise report
        return report

    def close(self) -> None:
        pass

    async def report(self, report: Report) -> None:
        """Let the poller fetch this, and wait until the monitor has heard of it."""
        self.monitor.heard = asyncio.Event()
        self.reports.put(report)
        async with asyncio.timeout(20):  # it has crashed, and will not hear anything any more
            await self.monitor.heard.wait()

    async def at(self, step: int, **changes: object) -> None:
        """The server goes on for so many seconds."""
        self.now = START + step
        await self.report(qwen(step, **changes))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    def later(self, seconds: float) -> None:
        self.now = START + seconds
        self.monitor.draw()

    @property
    def screen(self) -> list[str]:
        return self.monitor.query_one(Lines).plain

    @property
    def header(self) -> str:
        return self.screen[0]

    @property
    def text(self) -> str:
        return "\n".join(self.screen)

    @property
    def ui(self) -> UiState:
        return self.monitor.ui


Act = Callable[[Stage], Awaitable[None]]


def play(
    act: Act,
    size: tuple[int, int] = (80, 24),
    *,
    ui: UiState | None = None,
    span: tuple[float, float] | None = None,
) -> Stage:
    stage = Stage(ui, span)

    async def run() -> None:
        async with stage.monitor.run_test(size=size) as stage.pilot:
            await act(stage)

    try:
        asyncio.run(run())
    finally:
        stage.reports.put(REFUSED)  # the poller is stopped, but may wait for one more
    return stage
