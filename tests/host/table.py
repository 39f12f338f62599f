# SPDX-License-Identifier: Apache-2.0
"""What is expected of each of vLLM's tests, read from ``expected``, and the page that shows it.

Covers the table only: per test how many cases it has, and whether it passes with ours in place,
differs (it is run and must fail, or the reason no longer holds), or is apart (it is not run).
"""

import sys
import tomllib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "conformance.md"
BEGIN, END = "<!-- from tests/host/expected -->\n", "<!-- end -->\n"
#: The release of vLLM that the expectations are for.
RELEASE = "0.32.0"
#: In the order of the page.
SUITES = ("manager", "tiering", "disk", "worker", "connector", "serving")
#: Which modules of ``adapters`` put ours in place in each run.
RUNS = {
    "parts": ("manager", "tiering", "disk", "worker"),
    "connector": ("connector",),
    "serving": ("serving",),
}


class Verdict(StrEnum):
    PASSES = "passes"
    DIFFERS = "differs"
    APART = "apart"


class Expected(NamedTuple):
    """A test of vLLM's by its name in its file, with ``[...]`` if its cases differ."""

    name: str
    verdict: Verdict
    cases: int
    reason: str = ""


class Suite(NamedTuple):
    """A file of vLLM's tests with something of ours in place of something of theirs."""

    name: str
    file: str
    run: str
    ours: str
    theirs: str
    tests: dict[str, Expected]

    def named(self, case: str) -> str:
        """The name under which a case is expected."""
        return case if case in self.tests else case.partition("[")[0]

    def of(self, verdict: Verdict) -> list[Expected]:
        return [test for test in self.tests.values() if test.verdict is verdict]

    def cases(self, verdict: Verdict) -> int:
        return sum(test.cases for test in self.of(verdict))


def suites() -> list[Suite]:
    return [_suite(name) for name in SUITES]


def _suite(name: str) -> Suite:
    raw = _read(name)
    tests = {test.name: test for test in _expected(raw)}
    return Suite(name, raw["file"], raw["run"], raw["ours"], raw["theirs"], tests)


def _expected(raw: dict[str, Any]) -> Iterator[Expected]:
    for test, cases in raw["passes"].items():
        yield Expected(test, Verdict.PASSES, cases)
    for verdict in Verdict.DIFFERS, Verdict.APART:
        for entry in raw.get(verdict.value, ()):
            for test, cases in entry["tests"].items():
                yield Expected(test, verdict, cases, entry["reason"])


def files_apart() -> dict[str, str]:
    """Files that are not run at all, and why."""
    return {file: entry["reason"] for entry in _read("apart")["apart"] for file in entry["files"]}


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / "expected" / f"{name}.toml").read_text())


# --- the page


def page() -> str:
    """``PAGE`` as it should be: its text as it is, the tables from what is expected."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join(_tables()) + "\n" + END + after


def _tables() -> Iterator[str]:
    yield from _sums()
    for verdict, heading in (
        (Verdict.DIFFERS, "Where ours differs"),
        (Verdict.APART, "What does not apply"),
    ):
        yield f"\n## {heading}\n"
        yield "| in the place of vLLM's | why | cases | tests |"
        yield "|---|---|---|---|"
        for suite in suites():
            yield from _reasons(suite, verdict)
    yield "\nWhole files of vLLM's tests that are not run:\n"
    yield "| why | files |"
    yield "|---|---|"
    grouped: dict[str, list[str]] = {}
    for file, reason in files_apart().items():
        grouped.setdefault(reason, []).append(f"`{file}`")
    for reason, files in grouped.items():
        yield f"| {reason} | {', '.join(files)} |"


def _sums() -> Iterator[str]:
    yield "| ours | in the place of vLLM's | its tests | pass | differ | do not apply |"
    yield "|---|---|---|---|---|---|"
    for suite in suites():
        counts = " | ".join(str(suite.cases(verdict)) for verdict in Verdict)
        yield f"| {suite.ours} | {suite.theirs} | `{suite.file}` | {counts} |"


def _reasons(suite: Suite, verdict: Verdict) -> Iterator[str]:
    place = suite.theirs.partition(";")[0].partition(":")[0]
    grouped: dict[str, list[Expected]] = {}
    for test in suite.of(verdict):
        grouped.setdefault(test.reason, []).append(test)
    for reason, tests in grouped.items():
        names = [f"`{test.name.rpartition('.')[2]}`" for test in tests]
        shown = ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)
        cases = sum(test.cases for test in tests)
        yield f"| {place} | {reason} | {cases} | {shown} |"


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE}\n")
