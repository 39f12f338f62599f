# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.tui.filters import FIELDS, Facts, matching, parse

ROWS = (
    Facts("stored e00d3b g1", {"kind": ("stored",), "seq": ("e00d3b",), "group": ("g1", "g7")}),
    Facts("Evicted live 91be02 g7", {"kind": ("evicted_live",), "seq": ("91be02",), "tier": ()}),
    Facts("spilled nvme0", {"kind": ("spilled",), "tier": ("nvme0",), "group": ("e1.g7",)}),
)


def found(expression: str, known: tuple[str, ...] = FIELDS) -> list[int]:
    return list(matching(expression, ROWS, lambda row: row, known).rows)


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("", [0, 1, 2]),
        ("  ", [0, 1, 2]),
        ("evict", [1]),
        ("EVICTED", [1]),
        ("!evict", [0, 2]),
        ("kind:evict", [1]),
        ("!kind:evict", [0, 2]),
        ("kind:s", [0, 2]),
        ("kind:s tier:nvme", [2]),
        ("seq:e00", [0]),
        ("seq:00d", []),
        ("group:g7", [0, 2]),
        ("group:7", []),
        ("group:e1.g7", [2]),
        ("!group:g7", [1]),
        ("tier:nvme0 seq:e00", []),
    ],
)
def test_rows_that_match(expression: str, rows: list[int]) -> None:
    assert found(expression) == rows


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("foo:bar", "no field 'foo'; there are kind, seq, group, tier"),
        (":x", "no field ''; there are kind, seq, group, tier"),
        ("kind:", "nothing after 'kind:'"),
        ("evict !", "nothing after '!'"),
        ("!seq:", "nothing after '!seq:'"),
    ],
)
def test_a_bad_filter_is_said_and_matches_everything(expression: str, problem: str) -> None:
    assert matching(expression, ROWS, lambda row: row, FIELDS) == (range(3), problem)
    assert parse(expression) == ([], problem)


def test_a_field_that_the_list_lacks_is_said_and_left_out() -> None:
    known = ("seq", "tier")
    assert matching("kind:evict seq:e00", ROWS, lambda row: row, known) == (
        [0],
        "kind: says nothing about this list",
    )


@given(st.text())
def test_no_filter_raises(expression: str) -> None:
    assert set(found(expression)) <= {0, 1, 2}
