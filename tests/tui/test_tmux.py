# SPDX-License-Identifier: Apache-2.0
"""The command as a person meets it: the demo in a terminal that tmux keeps."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.terminals import TMUX, Screen

pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")


Open = Callable[..., Screen]


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Open]:
    opened: list[Screen] = []

    def open_screen(width: int, height: int, *arguments: str) -> Screen:
        opened.append(Screen(tmp_path, width, height, *arguments))
        return opened[-1]

    yield open_screen
    for each in opened:
        each.kill()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 45), (60, 16)])
def test_the_demo_is_seen_and_left(screen: Open, width: int, height: int) -> None:
    shown = screen(width, height, "--demo", "-d", "0.25")
    lines = shown.until("tiercache-top  demo", "g0", "g7")
    assert len(lines) == height
    assert lines[0].startswith(" tiercache-top  demo  pid ")
    assert lines[0].rstrip().endswith("LIVE 0.25s")
    assert lines[-1].startswith(" 1Ovw")
    shown.press("2")
    shown.until("SEQUENCES", "RESTORABLE")
    shown.press("3", "[")
    shown.until("EVICTION ORDER", "[ g")
    shown.press("4")
    shown.until("TIERS", "nvme0")
    shown.press("5")
    shown.until("EVENTS", "stored")
    shown.press("/", "kind:stored", "Enter")
    assert not any("missed" in line for line in shown.until("filter kind:stored")[3:])
    shown.press("q")
    assert shown.is_as_before()
    assert "ended 0" in "\n".join(shown.lines)


def test_a_resize_is_followed(screen: Open) -> None:
    shown = screen(80, 24, "--demo", "-d", "0.25")
    shown.until("pid", "g7")
    shown.tmux("resize-window", "-x", "120", "-y", "40")
    while not (len(shown.lines) == 40 and shown.lines[-1].startswith(" 1Ovw")):
        time.sleep(0.05)
    shown.press("q")
    assert shown.is_as_before()


def test_sigterm_restores_the_terminal_and_ends_the_demo(screen: Open) -> None:
    shown = screen(80, 24, "--demo")
    lines = shown.until("pid ", "g7")
    demo = Path("/proc") / lines[0].partition("pid ")[2].split()[0]
    assert demo.exists()
    os.kill(int((shown.folder / "pid").read_text()), signal.SIGTERM)
    assert shown.is_as_before()
    assert not demo.exists()


def test_a_picture_is_saved_and_a_recording_is_played(screen: Open, tmp_path: Path) -> None:
    shown = screen(100, 30, "--demo", "-d", "0.25", "--record", "demo.tcr")
    shown.until("pid", "g7")
    shown.press("s")
    shown.until("saved")
    shown.press("q")
    assert shown.is_as_before()
    [saved] = tmp_path.glob("tiercache-top-*.json")
    assert json.loads(saved.read_text())["state"] == "live"
    assert "g7" in saved.with_suffix(".txt").read_text()
    shown.kill()
    (tmp_path / "after").unlink()
    again = screen(100, 30, "--replay", "demo.tcr")
    again.until("REPLAY", "g7")
    again.press("Space")
    again.until("PAUSED")
    again.press("q")
    assert again.is_as_before()
