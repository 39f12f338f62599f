# SPDX-License-Identifier: Apache-2.0
"""The options of the command, and what it loads and starts."""

import json
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.tui.servers import Run, published, qwen
from tiercache.tui import app, demo

NOWHERE = "http://127.0.0.1:9/metrics"


def test_list_shows_what_there_is(run: Run, folder: Path) -> None:
    assert run("--list").out == f"no pools in {folder}\n"
    published(folder, qwen(0), "old").close()
    (folder / "bad.7.0.tcs").write_bytes(b"?")
    with closing(published(folder, qwen(0))):
        shown = run("--list").out
        data = json.loads(run("--list", "-j").out)
    assert shown.splitlines()[0].split() == ["pool", "pid", "rank", "state", "path"]
    assert {line.split()[0]: line.split()[3] for line in shown.splitlines()[1:]} == {
        "qwen3-next": "running",
        "bad": "unreadable",
        "old": "closed",
    }
    assert data["schema"] == "tiercache.pools/1"
    assert {pool["state"] for pool in data["data"]} == {"running", "unreadable", "closed"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "ftp://host"], "http://HOST:PORT/metrics"),
        (["-d", "0.1"], "0.1 is not in the range x>=0.25"),
        (["--interval", "often"], "not a valid float"),
        (["--no-such"], "No such option"),
        (["-n", "0"], "0 is not in the range"),
        (["--view", "moon"], "'moon' is not one of"),
        (["--theme", "pink"], "'pink' is not one of"),
        (["-1", "-s", "moon"], "no column 'moon'"),
        (["--demo", "--url", "http://host"], "--url and --demo cannot be given together"),
        (["pool", "--replay", "x"], "POOL and --replay cannot be given together"),
        (["--record", "x", "--replay", "y"], "--record and --replay cannot be given together"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(run: Run, arguments: list[str], words: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("tiercache-top: error: ")
    assert ended.err.count("\n") == 1
    assert words in ended.err


@pytest.mark.usefixtures("server")
def test_a_column_is_chosen_by_its_title_in_any_case(run: Run) -> None:
    shown = run("-1", "--view", "sequences", "-s", "turns")
    assert shown.code == 0
    assert (
        shown.out.splitlines()[1:]
        == run(*("-1", "--view", "sequences", "-s", "TURNS")).out.splitlines()[1:]
    )


def test_flags_of_the_environment_come_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERCACHE_TOP", f"--json --url '{NOWHERE}'")
    document = json.loads(run().out)
    assert document["target"] == NOWHERE
    other = NOWHERE.replace("9/", "10/")
    assert json.loads(run("--url", other).out)["target"] == other
    monkeypatch.setenv("TIERCACHE_TOP", "--json 'x")
    ended = run()
    assert (ended.code, ended.err) == (
        2,
        "tiercache-top: error: $TIERCACHE_TOP: no closing quotation\n",
    )


def test_help_names_every_option(run: Run) -> None:
    ended = run("--help")
    assert ended.code == 0
    for parameter in app.top.params:
        assert max(parameter.opts, key=len) in ended.out.lower()
    assert "Examples:" in ended.out


def test_no_color_is_for_reports_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[" in run("--once").out
    assert "\x1b[3" not in run("--once", "--no-color").out


@pytest.mark.parametrize("arguments", [["--once"], ["--json"], ["--list"], ["--help"]])
def test_reports_load_no_terminal_toolkit(folder: Path, arguments: list[str]) -> None:
    code = f"""
import sys
from tiercache.tui.app import main
try:
    main({arguments!r})
except SystemExit:
    heavy = {{"textual", "torch", "vllm", "numpy", "lmdb", "aiofiles"}}
    print(sorted(heavy & {{name.partition(".")[0] for name in sys.modules}}))
"""
    with closing(published(folder, qwen(0))):
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    with closing(published(folder, qwen(0))):
        program = [sys.executable, "-c", "from tiercache.tui.app import main; main()"]
        ran = subprocess.run(
            ["bash", "-c", f"{shlex.join([*program, '-j'])} | head -c 1"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (ran.stdout, ran.stderr) == ("{", "")


def test_the_demo_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tiercache.replay.demo")
    with demo.demo() as source, closing(source):
        snapshot = source.fetch()
        assert snapshot.alive
        assert snapshot.pool is not None
        pid = snapshot.pool.pid
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_demo_that_cannot_start_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MODULE", "tiercache.nowhere")
    ended = run("--demo", "-1")
    assert ended.code == 3
    assert "the demo pool has ended" in ended.out
    assert "No module named tiercache.nowhere" in " ".join(ended.out.split())
