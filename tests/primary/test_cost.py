# SPDX-License-Identifier: Apache-2.0
"""What checkpoints are worth under `cost`, as the tree around them changes."""

import pytest

from tests.core_helpers import (
    BLOCK,
    FULL,
    STATES,
    MakeTier,
    chain,
    checkpoint,
    keys,
    reserve,
    store,
    turn,
    victims,
)
from tiercache.events import EventKind
from tiercache.policies.cost import Cost, checkpoint_worth
from tiercache.primary import PrimaryTier

MAIN = chain("a", 12)
BRANCH = chain("b", 8, after=MAIN[:4])
OTHER = chain("o", 6)


@pytest.fixture
def tier(make_tier: MakeTier) -> PrimaryTier:
    return make_tier(policy="cost", state_slots=4)


def worth(tier: PrimaryTier, block_hash: bytes) -> float:
    """What all states of a checkpoint are worth, which is the same."""
    found = []
    for state in keys([block_hash], *STATES):
        pool = tier.pools[int.from_bytes(state[-4:], "big")]
        assert isinstance(pool.policy, Cost)
        found.append(pool.policy._known[pool.ready[state]].worth)
    assert len(set(found)) == 1
    return found[0]


def expected(blocks: int, children: int = 0) -> float:
    return checkpoint_worth(blocks * BLOCK, children)


def test_the_newest_is_worth_what_lies_behind_the_one_before(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:8], 5, 8)
    assert worth(tier, MAIN[4]) == expected(5, children=1)
    assert worth(tier, MAIN[7]) == expected(3)


def test_one_in_the_middle_takes_over_its_part(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 8)
    turn(tier, BRANCH, 12)
    assert worth(tier, MAIN[7]) == expected(8)
    turn(tier, MAIN[:4], 4)
    assert worth(tier, MAIN[3]) == expected(4, children=2)
    assert worth(tier, MAIN[7]) == expected(4)
    assert worth(tier, BRANCH[11]) == expected(8)


def test_one_that_goes_leaves_its_part_to_those_behind(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 2, 8, 12)
    turn(tier, OTHER, 5, 6)
    # There was room for four: the oldest of those that another continues went.
    assert tier.tree.get(MAIN[1]) is None
    assert worth(tier, MAIN[7]) == expected(8, children=1)


def test_a_long_conversation_outlasts_short_ones(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 12)
    for name in "bcdef":
        turn(tier, chain(name, 2), 2)
    assert tier.tree.get(MAIN[11]) is not None


def test_a_long_conversation_does_not_outlast_everything(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 12)
    for number in range(300):
        turn(tier, chain(f"{number} ", 2), 2)
    assert tier.tree.get(MAIN[11]) is None


def test_states_of_one_checkpoint_go_together(tier: PrimaryTier) -> None:
    for number in range(12):
        name, blocks = "abc"[number % 3], 2 + number * 5 % 7
        turn(tier, chain(name, blocks), blocks)
        held = [{k[:-4] for k in tier.pools[group].ready} for group in STATES]
        assert held[0] == held[1]
        assert victims(tier, STATES[0]) == victims(tier, STATES[1])


def test_a_state_that_no_other_group_has_goes_first(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 12)
    store(tier, tier.open("", OTHER), keys(OTHER[5:6], STATES[0]))
    turn(tier, BRANCH, 12)
    assert victims(tier, STATES[0])[0] == OTHER[5]


def test_superseded_states_are_not_demoted_but_worth_little(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 4, 12)
    assert tier.journal.total(EventKind.DEMOTED) == 0
    assert victims(tier, STATES[0]) == [MAIN[3], MAIN[11]]


def test_blocks_that_nothing_serves_are_demoted(tier: PrimaryTier) -> None:
    turn(tier, OTHER[:3], 3)
    request = tier.open("", MAIN)
    for blocks in (9, 10, 11, 12):
        reserve(tier, request, checkpoint(MAIN, blocks))
    assert tier.tree.get(OTHER[2]) is None
    stranded = keys(OTHER[:3], FULL)
    assert tier.pools[FULL].demoted(stranded) == stranded
    assert victims(tier)[:3] == OTHER[2::-1]
