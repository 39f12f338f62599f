# SPDX-License-Identifier: Apache-2.0
"""Tables in terminals of every width, and what programs get."""

import csv
import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.cli import listing
from tiercache.cli.listing import Column, Form, Stream
from tiercache.cli.table import count

COLUMNS = (
    Column("name", "NAME", left=True),
    Column("slots", "SLOTS", count),
    Column("extra", "EXTRA", spare=True),
    Column("more", "MORE", spare=True),
    Column("words", "WORDS", left=True),
    Column("hidden"),
)
ROW = {"name": "g0", "slots": 2255, "extra": 1, "more": 22, "words": "a, b", "hidden": True}
EMPTY = dict.fromkeys(ROW)


def terminal(patch: pytest.MonkeyPatch, cells: int | None) -> None:
    patch.setattr(listing, "width", lambda: cells)


def test_without_a_terminal_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, None)
    assert listing.table_lines(COLUMNS, [ROW, EMPTY]) == [
        "NAME  SLOTS  EXTRA  MORE  WORDS",
        "g0    2,255      1    22  a, b",
        "-         -      -     -  -",
    ]


def test_what_is_missed_least_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = []
    for cells in (31, 30, 24, 17, 16):
        terminal(monkeypatch, cells)
        heads.append(listing.table_lines(COLUMNS, [ROW])[0])
    assert heads == [
        "NAME  SLOTS  EXTRA  MORE  WORDS",
        "NAME  SLOTS  EXTRA  WORDS",
        "NAME  SLOTS  WORDS",
        "NAME  SLOTS  WOR…",
        "NAME  SLOTS  WO…",
    ]


def test_a_number_is_left_out_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (Column("a", "A", left=True), Column("b", "B", count), Column("c", "C", count))
    terminal(monkeypatch, 12)
    lines = listing.table_lines(numbers, [{"a": "x", "b": 1_000, "c": 2_000_000}])
    assert lines == ["A      B", "x  1,000"]


@given(
    cells=st.integers(1, 120),
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "name": st.text(max_size=30),
                "slots": st.none() | st.integers(0, 10**12),
                "extra": st.integers(),
                "more": st.integers(),
                "words": st.none() | st.text(max_size=60),
                "hidden": st.booleans(),
            }
        ),
        max_size=4,
    ),
)
def test_every_line_fits(cells: int, rows: list[dict[str, object]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        terminal(patch, cells)
        lines = listing.table_lines(COLUMNS, rows)
        stream = Stream(COLUMNS)
        lines += [stream.head(), *map(stream.line, rows)]
    assert max(map(len, lines)) <= cells
    assert all(line.isprintable() for line in lines)


def test_a_stream_keeps_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, None)
    stream = Stream((Column("a", "A", left=True, least=4), Column("b", "B", count, least=5)))
    assert stream.head() == "A         B"
    assert stream.line({"a": "x", "b": 7}) == "x         7"
    assert stream.line({"a": "longer", "b": 7}) == "longer      7"


@given(
    st.lists(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_characters="\0"))
    )
)
def test_csv_can_be_read_back(values: list[object]) -> None:
    line = listing.csv_line(values)
    [read] = csv.reader(io.StringIO(line + "\n", newline="")) if values else [[]]
    wanted = [
        "" if v is None else str(v).lower() if isinstance(v, bool) else str(v) for v in values
    ]
    assert read == wanted or (read == [] and wanted == [""])


def test_programs_get_every_column_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    for form in (Form.JSON, Form.CSV):
        listing.show(
            form,
            schema="tiercache.test/1",
            source={"kind": "segment"},
            columns=COLUMNS,
            rows=[{**ROW, "worded": "for people"}],
            notes=["for people, too"],
        )
    out = capsys.readouterr().out
    document, _, lines = out.rpartition("}\n")
    assert json.loads(document + "}") == {
        "schema": "tiercache.test/1",
        "source": {"kind": "segment"},
        "data": [ROW],
    }
    assert lines == 'name,slots,extra,more,words,hidden\ng0,2255,1,22,"a, b",true\n'


def test_a_paragraph_goes_on_below(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, 22)
    assert listing.paragraph("why", "it was evicted at once", 6) == [
        "why   it was evicted",
        "      at once",
    ]
    terminal(monkeypatch, None)
    assert listing.paragraph("why", "it was evicted at once", 6) == ["why   it was evicted at once"]


def test_a_terminal_is_as_wide_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listing.width() is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "57")
    assert listing.width() == 57
