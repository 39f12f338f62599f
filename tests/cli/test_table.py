# SPDX-License-Identifier: Apache-2.0
import pytest

from tiercache.cli import table as tables


def test_columns_end_at_the_same_place() -> None:
    lines = tables.table(("name", "a\nnumber"), [("x", "1"), ("longer", "1,000,000")])
    assert list(lines) == [
        "                a",
        "name       number",
        "x               1",
        "longer  1,000,000",
    ]


def test_no_rows_are_a_head() -> None:
    assert list(tables.table(("a", "b"), [])) == ["a  b"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1k"),
        (12_345, "12.3k"),
        (999_400, "999k"),
        (999_600, "1M"),
        (26_727_003, "26.7M"),
        (5 * 10**12, "5T"),
    ],
)
def test_short_numbers(number: int, text: str) -> None:
    assert tables.short(number) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (4096, "4 KiB"),
        (16 * 2**30, "16 GiB"),
        (1023 * 2**20, "0.999 GiB"),
        (5 * 2**40, "5 TiB"),
    ],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert tables.size(nbytes) == text
