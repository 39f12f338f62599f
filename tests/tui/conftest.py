# SPDX-License-Identifier: Apache-2.0
"""A cache to look at: snapshots, frames, and a server whose page says what a test wants."""

import os
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tiercache.slots import SlotCounts
from tiercache.tui.feed import State, Status
from tiercache.tui.frame import Frame
from tiercache.tui.snapshot import Counters, Group, Snapshot

URL = "http://127.0.0.1:8000/metrics"
START = 1_800_000_000.0
GIB = 2**30


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are the same everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def qwen() -> Callable[[int], Snapshot]:
    """The eight groups of a hybrid model, so many seconds after ``START``."""

    def token_group(step: int) -> Group:
        slots = SlotCounts(41, 0, 2198, 0, 16)
        return Group("0", "0", "full", slots, Counters(0, 12, 0, 3, 16 * GIB, step * GIB // 4, 0))

    def state_group(number: int, step: int) -> Group:
        slots = SlotCounts(0, 1, 28, 0, 1) if number == 7 else SlotCounts(4, 1, 13, 11, 1)
        lost = step // 3 if number == 7 else 0
        counters = Counters(100 + 2 * step, 0, 60 + step, lost, 7 * GIB, step * GIB, lost)
        return Group("0", str(number), "state", slots, counters)

    def snapshot(step: int) -> Snapshot:
        groups = (token_group(step), *(state_group(number, step) for number in range(1, 8)))
        tokens, lost = 96_000 * (step // 2), 508_800 * (step // 5)
        return Snapshot(START + step, ("qwen3-next",), groups, tokens, lost)

    return snapshot


@pytest.fixture
def live(qwen: Callable[[int], Snapshot]) -> Frame:
    """Twelve seconds of a server that is busy."""
    history = [qwen(step) for step in range(13)]
    now = START + 12.5
    return Frame(URL, 1.0, now, Status(State.LIVE, history[-1].taken), history)


class Page:
    """A metrics page on this machine; ``text`` and ``status`` may change at any time."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        self.requests = 0
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.requests += 1
                self.send_response(page.status)
                self.end_headers()
                self.wfile.write(page.text.encode())

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Nothing listens there any more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page()
    yield page
    page.close()


@pytest.fixture
def metrics_text() -> str:
    """What a vLLM server with the cache answers, shortened; the last group never demoted."""
    return (Path(__file__).parent / "data" / "metrics.txt").read_text()


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare text with a file beside the tests; TIERCACHE_WRITE_GOLDENS=1 writes it instead."""

    def check(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if os.environ.get("TIERCACHE_WRITE_GOLDENS"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()

    return check
