# SPDX-License-Identifier: Apache-2.0
"""Slots per group: the table of figures, and that a budget is used and never exceeded."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.blocks import SLOT_ALIGNMENT, GroupKind, GroupSpec
from tiercache.errors import ConfigError
from tiercache.layout import Geometry, plan_geometry, states_per_request

GIB = 1 << 30


def full(group_id: int, slot_bytes: int, tokens: int = 784) -> GroupSpec:
    return GroupSpec(group_id, GroupKind.FULL, tokens, slot_bytes)


def window(group_id: int, slot_bytes: int, tokens: int = 784) -> GroupSpec:
    return GroupSpec(group_id, GroupKind.WINDOW, tokens, slot_bytes, window_chunks=2)


def state(group_id: int, slot_bytes: int, tokens: int = 784) -> GroupSpec:
    return GroupSpec(group_id, GroupKind.STATE, tokens, slot_bytes)


#: Group 1 is not prefix-cacheable.
SMALL = [
    full(0, 10_235_904),
    *(state(group_id, 9_633_792) for group_id in (2, 3, 4)),
    state(5, 802_816),
]
LARGE = [full(0, 7_204_864, 1_632), *(state(g, 4_415_488, 1_632) for g in range(1, 8))]
PAGE = 4_096


def plan(
    groups: list[GroupSpec],
    budget_bytes: int,
    *,
    retention: int | None = 0,
    reference_tokens: int = 65_536,
    replay_boundaries: int = 1,
    group_slots: Mapping[int, int] | None = None,
) -> Geometry:
    geometry = plan_geometry(
        groups,
        budget_bytes=budget_bytes,
        retention=retention,
        reference_tokens=reference_tokens,
        replay_boundaries=replay_boundaries,
        group_slots=group_slots or {},
    )
    assert list(geometry.slots) == [group.group_id for group in groups]
    assert min(geometry.slots.values(), default=1) > 0
    assert geometry.used_bytes <= budget_bytes
    return geometry


@pytest.mark.parametrize(
    ("groups", "gib", "reference_tokens", "retention", "slots"),
    [
        (SMALL, 4, 65_536, None, (107, 107)),
        (SMALL, 4, 65_536, 6_272, (280, 48)),
        (SMALL, 4, 65_536, 0, (390, 10)),
        (SMALL, 4, 16_384, 0, (326, 32)),
        (LARGE, 16, 262_144, 0, (2_255, 30)),
        (LARGE, 16, 524_288, 0, (2_315, 16)),
    ],
)
def test_published_figures(
    groups: list[GroupSpec],
    gib: int,
    reference_tokens: int,
    retention: int | None,
    slots: tuple[int, int],
) -> None:
    geometry = plan(groups, gib * GIB, retention=retention, reference_tokens=reference_tokens)
    assert (geometry.token_slots, geometry.state_slots) == slots
    states = {group.group_id: slots[1] for group in groups[1:]}
    assert geometry.slots == {0: slots[0]} | states
    assert geometry.used_bytes > 0.99 * gib * GIB


def test_pages() -> None:
    geometry = plan(SMALL, 4 * GIB)
    assert geometry.token_page == 10_235_904
    assert geometry.state_page == 3 * 9_633_792 + 802_816
    assert geometry.used_bytes == 390 * geometry.token_page + 10 * geometry.state_page


@pytest.mark.parametrize(
    ("reference_tokens", "tokens_per_block", "retention", "replay_boundaries", "states"),
    [
        (65_536, 784, None, 1, None),
        (65_536, 784, None, 2, None),
        (65_536, 784, 0, 1, 1),
        (65_536, 784, 0, 2, 2),
        (65_536, 784, 6_272, 1, 11),
        (65_536, 784, 6_272, 2, 12),
        (6_272 * 10, 784, 6_272, 1, 11),  # the last one of the ten is the request's end
        (6_272 * 10 + 1, 784, 6_272, 1, 10),  # ... and here it is where it is replayed
        (6_272 * 10 + 1, 784, 6_272, 2, 11),
        (6_272 * 10 + 785, 784, 6_272, 1, 11),
        (7_840, 784, 78_400, 1, 1),
        (65_536, 784, 784, 1, 83),
    ],
)
def test_states_per_request(
    reference_tokens: int,
    tokens_per_block: int,
    retention: int | None,
    replay_boundaries: int,
    states: int | None,
) -> None:
    found = states_per_request(reference_tokens, tokens_per_block, retention, replay_boundaries)
    assert found == states


def test_speculative_decoding_keeps_one_more_state_per_request() -> None:
    geometry = plan(SMALL, 4 * GIB, replay_boundaries=2)
    requests = math.ceil(geometry.token_slots / math.ceil(65_536 / 784))
    assert geometry.state_slots == requests * 3


@pytest.mark.parametrize("retention", [None, 784])
def test_state_at_every_block_needs_as_many_slots_as_blocks(retention: int | None) -> None:
    assert set(plan(SMALL, 4 * GIB, retention=retention).slots.values()) == {107}


def test_attention_alone_shares_evenly() -> None:
    geometry = plan([full(0, 3 * PAGE), window(1, 2 * PAGE)], 1_004 * PAGE)
    assert geometry.slots == {0: 200, 1: 200}
    assert (geometry.token_page, geometry.state_page) == (5 * PAGE, 0)
    assert (geometry.token_slots, geometry.state_slots) == (200, 0)


@pytest.mark.parametrize("retention", [None, 0, 6_272])
def test_states_alone_share_evenly(retention: int | None) -> None:
    geometry = plan([state(0, 3 * PAGE), state(1, 2 * PAGE)], 1_004 * PAGE, retention=retention)
    assert geometry.slots == {0: 200, 1: 200}
    assert (geometry.token_page, geometry.state_page) == (0, 5 * PAGE)
    assert (geometry.token_slots, geometry.state_slots) == (0, 200)


def test_window_groups_count_as_token_groups() -> None:
    with_window = plan([full(0, 6 * PAGE), window(1, 2 * PAGE), state(2, 9 * PAGE)], GIB)
    in_one = plan([full(0, 8 * PAGE), state(2, 9 * PAGE)], GIB)
    assert with_window.slots == {0: in_one.slots[0], 1: in_one.slots[0], 2: in_one.slots[2]}


def test_smaller_chunks_get_slots_for_the_same_tokens() -> None:
    geometry = plan([full(0, PAGE, 16), full(1, 4 * PAGE, 64)], 8_005 * PAGE)
    assert geometry.slots == {0: 4_000, 1: 1_000}
    assert geometry.token_slots == 1_000


def test_chunks_that_do_not_divide_are_rounded_up() -> None:
    geometry = plan([full(0, PAGE, 48), full(1, PAGE, 64)], 10 * PAGE)
    assert geometry.slots == {0: 6, 1: 4}


def test_states_are_counted_in_blocks_of_their_own() -> None:
    geometry = plan(
        [full(0, PAGE, 16), state(1, PAGE, 64)],
        1_020 * PAGE,
        reference_tokens=1_600,  # 25 blocks of the state group
    )
    assert geometry.slots == {0: 1_000, 1: 20}  # 16,000 tokens, 10 requests of 2 states each


def test_chunks_of_different_sizes_fit_a_budget_of_one_slot_each() -> None:
    assert plan([full(0, PAGE, 16), full(1, PAGE, 64)], 2 * PAGE).slots == {0: 1, 1: 1}


@pytest.mark.parametrize(
    ("pages", "slots"),
    [
        (3, {0: 1, 1: 1, 2: 1}),
        (4, {0: 1, 1: 1, 2: 1}),
        (5, {0: 1, 1: 2, 2: 2}),
        (6, {0: 2, 1: 2, 2: 2}),
    ],
)
def test_second_state_comes_before_a_second_block(pages: int, slots: dict[int, int]) -> None:
    groups = [full(0, PAGE), state(1, PAGE), state(2, PAGE)]
    assert plan(groups, pages * PAGE).slots == slots


def test_budget_for_less_than_one_slot_each_is_refused() -> None:
    needed = 10_235_904 + 3 * 9_633_792 + 802_816
    assert set(plan(SMALL, needed).slots.values()) == {1}
    with pytest.raises(ConfigError) as caught:
        plan(SMALL, needed - 1)
    assert (caught.value.key, caught.value.value) == ("cpu_bytes_to_use", needed - 1)
    assert f"at least {needed} bytes per worker: one slot of every group" in str(caught.value)


@pytest.mark.parametrize("budget_bytes", [0, -1, -GIB])
def test_no_budget_is_refused(budget_bytes: int) -> None:
    with pytest.raises(ConfigError, match=f"cpu_bytes_to_use: {budget_bytes} is not allowed"):
        plan(SMALL, budget_bytes)


def test_no_groups_no_slots() -> None:
    geometry = plan([], GIB)
    assert (geometry.slots, geometry.token_slots, geometry.state_slots) == ({}, 0, 0)


def test_given_slots_are_paid_for_first() -> None:
    geometry = plan(SMALL, 4 * GIB, group_slots={5: 100})
    rest = plan(SMALL[:-1], 4 * GIB - 100 * 802_816)
    assert geometry.slots == {**rest.slots, 5: 100}


def test_given_token_slots_leave_the_rest_to_states() -> None:
    geometry = plan([full(0, PAGE), state(1, PAGE)], 100 * PAGE, group_slots={0: 30})
    assert geometry.slots == {0: 30, 1: 70}


def test_all_slots_given() -> None:
    given_slots = {0: 7, 1: 3}
    geometry = plan([full(0, PAGE), state(1, PAGE)], 10 * PAGE, group_slots=given_slots)
    assert geometry.slots == given_slots


def test_given_slots_of_an_unknown_group_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(SMALL, 4 * GIB, group_slots={0: 10, 1: 40})
    assert (caught.value.key, caught.value.value) == ("group_slots", {1: 40})
    assert "group ids 0, 2, 3, 4, 5" in str(caught.value)


def test_given_slots_beyond_the_budget_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(SMALL, 4 * GIB, group_slots={0: 420})
    assert (caught.value.key, caught.value.value) == ("group_slots", {0: 420})
    assert f"{4 * GIB} bytes per worker" in str(caught.value)
    assert f"{420 * 10_235_904} bytes" in str(caught.value)


def test_given_slots_that_leave_no_room_are_refused() -> None:
    groups = [full(0, PAGE), state(1, PAGE), state(2, PAGE)]
    with pytest.raises(ConfigError) as caught:
        plan(groups, 10 * PAGE, group_slots={0: 9})
    assert caught.value.key == "cpu_bytes_to_use"
    assert f"at least {11 * PAGE} bytes" in str(caught.value)
    assert f"{9 * PAGE} bytes of group_slots" in str(caught.value)


@pytest.mark.parametrize("reference_tokens", [0, -1])
def test_reference_tokens_must_be_positive(reference_tokens: int) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(SMALL, 4 * GIB, reference_tokens=reference_tokens)
    assert caught.value.value == reference_tokens
    assert "mamba_state_slots_reference_tokens must be positive" in str(caught.value)


def test_negative_retention_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefix_cache_retention_interval: -1 is not allowed"):
        plan(SMALL, 4 * GIB, retention=-1)


def test_describe_says_everything_in_one_line() -> None:
    assert plan(LARGE, 16 * GIB, reference_tokens=262_144).describe() == (
        "2255 token slots of 7204864 bytes, 30 state slots in each of 7 state groups, 30908416 "
        "bytes for one of each; budget 17179869184 bytes (16.00 GiB) per worker, retention 0 "
        "tokens, reference request 262144 tokens"
    )


def test_describe_lists_slots_that_differ() -> None:
    line = plan(SMALL, 4 * GIB, retention=None, group_slots={3: 1, 4: 7}).describe()
    assert "204/1/7/204 state slots in each of 4 state groups" in line
    assert "retention every block" in line


def test_describe_without_states() -> None:
    assert "0 state slots in each of 0 state groups" in plan([full(0, PAGE)], GIB).describe()


slot_bytes = st.integers(1, 5_000).map(lambda pages: pages * SLOT_ALIGNMENT)
hybrid = st.builds(
    lambda tokens, states: [
        *(full(i, size) for i, size in enumerate(tokens)),
        *(state(i, size) for i, size in enumerate(states, len(tokens))),
    ],
    st.lists(slot_bytes, min_size=1, max_size=3),
    st.lists(slot_bytes, min_size=1, max_size=7),
)
retention = st.none() | st.integers(0, 64).map(lambda blocks: blocks * 784)
reference = st.integers(1, 2_000_000)


def needed_bytes(geometry: Geometry, n: int) -> int:
    """The published formula, for groups of 784 tokens."""
    requests = math.ceil(n / math.ceil(geometry.reference_tokens / 784))
    kept = states_per_request(geometry.reference_tokens, 784, geometry.retention, 1)
    states = n if kept is None else min(n, requests * (kept + 1))
    return n * geometry.token_page + states * geometry.state_page


@given(hybrid, st.integers(0, 1 << 46), retention, reference)
def test_most_slots_that_fit(
    groups: list[GroupSpec], spare_bytes: int, kept: int | None, reference_tokens: int
) -> None:
    budget_bytes = 2 * sum(group.slot_bytes for group in groups) + spare_bytes
    geometry = plan(groups, budget_bytes, retention=kept, reference_tokens=reference_tokens)
    assert geometry.used_bytes == needed_bytes(geometry, geometry.token_slots)
    assert needed_bytes(geometry, geometry.token_slots + 1) > budget_bytes
    assert geometry.state_slots >= 2


@given(
    st.sampled_from([SMALL, LARGE]),
    st.integers(64 * GIB, 8_192 * GIB),
    st.none() | st.integers(0, 64).map(lambda blocks: blocks * 784 * 8),
    st.integers(16_384, 262_144),
)
def test_little_is_left_unused(
    groups: list[GroupSpec], budget_bytes: int, kept: int | None, reference_tokens: int
) -> None:
    geometry = plan(groups, budget_bytes, retention=kept, reference_tokens=reference_tokens)
    assert geometry.used_bytes >= 0.97 * budget_bytes


@given(
    st.lists(
        st.builds(
            GroupSpec,
            group_id=st.integers(0, 20),
            kind=st.sampled_from(GroupKind),
            tokens_per_chunk=st.sampled_from([16, 48, 64, 256, 784]),
            slot_bytes=slot_bytes,
        ),
        min_size=1,
        unique_by=lambda group: group.group_id,
    ),
    st.integers(0, 1 << 46),
    retention,
    reference,
    st.integers(1, 2),
)
def test_any_groups_fit_or_are_refused(
    groups: list[GroupSpec],
    budget_bytes: int,
    kept: int | None,
    reference_tokens: int,
    replay_boundaries: int,
) -> None:
    if budget_bytes < sum(group.slot_bytes for group in groups):
        with pytest.raises(ConfigError, match="one slot of every group"):
            plan(groups, budget_bytes)
        return
    geometry = plan(
        groups,
        budget_bytes,
        retention=kept,
        reference_tokens=reference_tokens,
        replay_boundaries=replay_boundaries,
    )
    states = {geometry.slots[g.group_id] for g in groups if g.kind is GroupKind.STATE}
    if budget_bytes >= 2 * sum(group.slot_bytes for group in groups):
        assert not states or min(states) >= 2
