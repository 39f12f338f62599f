# SPDX-License-Identifier: Apache-2.0
"""`cost` beside the others, on workloads made here: what it restores, and how far that is off."""

from itertools import islice

import pytest

from tiercache.replay.conversations import Selection
from tiercache.replay.registry import play
from tiercache.replay.simulate import Player, Setup
from tiercache.replay.turns import Stream
from tiercache.replay.workloads import scenario

#: Room for all attention blocks, so that states decide alone.
TOKEN_SLOTS = 1 << 17


def coding(seed: int) -> Stream:
    selection = Selection(conversations=40, span=7_200.0, max_requests=20)
    return scenario("coding", block_tokens=1_600, selection=selection, seed=seed)


def chat(seed: int) -> Stream:
    turns = list(islice(scenario("chat", block_tokens=512, seed=seed), 1_500))
    return Stream("chat", 512, turns.__iter__)


def share(stream: Stream, policy: str, state_slots: int, token_slots: int = TOKEN_SLOTS) -> float:
    setup = Setup.uniform(
        block_tokens=stream.block_tokens,
        token_slots=token_slots,
        state_slots=state_slots,
        policy=policy,
    )
    return play(stream, setup).restored_share


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("state_slots", [8, 16, 30])
def test_coding(seed: int, state_slots: int) -> None:
    plain, lru, cost, optimal = (
        share(coding(seed), policy, state_slots)
        for policy in ("lru-plain", "lru", "cost", "optimal")
    )
    assert plain < cost
    assert lru < cost < optimal


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("state_slots", [50, 100, 200])
def test_chat(seed: int, state_slots: int) -> None:
    lru, cost, optimal = (
        share(chat(seed), policy, state_slots) for policy in ("lru", "cost", "optimal")
    )
    assert lru < cost < optimal


def test_an_idle_conversation_keeps_its_state() -> None:
    published = scenario("idle-conversation", block_tokens=1_632)
    setup = Setup.uniform(
        block_tokens=1_632, token_slots=2_255, state_slots=30, state_groups=7, policy="cost"
    )
    assert play(published, setup).idle_restored_tokens == 504_288


def test_state_groups_stay_in_step() -> None:
    restored = []
    for groups in (1, 3):
        setup = Setup.uniform(
            block_tokens=1_600,
            token_slots=TOKEN_SLOTS,
            state_slots=12,
            state_groups=groups,
            policy="cost",
        )
        player = Player(setup)
        restored.append([player.play(turn) for turn in islice(coding(3), 400)])
        pools = list(player.cache.primary.pools.values())[1:]
        assert len({frozenset(key[:-4] for key in pool.ready) for pool in pools}) == 1
        player.cache.validate()
    assert restored[0] == restored[1]
