# SPDX-License-Identifier: Apache-2.0
"""What is brought from secondary tiers for a request: what it needs, and nothing else."""

import pytest

from tests.core_helpers import BLOCK, FULL, STATES, checkpoint, full, keys, state, window
from tests.tiering.conftest import MakeRig
from tests.tiering.rig import Rig, conversation
from tiercache.blocks import make_key
from tiercache.events import EventKind

WINDOW, DRAFT = 3, 4


def test_the_deepest_checkpoint_is_served_with_what_it_needs(rig: Rig) -> None:
    hashes, stocked = conversation(8, 3, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    needed = [*checkpoint(hashes, 6), *keys(hashes[:6], FULL)]
    assert sorted(rig.wants(request)) == sorted(needed)
    assert rig.ask(request) is None
    rig.end()
    assert rig.ask(request) == 6
    assert rig.pins == len(needed)
    assert rig.load(request) == 6
    assert rig.pins == 0
    assert rig.cache.journal.total(EventKind.PROMOTED) == len(needed)
    assert rig.cache.journal.total(EventKind.STORED) == 0
    assert request.promoted == dict.fromkeys(needed, rig.tier.name)


def test_what_it_promoted_is_like_what_it_stored(rig: Rig) -> None:
    """The restored checkpoint is in the tree, and the next turn supersedes it."""
    hashes, stocked = conversation(10, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.end()
    assert rig.load(request) == 6
    rig.store(request, [*keys(hashes, FULL), *checkpoint(hashes, 10)])
    rig.cache.finish(request)
    assert all(rig.here(stocked))
    for group_id, one in zip(STATES, checkpoint(hashes, 6), strict=True):
        assert rig.cache.primary.pools[group_id].demoted([one]) == [one]


def test_blocks_that_no_checkpoint_serves_stay_where_they_are(rig: Rig) -> None:
    hashes, stocked = conversation(8)
    rig.stock([*stocked, *checkpoint(hashes, 5)[:1]])
    request = rig.open(hashes)
    for _ in range(3):
        assert rig.ask(request) == 0
        rig.cache.poll()
    assert rig.loading == []
    assert rig.pins == 0


def test_nothing_is_loaded_that_is_here(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    rig.turn(hashes[:4])
    wanted = rig.wants(rig.open(hashes))
    assert sorted(wanted) == sorted([*checkpoint(hashes, 6), *keys(hashes[4:6], FULL)])


@pytest.mark.parametrize("missing", [0, 2, 5])
def test_a_hole_is_filled(rig: Rig, missing: int) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    there = [key for key in stocked if key != make_key(hashes[missing], FULL)]
    rig.store(rig.open(hashes), there)
    request = rig.open(hashes)
    assert rig.wants(request) == [make_key(hashes[missing], FULL)]
    rig.end()
    assert rig.load(request) == 6


def test_one_state_of_a_checkpoint_is_enough_to_look_for(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    _, second = checkpoint(hashes, 6)
    rig.stock([second])
    rig.store(rig.open(hashes), [key for key in stocked if key != second])
    request = rig.open(hashes)
    assert rig.wants(request) == [second]
    rig.end()
    assert rig.load(request) == 6


def test_a_deeper_checkpoint_elsewhere_is_worth_it_a_shallower_one_is_not(rig: Rig) -> None:
    hashes, stocked = conversation(8, 2, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.store(request, [*keys(hashes[:4], FULL), *checkpoint(hashes, 4)])
    assert rig.ask(request, blocks=5) == 4
    assert rig.ask(request, blocks=5) == 4
    other = rig.open(hashes)
    assert sorted(rig.wants(other)) == sorted([*checkpoint(hashes, 6), *keys(hashes[4:6], FULL)])


def test_what_the_device_has_is_not_brought(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    wanted = rig.wants(request, start=4)
    assert sorted(wanted) == sorted([*checkpoint(hashes, 6), *keys(hashes[4:6], FULL)])
    rig.end()
    assert rig.load(request, start=4) == 6


def test_nothing_is_brought_beyond_the_limit(rig: Rig) -> None:
    hashes, stocked = conversation(8, 3, 8)
    rig.stock(stocked)
    wanted = rig.wants(rig.open(hashes), blocks=7)
    assert sorted(wanted) == sorted([*checkpoint(hashes, 3), *keys(hashes[:3], FULL)])


def test_with_attention_only_every_block_counts(make_rig: MakeRig) -> None:
    rig = make_rig(groups=[full(FULL)])
    hashes, stocked = conversation(8)
    rig.stock(stocked[:5] + stocked[6:])
    request = rig.open(hashes)
    assert rig.wants(request) == stocked[:5]
    rig.end()
    assert rig.load(request) == 5


def test_of_a_sliding_window_only_the_end_is_brought(make_rig: MakeRig) -> None:
    rig = make_rig(groups=[full(FULL), window(WINDOW, 3)])
    hashes, _ = conversation(8)
    rig.stock(keys(hashes, FULL, WINDOW))
    request = rig.open(hashes)
    wanted = [*keys(hashes, FULL), *keys(hashes[5:], WINDOW)]
    assert rig.wants(request) == wanted
    rig.end()
    assert rig.load(request) == 8


def test_a_sliding_window_with_a_hole_ends_before_it(make_rig: MakeRig) -> None:
    rig = make_rig(groups=[full(FULL), window(WINDOW, 3)])
    hashes, _ = conversation(8)
    rig.stock([*keys(hashes, FULL), *keys(hashes[:6], WINDOW)])
    request = rig.open(hashes)
    assert rig.wants(request) == [*keys(hashes[:6], FULL), *keys(hashes[3:6], WINDOW)]
    rig.end()
    assert rig.load(request) == 6


def test_a_window_that_does_not_fit_is_not_tried(make_rig: MakeRig) -> None:
    rig = make_rig(groups=[full(FULL), window(WINDOW, 5)], other_slots=4)
    hashes, _ = conversation(8)
    rig.stock(keys(hashes, FULL, WINDOW))
    request = rig.open(hashes)
    assert rig.wants(request) == []
    assert rig.ask(request) == 0
    assert rig.ask(request) == 0
    assert rig.promoter.late == 0


def test_a_draft_group_is_brought_one_block_further(make_rig: MakeRig) -> None:
    rig = make_rig(groups=[full(FULL), full(DRAFT, draft=True)], other_slots=32)
    hashes, _ = conversation(8)
    rig.stock([*keys(hashes, FULL), *keys(hashes[:7], DRAFT)])
    request = rig.open(hashes)
    assert rig.wants(request) == [*keys(hashes[:6], FULL), *keys(hashes[:7], DRAFT)]
    rig.end()
    assert rig.load(request) == 6


def test_the_first_tier_that_has_a_block_is_asked_for_it(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store", "on_store"])
    hashes, stocked = conversation(6, 6)
    fast, slow = rig.tiers
    rig.stock(stocked[:4], fast)
    rig.stock(stocked[2:], slow)
    request = rig.open(hashes)
    rig.wants(request)
    assert [key for batch in fast.loads for key in batch.keys] == stocked[:4]
    assert sorted(key for batch in slow.loads for key in batch.keys) == sorted(stocked[4:])
    slow.end()
    rig.cache.poll()
    assert rig.ask(request) is None
    fast.end()
    rig.cache.poll()
    assert rig.load(request) == 6


def test_of_a_prompt_that_does_not_fit_the_beginning_is_brought(make_rig: MakeRig) -> None:
    rig = make_rig(groups=[full(FULL)], full_slots=5)
    hashes, stocked = conversation(8)
    rig.stock(stocked)
    request = rig.open(hashes)
    assert rig.wants(request) == stocked[:5]
    rig.end()
    assert rig.load(request) == 5


@pytest.mark.parametrize(("slots", "blocks"), [(8, 8), (5, 3), (2, 0)])
def test_a_checkpoint_is_brought_if_its_blocks_fit(
    make_rig: MakeRig, slots: int, blocks: int
) -> None:
    rig = make_rig(full_slots=slots)
    hashes, stocked = conversation(8, 3, 8)
    rig.stock(stocked)
    request = rig.open(hashes)
    if blocks:
        rig.wants(request)
        rig.end()
    assert rig.load(request) == blocks


def test_a_draft_group_that_does_not_fit_gets_less(make_rig: MakeRig) -> None:
    rig = make_rig(groups=[full(FULL), full(DRAFT, draft=True)], full_slots=32, other_slots=4)
    hashes, _ = conversation(8)
    rig.stock(keys(hashes, FULL, DRAFT))
    request = rig.open(hashes)
    assert rig.wants(request) == [*keys(hashes[:3], FULL), *keys(hashes[:4], DRAFT)]
    rig.end()
    assert rig.load(request) == 3


def test_chunks_of_several_blocks_are_brought_from_where_the_device_ends(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(groups=[full(FULL, 2 * BLOCK), state(STATES[0])], full_slots=3)
    hashes, _ = conversation(10)
    rig.stock([*keys([*hashes[1::2], hashes[8]], FULL), *keys(hashes, STATES[0])])
    request = rig.open(hashes)
    wanted = rig.wants(request, start=3)
    assert sorted(wanted) == sorted([*keys(hashes[3:8:2], FULL), *keys([hashes[7]], STATES[0])])
    rig.end()
    assert rig.load(request, start=3) == 8


# --- whether it is worth it


def test_what_takes_longer_to_read_than_to_compute_is_left_alone(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    nbytes = sum(rig.slots.memory.record_bytes[g] for g in (FULL,) * 6 + STATES)
    rig.tier.rate = 1.0 * nbytes
    rig.promoter.compute_rate = 6 * BLOCK * 1.01
    request = rig.open(hashes)
    assert rig.wants(request) == []
    for _ in range(3):
        assert rig.ask(request) == 0
    assert rig.promoter.unworthy == 1
    rig.promoter.compute_rate = 6 * BLOCK * 0.99
    assert len(rig.wants(rig.open(hashes))) == 8


def test_what_is_here_already_is_not_counted(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    rig.turn(hashes[:6])
    states = sum(rig.slots.memory.record_bytes[g] for g in STATES)
    rig.tier.rate = 1.0 * states
    rig.promoter.compute_rate = 6 * BLOCK * 0.99
    assert sorted(rig.wants(rig.open(hashes))) == sorted(checkpoint(hashes, 6))


@pytest.mark.parametrize("unknown", ["compute_rate", "load_rate"])
def test_a_rate_that_is_unknown_is_found_out(rig: Rig, unknown: str) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    rig.promoter.compute_rate = None if unknown == "compute_rate" else 1e9
    rig.tier.rate = None if unknown == "load_rate" else 1.0
    assert len(rig.wants(rig.open(hashes))) == 8


def test_it_can_be_brought_always(make_rig: MakeRig) -> None:
    rig = make_rig(restore="always")
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    rig.tier.rate, rig.promoter.compute_rate = 1.0, 1e9
    assert len(rig.wants(rig.open(hashes))) == 8
