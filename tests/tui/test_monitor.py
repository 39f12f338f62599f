# SPDX-License-Identifier: Apache-2.0
import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from textual.events import Paste

from tests.tui.servers import POOL, START, qwen
from tests.tui.stage import REFUSED, Stage, play
from tiercache.stats.model import Phase
from tiercache.tui.settings import MAX_INTERVAL_S, MIN_INTERVAL_S, THEMES
from tiercache.tui.state import UiState, View
from tiercache.tui.trouble import SourceError, Trouble
from tiercache.tui.widgets import Lines


def test_from_waiting_to_live_to_stale_to_gone_and_back() -> None:
    async def act(stage: Stage) -> None:
        assert "WAITING" in stage.header
        await stage.report(SourceError(Trouble.NO_POOL, "no pool runs"))
        stage.later(3)
        assert "WAITING 3s" in stage.header
        assert "no pool runs" in stage.text
        await stage.at(3)
        assert "LIVE" in stage.header
        assert "qwen3-next" in stage.header
        assert "2198" in stage.text
        stage.later(10)
        assert "STALE 7s" in stage.header
        await stage.report(REFUSED)
        stage.later(12)
        assert "GONE" in stage.header
        assert "2198" in stage.text
        await stage.at(12)
        assert "LIVE" in stage.header

    play(act)


def test_a_server_that_died_keeps_its_last_numbers_until_it_is_back() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(1)
        await stage.at(2, alive=False)
        assert "GONE" in stage.header
        assert "41712" in stage.text
        assert "2198" in stage.text
        again = replace(POOL, pid=5)
        await stage.at(3, pool=again)
        assert "LIVE" in stage.header
        await stage.at(4, pool=again, phase=Phase.CLOSED)
        assert "CLOSED" in stage.header

    play(act)


def test_an_idle_server_is_not_stale() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0, running=0, heartbeat=START)
        await stage.at(50, running=0, heartbeat=START)
        assert "IDLE" in stage.header

    play(act)


def test_a_server_without_the_cache_is_told_how_to_get_it() -> None:
    async def act(stage: Stage) -> None:
        await stage.report(SourceError(Trouble.NO_TIERCACHE, "the page has none"))
        assert "NO TIERCACHE" in stage.header
        assert "--kv-transfer-config" in stage.text

    play(act)


def test_pause_holds_the_numbers_but_not_the_header() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0)
        await stage.press("3")
        held = stage.screen[2:-1]
        await stage.press("space")
        await stage.at(30, victims=())
        stage.later(34)
        assert "PAUSED 34s" in stage.header
        assert stage.screen[2:-1] == held
        await stage.report(REFUSED)
        stage.later(36)
        assert "PAUSED 36s" in stage.header
        assert "GONE" in stage.header
        await stage.press("space")
        assert "PAUSED" not in stage.header
        assert "GONE" in stage.header
        assert stage.screen[2:-1] != held

    play(act)


def test_there_is_nothing_to_hold_before_the_first_answer() -> None:
    async def act(stage: Stage) -> None:
        await stage.press("space")
        assert "WAITING" in stage.header
        await stage.at(0)
        assert "LIVE" in stage.header

    play(act)


def test_keys_reach_the_screen() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0)
        await stage.press("2")
        assert "SEQUENCES" in stage.text
        await stage.press("tab")
        assert stage.ui.view is View.EVICTION
        assert "g7" in stage.screen[2] + stage.screen[3]
        await stage.press("]")
        assert stage.ui.group == "g0"
        await stage.press("shift+tab", "j", "enter")
        assert (stage.ui.cursor, stage.ui.detail) == (1, True)
        await stage.press("escape", "G", "g", ">", "I", "z")
        ui = stage.ui
        assert (ui.cursor, ui.detail, ui.sort, ui.inverted, ui.zoomed) == (
            *(0, False, "SEQ", True, True),
        )

    play(act)


def test_a_filter_is_typed_and_taken_back() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0)
        await stage.press("2", "/", *"e00d")
        assert stage.ui == UiState(view=View.SEQUENCES, filter="e00d", filtering=True)
        assert "e00d3b" in stage.text
        assert "c7f3a1" not in stage.text
        await stage.press("enter", "escape")
        assert "c7f3a1" in stage.text

    play(act)


def test_a_filter_can_be_pasted() -> None:
    async def act(stage: Stage) -> None:
        stage.monitor.post_message(Paste("kind:evicted"))
        await stage.press("/")
        stage.monitor.post_message(Paste("seq:e00\n"))
        await stage.pilot.pause()
        assert stage.ui.filter == "seq:e00"

    play(act)


def test_help_comes_and_goes() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0)
        before = stage.screen
        await stage.press("?")
        assert "KEYS" in stage.text
        await stage.press("f1")
        assert stage.screen == before

    play(act)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_quit(key: str) -> None:
    async def act(stage: Stage) -> None:
        await stage.press(key)

    assert play(act).monitor.return_code == 0


