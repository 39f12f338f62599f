# SPDX-License-Identifier: Apache-2.0
"""The manager by itself: vLLM's contract, and that nothing is ever raised into the engine."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the manager is vLLM's")

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingCounterMetadata,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    make_offload_key,
)

from tiercache.blocks import GroupKind, GroupSpec
from tiercache.cache import TieredCache
from tiercache.vllm.manager import TierCacheManager
from tiercache.vllm.metrics import definitions
from tiercache.vllm.transfer import SlotsLoadStoreSpec

BLOCK = 16
HASHES = [bytes([i]) * 32 for i in range(8)]
FULL, STATE = 0, 1


def keys(group: int, *indexes: int) -> list[OffloadKey]:
    return [make_offload_key(HASHES[i], group) for i in indexes]


@pytest.fixture
def manager() -> TierCacheManager:
    groups = [
        GroupSpec(FULL, GroupKind.FULL, BLOCK, 4096),
        GroupSpec(STATE, GroupKind.STATE, BLOCK, 8192),
    ]
    cache = TieredCache(groups, {FULL: 6, STATE: 2}, tokens_per_hash=BLOCK)
    return TierCacheManager(cache, workers=2, kv_events=True)


def begin(manager: TierCacheManager, name: str, hashes: list[bytes] = HASHES) -> ReqContext:
    ctx = ReqContext(name)
    for i, block_hash in enumerate(hashes):
        for group in range(4):
            ctx.set_offload_key_position(make_offload_key(block_hash, group), (i + 1) * BLOCK)
    manager.expect(name, hashes)
    manager.on_new_request(ctx)
    return ctx


def store(manager: TierCacheManager, ctx: ReqContext, wanted: list[OffloadKey]) -> list[int]:
    output = manager.prepare_store(wanted, ctx)
    assert isinstance(output, PrepareStoreOutput)
    assert isinstance(output.store_spec, SlotsLoadStoreSpec)
    manager.complete_store(set(output.keys_to_store), ctx)
    return output.store_spec.slots.tolist()


def test_a_key_is_pending_until_its_store_is_complete(manager: TierCacheManager) -> None:
    ctx = begin(manager, "a")
    (key,) = keys(FULL, 0)
    assert manager.lookup(key, ctx) is LookupResult.MISS
    output = manager.prepare_store([key], ctx)
    assert output is not None
    assert manager.lookup(key, ctx) is LookupResult.HIT_PENDING
    manager.complete_store({key}, ctx)
    assert manager.lookup(key, ctx) is LookupResult.HIT


def test_only_new_keys_are_stored_in_the_order_offered(manager: TierCacheManager) -> None:
    ctx = begin(manager, "a")
    store(manager, ctx, keys(FULL, 1))
    output = manager.prepare_store(keys(FULL, 0, 1, 2), ctx)
    assert output is not None
    assert output.keys_to_store == keys(FULL, 0, 2)


def test_a_failed_store_is_a_miss(manager: TierCacheManager) -> None:
    ctx = begin(manager, "a")
    manager.prepare_store(keys(FULL, 0), ctx)
    manager.complete_store(set(keys(FULL, 0)), ctx, success=False)
    assert manager.lookup(keys(FULL, 0)[0], ctx) is LookupResult.MISS


def test_a_store_without_room_is_asked_for_again(manager: TierCacheManager) -> None:
    first = begin(manager, "a")
    assert manager.prepare_store(keys(FULL, 0, 1, 2, 3), first) is not None
    assert manager.prepare_store(keys(FULL, 4, 5, 6), begin(manager, "b")) is None


def test_a_store_that_never_fits_is_not_asked_for_again(manager: TierCacheManager) -> None:
    ctx = begin(manager, "a")
    output = manager.prepare_store(keys(FULL, *range(7)), ctx)
    assert output is not None
    assert output.keys_to_store == []


def test_a_load_gives_the_slots_of_the_store(manager: TierCacheManager) -> None:
    wanted = keys(FULL, 0, 1) + keys(STATE, 1)
    slots = store(manager, begin(manager, "a"), wanted)
    ctx = begin(manager, "b")
    spec = manager.prepare_load(wanted, ctx)
    assert isinstance(spec, SlotsLoadStoreSpec)
    assert spec.slots.tolist() == slots
    manager.complete_load(set(wanted), ctx)
    manager.cache.validate()
    assert manager.cache.primary.pools[FULL].pins == 0


def test_blocks_beyond_the_plan_are_misses_during_a_lookup(manager: TierCacheManager) -> None:
    ctx = begin(manager, "a")
    store(manager, ctx, keys(FULL, 0, 1, 2) + keys(STATE, 1))
    first, second, third = keys(FULL, 0, 1, 2)
    plan = manager.begin_lookup("a", start=0, limit=8 * BLOCK - 1)
    assert plan is not None
    assert (plan.boundary, plan.lost) == (2 * BLOCK, BLOCK)
    assert manager.lookup(second, ctx) is LookupResult.HIT
    assert manager.lookup(third, ctx) is LookupResult.MISS
    manager.end_lookup()
    assert manager.lookup(third, ctx) is LookupResult.HIT
    assert manager.lookup(first, ctx) is LookupResult.HIT


def test_completions_after_the_end_and_after_a_reset_are_fine(manager: TierCacheManager) -> None:
    ctx = begin(manager, "a")
    manager.prepare_store(keys(STATE, 1), ctx)
    manager.on_request_finished(ctx)
    manager.complete_store(set(keys(STATE, 1)), ctx)
    manager.cache.validate()
    late = begin(manager, "b")
    manager.prepare_store(keys(STATE, 3), late)
    manager.reset_cache()
    manager.complete_store(set(keys(STATE, 3)), late)
    manager.on_request_finished(late)
    manager.cache.validate()
    assert not manager.sick


def test_a_fault_is_logged_once_and_everything_misses_from_then_on(
    manager: TierCacheManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ctx = begin(manager, "a")
    store(manager, ctx, keys(FULL, 0, 1))

    def broken(*args: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(manager.cache, "reserve", broken)
    with caplog.at_level(logging.ERROR):
        for index in (2, 3):
            output = manager.prepare_store(keys(FULL, index), ctx)
            assert output is not None
            assert output.keys_to_store == []
    assert len(caplog.records) == 1
    assert "tiercache stops serving" in caplog.text
    assert manager.lookup(keys(FULL, 0)[0], ctx) is LookupResult.MISS
    manager.complete_load(set(keys(FULL, 0)), ctx)
    manager.on_request_finished(ctx)
    assert manager.begin_lookup("unknown", start=0, limit=1) is None


def test_a_load_that_was_promised_before_a_fault_is_kept(manager: TierCacheManager) -> None:
    ctx = begin(manager, "a")
    slots = store(manager, ctx, keys(FULL, 0))
    manager.sick = True
    spec = manager.prepare_load(keys(FULL, 0), ctx)
    assert isinstance(spec, SlotsLoadStoreSpec)
    assert spec.slots.tolist() == slots


def test_stores_and_evictions_are_published(manager: TierCacheManager) -> None:
    store(manager, begin(manager, "a"), keys(STATE, 0))
    store(manager, begin(manager, "b"), keys(STATE, 1))
    list(manager.take_events())
    store(manager, begin(manager, "c"), keys(STATE, 2))
    events = [(event.removed, event.keys) for event in manager.take_events()]
    assert events == [(True, keys(STATE, 0)), (False, keys(STATE, 2))]
    assert list(manager.take_events()) == []


def test_what_is_reported_was_declared(manager: TierCacheManager) -> None:
    ctx = begin(manager, "a")
    store(manager, ctx, keys(FULL, 0, 1, 2) + keys(STATE, 0, 1))
    manager.begin_lookup("a", start=0, limit=3 * BLOCK)
    manager.end_lookup()
    manager.served("a", 2 * BLOCK)
    manager.prepare_load(keys(STATE, 1), ctx)
    stats = manager.get_stats()
    assert stats is not None
    declared = definitions()
    for name, values in stats.data["data"].items():
        assert all(len(labels) == len(declared[name].labelnames) for labels in values)
        is_counter = stats.data["types"][name] == "counter"
        assert is_counter == isinstance(declared[name], OffloadingCounterMetadata)
    stored = stats.data["data"]["vllm:tiercache_stored_bytes"]
    assert stored == {("0",): 3 * 4096 * 2, ("1",): 2 * 8192 * 2}
    assert manager.get_stats() is None


# --- several groups


def manage(*groups: GroupSpec, slots: int = 6, **settings: Any) -> TierCacheManager:
    cache = TieredCache(
        groups, {group.group_id: slots for group in groups}, tokens_per_hash=BLOCK, **settings
    )
    return TierCacheManager(cache)


ATTENTION = GroupSpec(0, GroupKind.FULL, BLOCK, 4096)
RECURRENT = GroupSpec(1, GroupKind.STATE, BLOCK, 4096)
WINDOW = GroupSpec(2, GroupKind.WINDOW, BLOCK, 4096, window_chunks=2)
DRAFT = GroupSpec(3, GroupKind.FULL, BLOCK, 4096, draft=True)


def test_slots_are_in_the_order_of_the_keys_group_by_group() -> None:
    manager = manage(ATTENTION, WINDOW)
    ctx = begin(manager, "a")
    store(manager, ctx, keys(2, 5))
    assert store(manager, ctx, keys(0, 0, 1, 2) + keys(2, 1, 2)) == [0, 1, 2, 1, 2]


def test_a_store_takes_all_it_needs_or_nothing() -> None:
    manager = manage(ATTENTION, WINDOW, slots=2)
    ctx = begin(manager, "a")
    manager.prepare_store(keys(2, 0, 1), ctx)
    assert manager.prepare_store(keys(0, 2) + keys(2, 2), begin(manager, "b")) is None
    assert manager.cache.counts()[0].free == 2


def test_a_store_evicts_nothing_that_is_offered_with_it() -> None:
    manager = manage(ATTENTION, slots=2)
    store(manager, begin(manager, "a"), keys(0, 0, 1))
    output = manager.prepare_store(keys(0, 0, 2), begin(manager, "b"))
    assert output is not None
    assert (output.keys_to_store, output.evicted_keys) == (keys(0, 2), keys(0, 1))


def test_a_key_of_a_group_that_is_not_cached_is_a_miss(manager: TierCacheManager) -> None:
    assert manager.lookup(keys(7, 0)[0], begin(manager, "a")) is LookupResult.MISS


def test_a_block_is_taken_at_the_offer_that_reaches_the_threshold() -> None:
    manager = manage(ATTENTION, store_threshold=2)
    first = manager.prepare_store(keys(0, 0, 1), begin(manager, "a"))
    second = manager.prepare_store(keys(0, 0, 2), begin(manager, "b"))
    assert first is not None
    assert second is not None
    assert (first.keys_to_store, second.keys_to_store) == ([], keys(0, 0))


def test_the_drafter_is_looked_up_one_chunk_further() -> None:
    manager = manage(ATTENTION, RECURRENT, DRAFT)
    ctx = begin(manager, "a")
    store(manager, ctx, keys(0, 0, 1, 2, 3) + keys(1, 1) + keys(3, 0, 1, 2, 3))
    plan = manager.begin_lookup("a", start=0, limit=8 * BLOCK - 1)
    assert plan is not None
    assert plan.boundary == 2 * BLOCK
    hits = {
        group: [manager.lookup(key, ctx) is LookupResult.HIT for key in keys(group, 0, 1, 2, 3)]
        for group in (0, 3)
    }
    assert hits == {0: [True, True, False, False], 3: [True, True, True, False]}


@pytest.mark.parametrize(
    "groups",
    [(ATTENTION,), (ATTENTION, RECURRENT), (ATTENTION, WINDOW), (ATTENTION, RECURRENT, DRAFT)],
    ids=["full", "hybrid", "window", "drafts"],
)
def test_the_log_level_changes_no_answer(
    groups: tuple[GroupSpec, ...], caplog: pytest.LogCaptureFixture
) -> None:
    manager = manage(*groups)
    ctx = begin(manager, "a")
    offered = [key for group in groups for key in keys(group.group_id, 0, 1, 3)]
    store(manager, ctx, offered)
    answers = []
    for level in logging.WARNING, logging.DEBUG:
        with caplog.at_level(level, logger="tiercache"):
            manager.begin_lookup("a", start=0, limit=8 * BLOCK - 1)
            answers.append([manager.lookup(key, ctx) for key in offered])
            manager.end_lookup()
    assert answers[0] == answers[1]


# --- requests


def test_a_request_that_was_never_announced(manager: TierCacheManager) -> None:
    ctx = ReqContext("unknown")
    slots = store(manager, ctx, keys(FULL, 0))
    spec = manager.prepare_load(keys(FULL, 0), ctx)
    assert isinstance(spec, SlotsLoadStoreSpec)
    assert spec.slots.tolist() == slots
    manager.complete_load(set(keys(FULL, 0)), ctx)
    manager.on_request_finished(ctx)
    manager.on_request_finished(ReqContext("another"))
    manager.cache.validate()
    assert not manager.sick


def test_a_request_that_may_not_store_does_not() -> None:
    manager = manage(ATTENTION)
    ctx = ReqContext("a")
    manager.expect("a", HASHES, may_store=False)
    manager.on_new_request(ctx)
    assert store(manager, ctx, keys(0, 0)) == []
    manager.on_request_finished(ctx)
    assert store(manager, begin(manager, "a"), keys(0, 0)) == [0]


def test_windows_of_a_request_are_not_taken_after_a_reset_until_it_starts_anew() -> None:
    manager = manage(ATTENTION, WINDOW)
    ctx = begin(manager, "a")
    manager.reset_cache()
    assert store(manager, ctx, keys(0, 0) + keys(2, 0)) == [0]
    manager.begin_lookup("a", start=0, limit=16)
    manager.end_lookup()
    assert store(manager, ctx, keys(0, 0) + keys(2, 0)) == [0]
    assert store(manager, begin(manager, "b"), keys(2, 1)) == [1]


def test_nothing_piles_up_after_a_fault(
    manager: TierCacheManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager.cache, "plan", None)
    begin(manager, "a")
    manager.begin_lookup("a", start=0, limit=16)
    assert manager.sick
    for number in range(3):
        manager.on_request_finished(begin(manager, f"later {number}"))
    assert manager._hashes == {}


def test_a_fault_in_a_lookup_is_a_miss(
    manager: TierCacheManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, wanted = begin(manager, "a"), keys(FULL, 0)
    manager.prepare_store(wanted, ctx)
    monkeypatch.setattr(manager.cache, "is_loading", None)
    assert manager.lookup(wanted[0], ctx) is LookupResult.MISS
    assert manager.sick


def test_a_shutdown_closes_the_rest_after_a_fault(
    manager: TierCacheManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    arenas: list[Any] = [SimpleNamespace(close=lambda n=n: closed.append(n)) for n in (1, 2)]
    arenas.insert(1, SimpleNamespace(close=None))
    monkeypatch.setattr(manager, "_attached", arenas)
    monkeypatch.setattr(manager.cache, "close", None)
    manager.shutdown()
    assert closed == [1, 2]
