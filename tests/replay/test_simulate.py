# SPDX-License-Identifier: Apache-2.0
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core_helpers import full, keys, state, window
from tests.replay.samples import named, stream, turn
from tiercache.blocks import make_key
from tiercache.errors import ConfigError
from tiercache.replay.simulate import STEP_TOKENS, Player, Setup, simulate
from tiercache.replay.turns import Turn
from tiercache.replay.workloads import FIRST_PROMPTS, scenario

BLOCK = 16
FULL, STATE = 0, 1
#: The published geometry.
PUBLISHED: dict[str, int] = {
    "block_tokens": 1_632,
    "token_slots": 2_255,
    "state_slots": 30,
    "state_groups": 7,
}


def player(token_slots: int = 64, state_slots: int = 8, **options: Any) -> Player:
    setup = Setup.uniform(
        block_tokens=BLOCK, token_slots=token_slots, state_slots=state_slots, **options
    )
    return Player(setup)


def stored(player: Player, hashes: Sequence[bytes], group_id: int) -> list[int]:
    """After how many blocks there is an entry of a group."""
    pool = player.cache.primary.pools[group_id]
    return [i for i, h in enumerate(hashes, 1) if make_key(h, group_id) in pool.ready]


@pytest.mark.parametrize(("policy", "idle"), [("lru-plain", 0), ("lru", 504_288)])
def test_the_published_scenario(policy: str, idle: int) -> None:
    played = scenario("idle-conversation", block_tokens=1_632)
    result = simulate(played, Setup.uniform(**PUBLISHED, policy=policy))
    assert result.idle_restored_tokens == idle
    assert result.tally.requests == played.turns == 123
    # All turns but the first of each conversation, but for what is less than two blocks.
    prompts = [t.input_tokens for t in played if t.input_tokens not in FIRST_PROMPTS.values()]
    lost = sum(prompts[:-1]) - (result.tally.restored_tokens - idle)
    assert lost / len(prompts) < 2 * 1_632 + 3_800


def test_a_prompt_leaves_its_blocks_and_two_states() -> None:
    hashes = named("a", 5)
    it = player()
    assert it.play(turn(hashes, 5 * BLOCK + 3)) == 0
    assert stored(it, hashes, FULL) == [1, 2, 3, 4, 5]
    assert stored(it, hashes, STATE) == [4, 5]
    it.cache.validate()


def test_a_prompt_that_ends_with_a_block_can_be_sent_again() -> None:
    hashes = named("a", 5)
    it = player()
    it.play(turn(hashes, 5 * BLOCK))
    assert stored(it, hashes, STATE) == [3, 4]
    assert it.play(turn(hashes, 5 * BLOCK)) == 4 * BLOCK


def test_states_that_were_not_computed_are_not_stored() -> None:
    hashes = named("a", 6)
    it = player(state_slots=2)
    it.play(turn(hashes[:5], 5 * BLOCK + 1))
    it.play(turn(named("b", 1), BLOCK + 1))
    assert stored(it, hashes, STATE) == [5]
    # Restored up to block 5, the engine never comes by block 4 again.
    assert it.play(turn(hashes[:5], 5 * BLOCK + 9)) == 5 * BLOCK
    assert stored(it, hashes, STATE) == [5]


def test_a_state_is_kept_where_another_conversation_branches_off() -> None:
    one, other, third = (named(name, 8, after=named("head", 3)) for name in "abc")
    it = player()
    it.play(turn(one, 8 * BLOCK + 1))
    assert it.play(turn(other, 8 * BLOCK + 1)) == 0
    assert stored(it, other, STATE) == [3, 7, 8]
    assert it.play(turn(third, 8 * BLOCK + 1)) == 3 * BLOCK
    assert it.tally.stranded_tokens == 3 * BLOCK


def test_a_prompt_too_big_for_the_cache_leaves_its_beginning() -> None:
    step = STEP_TOKENS // BLOCK
    hashes = named("a", 3 * step)
    it = player(token_slots=3 * step - 100)
    it.play(turn(hashes, 3 * STEP_TOKENS))
    found = stored(it, hashes, FULL)
    assert found[: 2 * step] == list(range(1, 2 * step + 1))
    assert 2 * step + 1 not in found
    assert it.play(turn(hashes, 3 * STEP_TOKENS)) == 0
    it.cache.validate()


