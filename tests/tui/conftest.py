# SPDX-License-Identifier: Apache-2.0
"""A cache to look at, in a directory and with settings of its own."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.tui.servers import START, Outcome, Page, Run, publish, published, qwen
from tiercache.stats.writer import SegmentWriter
from tiercache.tui import app
from tiercache.tui.feed import State, Status
from tiercache.tui.frame import Frame


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are the same everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where pools are looked for: none but the test's own."""
    found = tmp_path / "pools"
    found.mkdir(0o700)
    monkeypatch.setenv("TIERCACHE_DIR", str(found))
    for name in ("TIERCACHE_POOL", "TIERCACHE_TOP", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def live() -> Frame:
    """Twelve seconds of a server that is busy."""
    history = [qwen(step) for step in range(13)]
    status = Status(State.LIVE, history[-1].taken)
    log = [event for snapshot in history for event in snapshot.events]
    return Frame("qwen3-next", 1.0, START + 12.5, status, history, log)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in this process, without a terminal."""

    def run_main(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            app.main(arguments)
        assert isinstance(ended.value.code, int)
        captured = capsys.readouterr()
        return Outcome(ended.value.code, captured.out, captured.err)

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "")
    return run_main


@pytest.fixture
def server(folder: Path) -> Iterator[SegmentWriter]:
    """The only pool that runs."""
    with closing(published(folder, qwen(3))) as writer:
        publish(writer, qwen(3), time.time())
        yield writer


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