def test_the_interval_is_doubled_and_halved_within_bounds() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0)
        intervals = []
        for key in ["minus", *["plus"] * 10, "minus"]:
            await stage.press(key)
            intervals.append(stage.monitor._poller._interval)
        assert intervals[:3] == [MIN_INTERVAL_S, 0.5, 1.0]
        assert intervals[-2:] == [MAX_INTERVAL_S, 30.0]
        assert stage.ui.message == "every 30s"
        assert stage.monitor.frame().interval == 30.0

    play(act)


def test_themes_go_round() -> None:
    async def act(stage: Stage) -> None:
        seen = [stage.monitor.theme]
        for _ in THEMES:
            await stage.press("T")
            seen.append(stage.monitor.theme)
        assert seen == [*THEMES, THEMES[0]]

    play(act)


def test_totals_can_be_counted_from_now_on() -> None:
    async def act(stage: Stage) -> None:
        await stage.press("r")
        assert stage.monitor.frame().baseline is None
        await stage.at(7)
        await stage.press("r")
        assert stage.monitor.frame().baseline == qwen(7)
        await stage.press("r")
        assert stage.monitor.frame().baseline is None
        await stage.press("r")
        await stage.at(8, pool=None)
        await stage.at(0, pool=None)
        assert stage.monitor.frame().baseline is None

    play(act)


def test_a_picture_is_saved_as_text_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def act(stage: Stage) -> None:
        await stage.at(0)
        shown = stage.screen
        await stage.press("s")
        name = "tiercache-top-20270115-080000"
        path = tmp_path / f"{name}.txt"
        assert stage.ui.message == f"saved {path} and .json"
        assert path.read_text().splitlines() == [line.rstrip() for line in shown]
        document = json.loads((tmp_path / f"{name}.json").read_text())
        assert (document["schema"], document["state"]) == ("tiercache.top/1", "live")
        await stage.press("s")
        assert stage.ui.message == "not saved: file exists"

    play(act)


def test_a_row_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(stage: Stage) -> None:
        await stage.press("c")
        assert stage.ui.message == "nothing to copy here"
        await stage.at(0)
        written: list[str] = []
        assert stage.monitor._driver is not None
        monkeypatch.setattr(stage.monitor._driver, "write", written.append)
        await stage.press("2", "c")
        assert stage.ui.message.startswith("copied")
        [sequence] = [part for part in written if part.startswith("\x1b]52;c;")]
        copied = re.fullmatch(r"\x1b\]52;c;(.*)\a", sequence)
        assert copied is not None
        assert "e00d3b" in base64.b64decode(copied[1]).decode()

    play(act)


def test_a_recording_is_held_while_it_is_paused() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(12)
        assert "REPLAY 00:12/03:10" in stage.header
        await stage.press("space")
        held = [stage.monitor._poller._held]
        await stage.press("space")
        held.append(stage.monitor._poller._held)
        assert held == [True, False]
        stage.now = START + 10**6
        assert stage.monitor.frame().now == START + 12

    play(act, span=(START, START + 190))


def test_what_a_source_has_to_say_is_shown() -> None:
    async def act(stage: Stage) -> None:
        stage.notice = "recording ended: no space left on device"
        await stage.at(0)
        assert "no space left on device" in stage.text

    play(act)


def test_the_first_view_is_chosen() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0)
        assert "[ g1 ]" in stage.text

    play(act, ui=UiState(view=View.EVICTION, group="g1"))


def test_the_picture_follows_the_size() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0)
        for width, height in ((200, 60), (60, 16), (20, 5)):
            await stage.pilot.resize_terminal(width, height)
            await stage.pilot.pause()
            assert [len(line) for line in stage.screen] == [width] * height

    play(act)


def test_only_changed_lines_are_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0)
        lines = stage.monitor.query_one(Lines)
        painted: list[int] = []
        monkeypatch.setattr(lines, "refresh", lambda *regions: painted.extend(r.y for r in regions))
        stage.monitor.draw()
        assert painted == []
        await stage.press("space")
        assert painted == [0]

    play(act)


def test_a_tick_draws_only_what_no_report_has_drawn() -> None:
    async def act(stage: Stage) -> None:
        await stage.at(0)
        header = stage.header
        stage.monitor._tick()
        assert stage.header == header
        stage.now = START + 10
        stage.monitor._tick()
        assert "STALE" in stage.header

    play(act)


def test_a_fault_of_ours_ends_the_program() -> None:
    async def act(stage: Stage) -> None:
        await stage.report(ZeroDivisionError("ours"))

    with pytest.raises(ZeroDivisionError, match="ours"):
        play(act)


@pytest.mark.parametrize("theme", THEMES)
def test_no_color_shows_the_same_text(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def act(stage: Stage) -> None:
        stage.monitor.theme = theme
        await stage.at(0)
        assert "LIVE" in stage.header
        strips = stage.monitor.screen._compositor.render_strips()
        styles = {segment.style for strip in strips for segment in strip if segment.style}
        for style in styles:
            assert style.color != style.bgcolor or style.color is None or style.color.is_default
        if theme != "textual-dark":
            colors = {style.color for style in styles if style.color is not None}
            assert {color.name for color in colors} <= {"default"}

    play(act)
