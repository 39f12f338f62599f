# SPDX-License-Identifier: Apache-2.0
"""The command, without a terminal: reports, documents, exit codes."""

import json
import os
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.tui.servers import Page, Run, publish, published, qwen
from tiercache.stats.model import Phase
from tiercache.stats.writer import SegmentWriter
from tiercache.tui import once
from tiercache.tui.state import View

NOWHERE = "http://127.0.0.1:9/metrics"


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


@pytest.mark.usefixtures("server")
def test_once_prints_a_report(run: Run) -> None:
    ended = run("--once")
    assert (ended.code, ended.err) == (0, "")
    assert "\x1b" not in ended.out
    assert "qwen3-next" in ended.out
    assert "LIVE" in ended.out
    assert "2198" in ended.out
    assert all(len(line) <= 100 for line in ended.out.splitlines())


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", ["qwen3-next", str(os.getpid())])
def test_a_pool_is_named(run: Run, name: str) -> None:
    assert run(name, "-1").code == 0
    assert run("--view", "sequences", "-f", "e00d", name).code == 0


@pytest.mark.usefixtures("server")
def test_what_the_list_shows_is_chosen(run: Run) -> None:
    every = run("-1", "--view", "sequences").out
    assert "e00d3b" in every
    assert "c7f3a1" in every
    some = run("-1", "--view", "sequences", "-f", "seq:c7").out
    assert len(lines(some, "  c7f3a1")) == 1
    assert lines(some, "  e00d3b") == []
    assert "g1" in run("-1", "--view", "eviction", "--group", "g1").out


@pytest.mark.usefixtures("server")
def test_a_pipe_gets_a_report(run: Run) -> None:
    assert run().out.splitlines()[1:] == run("--once").out.splitlines()[1:]


@pytest.mark.usefixtures("server")
def test_once_in_ascii(run: Run) -> None:
    for view in View:
        ended = run("-1U", "--view", view)
        assert all(" " <= character <= "~" for line in ended.out.splitlines() for character in line)


@pytest.mark.usefixtures("server")
def test_a_locale_without_utf8_means_ascii(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "ANSI_X3.4-1968")
    assert run("--once").out.isascii()


@pytest.mark.usefixtures("server")
def test_json_prints_one_document(run: Run) -> None:
    for arguments in (["--once", "--json"], ["-j"]):
        ended = run(*arguments)
        assert ended.code == 0
        document = json.loads(ended.out)
        assert document["schema"] == "tiercache.top/1"
        assert (document["state"], document["source"]) == ("live", "segment")
        spare = [group["slots"]["spare"] for group in document["groups"]]
        assert spare == [41, *[15] * 6, 0]
        assert document["pool"]["pid"] == os.getpid()


