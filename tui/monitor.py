# SPDX-License-Identifier: Apache-2.0
"""The monitor on a terminal: keys and messages in, frames out.

The poller's thread only posts ``Reported``; all state is changed by handlers of this class, in
the event loop.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message

from tiercache.tui import view
from tiercache.tui.feed import Feed
from tiercache.tui.frame import Frame, Sort
from tiercache.tui.keys import KEYS
from tiercache.tui.poller import Poller, Report
from tiercache.tui.snapshot import Snapshot
from tiercache.tui.sources import Source
from tiercache.tui.text import Glyphs
from tiercache.tui.trouble import SourceError
from tiercache.tui.widgets import Lines

#: Ages are shown in seconds, so they are drawn again this often.
TICK_S = 1.0


class Reported(Message):
    """The source was asked, and this is what came of it."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__()


class Monitor(App[None]):
    """Draws what a source reports until told to quit; it never changes the server."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        *(Binding(key.keys, key.action, key.word) for key in KEYS),
        Binding("ctrl+c", "quit", priority=True),
    ]

    def __init__(
        self,
        source: Source,
        interval: float,
        glyphs: Glyphs,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(ansi_color=True)
        self._source = source
        self._interval = interval
        self._glyphs = glyphs
        self._clock = clock
        self._feed = Feed(clock(), interval)
        self._poller = Poller(source, interval, lambda report: self.post_message(Reported(report)))
        self._sort_order = Sort.GROUP
        self._helping = False
        self._paused_since: float | None = None
        self._held: Sequence[Snapshot] = ()

    def compose(self) -> ComposeResult:
        yield Lines()

    def on_mount(self) -> None:
        for reason_to_leave in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(reason_to_leave, self.exit)
        self.set_interval(TICK_S, self.draw)
        self._poller.start()

    def on_unmount(self) -> None:
        self._poller.stop()

    def on_reported(self, message: Reported) -> None:
        match message.report:
            case Snapshot() as snapshot:
                self._feed.accept(snapshot)
            case SourceError() as failure:
                self._feed.fail(failure, self._clock())
            case fault:
                raise fault
        self.draw()

    def on_resize(self) -> None:
        # Later: this handler runs before the one of App that takes in the new size.
        self.call_later(self.draw)

    def action_pause(self) -> None:
        if self._paused_since is not None:
            self._paused_since, self._held = None, ()
        elif self._feed.history:
            self._paused_since, self._held = self._clock(), self._feed.history
        self.draw()

    def action_sort(self) -> None:
        self._sort_order = self._sort_order.following
        self.draw()

    def action_help(self) -> None:
        self._helping = not self._helping
        self.draw()

    def draw(self) -> None:
        width, height = self.size
        lines = view.screen(self._frame(), width, height, helping=self._helping)
        self.query_one(Lines).show(lines)

    def _frame(self) -> Frame:
        now = self._clock()
        paused = self._paused_since is not None
        return Frame(
            url=self._source.url,
            interval=self._interval,
            now=now,
            status=self._feed.status(now),
            history=self._held if paused else self._feed.history,
            sort=self._sort_order,
            paused_since=self._paused_since,
            glyphs=self._glyphs,
        )
