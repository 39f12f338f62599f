# SPDX-License-Identifier: Apache-2.0
"""vLLM's own managers, driven as its scheduler drives them, with bytes that follow from the keys.

Covers requests made of hashes; a worker is a loop that writes rows. No engine, no scheduler.
"""

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the doors are vLLM's")

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

BLOCK = 16
ROW_BYTES = 8192
#: For what must happen: failing takes this long, passing does not.
PATIENCE_S = 30.0


def chain(name: str, blocks: int) -> list[bytes]:
    """Hashes of a prompt: two that share a block share all before it."""
    return [hashlib.sha256(f"{name} {n}".encode()).digest() for n in range(blocks)]


def keys(hashes: Iterable[bytes], group_id: int = 0) -> list[OffloadKey]:
    return [make_offload_key(block_hash, group_id) for block_hash in hashes]


def content(key: OffloadKey) -> bytes:
    return hashlib.shake_128(key).digest(ROW_BYTES)


def context(request_id: str, hashes: Sequence[bytes], groups: int) -> ReqContext:
    """As the scheduler makes it: every key has its place."""
    ctx = ReqContext(request_id)
    for number, block_hash in enumerate(hashes, 1):
        for group_id in range(groups):
            ctx.set_offload_key_position(make_offload_key(block_hash, group_id), number * BLOCK)
    return ctx


def config(settings: Mapping[str, Any], **changed: Any) -> OffloadingConfig:
    """Two groups, one worker, no engine."""
    parallel = OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False)
    fields: dict[str, Any] = {
        "groups": tuple(OffloadingGroupConfig(BLOCK, (f"layer.{g}",), g) for g in range(2)),
        "worker_kv_bytes_per_block": ROW_BYTES,
        "enable_kv_cache_events": False,
        "extra_config": settings,
        "engine_id": uuid.uuid4().hex,
        "model": OffloadingModelConfig("a/model", "bfloat16"),
        "cache": OffloadingCacheConfig(BLOCK, 1),
        "parallel": parallel,
    }
    return OffloadingConfig(**fields | changed)


class Stock:
    """vLLM's tiering manager with one tier of ours below ``rows`` rows; the spec makes it all."""

    def __init__(self, folder: Path, rows: int = 8, *, changed: Any = (), **settings: Any) -> None:
        named = {"type": "NvmeTier", "module_path": "tiercache.vllm.tier", "path": str(folder)}
        tier = {**named, "capacity": "8MiB", "min_free": 0, **settings}
        extra = {"cpu_bytes_to_use": rows * ROW_BYTES, "secondary_tiers": [tier]}
        self.manager = TieringOffloadingSpec(config(extra, **dict(changed))).get_manager()
        (self.tier,) = self.manager.secondary_tiers
        self.view = self.manager.primary_tier.get_kv_memoryview().cast("B")
        self._ids = count()

    def close(self) -> None:
        self.view.release()
        self.manager.shutdown()

    def request(self, wanted: Sequence[OffloadKey]) -> ReqContext:
        ctx = ReqContext(f"request {next(self._ids)}")
        for number, key in enumerate(wanted, 1):
            ctx.set_offload_key_position(key, number * BLOCK)
        self.manager.on_new_request(ctx)
        return ctx

    def step(self, ctx: ReqContext | None = None) -> None:
        new = [ctx.req_id] if ctx is not None else []
        self.manager.on_schedule_end(ScheduleEndContext(new, []))

    def rest(self) -> None:
        """Steps, until nothing is on its way any more."""
        self.until(lambda: not self.manager.has_pending_work())

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline
            self.step()

    def store(self, wanted: Sequence[OffloadKey]) -> None:
        """A request that computes these blocks; they are on disk when this returns."""
        ctx = self.request(wanted)
        output = self.manager.prepare_store(wanted, ctx)
        assert output is not None
        for key, row in zip(output.keys_to_store, output.store_spec.chunk_ids, strict=True):
            self.view[row * ROW_BYTES : (row + 1) * ROW_BYTES] = content(key)
        self.step(ctx)
        if output.keys_to_store:
            self.manager.complete_store(output.keys_to_store, ctx)
        self.manager.on_request_finished(ctx)
        self.rest()

    def restore(self, wanted: Sequence[OffloadKey]) -> list[OffloadKey]:
        """A request that asks for these blocks until it knows; which it got, all of them right."""
        ctx = self.request(wanted)
        pending = (LookupResult.RETRY, LookupResult.HIT_PENDING)
        found: dict[OffloadKey, LookupResult] = {}

        def known() -> bool:
            found.update((key, self.manager.lookup(key, ctx)) for key in wanted)
            return not any(result in pending for result in found.values())

        self.until(known)
        hits = [key for key in wanted if found[key] is LookupResult.HIT]
        rows = self.manager.prepare_load(hits, ctx).chunk_ids
        for key, row in zip(hits, rows, strict=True):
            assert self.view[row * ROW_BYTES : (row + 1) * ROW_BYTES] == content(key)
        self.manager.complete_load(hits, ctx)
        self.manager.on_request_finished(ctx)
        self.rest()
        return hits
