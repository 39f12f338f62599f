# SPDX-License-Identifier: Apache-2.0
"""Belady on states: against every choice of states there is, and beside the cache that serves."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.samples import named, stream, turn
from tiercache.errors import ConfigError
from tiercache.replay import optimal
from tiercache.replay.registry import play
from tiercache.replay.report import row
from tiercache.replay.simulate import Result, Setup
from tiercache.replay.simulate import simulate as serve
from tiercache.replay.turns import Turn
from tiercache.replay.workloads import scenario

BLOCK = 16


def setup(state_slots: int, policy: str = "optimal", state_groups: int = 1) -> Setup:
    return Setup.uniform(
        block_tokens=BLOCK,
        token_slots=512,
        state_slots=state_slots,
        state_groups=state_groups,
        policy=policy,
    )


def simulate(turns: Sequence[Turn], state_slots: int) -> Result:
    return optimal.simulate(stream(turns, BLOCK), setup(state_slots))


def prompt(name: str, blocks: int, after: Sequence[bytes] = ()) -> Turn:
    return turn(named(name, blocks, after=after), blocks * BLOCK + 1)


def test_what_is_needed_last_goes_first() -> None:
    a, b, c = (prompt(name, 4) for name in "abc")
    played = [a, b, c, b, a, c]
    assert simulate(played, 1).tally.restored_tokens == 4 * BLOCK
    assert simulate(played, 2).tally.restored_tokens == 2 * 4 * BLOCK
    assert simulate(played, 3).tally.restored_tokens == 3 * 4 * BLOCK


def test_what_is_evicted_was_of_no_more_use_or_had_to_go() -> None:
    a, b = (prompt(name, 4) for name in "ab")
    result = simulate([a, b, a, b], 1)
    assert (result.evicted_live, result.demotions) == (1, 0)
    # The others were of no more use: the states a block earlier, and in the end the last ones.
    assert result.evicted_demoted == 4


def test_it_is_played_like_any_other_policy() -> None:
    published = scenario("idle-conversation", block_tokens=1_632)
    slots = {"block_tokens": 1_632, "token_slots": 2_255, "state_groups": 7}
    seen: list[Turn] = []
    result = play(
        published, Setup.uniform(**slots, state_slots=4, policy="optimal"), progress=seen.append
    )
    assert len(seen) == result.tally.requests == 123
    assert row(result)["idle_restored_tokens"] == 504_288
    assert row(result)["policy"] == "optimal"


@pytest.mark.parametrize(("state_slots", "state_groups"), [(0, 1), (2, 0)])
def test_a_cache_without_states_is_refused(state_slots: int, state_groups: int) -> None:
    without = setup(state_slots, state_groups=state_groups)
    with pytest.raises(ConfigError, match="policy"):
        optimal.simulate(stream([], BLOCK), without)


def test_a_stream_of_other_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="block_tokens"):
        optimal.simulate(stream([], 32), setup(2))


@given(st.lists(st.sampled_from("abcd"), max_size=10), st.integers(1, 3))
def test_no_choice_of_states_restores_more(names: list[str], state_slots: int) -> None:
    """Prompts that are sent again, all of one length: a choice is a set of prompts to keep."""

    @cache
    def most(now: int, kept: frozenset[str]) -> int:
        if now == len(names):
            return 0
        name = names[now]
        sizes = range(min(state_slots, len(kept | {name})) + 1)
        choices = (frozenset(c) for size in sizes for c in combinations(kept | {name}, size))
        return (name in kept) + max(most(now + 1, choice) for choice in choices)

    played = [prompt(name, 4) for name in names]
    restored = simulate(played, state_slots).tally.restored_tokens
    assert restored == most(0, frozenset()) * 4 * BLOCK


PROMPTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 5)), max_size=9
)


def turns_of(prompts: list[tuple[str, int, int]]) -> list[Turn]:
    heads = [named("head", min(common, blocks)) for _, common, blocks in prompts]
    return [
        turn(named(f"{name}{len(head)} ", blocks, after=head), blocks * BLOCK + 1)
        for (name, _, blocks), head in zip(prompts, heads, strict=True)
    ]


@given(PROMPTS)
def test_with_room_for_all_it_restores_what_the_cache_that_serves_does(
    prompts: list[tuple[str, int, int]],
) -> None:
    turns = turns_of(prompts)
    served = serve(stream(turns, BLOCK), setup(64, "lru-plain"))
    assert simulate(turns, 64).tally == served.tally