@pytest.mark.parametrize("tokens", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_short_prompts(tokens: int) -> None:
    hashes = named("a", tokens // BLOCK)
    it = player()
    assert [it.play(turn(hashes, tokens)) for _ in range(2)] == [0, (tokens - 1) // BLOCK * BLOCK]
    assert it.tally.prompt_tokens == 2 * tokens
    it.cache.validate()


def test_blocks_that_the_trace_does_not_name_are_not_stored() -> None:
    hashes = named("a", 3)
    it = player()
    it.play(turn(hashes, 10 * BLOCK))
    assert stored(it, hashes, STATE) == [2, 3]
    assert it.play(turn(hashes, 10 * BLOCK)) == 3 * BLOCK


@pytest.mark.parametrize("policy", ["lru", "lru-plain", "arc", "cost"])
def test_attention_alone(policy: str) -> None:
    hashes = named("a", 4)
    it = player(state_groups=0, policy=policy)
    it.play(turn(hashes, 4 * BLOCK + 1))
    assert it.play(turn(named("b", 4, after=hashes[:2]), 4 * BLOCK + 1)) == 2 * BLOCK
    it.cache.validate()


def test_groups_with_blocks_of_several_sizes() -> None:
    groups = [full(0, 8), window(1, 2, 16), state(2, 32)]
    setup = Setup(groups, {0: 64, 1: 64, 2: 8})
    assert setup.block_tokens == 8
    assert (setup.token_slots, setup.state_slots) == (64, 8)
    hashes = named("a", 13)
    it = Player(setup)
    it.play(turn(hashes, 13 * 8))
    assert stored(it, hashes, 0) == list(range(1, 14))
    assert stored(it, hashes, 1) == [2, 4, 6, 8, 10, 12]
    assert stored(it, hashes, 2) == [8, 12]
    assert it.play(turn(hashes, 13 * 8)) == 96
    it.cache.validate()


@pytest.mark.parametrize(
    "groups", [[state(0, 16), state(1, 32)], [full(0, 24), state(1, 32)], [full(0, 16, draft=True)]]
)
def test_groups_whose_engine_is_not_played_are_refused(groups: Any) -> None:
    with pytest.raises(ConfigError, match="groups"):
        Setup(groups, {0: 4, 1: 4})


def test_a_stream_of_other_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="block_tokens"):
        simulate(stream([], 32), Setup.uniform(block_tokens=16, token_slots=4, state_slots=4))


def test_a_policy_that_does_not_exist_is_refused() -> None:
    setup = Setup.uniform(block_tokens=16, token_slots=4, state_slots=4, policy="fifo")
    with pytest.raises(ConfigError, match="eviction_policy"):
        simulate(stream([], 16), setup)


def test_options_reach_the_cache() -> None:
    hashes = named("a", 4)
    played = stream([turn(hashes, 65), turn(hashes, 65)], 16)
    setup = Setup.uniform(block_tokens=16, token_slots=8, state_slots=4, store_threshold=2)
    assert simulate(played, setup).tally.restored_tokens == 0


def test_what_is_counted() -> None:
    one, other = named("a", 4), named("b", 4)
    turns = [turn(one, 65, of="a"), turn(other, 65, of="b"), turn(one, 65, of="a")]
    setup = Setup.uniform(block_tokens=16, token_slots=8, state_slots=2, policy="lru-plain")
    seen: list[Turn] = []
    result = simulate(stream(turns, 16, idle="b"), setup, progress=seen.append)
    assert seen == turns
    assert result.tally.requests == 3
    assert result.tally.prompt_tokens == 195
    assert result.tally.restored_tokens == result.restored_share == 0
    # The blocks of one conversation survived the other's, its states did not.
    assert result.tally.stranded_tokens == 64
    assert (result.evicted_live, result.evicted_demoted, result.demotions) == (4, 0, 0)
    assert result.idle_restored_tokens == 0
    assert result.seconds > 0
    assert simulate(stream(turns, 16), setup).idle_restored_tokens is None


def test_evictions_are_dated_by_the_trace() -> None:
    it = player(state_slots=2)
    it.play(turn(named("a", 4), 65, time=100.0))
    it.play(turn(named("b", 4), 65, time=250.0))
    [key] = keys([named("a", 4)[3]], STATE)
    fate = it.cache.journal.fate(key)
    assert fate is not None
    assert fate.when == 250.0


PROMPTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(1, 130)), max_size=40
)


@given(PROMPTS, st.integers(2, 6))
def test_plain_lru_restores_what_a_plain_lru_of_states_would(
    prompts: list[tuple[str, int, int]], state_slots: int
) -> None:
    """With room for all attention blocks, against a model that knows states only."""
    it = player(token_slots=512, state_slots=state_slots, policy="lru-plain")
    known: set[bytes] = set()
    states: OrderedDict[bytes, None] = OrderedDict()
    for name, common, tokens in prompts:
        head = named("head", min(common, tokens // BLOCK))
        hashes = named(f"{name}{len(head)} ", tokens // BLOCK, after=head)
        last = (tokens - 1) // BLOCK
        reach = next((i for i, h in enumerate(hashes[:last]) if h not in known), last)
        restored = next((i for i in range(reach, 0, -1) if hashes[i - 1] in states), 0)
        assert it.play(turn(hashes, tokens)) == restored * BLOCK
        known.update(hashes)
        if restored:
            states.move_to_end(hashes[restored - 1])
        for blocks in sorted({reach if restored < reach else last, last - 1, last}):
            if blocks > 0 and blocks >= restored:
                states[hashes[blocks - 1]] = None
                states.move_to_end(hashes[blocks - 1])
                if len(states) > state_slots:
                    states.popitem(last=False)
    it.cache.validate()