def test_counted_looks_are_lines_of_json(
    run: Run, server: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter((4, 5))

    def sleep(seconds: float) -> None:
        assert seconds == 2.5
        publish(server, qwen(next(steps)), time.time())

    monkeypatch.setattr(once, "report", partial(once.report, sleep=sleep))
    documents = [json.loads(line) for line in run("-j", "-n", "3", "-d2.5").out.splitlines()]
    assert [document["groups"][7]["counts"]["demoted"] for document in documents] == [106, 108, 110]
    assert [len(document["events"]) for document in documents] == [2, 1, 1]


@pytest.mark.usefixtures("server")
def test_counted_reports_are_apart(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "report", partial(once.report, sleep=lambda _: None))
    out = run("-n3").out
    assert len(lines(out, " tiercache-top")) == 3
    assert out.count("\n\n tiercache-top") == 2


def test_no_pool_is_a_sentence_and_its_exit_code(run: Run, folder: Path) -> None:
    ended = run("--once")
    assert (ended.code, ended.err) == (3, "")
    assert "WAITING" in ended.out
    assert "no pool runs" in ended.out
    assert run("nobody", "-1").code == 3
    document = json.loads(run("--json").out)
    assert (document["state"], document["groups"], document["totals"]) == ("waiting", [], None)
    assert str(folder) in document["reason"]


def test_several_pools_are_listed(run: Run, folder: Path) -> None:
    with closing(published(folder, qwen(0), "one")), closing(published(folder, qwen(0), "two")):
        ended = run("--once")
        assert (ended.code, ended.out) == (3, "")
        assert ended.err.startswith("tiercache-top: error: several pools run: ")
        assert "one" in ended.err
        assert "two" in ended.err
        assert run("two", "-1").code == 0


def test_a_pool_that_has_ended_is_shown_with_its_exit_code(run: Run, folder: Path) -> None:
    published(folder, qwen(3)).close()
    ended = run("qwen3-next", "--once")
    assert ended.code == 7
    assert "CLOSED" in ended.out
    assert "2198" in ended.out


def test_a_probe_that_failed_is_a_problem(run: Run, folder: Path) -> None:
    with closing(published(folder, qwen(3))) as writer:
        writer.put_state(time.time(), phase=Phase.FAILED, running=1, totals={})
        ended = run("--once")
    assert ended.code == 1
    assert "turned itself off" in ended.out


def test_a_file_of_another_version_is_refused(run: Run, folder: Path) -> None:
    with closing(published(folder, qwen(3))) as writer:
        data = bytearray(writer.path.read_bytes())
        data[8:10] = (2).to_bytes(2, "little")
        other = folder / "later.1.0.tcs"
        other.write_bytes(data)
        ended = run(str(other), "-1")
    assert (ended.code, ended.out) == (4, "")
    assert "server writes format 2, this program reads 1" in ended.err


def test_no_permission_is_a_sentence(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    with closing(published(folder, qwen(3))) as writer, monkeypatch.context() as patched:
        patched.setattr("tiercache.stats.files.os.open", refuse)
        ended = run(str(writer.path), "-1")
    assert ended.code == 3
    assert "no permission to read" in ended.out


def test_a_metrics_page(run: Run, page: Page, metrics_text: str) -> None:
    page.text = metrics_text
    ended = run("--url", page.url, "--once")
    assert (ended.code, ended.err) == (0, "")
    assert "SCRAPE" in ended.out
    assert "2198" in ended.out
    document = json.loads(run("--url", page.url, "-j").out)
    assert (document["source"], document["pool"]) == ("metrics", None)
    assert document["totals"]["restored_tokens"] == 1_344_000


@pytest.mark.parametrize("form", ["--once", "--json"])
def test_nobody_listens(run: Run, form: str) -> None:
    ended = run("--url", NOWHERE, form)
    assert (ended.code, ended.err) == (7, "")
    assert "connection refused" in ended.out


def test_a_server_without_the_cache_is_a_problem(run: Run, page: Page) -> None:
    page.text = "vllm:num_requests_running 0\n"
    ended = run("--url", page.url, "--once")
    assert ended.code == 1
    assert "NO TIERCACHE" in ended.out
    assert "tiercache connector-config" in ended.out


@pytest.fixture
def recording(run: Run, tmp_path: Path, server: SegmentWriter) -> Path:
    """Three looks at a server, a second apart."""
    path = tmp_path / "night.tcr"
    steps = iter((4, 5))

    def sleep(_: float) -> None:
        publish(server, qwen(next(steps)), time.time())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(once, "report", partial(once.report, sleep=sleep))
        assert run("--record", str(path), "-j", "-n3").code == 0
    return path


def test_a_recording_is_shown_from_its_beginning_or_at_its_end(run: Run, recording: Path) -> None:
    ended = run("--replay", str(recording), "-1")
    assert ended.code == 0
    assert "REPLAY 00:00/00:00" in ended.out
    last = json.loads(run("--replay", str(recording), "-j").out)
    assert (last["source"], last["groups"][7]["counts"]["demoted"]) == ("record", 110)
    counted = run("--replay", str(recording), "-j", "-n9").out.splitlines()
    demoted = [json.loads(line)["groups"][7]["counts"]["demoted"] for line in counted]
    assert demoted == [106, 108, 110]


def test_a_recording_is_not_overwritten(run: Run, recording: Path) -> None:
    before = recording.read_bytes()
    ended = run("--record", str(recording), "-1")
    assert ended.code == 1
    assert "cannot record to" in ended.err
    assert recording.read_bytes() == before


def test_a_recording_on_a_full_disk_is_a_problem(run: Run, server: SegmentWriter) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tiercache.tui.record.json.dumps", _no_space)
        ended = run("--record", str(server.path.with_name("x.tcr")), "-1")
    assert ended.code == 1
    assert "2198" in ended.out
    assert ended.err == "tiercache-top: warning: recording ended: no space left on device\n"


def _no_space(*_: object, **__: object) -> str:
    raise OSError(28, "No space left on device")


def test_no_recording_of_ours_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.tcr"
    path.write_text('{"schema":"tiercache.record/2"}\n')
    ended = run("--replay", str(path))
    assert (ended.code, ended.out) == (4, "")
    assert "line 1: the recording has format 2, this program reads 1" in ended.err
