# SPDX-License-Identifier: Apache-2.0
"""The eviction order of one group, on the pools that serve."""

from collections.abc import Mapping, Sequence

from tests.core_helpers import (
    BLOCK,
    FULL,
    STATES,
    chain,
    checkpoint,
    full,
    keys,
    store,
    turn,
    window,
)
from tiercache.blocks import BlockHash, GroupKind, Lineage
from tiercache.primary import PrimaryTier
from tiercache.probe.sequences import Followed
from tiercache.probe.victims import SEARCHES, Surroundings, victims
from tiercache.stats import model
from tiercache.stats.model import SlotClass, Victim, Where

STATE = STATES[0]
MAIN = chain("a", 8)


def followed(
    hashes: Sequence[BlockHash], *, number: int = 5, cached: int, restorable: int
) -> Followed:
    """A sequence of which ``cached`` and ``restorable`` blocks were found."""
    made = Followed(number, 0, Lineage(hashes, BLOCK))
    made.last_used = 7.0
    made.shown = model.Sequence(
        number,
        1,
        7.0,
        len(hashes) * BLOCK,
        cached * BLOCK,
        restorable * BLOCK,
        restorable * BLOCK,
        1,
        0,
        Where.RAM_BLOCKS,
    )
    made.boundaries = [restorable * BLOCK]
    return made


def look(
    tier: PrimaryTier,
    group_id: int,
    owner: Followed | None,
    *,
    below: Mapping[bytes, str] | None = None,
) -> list[Victim]:
    around = Surroundings(
        tier.tree,
        BLOCK,
        lambda _, slot: owner,
        (below or {}).get,
        any(pool.spec.kind is GroupKind.STATE for pool in tier.pools.values()),
    )
    return victims(tier.pools[group_id], around)


def test_the_order_is_that_of_the_policy_and_pinned_ones_come_last(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 2, 8)
    turn(tier, chain("b", 4), 4)
    request = tier.open("c", MAIN)
    tier.pin(request, checkpoint(MAIN, 8))
    found = look(tier, STATE, None)
    pool = tier.pools[STATE]
    expected = [*pool.next_victims(64).keys, *keys([MAIN[7]], STATE)]
    assert [victim.slot for victim in found] == [pool.ready[key] for key in expected]
    assert [v.slot_class for v in found] == [SlotClass.DEMOTED, SlotClass.LIVE, SlotClass.PINNED]
    assert [v.tokens for v in found] == [2 * BLOCK, 4 * BLOCK, 8 * BLOCK]
    assert {victim.group for victim in found} == {f"g{STATE}"}
    tier.unpin(checkpoint(MAIN, 8))


def test_a_state_that_nothing_replaces_takes_all_with_it(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 8)
    [victim] = look(tier, STATE, followed(MAIN, cached=8, restorable=8))
    assert (victim.sequence, victim.last_used, victim.lost) == (5, 7.0, 8 * BLOCK)


def test_an_earlier_state_saves_what_comes_before_it(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 6, 8)  # near enough to be kept
    losses = {victim.tokens: victim.lost for victim in look(tier, STATE, None)}
    # With the first one nothing is lost, as long as the second one is there.
    assert losses == {6 * BLOCK: 0, 8 * BLOCK: 2 * BLOCK}


def test_a_demoted_state_saves_nothing_and_is_no_loss(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 2, 8)
    losses = {victim.tokens: victim.lost for victim in look(tier, STATE, None)}
    assert losses == {2 * BLOCK: 0, 8 * BLOCK: 8 * BLOCK}


def test_the_state_that_several_share_is_no_loss_to_them(tier: PrimaryTier) -> None:
    turn(tier, MAIN[:4], 4)
    for name in "bc":
        turn(tier, chain(name, 8, after=MAIN[:4]), 8)
    losses = sorted((victim.tokens or 0, victim.lost) for victim in look(tier, STATE, None))
    assert losses == [(4 * BLOCK, 0), (8 * BLOCK, 4 * BLOCK), (8 * BLOCK, 4 * BLOCK)]


def test_a_broken_checkpoint_has_no_place_and_is_no_loss(tier: PrimaryTier) -> None:
    request = tier.open("a", MAIN)
    store(tier, request, keys([MAIN[7]], STATE))
    [victim] = look(tier, STATE, followed(MAIN, cached=8, restorable=0))
    assert (victim.tokens, victim.lost) == (None, 0)


def test_the_tier_that_has_a_copy(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 8)
    [state] = keys([MAIN[7]], STATE)
    [victim] = look(tier, STATE, None, below={state: "nvme0"})
    assert (victim.below, victim.lost) == ("nvme0", 8 * BLOCK)


def test_blocks_before_a_checkpoint_take_it_with_them(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 2, 6)
    owner = followed(MAIN, cached=8, restorable=6)
    owner.boundaries = [6 * BLOCK, 2 * BLOCK]
    found = look(tier, FULL, owner)
    assert [victim.tokens for victim in found] == [n * BLOCK for n in range(8, 0, -1)]
    # Nothing ends behind 6; from 2 on there is the other checkpoint to go back to.
    assert [victim.lost for victim in found] == [n * BLOCK for n in (0, 0, 4, 4, 4, 4, 6, 6)]


def test_without_states_what_comes_behind_a_block_goes_with_it() -> None:
    tier = PrimaryTier([full(FULL)], {FULL: 8}, tokens_per_hash=BLOCK)
    request = tier.open("a", MAIN)
    store(tier, request, keys(MAIN, FULL))
    tier.finish(request)
    found = look(tier, FULL, followed(MAIN, cached=8, restorable=8))
    assert [victim.lost for victim in found] == [n * BLOCK for n in range(1, 9)]


def test_blocks_that_the_window_has_left_are_no_loss() -> None:
    tier = PrimaryTier([full(FULL), window(STATE, 2)], {FULL: 8, STATE: 8}, tokens_per_hash=BLOCK)
    request = tier.open("a", MAIN)
    store(tier, request, keys(MAIN, FULL, STATE))
    tier.finish(request)
    found = look(tier, STATE, followed(MAIN, cached=8, restorable=8))
    lost = {victim.tokens: victim.lost for victim in found}
    assert lost == {n * BLOCK: 0 for n in range(1, 7)} | {7 * BLOCK: 2 * BLOCK, 8 * BLOCK: BLOCK}


def test_who_is_not_known_loses_nothing_that_can_be_told(tier: PrimaryTier) -> None:
    turn(tier, MAIN, 8)
    assert {(v.sequence, v.tokens, v.lost) for v in look(tier, FULL, None)} == {(None, None, 0)}


def test_blocks_in_no_order_are_looked_for_a_few_times_only(tier: PrimaryTier) -> None:
    mixed = [MAIN[i] for i in (0, 3, 6, 1, 4, 7, 2, 5)]
    request = tier.open("a", mixed)
    store(tier, request, keys(mixed, FULL))
    found = look(tier, FULL, followed(MAIN, cached=0, restorable=0))
    assert sum(victim.tokens is not None for victim in found) >= SEARCHES
    known = {v.slot: v.tokens for v in found if v.tokens is not None}
    assert all(MAIN.index(mixed[slot]) == tokens // BLOCK - 1 for slot, tokens in known.items())


def test_a_block_of_another_prompt_is_not_found(tier: PrimaryTier) -> None:
    turn(tier, MAIN)
    found = look(tier, FULL, followed(chain("b", 8), cached=8, restorable=8))
    assert {victim.tokens for victim in found} == {None}
