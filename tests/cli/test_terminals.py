# SPDX-License-Identifier: Apache-2.0
"""The commands in real terminals and real pipes."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

pytestmark = pytest.mark.usefixtures("server")

TIERCACHE = (sys.executable, "-c", "from tiercache.cli.main import main; main()")
LOOKING = [
    ["stat"],
    ["groups"],
    ["tiers"],
    ["seq"],
    ["seq", "e00d3b"],
    ["next"],
    ["next", "g1"],
    ["events"],
    ["stat", "0.25", "1"],
]


@pytest.fixture(autouse=True)
def _no_width_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def in_terminal(cells: int, *arguments: str) -> list[str]:
    """What a terminal of so many columns shows."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, cells, 0, 0))
        with subprocess.Popen([*TIERCACHE, *arguments], stdin=theirs, stdout=theirs) as running:
            os.close(theirs)
            theirs = -1
            shown = b""
            try:
                while part := os.read(ours, 65536):
                    shown += part
            except OSError:  # the other end is closed
                pass
        assert running.returncode == 0
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    return shown.decode().replace("\r\n", "\n").splitlines()


def piped(*arguments: str) -> list[str]:
    ran = subprocess.run([*TIERCACHE, *arguments], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.mark.parametrize("arguments", LOOKING)
def test_tables_fit(arguments: list[str]) -> None:
    for cells in (60, 80):
        lines = in_terminal(cells, *arguments)
        assert max(map(len, lines)) <= cells
        assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("arguments", LOOKING[:-1])
def test_nothing_is_cut_at_80_columns(arguments: list[str]) -> None:
    assert not any("…" in line for line in in_terminal(80, *arguments)[:-1])


@pytest.mark.parametrize("arguments", [["tiers"], ["events"], ["seq", "e00d3b"]])
def test_a_pipe_gets_everything(arguments: list[str]) -> None:
    cut, whole = in_terminal(60, *arguments), piped(*arguments)
    assert max(map(len, whole[:-1])) > 60
    assert len(cut) >= len(whole)
    assert "…" not in "".join(whole)


@pytest.mark.parametrize("arguments", [["events", "--json"], ["groups", "--csv"], ["stat"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [*TIERCACHE, *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")
