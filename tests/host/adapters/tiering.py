# SPDX-License-Identifier: Apache-2.0
"""Our tiering in the place of vLLM's: the manager, and a tier in memory for its example tier.

Covers translation only. Three things are arranged, as vLLM's tests know no scheduler around them:
a step of the engine passes after every completion, each key that is looked up is a request of its
own, and tiers may pin all of a pool, since pools of five slots have no half to speak of.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.cpu.policies import lru
from vllm.v1.kv_offload.tiering.base import JobResult
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tiercache.blocks import GroupKind, GroupSpec, Key, key_hash
from tiercache.cache import TieredCache
from tiercache.tiers.base import Batch, Done, SlotMemory
from tiercache.tiers.memory import MemoryTier

from .manager import BLOCK, HostManager, PolicyView

OURS = (TieredCache, MemoryTier)
SLOT_BYTES = 4096
NOBODY = ReqContext("")


def install() -> None:
    from vllm.v1.kv_offload.tiering import manager
    from vllm.v1.kv_offload.tiering.example import manager as example

    lru.LRUCachePolicy = PolicyView
    example.ExampleSecondaryTierManager = HostTier
    manager.CPUPrimaryTierOffloadingManager = Primary
    manager.TieringOffloadingManager = HostTiering


class HostTier(MemoryTier):
    """Takes vLLM's arguments; ``chunks`` and the job methods by vLLM's names."""

    medium: ClassVar[Medium] = Medium.CPU
    cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        custom_param: int = 0,
        backpressure_detector: Any = None,
    ) -> None:
        shape = primary_kv_view.shape
        assert shape is not None
        nbytes = shape[0] * SLOT_BYTES
        group = GroupSpec(0, GroupKind.FULL, BLOCK, SLOT_BYTES)
        memory = SlotMemory([group], {0: [memoryview(bytearray(nbytes))]})
        super().__init__(tier_type, memory, capacity=1 << 30)
        self.chunks = Chunks(self)
        self.completed_jobs = Results(self)
        self.batches: dict[int, Batch] = {}

    def has(self, key: Key) -> bool:
        return self.lookup(key, NOBODY) is LookupResult.HIT

    def store(self, batch: Batch) -> bool:
        self.submit_store(batch)
        return True

    def load(self, batch: Batch) -> None:
        self.batches[batch.job_id] = batch
        self.submit_load(batch)

    def submit_store(self, batch: Batch) -> None:
        assert super().store(batch)

    def submit_load(self, batch: Batch) -> None:
        super().load(batch)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.HIT if key in self._records else LookupResult.MISS

    def get_num_chunks(self) -> int:
        return self.stats().entries


class Results:
    """Results of jobs that wait to be asked for; a test can add one of vLLM's."""

    def __init__(self, tier: HostTier) -> None:
        self._tier = tier

    def append(self, result: JobResult) -> None:
        good = result.successful_keys or ()
        keys = self._tier.batches[result.job_id].keys
        failed = () if result.success else [key for key in keys if key not in good]
        self._tier._done.append(Done(result.job_id, failed, 0, 0.0))

    def __len__(self) -> int:
        return len(self._tier._done)


class Chunks:
    """Puts records into a tier as if they had been stored."""

    def __init__(self, tier: HostTier) -> None:
        self._tier = tier

    def __setitem__(self, key: OffloadKey, present: bool) -> None:
        self._tier._records[Key(key)] = bytes(SLOT_BYTES)
        self._tier._stats.used += SLOT_BYTES


class Primary:
    """The primary tier of a ``HostTiering``: what vLLM's tests read of it."""

    manager: "HostTiering"

    def __init__(self, num_chunks: int, mmap_region: Any) -> None:
        self.num_chunks = num_chunks

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return self.manager.here(key, req_context)

    @property
    def _policy(self) -> "PinView":
        return PinView(self.manager.cache.primary.pools[0])


class Pins:
    def __init__(self, ref_cnt: int) -> None:
        self.ref_cnt = ref_cnt


class PinView(PolicyView):
    """Says how often a key is pinned."""

    def get(self, key: OffloadKey) -> Pins:
        slot = self._pool.ready.get(Key(key))
        return Pins(0 if slot is None else int(self._pool._pins[slot]))


class HostTiering(HostManager):
    """Takes vLLM's arguments."""

    groups = (0,)

    def __init__(self, primary_tier: Primary, secondary_tiers: list[HostTier]) -> None:
        super().__init__(primary_tier.num_chunks, enable_events=True)
        primary_tier.manager = self
        self.cache.attach(secondary_tiers)
        if self.cache.tiering is not None:
            spiller = self.cache.tiering.spiller
            spiller._limit = {0: 1 << 20}
        self._req_state = self._requests
        self._asked: dict[str, list[ReqContext]] = {}
        """Contexts of the requests that stand for the keys that another one looked up."""

    def here(self, key: OffloadKey, ctx: ReqContext) -> LookupResult:
        return super().lookup(key, ctx)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = self.here(key, req_context)
        if found is not LookupResult.MISS or self.cache.tiering is None:
            return found
        alone = self._alone(key, req_context)
        if alone.req_id not in self._requests:
            self._asked.setdefault(req_context.req_id, []).append(alone)
            self.expect(alone.req_id, [key_hash(Key(key))])
            self.on_new_request(alone)
        self.begin_lookup(alone.req_id, start=0, limit=BLOCK)
        self.end_lookup()
        return LookupResult.HIT_PENDING if self.is_waiting else self.here(key, req_context)

    def _alone(self, key: OffloadKey, ctx: ReqContext) -> ReqContext:
        return ReqContext(f"{ctx.req_id} {key.hex()}")

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        return super().get_load_source(key, self._alone(key, req_context))

    @property
    def _request_load_sources(self) -> dict[str, set[Key]]:
        """What was brought from tiers for whom."""
        return {
            req_id: {key for ctx in asked for key in self._requests[ctx.req_id].promoted}
            for req_id, asked in self._asked.items()
        }

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        super().complete_store(keys, req_context, success)
        self.step(0)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self.step(0)
        self.cache.validate()
