# SPDX-License-Identifier: Apache-2.0
"""The monitor on a terminal: keys and messages in, frames out.

Covers the effects; what a key means is decided by ``interact``, what is drawn by ``view``. The
poller's thread only posts ``Reported``; all state is changed by handlers of this class, in the
event loop.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.message import Message

from tiercache.stats.model import Snapshot
from tiercache.tui import view
from tiercache.tui.feed import Feed
from tiercache.tui.frame import Frame
from tiercache.tui.interact import Around, Effect, press
from tiercache.tui.picture import picture
from tiercache.tui.poller import Poller, Report
from tiercache.tui.saving import save
from tiercache.tui.settings import MAX_INTERVAL_S, MIN_INTERVAL_S, THEMES
from tiercache.tui.sources import Source
from tiercache.tui.state import UiState
from tiercache.tui.text import Glyphs
from tiercache.tui.trouble import SourceError
from tiercache.tui.widgets import Lines

#: Ages are shown in seconds, so they are drawn again this often.
TICK_S = 1.0
#: Lines of a screen that are no rows of its list: a page keeps some of what was seen.
AROUND_LIST = 8


class Reported(Message):
    """The source was asked, and this is what came of it."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__()


class Monitor(App[None]):
    """Draws what a source reports until told to quit; it never changes the server."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = []

    def __init__(
        self,
        source: Source,
        interval: float,
        glyphs: Glyphs,
        *,
        ui: UiState | None = None,
        theme: str = THEMES[0],
        clock: Callable[[], float] = time.time,
    ) -> None:
        # Asked for only here: NO_COLOR is then obeyed by dropping colours, whatever the theme,
        # and not by greys, which are colours.
        super().__init__(ansi_color=True)
        self.set_reactive(App.ansi_color, None)
        self.theme = theme
        self.ui = ui or UiState()
        self._source = source
        self._interval = interval
        self._glyphs = glyphs
        self._clock = clock
        self._feed = Feed(clock(), interval, source.span)
        self._poller = Poller(source, interval, lambda report: self.post_message(Reported(report)))
        self._held: Frame | None = None
        self._baseline: Snapshot | None = None
        self._drawn = 0.0
        self._lines = Lines()

    def compose(self) -> ComposeResult:
        yield self._lines

    def on_mount(self) -> None:
        for reason_to_leave in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(reason_to_leave, self.exit)
        self.set_interval(TICK_S, self._tick)
        self._poller.start()

    def on_unmount(self) -> None:
        self._poller.stop()

    def on_reported(self, message: Reported) -> None:
        runs = self._feed.runs
        match message.report:
            case Snapshot() as snapshot:
                self._feed.accept(snapshot, self._clock())
            case SourceError() as failure:
                self._feed.fail(failure, self._clock())
            case fault:
                raise fault
        if self._feed.runs != runs:
            self._baseline = None
        self.draw()

    def on_resize(self) -> None:
        # Later: this handler runs before the one of App that takes in the new size.
        self.call_later(self.draw)

    async def on_key(self, event: events.Key) -> None:
        event.prevent_default()
        frame = self.frame()
        self.ui, effect = press(self.ui, event.key, event.character, self._around(frame))
        self._hold_or_go_on()
        if effect is not Effect.NONE:
            self._do(effect, self.frame())
        self.draw()

    def on_paste(self, event: events.Paste) -> None:
        for character in event.text if self.ui.filtering else "":
            self.ui, _ = press(self.ui, character, character, self._around(self.frame()))
        self.draw()

    def frame(self) -> Frame:
        """What is to be drawn now."""
        now = self._clock()
        if self._held is not None:
            status = self._feed.status(now)
            return replace(self._held, now=now, status=status, ui=self.ui)
        ui = replace(self.ui, message=self.ui.message or self._source.notice)
        return picture(
            self._source, self._feed, now, ui=ui, glyphs=self._glyphs, baseline=self._baseline
        )

    def draw(self) -> None:
        self._drawn = self._clock()
        width, height = self.size
        self._lines.show(view.screen(self.frame(), width, height))

    def _tick(self) -> None:
        """Draw, unless a report has just done so."""
        if not 0 <= self._clock() - self._drawn < TICK_S / 2:
            self.draw()

    def _around(self, frame: Frame) -> Around:
        latest = frame.latest
        return Around(
            now=frame.now,
            rows=view.row_count(frame),
            page=max(self.size.height - AROUND_LIST, 1),
            groups=() if latest is None else tuple(group.name for group in latest.groups),
            group=view.shown_group(frame),
            columns=view.columns(frame),
            can_pause=latest is not None,
        )

    def _hold_or_go_on(self) -> None:
        paused = self.ui.paused_since is not None
        if paused == (self._held is not None):
            return
        self._held = self.frame() if paused else None
        if self._source.span is not None:
            self._poller.hold(held=paused)

    def _do(self, effect: Effect, frame: Frame) -> None:
        match effect:
            case Effect.QUIT:
                self.exit()
            case Effect.FASTER:
                self._look_every(max(self._interval / 2, MIN_INTERVAL_S))
            case Effect.SLOWER:
                self._look_every(min(self._interval * 2, MAX_INTERVAL_S))
            case Effect.THEME:
                self.theme = THEMES[(THEMES.index(self.theme) + 1) % len(THEMES)]
                self._say(self.theme)
            case Effect.SAVE:
                self._save(frame)
            case Effect.COPY:
                self._copy(view.selected(frame))
            case Effect.RESET:
                self._reset()

    def _say(self, message: str) -> None:
        self.ui = replace(self.ui, message=message)

    def _look_every(self, interval: float) -> None:
        self._interval = self._feed.interval = interval
        self._poller.every(interval)
        self._say(f"every {interval:g}s")

    def _save(self, frame: Frame) -> None:
        width, height = self.size
        try:
            path = save(frame, view.screen(frame, width, height), Path.cwd())
        except OSError as failure:
            self._say(f"not saved: {(failure.strerror or str(failure)).lower()}")
        else:
            self._say(f"saved {path} and .json")

    def _copy(self, row: str) -> None:
        if not row:
            self._say("nothing to copy here")
            return
        self.copy_to_clipboard(row)
        self._say("copied; if your terminal does not take it, hold Shift and select")

    def _reset(self) -> None:
        if self._baseline is None and self._feed.history:
            self._baseline = self._feed.history[-1]
            self._say("totals count from now; r again: from the start")
        else:
            self._baseline = None
            self._say("totals count from the start")
