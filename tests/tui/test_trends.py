# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import replace

import pytest

from tiercache.tui.snapshot import Snapshot
from tiercache.tui.trends import Trend, trends

Qwen = Callable[[int], Snapshot]


def test_rates_are_means_over_the_last_ten_seconds(qwen: Qwen) -> None:
    grown = trends([qwen(step) for step in range(0, 31, 2)])
    assert grown["demotions"].per_second == 14.0
    assert grown["restored_tokens"].per_second == 48_000.0
    assert grown["lost_tokens"].per_second == pytest.approx(101_760.0)


def test_steps_are_differences_of_neighbours(qwen: Qwen) -> None:
    assert trends([qwen(0), qwen(1), qwen(3)])["demotions"] == Trend(742, 14.0, [14, 28])


def test_one_snapshot_has_totals_only(qwen: Qwen) -> None:
    assert trends([qwen(0)])["demotions"] == Trend(700, None, [])


def test_nothing_is_known_of_nothing() -> None:
    assert trends([]) == {}
    assert trends([Snapshot(0.0)])["demotions"] == Trend(None, None, [])


def test_what_was_unknown_at_first_counts_from_its_first_reading(qwen: Qwen) -> None:
    history = [replace(qwen(0), lost_tokens=None), qwen(5), qwen(10)]
    assert trends(history)["lost_tokens"] == Trend(1_017_600, 101_760.0, [508_800])


def test_what_is_unknown_now_has_no_total(qwen: Qwen) -> None:
    assert trends([qwen(5), replace(qwen(6), lost_tokens=None)])["lost_tokens"].total is None


def test_a_clock_that_goes_back_gives_no_rate(qwen: Qwen) -> None:
    assert trends([qwen(5), replace(qwen(6), taken=0.0)])["demotions"].per_second is None
