# SPDX-License-Identifier: Apache-2.0
"""The slots that promotions take: whose turn it is, when there are none, and resets meanwhile."""

import pytest

from tests.core_helpers import FULL, checkpoint, keys
from tests.tiering.rig import PATIENCE_S, Rig, conversation
from tiercache import promotion
from tiercache.blocks import BlockHash, Key
from tiercache.events import EventKind
from tiercache.promotion import ROOM_RETRY_S
from tiercache.requests import Request

# --- turns


def test_requests_that_need_all_slots_have_them_in_turn(rig: Rig) -> None:
    """None waits for what another one holds without its doing."""
    requests = []
    for name in "abc":
        hashes, stocked = conversation(20, 20, name=name)
        rig.stock(stocked)
        requests.append(rig.open(hashes))
    for request in requests:
        assert rig.ask(request) is None
    for request in requests:
        rig.cache.poll()
        rig.end()
        assert rig.load(request) == 20
        rig.after(ROOM_RETRY_S)
    assert rig.promoter.late == 0
    assert rig.pins == 0


def test_only_one_request_at_a_time_takes_slots(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "STEP_KEYS", 5)
    requests = []
    for name in "abc":
        hashes, stocked = conversation(20, 20, name=name)
        rig.stock(stocked)
        requests.append(rig.open(hashes))
        assert rig.ask(requests[-1]) is None
    for _ in range(10):
        rig.after(ROOM_RETRY_S)
    assert {key[:1] for key in rig.loading} == {b"a", b"b"}
    for request in requests:
        for _ in range(10):
            rig.end()
            rig.after(ROOM_RETRY_S)
        assert rig.load(request) == 20


# --- room


def test_without_room_a_request_waits_for_it(rig: Rig) -> None:
    other, _ = conversation(30, name="other")
    rig.turn(other)
    busy = rig.open(other)
    held = keys(other, FULL)
    rig.cache.load(busy, held)
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    assert rig.wants(request) == []
    before = rig.cache.journal.total(EventKind.REFUSED)
    rig.after(ROOM_RETRY_S)
    assert rig.ask(request) is None
    assert rig.loading == []
    rig.cache.release(held)
    rig.after(ROOM_RETRY_S)
    assert len(rig.loading) == 8
    rig.end()
    assert rig.load(request) == 6
    assert rig.cache.journal.total(EventKind.REFUSED) == before


def test_without_room_a_request_does_not_wait_for_ever(rig: Rig) -> None:
    other, _ = conversation(30, name="other")
    rig.turn(other)
    rig.settle()
    held = keys(other, FULL)
    rig.cache.load(rig.open(other), held)
    pins = rig.pins
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    rig.wants(request)
    rig.after(PATIENCE_S)
    assert rig.ask(request) == 0
    assert rig.pins == pins
    assert rig.promoter.late == 1


def test_a_request_that_is_late_does_not_hold_up_the_next_one(rig: Rig) -> None:
    other, _ = conversation(30, name="other")
    rig.turn(other)
    held = keys(other, FULL)
    rig.cache.load(rig.open(other), held)
    rig.settle()
    requests = []
    for name, blocks in (("a", 8), ("b", 2)):
        hashes, stocked = conversation(blocks, blocks, name=name)
        rig.stock(stocked)
        requests.append(rig.open(hashes))
        assert rig.ask(requests[-1]) is None
        rig.after(PATIENCE_S / 4)
        assert rig.loading == []
    rig.after(PATIENCE_S / 2)
    assert len(rig.loading) == 2 + 2
    rig.end()
    assert rig.load(requests[1]) == 2
    assert rig.ask(requests[0]) == 0


