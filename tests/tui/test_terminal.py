# SPDX-License-Identifier: Apache-2.0
"""The installed command on a real terminal."""

import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"
ENABLE_MOUSE = b"\x1b[?1000h"
PROGRAM = "from tiercache.tui.app import main; main()"


class Page(Protocol):
    text: str

    @property
    def url(self) -> str: ...

    def close(self) -> None: ...


class Session:
    """A program on a terminal of its own, and all that it wrote so far."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.controller, terminal = pty.openpty()
        self.settings = termios.tcgetattr(terminal)
        termios.tcsetwinsize(terminal, (24, 80))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
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


@pytest.fixture
def start() -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def start_session(*arguments: str, **environment: str) -> Session:
        sessions.append(Session(*arguments, **environment))
        return sessions[-1]

    yield start_session
    for session in sessions:
        session.close()


def leave_with_q(session: Session) -> None:
    os.write(session.controller, b"q")


def leave_with_sigterm(session: Session) -> None:
    session.process.send_signal(signal.SIGTERM)


def leave_with_sighup(session: Session) -> None:
    session.process.send_signal(signal.SIGHUP)


@pytest.mark.parametrize("leave", [leave_with_q, leave_with_sigterm, leave_with_sighup])
def test_it_shows_the_cache_and_leaves_the_terminal_as_it_was(
    start: Callable[..., Session],
    page: Page,
    metrics_text: str,
    leave: Callable[[Session], None],
) -> None:
    page.text = metrics_text
    session = start("--url", page.url)
    session.until(b"qwen3-next")
    session.until(b"2198")
    leave(session)
    assert session.ends() == 0
    assert LEAVE_ALTERNATE_SCREEN in session.output
    assert SHOW_CURSOR in session.output
    assert ENABLE_MOUSE not in session.output
    assert termios.tcgetattr(session.terminal) == session.settings


def test_no_color(start: Callable[..., Session], page: Page, metrics_text: str) -> None:
    page.text = metrics_text
    session = start("--url", page.url, NO_COLOR="1")
    session.until(b"2198")
    leave_with_q(session)
    session.ends()
    assert b"\x1b[32m" not in session.output
    assert b"\x1b[38;" not in session.output


def test_a_dumb_terminal_is_refused_but_gets_a_report(
    start: Callable[..., Session], page: Page, metrics_text: str
) -> None:
    page.text = metrics_text
    refused = start("--url", page.url, TERM="dumb")
    assert refused.ends() == 2
    assert refused.output == (
        b"tiercache-top: error: this terminal cannot move its cursor (TERM=dumb); use --once\r\n"
    )
    report = start("--url", page.url, "--once", TERM="dumb")
    assert report.ends() == 0
    assert b"qwen3-next" in report.output
    assert b"\x1b" not in report.output


def test_a_hung_server_does_not_keep_the_monitor(
    start: Callable[..., Session],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        session = start("--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        session.until(b"WAITING")
        connection, _ = server.accept()
        with connection:
            leave_with_q(session)
            assert session.ends() == 0
