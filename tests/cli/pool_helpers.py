# SPDX-License-Identifier: Apache-2.0
"""What the tests of commands over a pool on disk share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiers.nvme.server_helpers import fill
from tests.tiers.nvme.tier_helpers import SEGMENT_BYTES
from tiercache.blocks import Key
from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.main import main
from tiercache.tiers.nvme.offline import OfflineNamespace, open_readonly

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command's exit code, stdout and stderr; over segments as small as those of the tests."""
    for function in (open_readonly, OfflineNamespace.__init__):
        assert function.__kwdefaults__
        monkeypatch.setitem(function.__kwdefaults__, "segment_bytes", SEGMENT_BYTES)

    def run_main(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert isinstance(ended.value.code, int)
        captured = capsys.readouterr()
        return int(ended.value.code), captured.out, captured.err

    return run_main


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The namespace of a pool with ``STORED``."""
    return fill(tmp_path / "nvme")


def document(run: Run, *arguments: object, code: int = 0) -> dict[str, Any]:
    """What a command prints as JSON."""
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (code, ""), (status, out, err)
    found: dict[str, Any] = json.loads(out)
    return found


def indexed(directory: Path) -> list[Key]:
    with open_readonly(directory) as pool:
        one = pool.only()
        return [
            entry.key for group in one.groups for chunk in one.entries(group) for entry in chunk
        ]


def sound(run: Run, directory: Path) -> None:
    assert run("verify", directory, "--data")[0] == ExitCode.OK