def test_room_is_never_made_of_what_is_needed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the prefix is here, and evicted first."""
    monkeypatch.setattr(promotion, "STEP_KEYS", 3)
    hashes, stocked = conversation(16, 16)
    rig.stock(stocked)
    rig.turn(hashes[:16])
    evict(rig, keys(hashes[:8], FULL))
    rig.turn(conversation(24, name="other")[0])
    request = rig.open(hashes)
    rig.cache.primary.pools[FULL].demote(keys(hashes[8:], FULL))
    assert rig.ask(request) is None
    for _ in range(20):
        rig.end()
    assert rig.cache.journal.total(EventKind.PROMOTED) == 8 + 2
    assert rig.load(request) == 16


def evict(rig: Rig, evicted: list[Key]) -> None:
    """Have the primary tier evict exactly these blocks."""
    pool = rig.cache.primary.pools[FULL]
    pool.demote(evicted, first=True)
    pool._evict(len(evicted), ())


def test_a_long_prompt_is_brought_in_several_steps(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "STEP_KEYS", 4)
    hashes, stocked = conversation(16, 16)
    rig.stock(stocked)
    rig.turn(hashes[:2])
    request = rig.open(hashes)
    assert rig.ask(request) is None
    rig.cache.poll()
    while rig.waiting():
        assert len(rig.loading) <= 4
        rig.end()
    assert rig.load(request) == 16


# --- resets


@pytest.fixture
def loading(rig: Rig) -> tuple[list[BlockHash], Request]:
    """A request that waits for 8 blocks to be loaded, of which none has come."""
    hashes, stocked = conversation(8, 6)
    rig.stock(stocked)
    request = rig.open(hashes)
    assert len(rig.wants(request)) == 8
    return hashes, request


def test_slots_that_a_tier_writes_to_stay_out_of_use_after_a_reset(
    rig: Rig, loading: tuple[list[BlockHash], Request]
) -> None:
    busy = {slot for batch in rig.tier.loads for slot in batch.slots if batch.group_id == FULL}
    rig.cache.reset()
    counts = rig.cache.counts()
    assert (counts[FULL].free, counts[FULL].storing) == (26, 6)
    other, _ = conversation(26, name="other")
    rig.turn(other)
    assert not busy & set(rig.cache.primary.pools[FULL].ready.values())
    rig.check()
    rig.end()
    rig.check()
    assert rig.cache.counts()[FULL].free == 6
    assert rig.cache.counts()[FULL].storing == 0


def test_after_a_reset_nothing_is_promised_any_more(
    rig: Rig, loading: tuple[list[BlockHash], Request]
) -> None:
    hashes, request = loading
    rig.cache.reset()
    assert rig.ask(request) == 0
    assert not rig.waiting()
    rig.end()
    assert not any(rig.here(keys(hashes, FULL)))
    assert rig.ask(request) == 0
    rig.cache.finish(request)


def test_after_a_reset_there_is_room_once_the_tier_is_done(
    rig: Rig, loading: tuple[list[BlockHash], Request]
) -> None:
    rig.cache.reset()
    other, _ = conversation(32, name="other")
    request = rig.open(other)
    assert rig.cache.reserve(request, keys(other, FULL)) is None
    rig.end()
    assert len(rig.store(request, keys(other, FULL))) == 32


def test_what_was_loading_at_a_reset_can_be_loaded_anew(
    rig: Rig, loading: tuple[list[BlockHash], Request]
) -> None:
    hashes, request = loading
    old = [batch.job_id for batch in rig.tier.loads]
    rig.cache.reset()
    rig.stock([*keys(hashes[:6], FULL), *checkpoint(hashes, 6)])
    assert len(rig.wants(request)) == 16
    rig.end(*old)
    assert rig.ask(request) is None
    rig.end()
    assert rig.load(request) == 6
    rig.cache.finish(request)
    assert rig.pins == 0


def test_what_was_loading_at_a_reset_can_be_stored_anew(
    rig: Rig, loading: tuple[list[BlockHash], Request]
) -> None:
    hashes, _ = loading
    rig.cache.reset()
    rig.turn(hashes, 6)
    rig.end()
    rig.check()
    assert rig.load(rig.open(hashes)) == 6


def test_slots_of_loads_survive_several_resets(
    rig: Rig, loading: tuple[list[BlockHash], Request]
) -> None:
    hashes, request = loading
    rig.cache.reset()
    rig.stock([*keys(hashes[:6], FULL), *checkpoint(hashes, 6)])
    rig.wants(request)
    rig.cache.reset()
    rig.cache.reset()
    assert rig.cache.counts()[FULL].storing == 12
    rig.check()
    rig.end()
    assert rig.cache.counts()[FULL].free == 32
    rig.check()


def test_a_request_that_was_finished_before_a_reset_is_not_remembered(
    rig: Rig, loading: tuple[list[BlockHash], Request]
) -> None:
    _, request = loading
    rig.cache.finish(request)
    rig.cache.reset()
    assert not rig.cache.primary._open
    rig.end()
    assert rig.pins == 0
