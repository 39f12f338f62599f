# SPDX-License-Identifier: Apache-2.0
"""Demotion of superseded states: the nine rules, and the faults that others met."""

from collections.abc import Callable

import pytest

from tests.core_helpers import (
    FULL,
    STATES,
    chain,
    checkpoint,
    is_demoted,
    key,
    keys,
    load,
    reserve,
    restorable,
    store,
    turn,
    victims,
)
from tiercache.events import Event, EventKind
from tiercache.primary import PrimaryTier

MakeTier = Callable[..., PrimaryTier]

#: One conversation, and another that shares its first four blocks.
MAIN = chain("a", 16)
BRANCH = chain("b", 12, after=MAIN[:4])


def demoted(tier: PrimaryTier, hashes: list[bytes]) -> list[int]:
    """The boundaries, in blocks, whose checkpoints are demoted in every state group."""
    return [
        blocks
        for blocks in range(1, len(hashes) + 1)
        if all(is_demoted(tier, checkpoint(hashes, blocks)))
    ]


# --- rule 1: counted from the newest stored state


def test_older_states_are_demoted_when_a_request_ends(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:4], 4)
    turn(tier, MAIN[:8], 8)
    assert demoted(tier, MAIN) == [4]


@pytest.mark.parametrize(("keep_blocks", "expected"), [(1, [2, 4, 5]), (3, [2]), (4, [])])
def test_states_close_to_the_newest_are_kept(
    make_tier: MakeTier, keep_blocks: int, expected: list[int]
) -> None:
    tier = make_tier(keep_blocks=keep_blocks)
    turn(tier, MAIN[:6], 2, 4, 5, 6)
    assert [b for b in demoted(tier, MAIN) if b > 2 or expected] == expected


def test_a_long_answer_does_not_demote_the_newest_state(tier: PrimaryTier) -> None:
    hashes = MAIN[:6]
    request = tier.open("", hashes)
    store(tier, request, [*keys(hashes, FULL), *checkpoint(hashes, 2), *checkpoint(hashes, 6)])
    hashes += MAIN[6:]
    tier.finish(request)
    assert demoted(tier, MAIN) == [2]


# --- rule 2: forks are kept


def test_a_fork_is_kept(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:4], 4)
    turn(tier, MAIN[:7], 7)
    turn(tier, BRANCH[:8], 8)
    turn(tier, MAIN[:12], 12)
    assert demoted(tier, MAIN) == [7]


def test_a_fork_is_demoted_if_so_configured(make_tier: MakeTier) -> None:
    tier = make_tier(demote_forks=True)
    turn(tier, MAIN[:4], 4)
    turn(tier, MAIN[:7], 7)
    turn(tier, BRANCH[:8], 8)
    turn(tier, MAIN[:12], 12)
    assert demoted(tier, MAIN) == [4, 7]


def test_a_junction_whose_branches_came_first_is_a_fork(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:9], 9)
    turn(tier, BRANCH[:9], 9)
    third = chain("c", 8, after=MAIN[:4])
    turn(tier, third, 4, 12)
    assert demoted(tier, third) == []


def test_a_demoted_state_that_becomes_a_fork_is_live_again(tier: PrimaryTier) -> None:
    """The second conversation found its prefix on the device: nothing was loaded from here."""
    turn(tier, MAIN[:8], 4, 8)
    assert demoted(tier, MAIN) == [4]
    request = tier.open("", BRANCH)
    store(tier, request, keys(BRANCH, FULL))
    store(tier, request, checkpoint(BRANCH, 9))
    assert demoted(tier, MAIN) == []


def test_a_demoted_state_that_takes_over_a_fork_is_live_again(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=5, keep_blocks=1)
    turn(tier, MAIN[:4], 2, 4)
    turn(tier, MAIN[:8], 8)
    turn(tier, BRANCH[:8], 8)
    assert demoted(tier, MAIN) == [2]
    other = chain("x", 4)
    tier.pin(tier.open("", MAIN), checkpoint(MAIN, 2)[:1])
    tier.unpin(checkpoint(MAIN, 2)[:1])
    for pool in (tier.pools[group_id] for group_id in STATES):
        pool.policy.touch(keys([MAIN[7], BRANCH[7], MAIN[1]], pool.spec.group_id))
    turn(tier, other, 3, 4)
    assert restorable(tier, tier.open("", MAIN[:7])) == 2
    assert demoted(tier, MAIN) == []


def test_a_fork_that_lost_a_branch_can_be_superseded(make_tier: MakeTier) -> None:
    tier = make_tier(state_slots=3)
    turn(tier, BRANCH[:8], 4, 8)
    turn(tier, MAIN[:8], 8)
    turn(tier, chain("x", 4), 4)
    assert restorable(tier, tier.open("", BRANCH)) == 4
    turn(tier, MAIN[:12], 12)
    assert 4 in demoted(tier, MAIN)
