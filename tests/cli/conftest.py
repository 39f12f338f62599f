# SPDX-License-Identifier: Apache-2.0
"""Commands, run as a user runs them, but in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model_configs import CONFIGS
from tiercache.cli.main import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line; returns its status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert isinstance(ended.value.code, int)
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes the config.json of a kind of model."""

    def write(name: str) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(CONFIGS[name]))
        return path

    return write
