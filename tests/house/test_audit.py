# SPDX-License-Identifier: Apache-2.0
"""Whether what is installed along with us has known holes, where a database of them is in reach.

Covers what the wheel requires, and what that requires in turn, in the releases installed here; not
what only develops or tests it, nor the engine, which the serving machine brings.
"""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.house.test_dependencies import PROJECT, name_of

#: Known holes that do not concern us: number and reason.
CONCEDED: dict[str, str] = {}
TIMEOUT_S = 20


def closure(requirements: list[str]) -> dict[str, str]:
    """Name and release of all that ``requirements`` bring, as installed here."""
    found: dict[str, str] = {}
    left = list(requirements)
    while left:
        requirement = Requirement(left.pop())
        if requirement.name in found or not applies(requirement):
            continue
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:
            continue
        found[requirement.name] = installed.version.partition("+")[0]
        left += installed.requires or []
    return found


def applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def holes(report: dict[str, Any]) -> list[str]:
    """The holes of a report of pip-audit that nobody conceded."""
    return [
        f"{package['name']} {package['version']}: {hole['id']}"
        for package in report["dependencies"]
        for hole in package.get("vulns", ())
        if not {hole["id"], *hole.get("aliases", ())} & CONCEDED.keys()
    ]


def test_all_that_is_required_is_looked_at() -> None:
    looked_at = closure(PROJECT["dependencies"])
    assert looked_at.keys() >= set(map(name_of, PROJECT["dependencies"]))
    assert "markdown-it-py" in looked_at
    assert "pytest" not in looked_at


def test_a_hole_is_found() -> None:
    hole = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": []}
    good = {"name": "good", "version": "1", "vulns": []}
    unknown = {"name": "unknown", "skip_reason": "not found"}
    bad = {"name": "bad", "version": "2", "vulns": [hole]}
    assert holes({"dependencies": [good, bad, unknown]}) == ["bad 2: PYSEC-1"]


def test_nothing_that_is_required_has_a_known_hole(tmp_path: Path) -> None:
    installed = closure(PROJECT["dependencies"])
    listed = tmp_path / "requirements.txt"
    listed.write_text("".join(f"{name}=={release}\n" for name, release in installed.items()))
    options = ["--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off"]
    command = [sys.executable, "-m", "pip_audit", *options, f"--timeout={TIMEOUT_S}"]
    run = subprocess.run([*command, "-r", str(listed)], capture_output=True, text=True, check=False)
    if not run.stdout:
        pytest.skip(f"no database of known holes is in reach: {run.stderr.strip()[-200:]}")
    report = json.loads(run.stdout)
    if all("skip_reason" in package for package in report["dependencies"]):
        pytest.skip(f"no database of known holes is in reach: {report['dependencies'][0]}")
    assert holes(report) == []
