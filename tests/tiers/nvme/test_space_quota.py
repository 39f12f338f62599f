# SPDX-License-Identifier: Apache-2.0
"""How a tier's capacity is split into groups, and how much may be written per day."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.errors import ConfigError
from tiercache.tiers.nvme.space import WriteBudget, slack_bytes, split_capacity

Demand = Mapping[int, tuple[int, int]]


def index_bytes(slots: Mapping[int, int]) -> int:
    """In steps, as pages come."""
    return 100_000 + sum(8192 * -(-count // 127) for count in slots.values())


def size(demand: Demand, slots: Mapping[int, int]) -> int:
    records = sum(slots[group] * nbytes for group, (_, nbytes) in demand.items())
    return records + index_bytes(slots) + slack_bytes(slots)


def test_groups_have_the_proportion_that_they_have_in_memory() -> None:
    demand = {0: (2_000, 7 << 20), 1: (40, 31 << 20), 2: (40, 31 << 20)}
    slots = split_capacity(1 << 40, demand, index_bytes)
    assert slots[1] == slots[2] == slots[0] * 40 // 2_000
    left = (1 << 40) - size(demand, slots)
    assert 0 <= left < (7 + 2 * 31) << 20


@given(
    st.dictionaries(
        st.integers(0, 9),
        st.tuples(st.integers(1, 10_000), st.integers(1, 1_000).map((4096).__mul__)),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 1 << 36),
)
def test_capacity_is_used_and_never_exceeded(demand: dict[int, tuple[int, int]], more: int) -> None:
    least = size(demand, dict.fromkeys(demand, 1))
    slots = split_capacity(least + more, demand, index_bytes)
    assert slots.keys() == demand.keys()
    assert min(slots.values()) >= 1
    assert size(demand, slots) <= least + more
    most = max(count for count, _ in demand.values())
    scale = max(slots.values()) + 1
    larger = {g: max(1, count * scale // most) for g, (count, _) in demand.items()}
    assert size(demand, larger) > least + more
    assert split_capacity(size(demand, slots), demand, index_bytes) == slots


def test_a_capacity_without_a_slot_for_each_group_is_refused_with_the_least_that_works() -> None:
    demand = {0: (2_000, 8192), 1: (1, 4096)}
    least = size(demand, {0: 1, 1: 1})
    assert split_capacity(least, demand, index_bytes) == {0: 1, 1: 1}
    with pytest.raises(ConfigError, match=f"capacity: {least - 1} .* at least {least} bytes"):
        split_capacity(least - 1, demand, index_bytes)


# --- the budget of writes

DAY_S = 86_400


def test_an_hours_share_can_be_written_at_once_and_comes_back_steadily() -> None:
    budget = WriteBudget(24 * 3600)  # a byte per second
    assert not budget.take(3601, now=5.0)
    assert budget.take(3600, now=5.0)
    assert not budget.take(1, now=5.9)
    assert budget.take(1, now=6.0)
    assert not budget.take(10, now=15.5)
    assert budget.take(10, now=16.0)
    assert budget.take(3600, now=1e6)
    assert not budget.take(1, now=1e6)


def test_what_is_refused_is_not_taken() -> None:
    budget = WriteBudget(24 * 100)
    assert not budget.take(101, now=0.0)
    assert budget.take(100, now=0.0)


def test_a_clock_that_is_set_back_takes_nothing_and_goes_on() -> None:
    budget = WriteBudget(24 * 3600)
    assert budget.take(3600, now=1000.0)
    assert not budget.take(1, now=0.0)
    assert budget.take(0, now=0.0)
    assert budget.take(5, now=5.0)


def test_without_a_budget_everything_can_be_written() -> None:
    assert WriteBudget(None).take(1 << 60, now=0.0)


@given(
    st.integers(1, 1 << 40),
    st.lists(st.tuples(st.integers(0, 1 << 36), st.floats(0, 20_000)), max_size=30),
)
def test_no_period_sees_more_than_its_share_and_a_burst(
    bytes_per_day: int, writes: list[tuple[int, float]]
) -> None:
    budget, now, taken = WriteBudget(bytes_per_day), 0.0, 0
    for nbytes, passed in writes:
        now += passed
        taken += nbytes * budget.take(nbytes, now)
        assert taken <= (bytes_per_day / 24 + bytes_per_day * now / DAY_S) * (1 + 1e-9)
