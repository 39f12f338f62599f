# SPDX-License-Identifier: Apache-2.0
"""Commands, run as a user runs them, but in this process."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli import segments
from tests.model_configs import CONFIGS
from tiercache.cli import pools
from tiercache.cli.main import main
from tiercache.stats.writer import SegmentWriter

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


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SegmentWriter]:
    """The segment of a running server, the only one of this user, at ``segments.NOW``."""
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path / "segments"))
    monkeypatch.delenv("TIERCACHE_POOL", raising=False)
    monkeypatch.setattr(pools, "now", lambda: segments.NOW)
    writer = segments.write(tmp_path / "segments")
    yield writer
    writer.close()
