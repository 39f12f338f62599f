# SPDX-License-Identifier: Apache-2.0
"""The installed command on a real terminal, which this test drives byte by byte."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.tui.servers import published, qwen
from tiercache.tui import terminal

LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"
ENABLE_MOUSE = (b"\x1b[?1000h", b"\x1b[?1002h", b"\x1b[?1003h", b"\x1b[?1006h")
PROGRAM = "from tiercache.tui.app import main; main()"


class Session:
    """A program on a terminal of its own, and all that it wrote so far."""

    def __init__(self, *arguments: str, program: str = PROGRAM, **environment: str) -> None:
        self.controller, terminal = pty.openpty()
        self.settings = termios.tcgetattr(terminal)
        termios.tcsetwinsize(terminal, (24, 80))
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=os.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | environment,
        )
        self.terminal = terminal
        self.output = b""

    def until(self, words: bytes) -> None:
        while words not in self.output:
            self.output += os.read(self.controller, 65536)

    def press(self, keys: bytes) -> None:
        os.write(self.controller, keys)

    def ends(self) -> int:
        code = self.process.wait()
        os.set_blocking(self.controller, False)
        try:
            while chunk := os.read(self.controller, 65536):
                self.output += chunk
        except BlockingIOError:
            return code
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.controller)

    def is_restored(self) -> bool:
        assert not any(mouse in self.output for mouse in ENABLE_MOUSE)
        return (
            LEAVE_ALTERNATE_SCREEN in self.output
            and SHOW_CURSOR in self.output
            and termios.tcgetattr(self.terminal) == self.settings
        )


Start = Callable[..., Session]


@pytest.fixture
def start() -> Iterator[Start]:
    sessions: list[Session] = []

    def start_session(*arguments: str, program: str = PROGRAM, **environment: str) -> Session:
        sessions.append(Session(*arguments, program=program, **environment))
        return sessions[-1]

    yield start_session
    for session in sessions:
        session.close()


def leave_with_q(session: Session) -> None:
    session.press(b"q")


def leave_with_ctrl_c(session: Session) -> None:
    session.press(b"\x03")


def leave_with_sigterm(session: Session) -> None:
    session.process.send_signal(signal.SIGTERM)


def leave_with_sighup(session: Session) -> None:
    session.process.send_signal(signal.SIGHUP)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "leave", [leave_with_q, leave_with_ctrl_c, leave_with_sigterm, leave_with_sighup]
)
def test_it_shows_the_cache_and_leaves_the_terminal_as_it_was(
    start: Start, leave: Callable[[Session], None]
) -> None:
    session = start()
    session.until(b"qwen3-next")
    session.until(b"2198")
    leave(session)
    assert session.ends() == 0
    assert session.is_restored()
    assert terminal.HINT.encode() not in session.output


CRASH = """
import sys
from tiercache.tui import monitor
from tiercache.tui.app import main
def crash(*_):
    {how}
monitor.Monitor.on_paste = crash
main()
"""


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "how",
    [
        "raise ZeroDivisionError('ours')",
        # Past every handler of the toolkit, as a fault of its own would be.
        "import asyncio; asyncio.get_running_loop().stop()",
    ],
)
def test_a_crash_leaves_the_terminal_as_it_was_and_says_how_to_mend_it(
    start: Start, how: str
) -> None:
    session = start(program=CRASH.format(how=how))
    session.until(b"2198")
    session.press(b"\x1b[200~crash\x1b[201~")
    assert session.ends() == 1
    assert session.is_restored()
    assert terminal.HINT.encode() in session.output


BROKEN = """
import sys, tty
from tiercache.tui.terminal import restored
with restored("tiercache-top"):
    tty.setraw(0)
    sys.stdout.write("\\x1b[?1049h\\x1b[?25l\\x1b[?1003h")
    sys.stdout.flush()
    raise MemoryError
"""


def test_what_a_toolkit_left_behind_is_put_back(start: Start) -> None:
    session = start(program=BROKEN)
    assert session.ends() == 1
    assert terminal.RESTORE in session.output
    assert terminal.HINT.encode() in session.output
    assert termios.tcgetattr(session.terminal) == session.settings


@pytest.mark.usefixtures("server")
def test_no_color(start: Start) -> None:
    for arguments, environment in ((["--no-color"], {}), ([], {"NO_COLOR": "1"})):
        session = start(*arguments, **environment)
        session.until(b"2198")
        leave_with_q(session)
        assert session.ends() == 0
        assert colors(session.output) == set()
    session = start()
    session.until(b"2198")
    leave_with_q(session)
    session.ends()
    assert colors(session.output)


def colors(output: bytes) -> set[bytes]:
    """Colours that were set, but the terminal's own: 39 and 49."""
    codes = {
        code for found in re.findall(rb"\x1b\[([\d;]*)m", output) for code in found.split(b";")
    }
    return {code for code in codes if re.fullmatch(rb"[34][0-8]|9[0-7]|10[0-7]", code)}


@pytest.mark.usefixtures("server")
def test_a_dumb_terminal_is_refused_but_gets_a_report(start: Start) -> None:
    refused = start(TERM="dumb")
    assert refused.ends() == 2
    assert refused.output == (
        b"tiercache-top: error: this terminal cannot move its cursor (TERM=dumb); use --once\r\n"
    )
    report = start("--once", TERM="dumb")
    assert report.ends() == 0
    assert b"qwen3-next" in report.output
    assert b"\x1b" not in report.output


def test_it_waits_for_a_pool_and_takes_it(start: Start, folder: Path) -> None:
    session = start("-d", "0.25")
    session.until(b"no pool runs")
    with closing(published(folder, qwen(3))):
        session.until(b"2198")
        leave_with_q(session)
        assert session.ends() == 0


def test_a_hung_server_does_not_keep_the_monitor(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        session = start("--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        session.until(b"WAITING")
        connection, _ = server.accept()
        with connection:
            leave_with_q(session)
            assert session.ends() == 0


@pytest.mark.usefixtures("server")
def test_copying_asks_the_terminal(start: Start) -> None:
    session = start("--view", "sequences")
    session.until(b"e00d3b")
    session.press(b"c")
    session.until(b"\x1b]52;c;")
    leave_with_q(session)
    assert session.ends() == 0


@pytest.mark.usefixtures("server")
def test_keys_and_picture_need_the_terminal_too(start: Start, tmp_path: Path) -> None:
    program = "import os; os.dup2(os.open('/dev/null', os.O_RDONLY), 0)\n" + PROGRAM
    session = start(program=program)
    assert session.ends() == 2
    assert b"stdin is not a terminal" in session.output
    said = tmp_path / "said"
    program = f"import os; os.dup2(os.open({str(said)!r}, os.O_CREAT | os.O_WRONLY), 2)\n" + PROGRAM
    assert start(program=program).ends() == 2
    assert "stderr is not a terminal" in said.read_text()
