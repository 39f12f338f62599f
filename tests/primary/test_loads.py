# SPDX-License-Identifier: Apache-2.0
"""What is pinned for loads, and a restore that ends inside a block."""

from collections.abc import Callable, Collection

import pytest

from tests.core_helpers import (
    BLOCK,
    FULL,
    STATES,
    chain,
    checkpoint,
    full,
    keys,
    state,
    store,
    turn,
    victims,
)
from tiercache.blocks import Key
from tiercache.primary import PrimaryTier

MAIN = chain("a", 8)
NEEDED = [*keys(MAIN, FULL), *checkpoint(MAIN, 8)]


def pinned(tier: PrimaryTier) -> int:
    return sum(counts.pinned for counts in tier.counts().values())


@pytest.fixture
def filled(tier: PrimaryTier) -> PrimaryTier:
    turn(tier, MAIN, 8)
    return tier


@pytest.mark.parametrize("as_given", [set, frozenset, list])
def test_a_load_ends_with_its_keys(
    filled: PrimaryTier, as_given: Callable[[list[Key]], Collection[Key]]
) -> None:
    request = filled.open("", MAIN)
    filled.pin(request, NEEDED)
    assert pinned(filled) == len(NEEDED)
    filled.release(request, as_given(NEEDED))
    assert pinned(filled) == 0
    assert victims(filled, FULL) == MAIN[::-1]


def test_each_load_is_ended_once(filled: PrimaryTier) -> None:
    one, two = filled.open("1", MAIN), filled.open("2", MAIN)
    filled.pin(one, NEEDED)
    filled.pin(two, NEEDED)
    filled.release(one, set(NEEDED))
    assert pinned(filled) == len(NEEDED)
    filled.release(two, set(NEEDED))
    assert pinned(filled) == 0
    filled.release(two, set(NEEDED))


def test_two_loads_of_a_request_end_in_any_order(filled: PrimaryTier) -> None:
    request = filled.open("", MAIN)
    filled.pin(request, NEEDED[:4])
    filled.pin(request, NEEDED[4:])
    filled.release(request, set(NEEDED[4:]))
    assert pinned(filled) == 4
    filled.release(request, set(NEEDED[:4]))
    assert pinned(filled) == 0


def test_a_load_that_ends_in_parts_is_unpinned_in_parts(filled: PrimaryTier) -> None:
    request = filled.open("", MAIN)
    filled.pin(request, NEEDED)
    filled.release(request, set(NEEDED[:3]))
    assert pinned(filled) == len(NEEDED) - 3
    filled.release(request, set(NEEDED[3:]))
    assert pinned(filled) == 0


def test_other_keys_do_not_end_a_load_of_as_many(filled: PrimaryTier) -> None:
    request = filled.open("", MAIN)
    filled.pin(request, NEEDED[:4])
    filled.release(request, set(NEEDED[4:8]))
    assert pinned(filled) == 4


def test_a_load_of_before_a_reset_unpins_nothing_of_after_it(filled: PrimaryTier) -> None:
    old, new = filled.open("old", MAIN), filled.open("new", MAIN)
    filled.pin(old, NEEDED)
    filled.reset()
    other = chain("x", 8)
    store(filled, new, keys(other, FULL))
    filled.pin(new, keys(other, FULL))
    filled.release(old, set(NEEDED))
    assert pinned(filled) == 8


def test_a_state_may_lie_inside_a_block() -> None:
    """The tail of a prompt: with it a block that is not whole, by the name of the same hash."""
    group, hashes = STATES[0], chain("a", 7)
    tier = PrimaryTier(
        [full(FULL, 4 * BLOCK), state(group, 4 * BLOCK)], {FULL: 4, group: 4}, tokens_per_hash=BLOCK
    )
    request = tier.open("", hashes)
    store(tier, request, [*keys([hashes[3], hashes[6]], FULL), *keys([hashes[6]], group)])
    plan = tier.plan(request, start=0, limit=7 * BLOCK)
    assert plan.boundary == 7 * BLOCK
