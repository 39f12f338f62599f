# SPDX-License-Identifier: Apache-2.0
"""What is restorable of a sequence, from where, and what is missing, over tiers."""

import pytest

from tests.core_helpers import BLOCK, FULL, STATES, chain, checkpoint, keys
from tests.tiering.rig import Rig
from tiercache.blocks import BlockHash, Lineage
from tiercache.probe.outlook import survey
from tiercache.probe.sequences import Followed
from tiercache.stats.model import Loss, Sequence, Where

MAIN = chain("a", 8)


def look(rig: Rig, hashes: list[BlockHash], *, running: int = 0) -> Sequence:
    followed = Followed(1, 0, Lineage(hashes, BLOCK))
    followed.running = running
    before = rig.cache.counts()
    found = survey(rig.cache, followed, {"": None, "evictor": 9}.get)
    assert rig.cache.counts() == before
    return found


@pytest.fixture
def rig() -> Rig:
    return Rig()


def lengths(found: Sequence) -> tuple[int, ...]:
    """In blocks: all, cached, restorable, and restorable from RAM."""
    found_tokens = (found.tokens, found.cached, found.restorable, found.restorable_ram)
    return tuple(tokens // BLOCK for tokens in found_tokens)


def test_everything_in_ram(rig: Rig) -> None:
    rig.turn(MAIN, 6, 8)
    found = look(rig, MAIN)
    assert lengths(found) == (8, 8, 8, 8)
    assert (found.live, found.demoted, found.loss) == (2, 0, None)
    assert found.where == Where.RAM_BLOCKS | Where.RAM_STATES


def test_nothing_anywhere(rig: Rig) -> None:
    found = look(rig, MAIN)
    assert lengths(found) == (8, 0, 0, 0)
    assert (found.where, found.loss) == (Where(0), None)


def test_demoted_checkpoints_are_counted_apart(rig: Rig) -> None:
    rig.turn(MAIN, 2, 3, 8)
    found = look(rig, MAIN)
    assert (found.live, found.demoted) == (1, 2)


def test_what_only_a_tier_has(rig: Rig) -> None:
    rig.stock([*keys(MAIN, FULL), *checkpoint(MAIN, 6)])
    found = look(rig, MAIN)
    assert lengths(found) == (8, 8, 6, 0)
    assert found.where == Where.TIER
    # It was never stored, as far as anybody remembers.
    assert found.loss == Loss("g1", 8 * BLOCK, None, None)


def test_states_below_for_blocks_here(rig: Rig) -> None:
    rig.turn(MAIN)
    rig.stock(checkpoint(MAIN, 8))
    found = look(rig, MAIN)
    assert lengths(found) == (8, 8, 8, 0)
    assert found.where == Where.RAM_BLOCKS | Where.TIER


def test_what_never_fits_into_ram_at_once_cannot_be_served() -> None:
    rig = Rig(full_slots=4)
    rig.stock([*keys(MAIN, FULL), *checkpoint(MAIN, 4), *checkpoint(MAIN, 8)])
    assert lengths(look(rig, MAIN)) == (8, 8, 4, 0)


def test_who_evicted_what_is_missing() -> None:
    rig = Rig(other_slots=2, spills=())
    rig.turn(MAIN, 8)
    rig.clock.now = 1234.0
    for name in "bc":
        request = rig.open(chain(name, 4), name="evictor")
        rig.store(request, [*keys(chain(name, 4), FULL), *checkpoint(chain(name, 4), 4)])
    found = look(rig, MAIN)
    assert lengths(found) == (8, 8, 0, 0)
    assert found.loss == Loss("g1", 8 * BLOCK, 1234.0, 9)
    assert found.stranded == 8 * BLOCK


def test_attention_that_went_from_the_end() -> None:
    rig = Rig(full_slots=10, spills=())
    rig.turn(MAIN, 2, 8)
    other = chain("b", 6)
    request = rig.open(other, name="evictor")
    rig.store(request, keys(other, FULL))
    found = look(rig, MAIN)
    assert lengths(found) == (8, 4, 2, 2)
    assert found.loss is not None
    assert (found.loss.group, found.loss.by) == ("g1", None)


def test_what_did_not_verify(rig: Rig) -> None:
    rig.stock([*keys(MAIN, FULL), *checkpoint(MAIN, 8)])
    request = rig.open(MAIN)
    rig.wants(request)
    [state] = keys([MAIN[7]], STATES[0])
    rig.end(failed=lambda key: key == state)
    rig.settle()
    loss = look(rig, MAIN).loss
    assert loss is not None
    assert (loss.group, loss.tokens, loss.by, loss.unreadable) == ("g1", 8 * BLOCK, None, True)


def test_what_a_running_request_has_not_stored_yet_is_not_lost(rig: Rig) -> None:
    request = rig.open(MAIN)
    rig.store(request, keys(MAIN, FULL))
    found = look(rig, MAIN, running=1)
    assert (found.where, found.loss) == (Where.RAM_BLOCKS | Where.RUNNING, None)
    assert look(rig, MAIN).loss == Loss("g1", 8 * BLOCK, None, None)
