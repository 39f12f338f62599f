# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.stats.latency import percentile
from tiercache.stats.model import LATENCY_US


def at(*microseconds: float) -> list[int]:
    """The histogram of these latencies."""
    counts = [0] * len(LATENCY_US)
    for each in microseconds:
        counts[next((i for i, upper in enumerate(LATENCY_US) if each < upper), -1)] += 1
    return counts


def test_nothing_has_no_percentile() -> None:
    assert percentile((), 0.5) is None
    assert percentile(at(), 0.99) is None


@pytest.mark.parametrize(
    ("share", "seconds"),
    [(0.0, 11e-6), (0.5, 11e-6), (0.75, 11e-6), (0.76, 1.218e-3), (1, 1.218e-3)],
)
def test_the_upper_bound_of_its_bucket(share: float, seconds: float) -> None:
    assert percentile(at(10, 10, 10, 1100), share) == pytest.approx(seconds, rel=0.01)


def test_what_took_longer_than_the_longest_is_in_the_last_bucket() -> None:
    assert percentile(at(1e12), 0.5) == LATENCY_US[-1] / 1e6
    assert percentile([*at(), 5], 0.5) == LATENCY_US[-1] / 1e6


@given(
    st.lists(st.floats(4, LATENCY_US[-2]), min_size=1, max_size=50),
    st.floats(0, 1),
)
def test_at_most_a_third_above_the_true_value(latencies: list[float], share: float) -> None:
    found = percentile(at(*latencies), share)
    assert found is not None
    rank = max(-(-len(latencies) * share // 1), 1)
    true = sorted(latencies)[int(rank) - 1] / 1e6
    assert true <= found <= true * 1.34
