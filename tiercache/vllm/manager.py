# SPDX-License-Identifier: Apache-2.0
"""vLLM's ``OffloadingManager`` over a ``TieredCache``: translation, and nothing raised.

Covers the calls of vLLM's scheduler. What is cached and what goes is decided in the cache.
"""

import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tiercache.blocks import GROUP_SUFFIX_BYTES, GroupKind, group_suffix
from tiercache.cache import TieredCache
from tiercache.events import Event, EventKind
from tiercache.probe.attach import attach as publish
from tiercache.rates import ComputeRate
from tiercache.requests import Request
from tiercache.restore import RestorePlan
from tiercache.sharing import ArenaTicket, Attached, attach
from tiercache.tiers.base import SlotMemory
from tiercache.tiers.factory import open_tiers
from tiercache.vllm.filters import barred
from tiercache.vllm.geometry import Blueprint
from tiercache.vllm.metrics import Meter
from tiercache.vllm.transfer import SlotsLoadStoreSpec

logger = logging.getLogger(__name__)

HIT = LookupResult.HIT
EVERY_KIND = frozenset(GroupKind)
WINDOWS = frozenset({GroupKind.WINDOW})
Method = TypeVar("Method", bound=Callable[..., Any])


def guarded(answer: Callable[[], Any]) -> Callable[[Method], Method]:
    """Never raise into the engine: on a fault, log it once, serve no more hits, give ``answer()``.

    After a fault the books may be wrong, so from then on everything misses and nothing is stored.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: "TierCacheManager", *args: Any, **kwargs: Any) -> Any:
            if self.sick:
                return answer()
            try:
                return method(self, *args, **kwargs)
            except Exception:
                logger.exception(
                    "fault in %s: tiercache stops serving, requests are recomputed",
                    method.__name__,
                )
                self._fall_sick()
                return answer()

        return cast(Method, call)

    return decorate


def _nothing_to_store() -> PrepareStoreOutput:
    return PrepareStoreOutput([], SlotsLoadStoreSpec(np.empty(0, np.int32)), [])


class TierCacheManager(OffloadingManager):
    """Serves vLLM's scheduler from a ``TieredCache``.

    Locking: none; every call comes from the scheduler's thread.
    """

    def __init__(self, cache: TieredCache, *, workers: int = 1, kv_events: bool = False) -> None:
        self.cache = cache
        self.sick = False
        self.meter = Meter(cache, workers)
        self.is_waiting = False
        """Whether the request of this lookup should ask again later."""
        self._rate = ComputeRate()
        self._attached: list[Attached] = []
        self._pools = {group_suffix(g): pool for g, pool in cache.primary.pools.items()}
        self._holders = max(self._pools.values(), key=lambda pool: pool.capacity).ready.holders
        """The biggest group's slots, and which of them the next lookup will most likely hit."""
        self._next = 0
        self._stop: int | None = None
        """The one of them that the plan does not reach. A prefix is asked for up to there."""
        self._hashes: dict[str, Sequence[bytes]] = {}
        self._requests: dict[str, Request] = {}
        self._declined: dict[str, frozenset[GroupKind]] = {}
        """Kinds of groups whose blocks are not taken, per request."""
        self._limit: dict[bytes, int] = {}
        self._lost: dict[str, int] = {}
        self._events: list[OffloadingEvent] = []
        if kv_events:
            cache.journal.listeners.append(self._publish)

    def _fall_sick(self) -> None:
        self.sick = True
        self.is_waiting = False  # else whoever was told to ask again would do so for ever
        self._holders, self._next = [None], 0
        self.end_lookup()

    # --- what the connector tells beyond vLLM's interface

    def attach(
        self,
        blueprint: Blueprint,
        tickets: Sequence[ArenaTicket],
        fingerprint: Mapping[str, object],
    ) -> None:
        """Open the secondary tiers over the arenas of all workers, in the order of their ranks.

        Raises at start-up only: ConfigError, TierCacheError, UnsupportedError.
        """
        config, geometry = blueprint.config, blueprint.geometry
        self._attached = [attach(ticket) for ticket in tickets]
        regions = {
            group.group_id: [arena.region(group.group_id) for arena in self._attached]
            for group in geometry.groups
        }
        memory = SlotMemory(geometry.groups, regions)
        tiers = open_tiers(
            config.secondary_tiers, memory, geometry.groups, geometry.slots, fingerprint
        )
        self.cache.attach(tiers, patience_s=config.restore_patience_s, restore=config.restore)

    def publish(self, name: str, *, workers: int, rank: int) -> None:
        """Write the stats segment from now on. Once the tiers are attached; raises nothing.

        ``name`` is the model's, ``rank`` that of this engine among those that share the model.
        """
        if self.cache.observer is None:
            publish(self.cache, name=name, workers=workers, rank=rank)

    @guarded(lambda: None)
    def step(self, tokens: int) -> None:
        """A step of the engine with ``tokens`` tokens was scheduled."""
        if self.cache.tiering is not None:
            self._rate.step(tokens, time.monotonic())
            self.cache.tiering.promoter.compute_rate = self._rate.tokens_per_second
        self.cache.poll()

    def expect(self, request_id: str, hashes: Sequence[bytes], *, may_store: bool = True) -> None:
        """The block hashes of a request that is about to be announced; they may grow."""
        if self.sick:
            return
        self._hashes[request_id] = hashes
        if not may_store:
            self._declined[request_id] = EVERY_KIND

    @guarded(lambda: None)
    def begin_lookup(self, request_id: str, *, start: int, limit: int) -> RestorePlan | None:
        """Plan a restore; until ``end_lookup`` the answers to ``lookup`` follow the plan.

        ``start`` and ``limit`` are in tokens. None while the request ``is_waiting`` for other
        tiers, and if no plan is needed: with full attention only, vLLM's own scan of the prefix
        finds the same boundary.
        """
        self.is_waiting = False
        if self._declined.get(request_id) is WINDOWS:  # it starts anew, with blocks of its own
            del self._declined[request_id]
        needs_plan = self.cache.is_hybrid or self.cache.tiering is not None
        request = self._requests[request_id]
        if not needs_plan and not logger.isEnabledFor(logging.DEBUG):
            self.cache.ask(request, start=start, limit=limit)
            return None
        plan = self.cache.restore(request, start=start, limit=limit)
        if plan is None:
            self.is_waiting = True
            return None
        self._lost[request_id] = plan.lost
        if self.cache.has_states:
            self._end_at(request, plan.boundary)
        return plan

    def _end_at(self, request: Request, boundary: int) -> None:
        """Have attention blocks beyond ``boundary`` miss."""
        for group_id, group in self.cache.groups.items():
            if group.kind is not GroupKind.FULL:
                continue
            limit = boundary + group.lookahead
            self._limit[group_suffix(group_id)] = limit
            pool = self.cache.primary.pools[group_id]
            if pool.ready.holders is self._holders:
                step = group.tokens_per_chunk
                beyond = request.lineage.key(group_id, limit - limit % step + step)
                self._stop = None if beyond is None else pool.ready.get(beyond)

    def end_lookup(self) -> None:
        self._limit = {}
        self._stop = None

    @guarded(lambda: "")
    def explain(self, request_id: str, plan: RestorePlan) -> str:
        return self.cache.explain(self._requests[request_id], plan)

    @guarded(lambda: None)
    def served(self, request_id: str, tokens: int) -> None:
        """A request was admitted with ``tokens`` of its prompt restored."""
        self.meter.restored_tokens += tokens
        self.meter.lost_tokens += self._lost.pop(request_id, 0)
        if request := self._requests.get(request_id):
            self.cache.served(request, tokens)

    # --- vLLM's interface

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        slot = self._next
        if self._holders[slot] == key and slot != self._stop:
            self._next = slot + 1
            return HIT
        return self._lookup(key, req_context)

    @guarded(lambda: LookupResult.MISS)
    def _lookup(self, key: OffloadKey, ctx: ReqContext) -> LookupResult:
        suffix = key[-GROUP_SUFFIX_BYTES:]
        pool = self._pools.get(suffix)
        limit = self._limit.get(suffix)
        if pool is None:
            return LookupResult.MISS
        if limit is not None and (ctx.get_offload_key_position(key) or 0) > limit:
            return LookupResult.MISS
        slot = pool.ready.get(key)
        if slot is not None:
            self._next = slot + 1 if pool.ready.holders is self._holders else self._next
            return HIT
        # What another tier is still reading may fail to come.
        if key in pool.storing and not self.cache.is_loading(key):
            return LookupResult.HIT_PENDING
        return LookupResult.MISS

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        request = self._requests.get(req_context.req_id)
        if request is not None and key in request.promoted:
            return CacheHitSource.DISK
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin what was a hit in this step; vLLM asks for nothing else.

        A fault breaks no promise: from then on nobody is given these slots any more.
        """
        slots = self._pin(keys, req_context)
        if slots is None:
            slots = [self._pools[key[-GROUP_SUFFIX_BYTES:]].ready[key] for key in keys]
        return SlotsLoadStoreSpec(np.array(slots, np.int32))

    @guarded(lambda: None)
    def _pin(self, keys: Collection[OffloadKey], ctx: ReqContext) -> list[int] | None:
        return self.cache.load(self._request(ctx), keys)

    @guarded(lambda: None)
    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.cache.release(keys, self._requests.get(req_context.req_id))

    @guarded(_nothing_to_store)
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        if declined := self._declined.get(req_context.req_id):
            keys = [key for key in keys if self._kind(key) not in declined]
        request = self._request(req_context)
        reservation = self.cache.reserve(request, keys)
        if reservation is None:
            # vLLM retries attention blocks at every step: no use if they never fit.
            return None if self.cache.could_fit(request) else _nothing_to_store()
        return PrepareStoreOutput(
            reservation.keys,
            SlotsLoadStoreSpec(np.array(reservation.slots, np.int32)),
            reservation.evicted,
        )

    def _kind(self, key: OffloadKey) -> GroupKind:
        return self._pools[key[-GROUP_SUFFIX_BYTES:]].spec.kind

    @guarded(lambda: None)
    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        if success:
            self.cache.commit(keys)
        else:
            self.cache.fail(keys)

    @guarded(RequestOffloadingContext)
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._open(req_context)
        return RequestOffloadingContext()

    def _open(self, ctx: ReqContext) -> Request:
        request = self.cache.open(ctx.req_id, self._hashes.pop(ctx.req_id, ()))
        if self.cache.tiering is not None:
            request.barred = barred(self.cache.tiering.tiers, ctx.load_tier_filter)
        self._requests[ctx.req_id] = request
        return request

    def _request(self, ctx: ReqContext) -> Request:
        """The request of a context, announced or not."""
        return self._requests.get(ctx.req_id) or self._open(ctx)

    @guarded(lambda: None)
    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lost.pop(req_context.req_id, None)
        self._declined.pop(req_context.req_id, None)
        self.cache.finish(self._request(req_context))
        del self._requests[req_context.req_id]

    @guarded(lambda: None)
    def reset_cache(self) -> None:
        """Drop everything, in flight or not; vLLM reports nothing of it any more.

        It then offers all blocks of running requests anew, for sliding windows from a table in
        which those that the window has left behind may be somebody else's: those are declined.
        """
        self.cache.reset()
        for request_id in self._requests:
            self._declined.setdefault(request_id, WINDOWS)

    @guarded(lambda: False)
    def has_pending_work(self) -> bool:
        """Whether the engine should go on stepping although it has no requests."""
        return self.cache.pending

    def shutdown(self) -> None:
        """Close the tiers, then let go of the arenas that they copy from."""
        for close in (self.cache.close, *(arena.close for arena in self._attached)):
            try:
                close()
            except Exception:
                logger.exception("tiercache: not closed in order")
        self._attached.clear()

    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, []
        return events

    def _publish(self, event: Event) -> None:
        removed = event.kind in (EventKind.EVICTED_LIVE, EventKind.EVICTED_DEMOTED)
        if removed or event.kind is EventKind.STORED:
            keys: list[Any] = list(event.keys)
            self._events.append(OffloadingEvent(keys, Medium.CPU, removed=removed))

    @guarded(lambda: None)
    def get_stats(self) -> OffloadingConnectorStats | None:
        return self.meter.take()
