# SPDX-License-Identifier: Apache-2.0
import math

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


@pytest.mark.parametrize(
    ("number", "shown"),
    [(None, "-"), (0, "0"), (784, "784"), (24_100, "24.1k"), (999_949, "999.9k"), (2**21, "2.10M")],
)
def test_tokens(number: float | None, shown: str) -> None:
    assert text.tokens(number) == shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        *((None, 5, "-"), (5, None, "-"), (0, 0, "-"), (0, 5, "0%"), (1, 2, "50%")),
        *((1, 1000, "<1%"), (999, 1000, "99%"), (5, 5, "100%"), (10, 1, "999%")),
    ],
)
def test_percent(part: float | None, whole: float | None, shown: str) -> None:
    assert text.percent(part, whole) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((None, "-"), (math.nan, "-"), (-1, "0s"), (59, "59s"), (60, "1m"), (3_599, "59m")),
        *((3_600, "1h"), (47 * 3_600, "47h"), (48 * 3_600, "2d"), (400 * 86_400, "400d")),
    ],
)
def test_age(seconds: float | None, shown: str) -> None:
    assert text.age(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((None, "-"), (math.inf, "-"), (0, "0us"), (85e-6, "85us"), (0.0009, "0.9ms")),
        *((0.212, "212ms"), (0.9996, "1.0s"), (1.94, "1.9s"), (59.96, "1m00s"), (125, "2m05s")),
    ],
)
def test_latency(seconds: float | None, shown: str) -> None:
    assert text.latency(seconds) == shown


@given(st.floats(0, 1e21))
def test_short_numbers_keep_to_their_width(number: float) -> None:
    assert len(text.tokens(number)) <= 6
    assert len(text.percent(number, 1.0)) <= 4
    assert len(text.age(min(number, 86_400 * 999))) <= 4
    assert len(text.latency(min(number, 86_400 * 99))) <= 6


@pytest.mark.parametrize("moment", [None, 1e30, -1e30, math.nan, math.inf])
def test_a_time_that_is_none_has_no_clock(moment: float | None) -> None:
    assert text.clock(moment) == "-"


@pytest.mark.parametrize(
    ("words", "width", "shown"),
    [
        ("slots", 5, "slots"),
        ("slots", 4, "slo~"),
        ("模型模", 5, "模型~"),
        ("slots", 1, "~"),
        ("a", 0, ""),
    ],
)
def test_what_goes_on_is_marked(words: str, width: int, shown: str) -> None:
    assert text.cut(words, width, ASCII) == shown


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
        ([None, 0, 5.5], 3, " .|"),
        ([1, 1e9], 2, ":|"),
    ],
)
def test_sparkline(values: list[float | None], width: int, line: str) -> None:
    assert text.sparkline(values, width, ASCII.levels) == line


@given(st.text(), st.integers(-1, 40))
def test_fitted_text_has_its_width(name: str, width: int) -> None:
    clean = text.clean(name, UNICODE)
    assert cell_len(text.fit(clean, width)) == max(width, 0)
    assert cell_len(text.right(clean, width)) == max(width, 0)


@given(st.text())
def test_ascii_names_are_ascii(name: str) -> None:
    assert all(" " <= character <= "~" for character in text.clean(name, ASCII))
