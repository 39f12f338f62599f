# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tiercache.tui import text
from tiercache.tui.text import ASCII, UNICODE


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (2255, "2255"),
        (99_999, "99999"),
        (100_000, "100k"),
        (508_800, "509k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (1_234_567, "1.23M"),
        (12_345_678, "12.3M"),
        (0.04, "0.0"),
        (6.96, "7.0"),
        (9.97, "10.0"),
        (41_424.3, "41424"),
    ],
)
def test_count(number: float | None, shown: str) -> None:
    assert text.count(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "-"),
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.00KiB"),
        (32_400_000, "30.9MiB"),
        (17_190_000_000, "16.0GiB"),
        (812_000_000_000, "756GiB"),
    ],
)
def test_size(number: float | None, shown: str) -> None:
    assert text.size(number) == shown


@given(st.floats(0, 1e21))
def test_numbers_keep_to_their_width(number: float) -> None:
    assert len(text.count(number)) <= 5
    assert len(text.size(number)) <= 7


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0s"), (7.9, "7s"), (125, "2m05s"), (11_564, "3h12m"), (357_000, "4d03h")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert text.duration(seconds) == shown


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=6), st.integers(0, 80))
def test_shares_fill_the_width_and_lose_nobody(parts: list[int], width: int) -> None:
    cells = text.share(parts, width)
    assert sum(cells) == (width if any(parts) else 0)
    assert all(part or not cell for part, cell in zip(parts, cells, strict=True))
    if width >= sum(1 for part in parts if part):
        assert all(cell or not part for part, cell in zip(parts, cells, strict=True))


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 4, "    "),
        ([0, 0], 4, "  .."),
        ([0, 1, 10], 4, " .:|"),
        ([9, 9, 0, 5, 10], 3, ".:|"),
        ([-7, 1], 2, ".|"),
        ([-7, -1], 2, ".."),
    ],
)
def test_sparkline(values: list[int], width: int, line: str) -> None:
    assert text.sparkline(values, width, ASCII.levels) == line


@given(st.text(), st.integers(-1, 40))
def test_fitted_text_has_its_width(name: str, width: int) -> None:
    clean = text.clean(name, UNICODE)
    assert cell_len(text.fit(clean, width)) == max(width, 0)
    assert cell_len(text.right(clean, width)) == max(width, 0)


@given(st.text())
def test_ascii_names_are_ascii(name: str) -> None:
    assert all(" " <= character <= "~" for character in text.clean(name, ASCII))
