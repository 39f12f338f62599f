# SPDX-License-Identifier: Apache-2.0
"""``TierCacheManager`` in the place of vLLM's manager of host memory.

Covers translation only: constructor arguments, the numbers and names that vLLM gives to slots and
gauges, and what its tests read and set of the eviction policy's queues.
"""

from collections.abc import Collection, Iterable, MutableMapping
from itertools import chain, count
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    Medium,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec, CPUOffloadingMetrics

from tiercache.blocks import GroupKind, GroupSpec, Key, key_hash, make_key
from tiercache.cache import TieredCache
from tiercache.ghosts import Ghosts, short_names
from tiercache.policies import Policy
from tiercache.policies.arc import ARC
from tiercache.slots import SlotPool
from tiercache.vllm.manager import TierCacheManager
from tiercache.vllm.transfer import SlotsLoadStoreSpec

OURS = (TieredCache,)
BLOCK = 16


def install() -> None:
    from vllm.v1.kv_offload.cpu import manager
    from vllm.v1.kv_offload.cpu.policies import arc, lru

    manager.CPUOffloadingManager = HostManager
    arc.ARCCachePolicy = ArcView
    lru.LRUCachePolicy = PolicyView


class HostManager(TierCacheManager):
    """Takes vLLM's arguments; each group gets a pool of ``num_chunks`` slots.

    What vLLM's tests do on behalf of no request, under an empty name, is on behalf of a new one
    each time: ours do not let a request evict what it has used itself.
    """

    medium = Medium.CPU
    groups: tuple[int, ...] = (0, 1)

    def __init__(  # noqa: PLR0917 - vLLM's
        self,
        num_chunks: int,
        cache_policy: str = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 0,
        max_tracker_size: int = 64_000,
    ) -> None:
        assert cache_policy_module_path is None, "policies are chosen by name"
        cache = TieredCache(
            [GroupSpec(group_id, GroupKind.FULL, BLOCK, 4096) for group_id in self.groups],
            dict.fromkeys(self.groups, num_chunks),
            tokens_per_hash=BLOCK,
            policy=cache_policy,
            store_threshold=store_threshold,
            max_tracker_size=max_tracker_size,
        )
        super().__init__(cache, kv_events=enable_events)
        self._chunk_ids = ChunkIds(cache.primary.pools[0])
        self._unnamed = count()
        self._skipped = 0

    def _announced(self, ctx: ReqContext) -> ReqContext:
        """A context with a name, of a request whose hashes are known as from our connector."""
        if not ctx.req_id:
            return ReqContext(f"unnamed {next(self._unnamed)}")
        positions = ctx._offload_key_positions
        if positions and ctx.req_id not in self._requests:
            ordered = sorted(positions, key=lambda key: positions[key])
            self.expect(ctx.req_id, [key_hash(Key(key)) for key in ordered])
        return ctx

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, self._announced(req_context))
        if output is not None:
            self._chunk_ids.free(output.evicted_keys)
            output.store_spec = self._chunks(output.keys_to_store, output.store_spec)
        self.cache.validate()
        return output

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return self._chunks(keys, super().prepare_load(keys, self._announced(req_context)))

    def _chunks(self, keys: Iterable[OffloadKey], spec: LoadStoreSpec) -> CPULoadStoreSpec:
        assert isinstance(spec, SlotsLoadStoreSpec)
        return CPULoadStoreSpec(self._chunk_ids.of(keys, spec.slots.tolist()))

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """vLLM's scheduler never calls it; what it asks for is what a policy's method does."""
        self._policy.touch(keys)

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What ours counts, by the names of vLLM's gauges."""
        stats = super().get_stats() or OffloadingConnectorStats()
        counts, names = self.cache.counts()[0], CPUOffloadingMetrics
        capacity = sum(counts) or 1
        stats.set_gauge(names.CPU_CACHE_WRITE_USAGE_PERC, counts.storing / capacity)
        stats.set_gauge(names.CPU_CACHE_READ_USAGE_PERC, counts.pinned / capacity)
        used = counts.storing + counts.pinned
        stats.set_gauge(names.CPU_CACHE_USAGE_PERC, used / capacity)
        skipped = self.stores_skipped_in_current_batch
        stats.increase_counter(names.STORES_SKIPPED, skipped - self._skipped)
        self._skipped = skipped
        return stats

    @property
    def _policy(self) -> "PolicyView":
        pool = self.cache.primary.pools[0]
        return ArcView(pool) if isinstance(pool.policy, ARC) else PolicyView(pool)

    # --- names of vLLM's for what is counted

    @property
    def counts(self) -> MutableMapping[Key, int]:
        return self.cache._offers._offers

    @property
    def stores_skipped_in_current_batch(self) -> int:
        return self.cache._offers.skipped

    @property
    def _num_evictable_cache_chunks(self) -> int:
        return len(self.cache.primary.pools[0].policy)


