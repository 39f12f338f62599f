# SPDX-License-Identifier: Apache-2.0
"""The page of field reports names tests that exist, and no report without an answer."""

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("field-reports.md", "security.md")
PAGE = (ROOT / "docs" / PAGES[0]).read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
ROW = re.compile(r"^\| (C\d\d) \| (.+?) \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)


@cache
def names_in(file: str) -> set[str]:
    """Functions and classes of a file; empty if it is not there."""
    path = ROOT / file
    body = ast.parse(path.read_text()).body if path.exists() else []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in body if isinstance(node, kinds)}


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_is_named_exists(page: str) -> None:
    named = NAMED.findall((ROOT / "docs" / page).read_text())
    assert len(named) > 20
    there = [(file, name) for file, name in named if (ROOT / file).exists()]
    assert [one for one in named if one not in there] == []
    assert [(file, name) for file, name in there if name and name not in names_in(file)] == []


def test_every_report_has_a_test() -> None:
    assert len(ROWS) > 50
    assert [row[0] for row in ROWS if not NAMED.search(row[-1])] == []


def test_every_report_says_where_it_comes_from() -> None:
    assert [row[0] for row in ROWS if not re.search(r"#\d+", row[1])] == []


def test_reports_are_in_order_and_named_once() -> None:
    numbers = [row[0] for row in ROWS]
    assert all(one < other for one, other in pairwise(numbers))


def test_every_test_of_a_report_is_on_the_page() -> None:
    made = re.compile(r"test_c\d\d_\w+")
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in names_in(str(path.relative_to(ROOT)))
        if made.fullmatch(name)
    }
    listed = {name for _, name in NAMED.findall(PAGE)}
    numbers = {row[0].lower() for row in ROWS}
    assert {name for name in tests if name.split("_")[1] not in numbers} == set()
    assert len(listed & tests) >= 9
