# SPDX-License-Identifier: Apache-2.0
"""What several programs of the lab have in common."""

import argparse
from pathlib import Path

import pytest

from lab.program import add_path


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab")
    add_path(parser)
    return parser


def test_a_directory(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    assert parser.parse_args(["--path", str(tmp_path)]).path == tmp_path
    assert parser.parse_args([]).path == Path.cwd()


def test_what_is_none(
    parser: argparse.ArgumentParser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["--path", str(tmp_path / "nosuch")])
    assert f"argument --path: '{tmp_path / 'nosuch'}' is not a directory" in capsys.readouterr().err
