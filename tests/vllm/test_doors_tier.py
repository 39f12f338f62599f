# SPDX-License-Identifier: Apache-2.0
"""Our NVMe tier below vLLM's own tiering manager, which its own spec makes from a configuration.

Covers what goes through the door. How the tier itself behaves is tested in ``tests/tiers``.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="the door is vLLM's")

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, TierFilter, TierMatcher
from vllm.v1.kv_offload.config import OffloadingGroupConfig, OffloadingModelConfig
from vllm.v1.kv_offload.tiering.base import TieringOffloadingMetrics

from tests.vllm import stock
from tests.vllm.stock import ROW_BYTES, Stock, chain, keys
from tiercache.errors import ConfigError, TierCacheError
from tiercache.tierconfig import parse_tier
from tiercache.tiers.nvme.index import index_bytes
from tiercache.tiers.nvme.space import slack_bytes
from tiercache.vllm import tier as door

Open = Callable[..., Stock]

A, B, C = (keys(chain(name, 6)) for name in "ABC")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Open]:
    """Start managers, one after the other over one path; the last is closed after the test."""
    opened: list[Stock] = []

    def start(rows: int = 8, **arguments: Any) -> Stock:
        if opened:
            opened.pop().close()
        opened.append(Stock(tmp_path / "nvme", rows, **arguments))
        return opened[-1]

    yield start
    for manager in opened:
        manager.close()


def capacity_of(records: int) -> int:
    slots = {0: records}
    return records * ROW_BYTES + index_bytes(slots) + slack_bytes(slots)


def records(path: Path) -> Path:
    (segment,) = (path / "nvme").glob("*/g0/*.seg")
    return segment


def test_what_host_memory_lost_comes_back(begin: Open) -> None:
    run = begin()
    run.store(A)
    run.store(B)
    ctx = run.request(A)
    assert run.manager.primary_tier.lookup(A[5], ctx) is LookupResult.MISS
    run.manager.on_request_finished(ctx)
    assert run.restore(A) == A


def test_the_next_process_finds_what_the_last_one_stored(begin: Open) -> None:
    begin().store(A)
    assert begin().restore(A + B) == A


def test_groups_that_share_a_hash_are_told_apart(begin: Open) -> None:
    hashes = chain("A", 3)
    both = keys(hashes, 0) + keys(hashes, 1)
    begin().store(both)
    assert begin().restore(both) == both
    assert begin().restore(keys(hashes, 2)) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"model": OffloadingModelConfig("another/model", "bfloat16")},
        {"model": OffloadingModelConfig("a/model", "fp8")},
        {"groups": (OffloadingGroupConfig(stock.BLOCK, ("layer.1",), 0),)},
        {"kv_cache_layout": "BLHNC"},
        {"parallel": replace(stock.config({}).parallel, data_parallel_index=1)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_blocks_that_mean_something_else_are_not_found(
    begin: Open, changed: dict[str, Any]
) -> None:
    begin().store(A)
    assert begin(changed=changed).restore(A) == []
    assert begin().restore(A) == A


def test_weights_that_were_trained_further_find_nothing(begin: Open, tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"first")
    changed = {"model": OffloadingModelConfig(str(tmp_path), "bfloat16")}
    begin(changed=changed).store(A)
    weights.write_bytes(b"second")
    assert begin(changed=changed).restore(A) == []


def test_a_damaged_record_is_a_miss_and_the_others_come(begin: Open, tmp_path: Path) -> None:
    begin().store(A)
    run = begin()
    with records(tmp_path).open("r+b") as file:
        file.seek(2 * ROW_BYTES)
        file.write(b"\0" * 8)
    assert run.restore(A) == A[:2] + A[3:]
    assert run.tier.lookup(A[2], run.request([])) is LookupResult.MISS


def test_a_full_disk_keeps_what_was_used_last(begin: Open) -> None:
    run = begin(rows=6, capacity=capacity_of(12), high_water=1.0, low_water=1.0)
    run.store(A)
    run.store(B)
    run.restore(A)  # B is what goes
    run.store(C)
    found = begin(rows=18, capacity=capacity_of(12)).restore(A + B + C)
    assert found == A + C


def test_what_the_tier_declines_is_not_kept_waiting_for(begin: Open) -> None:
    run = begin(write_budget=24)  # an hour's share is a byte
    run.store(A)
    assert run.tier._tier.stats().counters["declined"] == len(A)
    run.store(B)
    assert run.restore(A + B) == A[:2] + B  # what is left in host memory


@pytest.mark.parametrize("records", [1, 2, 4])
def test_jobs_of_several_pieces(begin: Open, records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PIECE_BYTES", records * ROW_BYTES)
    run = begin()
    run.store(A)
    run.store(A + B[:1])
    assert run.tier._tier.stats().counters["stored"] == 7
    assert begin().restore(A) == A


def test_a_job_of_which_nothing_is_missing_ends_at_once(begin: Open) -> None:
    run = begin()
    run.store(A)
    run.manager.reset_cache()
    run.store(A)
    assert run.tier._tier.stats().counters["stored"] == len(A)


def test_a_reset_waits_for_the_disk_and_leaves_it_as_it_is(begin: Open) -> None:
    run = begin()
    run.store(A)
    run.store(B)
    ctx = run.request(A)
    assert run.manager.lookup(A[5], ctx) is LookupResult.HIT_PENDING
    run.step(ctx)
    run.manager.reset_cache()
    getattr(run.manager, "on_reset_flushed", lambda: None)()  # from 0.33 on
    assert not run.manager.has_pending_work()
    run.manager.on_request_finished(ctx)
    assert run.restore(A) == A


def test_vllm_counts_the_bytes(begin: Open) -> None:
    run = begin()
    run.store(A)
    run.store(B)
    run.restore(A)
    counted = run.manager.get_stats().data["data"]
    label = ("1:NvmeTier",)
    assert counted[TieringOffloadingMetrics.WRITE_BYTES][label] == 12 * ROW_BYTES
    assert counted[TieringOffloadingMetrics.READ_BYTES][label] == 6 * ROW_BYTES


def test_requests_can_choose_their_tiers(begin: Open) -> None:
    run = begin()
    run.store(A)
    run.store(B)
    ctx = run.request(A)
    ctx.load_tier_filter = TierFilter((TierMatcher(Medium.STORAGE, Locality.REMOTE),))
    assert run.manager.lookup(A[5], ctx) is LookupResult.MISS
    ctx.load_tier_filter = TierFilter((TierMatcher(Medium.STORAGE, Locality.LOCAL),))
    assert run.manager.lookup(A[5], ctx) is LookupResult.HIT_PENDING
    run.step(ctx)
    run.manager.on_request_finished(ctx)
    run.rest()


def test_a_second_shutdown_does_nothing(begin: Open) -> None:
    run = begin()
    run.store(A)
    run.tier.shutdown()
    run.tier.shutdown()
    assert run.tier.lookup(A[0], run.request([])) is LookupResult.MISS


@pytest.mark.parametrize(
    "settings",
    [
        {"path": "relative"},
        {"capacity": "a lot"},
        {"capacity": "1MiB", "polcy": "lru"},
        {"capacity": "1MiB", "low_water": 0.9, "high_water": 0.5},
        {"queue_depth": 0},
    ],
    ids=str,
)
def test_settings_are_checked_as_those_of_our_own_connector(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    given = {"type": "nvme", "path": str(tmp_path), "capacity": "8MiB", "min_free": 0} | settings
    with pytest.raises(ConfigError) as expected:
        parse_tier("NvmeTier", given)
    with pytest.raises(ConfigError) as found:
        Stock(tmp_path, **settings)
    assert str(found.value) == str(expected.value)


def test_write_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"NvmeTier\.spill: 'on_evict' is not .*'on_store'"):
        Stock(tmp_path, spill="on_evict")


def test_a_path_in_use_is_refused_and_nothing_stays_behind(tmp_path: Path) -> None:
    with closing(Stock(tmp_path)) as run:
        with pytest.raises(TierCacheError, match="no other process writes to"):
            Stock(tmp_path)
        run.store(A)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.booleans()), max_size=12))
def test_whatever_happens_bytes_are_those_of_the_key(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, int, bool]]
) -> None:
    path = tmp_path_factory.mktemp("nvme")
    with closing(Stock(path, 6, capacity=capacity_of(10))) as run:
        for name, blocks, again in requests:
            wanted = keys(chain(str(name), blocks), name % 2)
            run.restore(wanted)
            run.store(wanted)
            if again:
                assert run.restore(wanted) == wanted
