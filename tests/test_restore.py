# SPDX-License-Identifier: Apache-2.0
"""Restore plans: examples for each kind of group, and any mixture against the definition."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core_helpers import BLOCK, chain, full, state, window
from tiercache.blocks import GroupKind, GroupSpec, Key, Lineage, key_group, key_hash, make_key
from tiercache.restore import NOWHERE, Lookup, Planner, RestorePlan

#: Where the block of a group ends, in tokens.
Entry = tuple[int, int]


def make_plan(
    groups: Sequence[GroupSpec],
    ready: Iterable[Entry],
    *,
    storing: Iterable[Entry] = (),
    tokens: int = 8 * BLOCK,
    per_hash: int = BLOCK,
    start: int = 0,
    limit: int | None = None,
) -> RestorePlan:
    """Plan for a prompt of ``tokens`` tokens where these entries are there."""
    hashes = chain("a", tokens // per_hash)
    limit = tokens if limit is None else limit

    def key(group_id: int, end: int) -> Key:
        return make_key(hashes[end // per_hash - 1], group_id)

    there = {key(*entry) for entry in ready}
    lookup = Lookup(
        lambda keys, at: len(list(takewhile(there.__contains__, keys[at:]))),
        {key(*entry) for entry in storing},
        (),
        NOWHERE.leading,
    )
    return Planner(groups).plan(
        Lineage(hashes, per_hash),
        dict.fromkeys((g.group_id for g in groups), lookup),
        lambda deepest: range(deepest // per_hash * per_hash, 0, -per_hash),
        start=start,
        limit=limit,
    )


def blocks(group_id: int, numbers: Iterable[int], tokens: int = BLOCK) -> list[Entry]:
    """Entries of blocks that are counted from 1."""
    return [(group_id, number * tokens) for number in numbers]


def test_full_attention_ends_at_the_first_hole() -> None:
    plan = make_plan([full(0)], blocks(0, [1, 2, 3, 5]))
    assert plan == RestorePlan(start=0, boundary=48, attention=48, pending=False, ended_by=0)
    assert (plan.restored, plan.lost) == (48, 0)


def test_nothing_is_missing_if_all_that_fits_is_there() -> None:
    plan = make_plan([full(0)], blocks(0, range(1, 9)), limit=127)
    assert (plan.boundary, plan.ended_by) == (112, None)


@pytest.mark.parametrize(("tokens", "restored"), [(63, 48), (64, 48), (65, 64)])
def test_the_last_token_is_always_computed(tokens: int, restored: int) -> None:
    ready = blocks(0, range(1, 9)) + blocks(1, range(1, 9))
    assert make_plan([full(0), state(1)], ready, limit=tokens - 1).boundary == restored


def test_no_block_is_there() -> None:
    plan = make_plan([full(0), state(1)], [])
    assert plan == RestorePlan(start=0, boundary=0, attention=0, pending=False, ended_by=0)


def test_a_hybrid_ends_at_its_deepest_checkpoint() -> None:
    plan = make_plan([full(0), state(1)], blocks(0, range(1, 8)) + blocks(1, [2, 5, 8]))
    assert (plan.boundary, plan.attention, plan.ended_by) == (80, 112, 1)
    assert plan.lost == 32


def test_a_checkpoint_that_attention_does_not_reach_serves_nothing() -> None:
    plan = make_plan([full(0), state(1)], blocks(0, [1, 2, 3, 5, 6]) + blocks(1, [2, 5]))
    assert (plan.boundary, plan.attention) == (32, 48)


def test_a_hybrid_that_attention_ends_names_the_attention_group() -> None:
    plan = make_plan([full(0), state(1)], blocks(0, [1, 2, 3]) + blocks(1, [3, 8]))
    assert (plan.boundary, plan.lost, plan.ended_by) == (48, 0, 0)


def test_all_state_groups_must_have_the_boundary() -> None:
    ready = blocks(0, range(1, 9)) + blocks(1, [2, 4, 6, 8]) + blocks(2, [2, 4, 8])
    ready += blocks(3, [2, 4, 6])
    plan = make_plan([full(0), state(1), state(2), state(3)], ready)
    assert (plan.boundary, plan.ended_by) == (64, 3)


def test_a_window_needs_its_trailing_blocks_only() -> None:
    plan = make_plan([full(0), window(1, 2)], blocks(0, range(1, 7)) + blocks(1, [5, 6]))
    assert (plan.boundary, plan.ended_by) == (96, 0)


def test_a_window_with_a_gap_falls_back_to_before_it() -> None:
    plan = make_plan([full(0), window(1, 3)], blocks(0, range(1, 9)) + blocks(1, [2, 3, 4, 6, 7]))
    assert (plan.boundary, plan.lost, plan.ended_by) == (64, 64, 1)


def test_a_window_is_clipped_at_the_start_of_the_prompt() -> None:
    plan = make_plan([full(0), window(1, 4)], blocks(0, [1, 2]) + blocks(1, [1, 2]))
    assert plan.boundary == 32


def test_a_window_is_clipped_at_what_the_device_has() -> None:
    ready = blocks(0, [3, 4]) + blocks(1, [3, 4])
    assert make_plan([full(0), window(1, 4)], ready, start=32).boundary == 64


def test_several_windows_have_to_agree() -> None:
    ready = blocks(0, range(1, 9)) + blocks(1, [1, 2, 3, 5, 6, 8]) + blocks(2, [1, 2, 3, 4, 6, 7])
    plan = make_plan([full(0), window(1, 2), window(2, 1)], ready)
    assert plan.boundary == 96
    assert make_plan([full(0), window(1, 2), window(2, 2)], ready).boundary == 48


def test_windows_only() -> None:
    plan = make_plan([window(0, 2)], blocks(0, [1, 2, 4, 5]), limit=127)
    assert (plan.boundary, plan.attention, plan.ended_by) == (80, 80, 0)


def test_windows_end_at_a_whole_hash() -> None:
    assert make_plan([window(0, 1)], blocks(0, range(1, 9)), limit=127).boundary == 112


def test_full_and_window_groups_with_different_chunks() -> None:
    groups = [full(0, 16), full(1, 48), window(2, 1, 32)]
    ready = blocks(0, range(1, 9)) + blocks(1, [1, 2], 48) + blocks(2, [2, 3], 32)
    assert make_plan(groups, ready).boundary == 96
    assert make_plan(groups, [entry for entry in ready if entry != (2, 96)]).boundary == 48


def test_a_boundary_that_only_chunk_sizes_move_blames_no_window() -> None:
    groups = [full(0, 16), full(1, 32)]
    plan = make_plan(groups, blocks(0, [1, 2, 3]) + blocks(1, [1, 2], 32), tokens=64)
    assert (plan.boundary, plan.attention, plan.ended_by) == (32, 48, 0)


def test_the_full_group_with_the_least_is_named() -> None:
    plan = make_plan([full(0), full(1)], blocks(0, [1, 2, 3]) + blocks(1, [1]))
    assert (plan.boundary, plan.ended_by) == (16, 1)


def test_a_draft_group_does_not_serve_its_last_block() -> None:
    ready = blocks(0, range(1, 7)) + blocks(1, range(1, 6))
    assert make_plan([full(0), full(1, draft=True)], ready).boundary == 64


def test_a_draft_group_is_looked_up_beyond_the_limit() -> None:
    ready = blocks(0, range(1, 7)) + blocks(1, range(1, 6))
    plan = make_plan([full(0), full(1, draft=True)], ready, limit=64)
    assert (plan.boundary, plan.ended_by) == (64, None)


def test_with_a_draft_group_a_hybrid_loses_one_block() -> None:
    """C13: a hit with speculative decoding equals one without, less one chunk."""
    ready = [*blocks(0, range(1, 7)), *blocks(1, range(1, 7)), *blocks(2, range(1, 9))]
    plain = make_plan([full(0), full(1), state(2)], ready)
    draft = make_plan([full(0), full(1, draft=True), state(2)], ready)
    assert draft.boundary == plain.boundary - BLOCK == 80


def test_what_the_device_has_is_not_looked_up() -> None:
    plan = make_plan([full(0), state(1)], blocks(0, [4, 5, 6]) + blocks(1, [2, 6]), start=48)
    assert (plan.boundary, plan.restored) == (96, 48)


def test_a_checkpoint_on_the_device_restores_nothing() -> None:
    plan = make_plan([full(0), state(1)], blocks(0, range(1, 9)) + blocks(1, [3]), start=48)
    assert (plan.boundary, plan.restored, plan.ended_by) == (48, 0, 1)
    assert plan.lost == 80


def test_the_block_in_which_the_device_stops_is_needed() -> None:
    assert make_plan([full(0)], blocks(0, [2, 3]), start=20).boundary == 48
    assert make_plan([full(0)], blocks(0, [3]), start=20).boundary == 20


def test_a_state_inside_a_block_needs_that_partial_block() -> None:
    groups = [full(0), state(1, 4)]
    ready = [*blocks(0, [1, 2]), (1, 32), (1, 40)]
    assert make_plan(groups, ready, per_hash=4).boundary == 32
    plan = make_plan(groups, [*ready, (0, 40)], per_hash=4)
    assert (plan.boundary, plan.attention, plan.lost) == (40, 40, 0)


@pytest.mark.parametrize("entry", [(0, 16), (0, 48), (1, 48), (2, 48)])
def test_a_needed_block_that_is_being_written_is_pending(entry: Entry) -> None:
    groups = [full(0), window(1, 1), state(2)]
    ready = {*blocks(0, [1, 2, 3]), *blocks(1, [3]), *blocks(2, [3])} - {entry}
    plan = make_plan(groups, ready, storing=[entry])
    assert (plan.boundary, plan.pending) == (48, True)


@pytest.mark.parametrize("entry", [(0, 64), (1, 16), (2, 32)])
def test_other_blocks_that_are_being_written_do_not_matter(entry: Entry) -> None:
    groups = [full(0), window(1, 1), state(2)]
    ready = [*blocks(0, [1, 2, 3]), *blocks(1, [3]), *blocks(2, [3])]
    plan = make_plan(groups, ready, storing=[entry])
    assert (plan.boundary, plan.pending) == (48, False)


def test_a_partial_block_that_is_being_written_is_pending() -> None:
    ready = [*blocks(0, [1, 2]), (1, 40)]
    assert make_plan([full(0), state(1, 4)], ready, storing=[(0, 40)], per_hash=4).pending


def test_a_window_is_to_blame_where_all_other_groups_could_end() -> None:
    groups = [full(0, 2 * BLOCK), full(1, 3 * BLOCK), window(2, 1)]
    ready = [*blocks(0, [1, 2, 3, 4], 2 * BLOCK), *blocks(1, [1, 2], 3 * BLOCK)]
    plan = make_plan(groups, [*ready, *blocks(2, [1, 2, 3, 4, 5, 7, 8])])
    assert (plan.boundary, plan.ended_by) == (0, 2)


# --- any mixture of groups, against the definition

PER_HASH, TOKENS = 4, 48


def needed(
    groups: Sequence[GroupSpec], start: int, boundary: int, *, states: bool
) -> Iterator[Entry | None]:
    """What has to be there for ``boundary``; None stands for what can never be."""
    for g in groups:
        step = g.tokens_per_chunk
        first = start // step * step + step
        if g.kind is GroupKind.STATE:
            ends = [boundary]
        elif g.kind is GroupKind.FULL:
            if boundary % step:
                yield (g.group_id, boundary) if states else None
            ends = list(range(first, boundary + step * g.draft + 1, step))
        else:
            assert g.window_chunks is not None
            last = -(-boundary // step) * step
            ends = [last - i * step for i in range(g.window_chunks) if last - i * step >= first]
        yield from ((g.group_id, end) for end in ends)


def deepest(
    groups: Sequence[GroupSpec], present: set[Entry], start: int, limit: int
) -> tuple[int, list[Entry | None]]:
    states = any(g.kind is GroupKind.STATE for g in groups)
    for boundary in range(limit // PER_HASH * PER_HASH, start, -PER_HASH):
        entries = list(needed(groups, start, boundary, states=states))
        if present.issuperset(entries):
            return boundary, entries
    return start, []


@st.composite
def some_groups(draw: st.DrawFn) -> list[GroupSpec]:
    kinds = draw(st.lists(st.sampled_from(GroupKind), min_size=1, max_size=4))
    chunks = st.sampled_from([4, 8, 12, 16])
    groups = []
    for group_id, kind in enumerate(kinds):
        if kind is GroupKind.FULL:
            groups.append(full(group_id, draw(chunks), draft=draw(st.booleans())))
        elif kind is GroupKind.WINDOW:
            groups.append(window(group_id, draw(st.integers(1, 3)), draw(chunks)))
        else:
            groups.append(state(group_id, 4))
    return groups


entries = st.sets(
    st.tuples(st.integers(0, 3), st.integers(1, TOKENS // PER_HASH).map(PER_HASH.__mul__)),
    max_size=10,
)


@given(some_groups(), entries, entries, st.integers(0, TOKENS), st.integers(0, TOKENS))
def test_any_mixture_is_restored_to_the_deepest_boundary(
    groups: list[GroupSpec], missing: set[Entry], storing: set[Entry], start: int, limit: int
) -> None:
    start = min(start, limit)
    everything = {
        (g.group_id, end) for g in groups for end in range(PER_HASH, TOKENS + 1, PER_HASH)
    }
    present = everything - missing
    storing &= present
    plan = make_plan(
        groups,
        present - storing,
        storing=storing,
        tokens=TOKENS,
        per_hash=PER_HASH,
        start=start,
        limit=limit,
    )
    boundary, used = deepest(groups, present, start, limit)
    assert plan.boundary == boundary
    assert plan.pending == any(entry in storing for entry in used)
    hashes = chain("a", TOKENS // PER_HASH)
    needed = Planner(groups).needed(Lineage(hashes, PER_HASH), plan)
    found = [(key_group(k), (hashes.index(key_hash(k)) + 1) * PER_HASH) for k in needed]
    assert len(found) == len(set(found))
    assert set(found) == set(used) - {None}
    assert all(a < b for a, b in pairwise(found) if a[0] == b[0])
    assert plan.lost >= 0
    if boundary < deepest(groups, everything, start, limit)[0]:
        assert plan.ended_by in {group_id for group_id, _ in missing}
