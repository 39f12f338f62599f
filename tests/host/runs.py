# SPDX-License-Identifier: Apache-2.0
"""Runs files of vLLM's tests with ours in the place of theirs, in a process of their own.

In a process of its own, because both have a package ``tests``, and because what is put in place
must be there before anything of vLLM is imported.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.host.sdist import host_tests
from tests.host.table import RUNS, Verdict, suites

HERE = Path(__file__).parent
RUN_S = 500


class Result(NamedTuple):
    """How a test ended (passed, failed or skipped), what of ours it made, and why it failed."""

    outcome: str
    made: list[str]
    why: str


@cache
def results(name: str) -> dict[str, dict[str, Result]]:
    """What came of one of the ``RUNS``: per suite, by the names of the cases."""
    chosen = [suite for suite in suites() if suite.run == name]
    arguments = [f"tests/v1/{suite.file}" for suite in chosen]
    arguments += [
        f"--deselect=tests/v1/{suite.file}::{test.name.replace('.', '::')}"
        for suite in chosen
        for test in suite.of(Verdict.APART)
    ]
    found = _run(RUNS[name], arguments)
    return {
        suite.name: {
            case.partition("::")[2].replace("::", "."): result
            for case, result in found.items()
            if case.partition("::")[0] == f"tests/v1/{suite.file}"
        }
        for suite in chosen
    }


def _run(adapters: Collection[str], arguments: list[str]) -> dict[str, Result]:
    folder = host_tests()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        known = {
            "HOST_ADAPTERS": ",".join(adapters),
            "HOST_REPORT": str(report),
            "HOST_SCRATCH": scratch,
            "PYTHONPATH": os.pathsep.join([str(folder), str(HERE)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder)]
        command += ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "adapters.plugin"]
        command += [f"--basetemp={scratch}/tmp", *arguments]
        result = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | known,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        if not report.is_file():
            raise AssertionError(f"no report: {result.stdout[-2000:]}{result.stderr[-2000:]}")
        found = json.loads(report.read_text())
    return {name: Result(**entry) for name, entry in found.items()}