class ChunkIds:
    """Numbers slots as vLLM does: those never used first, in order, then the last one freed.

    Which slot a key gets is nobody's business but that it keeps it, and that nobody else has it:
    that much is checked.
    """

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._held: dict[OffloadKey, tuple[int, int]] = {}
        """Chunk id and slot of each key."""
        self._fresh = count()
        self._free: list[int] = []

    def of(self, keys: Iterable[OffloadKey], slots: list[int]) -> list[int]:
        slot_of = {**self._pool.ready, **self._pool.storing}
        self.free([key for key in self._held if key not in slot_of])
        chunk_ids = []
        for key, slot in zip(keys, slots, strict=True):
            if key not in self._held:
                assert slot not in {held for _, held in self._held.values()}
                self._held[key] = (self._next(), slot)
            chunk_id, held = self._held[key]
            assert held == slot == slot_of.get(Key(key), slot)
            chunk_ids.append(chunk_id)
        return chunk_ids

    def free(self, keys: Iterable[OffloadKey]) -> None:
        self._free.extend(self._held.pop(key)[0] for key in keys if key in self._held)

    def _next(self) -> int:
        fresh = next(self._fresh)
        return fresh if fresh < self._pool.capacity else self._free.pop()


class PolicyView:
    """A policy of ours by the names that vLLM's tests use; a reset makes a new one.

    As in vLLM's, what is touched together is in the order of its prefix: the first key goes last.
    """

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool

    @property
    def _ours(self) -> Policy:
        return self._pool.policy

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        self._pool.touch(map(Key, reversed(list(keys))))

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[Key, None]] | None:
        ready = self._pool.ready
        evicted = self._ours.evict(n, frozenset(ready.find(map(Key, protected))))
        return None if evicted is None else [(key, None) for key in ready.keys_in(evicted.slots)]


class ArcView(PolicyView):
    """The four queues of ARC."""

    @property
    def _ours(self) -> ARC:
        policy = self._pool.policy
        assert isinstance(policy, ARC)
        return policy

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """A ghost that is touched is a miss: it moves the target, and stays a ghost."""
        for key in map(Key, reversed(list(keys))):
            for ghosts in (self._ours._once_ghosts, self._ours._again_ghosts):
                if key in _keys_of(ghosts):
                    name = short_names([key])
                    self._ours._recall(name)
                    ghosts.remember(name)
            self._pool.touch([key])

    @property
    def t1(self) -> dict[Any, Any]:
        return self._queue(self._pool.ready.keys_in(chain.from_iterable(self._ours._once)))

    @t1.setter
    def t1(self, counting: object) -> None:
        """Scans of our queues are not counted."""

    @property
    def t2(self) -> dict[Any, Any]:
        return self._queue(self._pool.ready.keys_in(chain.from_iterable(self._ours._again)))

    @t2.setter
    def t2(self, counting: object) -> None:
        """Scans of our queues are not counted."""

    @property
    def b1(self) -> dict[Any, Any]:
        return self._queue(_keys_of(self._ours._once_ghosts))

    @property
    def b2(self) -> dict[Any, Any]:
        return self._queue(_keys_of(self._ours._again_ghosts))

    def _queue(self, queue: Iterable[Key]) -> dict[Any, Any]:
        """A queue as it is now: key to what vLLM says of a chunk."""
        pinned = frozenset(self._pool.pinned())
        return {key: SimpleNamespace(ref_cnt=int(key in pinned)) for key in queue}

    @property
    def target_t1_size(self) -> float:
        return self._ours.target

    @target_t1_size.setter
    def target_t1_size(self, size: float) -> None:
        self._ours.target = size

    @property
    def cache_capacity(self) -> int:
        return self._ours.capacity


def _keys_of(ghosts: Ghosts) -> list[Key]:
    """The keys that ghosts were; the hashes of vLLM's tests are short enough to be read again."""
    names = ghosts._place_of.keys_in(chain.from_iterable(ghosts._order))
    return [make_key(name.rstrip(b"\0"), 0) for name in names]
