# SPDX-License-Identifier: Apache-2.0
"""What a shell offers, asked as a shell asks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tiercache.cli.main import COMMANDS
from tiercache.stats.writer import SegmentWriter

pytestmark = pytest.mark.usefixtures("server")

RUN = "from tiercache.cli.main import main; main()"


def offered(*words: str) -> list[str]:
    """What follows ``words``; the last of them is not complete."""
    environment = {
        **os.environ,
        "_TIERCACHE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["tiercache", *words]),
        "COMP_CWORD": str(len(words)),
    }
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    return [line.partition(",")[2] for line in ran.stdout.splitlines() if line]


def test_commands() -> None:
    assert offered("") == [name for name, each in COMMANDS.items() if not each.hidden]
    assert offered("se") == ["seq"]
    assert "--version" in offered("--")


def test_groups() -> None:
    assert offered("next", "g") == [f"g{index}" for index in range(8)]
    assert offered("events", "--group", "g7") == ["g7"]


def test_sequences() -> None:
    assert offered("seq", "") == ["1f09bc", "e00d3b", "c7f3a1"]
    assert offered("events", "--seq", "c7") == ["c7f3a1"]


def test_pools() -> None:
    assert offered("stat", "--pool", "") == ["qwen3-next"]


def test_options_and_their_values() -> None:
    assert offered("groups", "--format", "") == ["table", "csv", "json"]
    assert "--stranded" in offered("seq", "--s")


def test_no_server_offers_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path / "none"))
    assert offered("next", "") == []
    assert offered("seq", "") == []
    assert offered("stat", "--pool", "") == []


def test_a_damaged_segment_offers_nothing(
    server: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = server.path.with_name("damaged.1.0.tcs")
    damaged.write_bytes(server.path.read_bytes()[:100])
    monkeypatch.setenv("TIERCACHE_POOL", str(damaged))
    assert offered("next", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script(command: Command, shell: str) -> None:
    code, out, err = command("completion", shell)
    assert (code, err) == (0, "")
    assert f"_TIERCACHE_COMPLETE={shell}_complete" in out
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=out, text=True, check=False)
        assert checked.returncode == 0


def test_a_shell_that_is_not_known(command: Command) -> None:
    code, out, err = command("completion", "csh")
    assert (code, out) == (2, "")
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in err
