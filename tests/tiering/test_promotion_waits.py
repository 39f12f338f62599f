# SPDX-License-Identifier: Apache-2.0
"""How long requests wait for secondary tiers, and what they get in the end."""

from tests.core_helpers import FULL, checkpoint, full, keys
from tests.tiering.conftest import MakeRig
from tests.tiering.rig import PATIENCE_S, Rig, conversation
from tiercache.blocks import key_hash, make_key
from tiercache.events import EventKind
from tiercache.promotion import KEEP_S, MAX_ATTEMPTS
from tiercache.slots import Presence

# --- patience


def test_a_request_whose_load_never_ends_goes_on_without_it(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    rig.turn(hashes[:2], 2)
    rig.settle()
    request = rig.open(hashes)
    rig.wants(request)
    rig.after(PATIENCE_S - 0.001)
    assert rig.ask(request) is None
    assert rig.pins
    rig.after(0.001)
    assert rig.ask(request) == 2
    assert (rig.promoter.late, rig.pins) == (1, 0)
    assert not rig.waiting()
    assert rig.load(request) == 2
    rig.cache.finish(request)
    assert rig.cache.primary._open  # the load's own
    rig.check()


def test_a_late_request_does_not_wait_again(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    for _ in range(3):
        rig.after(PATIENCE_S)
        assert rig.ask(request) == 0
    assert rig.promoter.late == 1


def test_what_comes_late_is_there_for_the_next_one(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.after(PATIENCE_S)
    assert rig.ask(request) == 0
    rig.cache.finish(request)
    rig.end()
    assert rig.pins == 0
    assert rig.load(rig.open(hashes)) == 6


def test_loads_that_end_one_by_one_do_not_extend_the_patience(make_rig: MakeRig) -> None:
    rig = make_rig(spills=["on_store"] * 3)
    hashes, stocked = conversation(6, 6)
    for tier, share in zip(rig.tiers, (stocked[:3], stocked[3:5], stocked[5:]), strict=True):
        rig.stock(share, tier)
    request = rig.open(hashes)
    rig.wants(request)
    for tier in rig.tiers[:2]:
        rig.after(PATIENCE_S * 0.4)
        tier.end()
        rig.cache.poll()
        assert rig.ask(request) is None
    rig.after(PATIENCE_S * 0.2)
    assert rig.ask(request) == 0
    assert rig.pins == 0


def test_a_second_try_does_not_extend_the_patience(rig: Rig) -> None:
    hashes, stocked = conversation(8, 3, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.after(PATIENCE_S * 0.9)
    rig.end(failed=checkpoint(hashes, 6).__contains__)
    assert sorted(rig.wants(request)) == sorted(checkpoint(hashes, 3))
    rig.after(PATIENCE_S * 0.1)
    assert rig.ask(request) == 0
    assert rig.pins == 0


def test_what_a_request_waited_for_stays_while_it_asks(rig: Rig) -> None:
    """The device may have no room for it yet."""
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.end()
    for _ in range(5):
        rig.after(KEEP_S)
        assert rig.ask(request) == 6
        assert rig.pins == 8
    assert rig.load(request) == 6


def test_what_nobody_comes_back_for_is_let_go(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.end()
    rig.after(KEEP_S)
    assert rig.pins == 8
    rig.after(0.001)
    assert rig.pins == 0
    rig.turn(conversation(32, name="other")[0], 32)
    assert sorted(rig.wants(request)) == sorted(keys(hashes[:6], FULL))
    rig.end()
    assert rig.load(request) == 6


def test_nobody_waits_for_a_request_that_stops_asking(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    rig.wants(rig.open(hashes))
    assert rig.waiting()
    rig.after(KEEP_S + 0.001)
    assert not rig.waiting()
    rig.end()
    assert rig.pins == 0


# --- failures


def test_after_a_failure_a_shallower_checkpoint_is_brought(rig: Rig) -> None:
    hashes, stocked = conversation(8, 3, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.end(failed=[checkpoint(hashes, 6)[1]].__contains__)
    assert sorted(rig.wants(request)) == sorted(checkpoint(hashes, 3))
    rig.end()
    assert rig.load(request) == 3
    assert rig.pins == 0


def test_blocks_that_fail_end_the_prefix_before_them(make_rig: MakeRig) -> None:
    rig = make_rig(groups=[full(FULL)])
    hashes, stocked = conversation(8)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.end(failed=[stocked[5]].__contains__)
    assert rig.load(request) == 5
    rig.cache.finish(request)
    assert rig.here(stocked) == [True] * 5 + [False] + [True] * 2


def test_a_tier_that_fails_again_and_again_is_not_asked_for_ever(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    for attempt in range(MAX_ATTEMPTS):
        rig.wants(request)
        assert bool(rig.loading), attempt
        rig.end(failed=lambda key: key_hash(key) == hashes[2], drop=False)
    for _ in range(3):
        assert rig.ask(request) == 0
        assert rig.loading == []
    assert not rig.waiting()


def test_a_failed_block_is_missing_and_can_be_stored(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.end(failed=lambda key: True)
    assert rig.ask(request) == 0
    assert not any(rig.here(stocked))
    assert rig.cache.journal.total(EventKind.FAILED) == 8
    assert sorted(rig.store(request, stocked)) == sorted(stocked)


def test_what_a_tier_evicts_meanwhile_is_planned_anew(rig: Rig) -> None:
    hashes, stocked = conversation(8, 3, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    assert rig.ask(request) is None
    rig.tier.forget(keys([hashes[4]], FULL))
    rig.cache.poll()
    assert rig.loading == []
    wanted = rig.wants(request)
    assert sorted(wanted) == sorted([*checkpoint(hashes, 3), *keys(hashes[:3], FULL)])


def test_a_key_on_its_way_from_a_tier_is_told_from_one_that_is_stored(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    rig.wants(rig.open(hashes))
    key = make_key(hashes[0], FULL)
    assert rig.cache.state(key) is Presence.STORING
    assert rig.cache.is_loading(key)
    rig.end()
    assert not rig.cache.is_loading(key)


# --- several requests


def test_a_second_request_waits_for_the_same_load(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    first, second = rig.open(hashes), rig.open(hashes[:7])
    wanted = rig.wants(first)
    assert rig.wants(second) == wanted
    rig.end()
    assert (rig.ask(first), rig.ask(second)) == (6, 6)
    assert rig.pins == 16
    assert rig.load(second) == 6
    assert rig.pins == 8
    assert rig.load(first) == 6
    assert rig.pins == 0


def test_a_second_request_has_a_patience_of_its_own(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    first, second = rig.open(hashes), rig.open(hashes)
    rig.wants(first)
    rig.after(PATIENCE_S / 2)
    rig.wants(second)
    rig.after(PATIENCE_S / 2)
    assert (rig.ask(first), rig.ask(second)) == (0, None)
    rig.after(PATIENCE_S / 2)
    assert rig.ask(second) == 0
    assert rig.promoter.late == 2
    assert rig.pins == 0


def test_a_second_request_gets_what_the_first_gave_up(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    first, second = rig.open(hashes), rig.open(hashes)
    rig.wants(first)
    rig.after(PATIENCE_S / 2)
    rig.wants(second)
    rig.after(PATIENCE_S / 2)
    assert rig.ask(first) == 0
    rig.cache.finish(first)
    rig.end()
    assert rig.load(second) == 6


def test_a_second_request_loads_what_the_first_did_not_need(rig: Rig) -> None:
    hashes, stocked = conversation(8, 3, 6)
    rig.stock(stocked)
    first, second = rig.open(hashes[:4]), rig.open(hashes)
    wanted = rig.wants(first)
    jobs = [batch.job_id for batch in rig.tier.loads]
    assert len(rig.wants(second)) == len(wanted) + 5
    rig.end(*(batch.job_id for batch in rig.tier.loads if batch.job_id not in jobs))
    assert rig.ask(second) is None
    rig.end()
    assert (rig.load(first), rig.load(second)) == (3, 6)
    assert rig.pins == 0


def test_a_request_that_ends_while_it_waits_leaves_no_pins(rig: Rig) -> None:
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    rig.turn(hashes[:2])
    request = rig.open(hashes)
    rig.wants(request)
    assert rig.pins
    rig.cache.finish(request)
    assert request not in rig.cache.primary._open
    assert rig.pins == 0
    rig.end()
    assert rig.pins == 0
    assert all(rig.here(stocked[:6]))
