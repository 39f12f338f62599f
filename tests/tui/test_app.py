# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable
from typing import Protocol

import pytest

from tiercache.tui import app

NOWHERE = "http://127.0.0.1:9/metrics"


class Page(Protocol):
    text: str

    @property
    def url(self) -> str: ...

    def close(self) -> None: ...


class Outcome(Protocol):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    class Ended:
        def __init__(self, code: int, out: str, err: str) -> None:
            self.code, self.out, self.err = code, out, err

    def run_main(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            app.main(arguments)
        assert isinstance(ended.value.code, int)
        captured = capsys.readouterr()
        return Ended(ended.value.code, captured.out, captured.err)

    monkeypatch.setenv("COLUMNS", "100")
    return run_main


def test_once_prints_a_report(run: Run, page: Page, metrics_text: str) -> None:
    page.text = metrics_text
    ended = run("--url", page.url, "--once")
    assert (ended.code, ended.err) == (0, "")
    assert "\x1b" not in ended.out
    assert "qwen3-next" in ended.out
    assert "LIVE" in ended.out
    assert [line.split()[0] for line in ended.out.splitlines() if line.startswith(" g")] == [
        *("g0", "g2", "g10")
    ]
    assert all(len(line) <= 100 for line in ended.out.splitlines())


def test_once_in_ascii(run: Run, page: Page, metrics_text: str) -> None:
    page.text = metrics_text.replace("qwen3", "通义千问")
    ended = run("--url", page.url, "--once", "--ascii")
    assert ended.code == 0
    assert all(" " <= character <= "~" for line in ended.out.splitlines() for character in line)


def test_a_locale_without_utf8_means_ascii(
    run: Run, page: Page, metrics_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "ANSI_X3.4-1968")
    page.text = metrics_text
    assert run("--url", page.url, "--once").out.isascii()


def test_json_prints_one_document(run: Run, page: Page, metrics_text: str) -> None:
    page.text = metrics_text
    for arguments in (["--once", "--json"], ["--json"]):
        ended = run("--url", page.url, *arguments)
        assert ended.code == 0
        document = json.loads(ended.out)
        assert document["schema"] == "tiercache.top/1"
        assert document["state"] == "live"
        assert [group["spare"] for group in document["groups"]] == [41, 0, 15]
        assert document["totals"]["stranded"] is None


@pytest.mark.parametrize("form", ["--once", "--json"])
def test_no_server_is_a_problem(run: Run, form: str) -> None:
    ended = run("--url", NOWHERE, form)
    assert (ended.code, ended.err) == (1, "")
    assert "connection refused" in ended.out


def test_no_server_as_json(run: Run) -> None:
    document = json.loads(run("--url", NOWHERE, "--json").out)
    assert (document["state"], document["groups"], document["totals"]) == ("waiting", [], None)


def test_a_server_without_the_cache_is_a_problem(run: Run, page: Page) -> None:
    page.text = "vllm:num_requests_running 0\n"
    ended = run("--url", page.url, "--once")
    assert ended.code == 1
    assert "NO TIERCACHE" in ended.out
    assert "tiercache connector-config" in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "this is not a terminal; use --once or --json"),
        (["--url", "ftp://host"], "http://HOST:PORT/metrics"),
        (["--interval", "0.1"], "0.1 is not in the range x>=0.25"),
        (["--interval", "often"], "not a valid float"),
        (["--no-such"], "No such option"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(run: Run, arguments: list[str], words: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("tiercache-top: error: ")
    assert ended.err.count("\n") == 1
    assert words in ended.err


def test_help_names_every_option(run: Run) -> None:
    ended = run("--help")
    assert ended.code == 0
    for option in ("--url", "--interval", "--once", "--json", "--ascii"):
        assert option in ended.out
    assert "Examples:" in ended.out
