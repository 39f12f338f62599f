# SPDX-License-Identifier: Apache-2.0
"""What is installed along with us: few, named, bounded below, and all of it used."""

import ast
import re
import sys
import tomllib
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(.*)")
#: Of these, some releases were looked at; one that is older is not taken.
BOUND = re.compile(r">=\d+(\.\d+)*|==\d+(\.\d+)+")
#: What a serving machine has already.
ENGINE = {"vllm"}
#: What extras bring, by the names under which it is imported, and imported only where it is used.
OPTIONAL = {"matplotlib", "mooncake"}


def name_of(requirement: str) -> str:
    match = REQUIREMENT.match(requirement)
    assert match
    return match[1].lower().replace("_", "-")


def without_marker(requirement: str) -> str:
    """Without the environments that it is for."""
    return requirement.partition(";")[0].strip()


def all_requirements() -> list[str]:
    return [*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]


def test_the_wheel_requires_what_the_project_says(installed: Path) -> None:
    [folder] = installed.glob("*.dist-info")
    metadata = message_from_string((folder / "METADATA").read_text())
    lines = metadata.get_all("Requires-Dist", [])
    extra_of = {line: re.search(r'extra == "([^"]+)"', line) for line in lines}
    stated = {(without_marker(line), found and found[1]) for line, found in extra_of.items()}
    assert stated == {(without_marker(each), None) for each in PROJECT["dependencies"]} | {
        (without_marker(requirement), extra)
        for extra, requirements in EXTRAS.items()
        for requirement in requirements
    }


@pytest.mark.parametrize("requirement", all_requirements())
def test_nothing_is_unbounded_below(requirement: str) -> None:
    match = REQUIREMENT.fullmatch(without_marker(requirement))
    assert match
    assert BOUND.fullmatch(match[2]), f"{requirement} takes any release"


@pytest.mark.parametrize("requirement", all_requirements())
def test_nothing_comes_from_elsewhere_than_the_index(requirement: str) -> None:
    assert "@" not in requirement
    assert "/" not in requirement


def imported() -> set[str]:
    """Top-level modules that are neither Python's nor ours."""
    found: set[str] = set()
    for folder in ("tiercache", "cli", "tui"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found.update(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    found.add(node.module or "")
    top = {name.partition(".")[0].lower().replace("_", "-") for name in found}
    return top - {name.replace("_", "-") for name in sys.stdlib_module_names} - {"tiercache"}


def test_all_that_is_imported_is_required_and_the_other_way_round() -> None:
    required = {*map(name_of, PROJECT["dependencies"])}
    assert required <= imported()
    assert imported() - required - ENGINE <= OPTIONAL
