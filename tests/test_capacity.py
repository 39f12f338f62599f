# SPDX-License-Identifier: Apache-2.0
"""What is worked out holds in the cache that serves."""

import pytest

from tests.core_helpers import full, state
from tests.replay.samples import named, turn
from tiercache.blocks import GroupSpec
from tiercache.capacity import Capacity, capacity
from tiercache.layout import Geometry
from tiercache.replay.simulate import Player, Setup

BLOCK = 16
TURNS = 6
#: Blocks that a turn adds.
GROWTH = 4


def geometry(
    state_slots: int, token_slots: int = 10_000, *, retention: int | None = 0, groups: int = 2
) -> Geometry:
    specs: tuple[GroupSpec, ...] = (full(0, BLOCK), *(state(i + 1, BLOCK) for i in range(groups)))
    slots = {0: token_slots} | {i + 1: state_slots for i in range(groups)}
    return Geometry(specs, slots, budget_bytes=1, retention=retention, reference_tokens=1)


def restored_after_idling(
    conversations: int, state_slots: int, token_slots: int, *, policy: str, growth: int = GROWTH
) -> bool:
    """Whether the first conversation can go on after each other one took all its turns."""
    blocks = growth * TURNS
    player = Player(
        Setup.uniform(
            block_tokens=BLOCK,
            token_slots=token_slots,
            state_slots=state_slots,
            state_groups=2,
            policy=policy,
        )
    )
    hashes = [named(f"c{number}: ", blocks + growth) for number in range(conversations)]
    for taken in range(TURNS):
        player.play(turn(hashes[0], (taken + 1) * growth * BLOCK + 1))
    for taken in range(TURNS):
        for each in hashes[1:]:
            player.play(turn(each, (taken + 1) * growth * BLOCK + 1))
    return player.play(turn(hashes[0], blocks * BLOCK + 1)) == blocks * BLOCK


@pytest.mark.parametrize("state_slots", [8, 30, 61])
@pytest.mark.parametrize("policy", ["lru", "lru-plain"])
@pytest.mark.parametrize("growth", [1, 2, 4])
def test_as_many_as_that_are_restored(state_slots: int, policy: str, growth: int) -> None:
    tokens = growth * TURNS * BLOCK
    held = capacity(geometry(state_slots), tokens, TURNS)
    count = held.demoting if policy == "lru" else held.plain
    assert restored_after_idling(count, state_slots, 10_000, policy=policy, growth=growth)


def test_without_demotion_one_more_is_too_many() -> None:
    held = capacity(geometry(30), GROWTH * TURNS * BLOCK, TURNS)
    assert held.plain < held.demoting
    assert not restored_after_idling(held.plain + 1, 30, 10_000, policy="lru-plain")


@pytest.mark.parametrize("policy", ["lru", "lru-plain"])
def test_attention_can_be_what_is_short(policy: str) -> None:
    blocks = GROWTH * TURNS
    held = capacity(geometry(1000, 5 * blocks), blocks * BLOCK, TURNS)
    assert held == Capacity(blocks * BLOCK, 5, 5, 5)
    assert restored_after_idling(5, 1000, 5 * blocks, policy=policy)
    assert not restored_after_idling(6, 1000, 5 * blocks, policy=policy)


def test_a_state_at_every_block_leaves_more_of_them() -> None:
    sparse, dense = (
        capacity(geometry(1000, 10**6, retention=retention), 100 * BLOCK, TURNS)
        for retention in (0, None)
    )
    assert dense.plain == 1 + 999 // 100
    assert sparse.plain == 1 + 999 // (2 * TURNS)
    assert sparse.demoting == dense.demoting == 1 + 997 // 3


def test_states_at_intervals() -> None:
    held = capacity(geometry(1000, retention=10 * BLOCK), 100 * BLOCK, TURNS)
    assert held.plain == 1 + 999 // (10 + 2 * TURNS)


def test_without_states_attention_decides() -> None:
    held = capacity(geometry(0, 50, groups=0), 10 * BLOCK, TURNS)
    assert held == Capacity(10 * BLOCK, 5, 5, 5)


def test_short_conversations_have_no_more_states_than_blocks() -> None:
    assert capacity(geometry(30), BLOCK, TURNS).plain == 28
