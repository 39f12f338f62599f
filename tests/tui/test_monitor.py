# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import Awaitable, Callable
from queue import Queue

import pytest
from textual.pilot import Pilot

from tiercache.tui.monitor import Monitor, Reported
from tiercache.tui.poller import Report
from tiercache.tui.snapshot import Snapshot
from tiercache.tui.text import ASCII
from tiercache.tui.trouble import SourceError, Trouble
from tiercache.tui.widgets import Lines

START = 1_800_000_000.0
REFUSED = SourceError(Trouble.UNREACHABLE, "connection refused")
Qwen = Callable[[int], Snapshot]


class Watched(Monitor):
    """Tells when it has taken in a report."""

    heard: asyncio.Event

    def on_reported(self, message: Reported) -> None:
        message.prevent_default()
        self.heard.set()
        super().on_reported(message)


class Stage:
    """A monitor whose source and clock a test moves by hand."""

    url = "http://127.0.0.1:8000/metrics"

    def __init__(self) -> None:
        self.now = START
        self.reports: Queue[Report] = Queue()
        self.monitor = Watched(self, 0.01, ASCII, clock=lambda: self.now)
        self.pilot: Pilot[None]

    def fetch(self) -> Snapshot:
        report = self.reports.get()
        if isinstance(report, Exception):
            raise report
        return report

    async def report(self, report: Report) -> None:
        """Let the poller fetch this, and wait until the monitor has heard of it."""
        self.monitor.heard = asyncio.Event()
        self.reports.put(report)
        await self.monitor.heard.wait()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    def at(self, seconds: float) -> None:
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


Act = Callable[[Stage], Awaitable[None]]


def play(act: Act, size: tuple[int, int] = (80, 24)) -> Stage:
    stage = Stage()

    async def run() -> None:
        async with stage.monitor.run_test(size=size) as stage.pilot:
            await act(stage)

    try:
        asyncio.run(run())
    finally:
        stage.reports.put(REFUSED)  # the poller is stopped, but may wait for one more
    return stage


def groups(stage: Stage) -> list[str]:
    return [line.split()[0] for line in stage.screen if line.startswith(" g")]


def test_from_waiting_to_live_to_stale_to_gone_and_back(qwen: Qwen) -> None:
    async def act(stage: Stage) -> None:
        assert "WAITING" in stage.header
        await stage.report(REFUSED)
        stage.at(3)
        assert "WAITING 3s" in stage.header
        assert "connection refused" in stage.text
        assert "tiercache connector-config" in stage.text
        await stage.report(qwen(3))
        assert "LIVE 0.01s" in stage.header
        assert "qwen3-next" in stage.header
        stage.at(10)
        assert "STALE 7s" in stage.header
        await stage.report(REFUSED)
        stage.at(12)
        assert "GONE 2s" in stage.header
        assert "numbers are 9s old" in stage.screen[1]
        assert groups(stage) == [f"g{number}" for number in range(8)]
        await stage.report(qwen(12))
        assert "LIVE 0.01s" in stage.header

    play(act)


def test_a_server_without_the_cache_is_told_how_to_get_it(qwen: Qwen) -> None:
    async def act(stage: Stage) -> None:
        await stage.report(SourceError(Trouble.NO_TIERCACHE, "the page has none"))
        assert "NO TIERCACHE" in stage.header
        assert "--kv-transfer-config" in stage.text

    play(act)


def test_pause_holds_the_numbers_but_not_the_header(qwen: Qwen) -> None:
    async def act(stage: Stage) -> None:
        await stage.report(qwen(0))
        held = stage.screen[2:]
        await stage.press("p")
        await stage.report(qwen(4))
        stage.at(4)
        assert "PAUSED 4s" in stage.header
        assert stage.screen[2:] == held
        await stage.report(REFUSED)
        stage.at(6)
        assert "PAUSED 6s, GONE 2s" in stage.header
        await stage.press("space")
        assert "GONE 2s" in stage.header
        assert stage.screen[2:] != held

    play(act)


def test_there_is_nothing_to_hold_before_the_first_answer(qwen: Qwen) -> None:
    async def act(stage: Stage) -> None:
        await stage.press("p")
        assert "WAITING" in stage.header
        await stage.report(qwen(0))
        assert "LIVE" in stage.header

    play(act)


def test_sort_goes_round(qwen: Qwen) -> None:
    async def act(stage: Stage) -> None:
        await stage.report(qwen(30))
        by_name = groups(stage)
        orders = []
        for _ in range(4):
            await stage.press("s")
            orders.append((stage.screen[-1].rpartition("sorted by ")[2].strip(), groups(stage)[0]))
        assert orders == [("spare", "g7"), ("live", "g0"), ("evicted live", "g7"), ("group", "g0")]
        assert groups(stage) == by_name

    play(act)


def test_help_comes_and_goes(qwen: Qwen) -> None:
    async def act(stage: Stage) -> None:
        await stage.report(qwen(0))
        before = stage.screen
        await stage.press("question_mark")
        assert "WORDS" in stage.text
        await stage.press("f1")
        assert stage.screen == before

    play(act)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_quit(key: str) -> None:
    async def act(stage: Stage) -> None:
        await stage.press(key)

    assert play(act).monitor.return_code == 0


def test_the_picture_follows_the_size(qwen: Qwen) -> None:
    async def act(stage: Stage) -> None:
        await stage.report(qwen(0))
        for width, height in ((200, 60), (60, 16), (20, 5)):
            await stage.pilot.resize_terminal(width, height)
            await stage.pilot.pause()
            assert [len(line) for line in stage.screen] == [width] * height

    play(act)


def test_only_changed_lines_are_painted(qwen: Qwen, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(stage: Stage) -> None:
        await stage.report(qwen(0))
        lines = stage.monitor.query_one(Lines)
        painted: list[int] = []
        monkeypatch.setattr(lines, "refresh", lambda *regions: painted.extend(r.y for r in regions))
        stage.monitor.draw()
        assert painted == []
        await stage.press("p")
        assert painted == [0]

    play(act)


def test_a_fault_of_ours_ends_the_program() -> None:
    async def act(stage: Stage) -> None:
        await stage.report(ZeroDivisionError("ours"))

    with pytest.raises(ZeroDivisionError, match="ours"):
        play(act)


def test_no_color_shows_the_same_text(qwen: Qwen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def act(stage: Stage) -> None:
        await stage.report(qwen(0))
        assert "LIVE 0.01s" in stage.header
        styles = {
            segment.style
            for y in range(24)
            for segment in stage.monitor.screen._compositor.render_strips()[y]
        }
        colors = {style.color for style in styles if style is not None and style.color is not None}
        assert {color.name for color in colors} <= {"default"}

    play(act)
