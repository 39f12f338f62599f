# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics ``vllm:tiercache_*``: their definitions and the deltas of each step."""

from collections import Counter
from dataclasses import replace

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

from tiercache.cache import TieredCache
from tiercache.events import EventKind
from tiercache.slots import SlotCounts
from tiercache.tiering import Tiering
from tiercache.tiers.base import TierStats

PREFIX = "vllm:tiercache_"
SLOTS = PREFIX + "slots"
EVICTIONS = PREFIX + "evictions"
RESTORED_TOKENS = PREFIX + "restored_tokens"
LOST_TOKENS = PREFIX + "lost_to_missing_state_tokens"

#: Counters per group: event kind -> name and documentation.
COUNTERS = {
    EventKind.DEMOTED: ("demotions", "States demoted because a later one superseded them."),
    EventKind.STRANDED: ("stranded", "Entries demoted because they serve nobody any more."),
    EventKind.REFUSED: ("reserve_failures", "Blocks not stored because their group had no room."),
}
#: Counters of bytes per group, over all workers.
BYTES = {
    EventKind.STORED: ("stored_bytes", "Bytes stored in host memory."),
    EventKind.RESTORED: ("restored_bytes", "Bytes restored from host memory."),
}
#: Counters per tier: name in `TierStats.counters` -> name and documentation.
TIER_COUNTERS = {
    "stored_bytes": ("tier_stored_bytes", "Bytes written to a secondary tier."),
    "loaded_bytes": ("tier_loaded_bytes", "Bytes read from a secondary tier."),
    "evicted": ("tier_evictions", "Entries that a secondary tier evicted."),
    "corrupt": ("tier_corrupt", "Entries that did not match their checksum, and were dropped."),
    "failed": ("tier_failures", "Entries that an error kept from being read or written."),
    "declined": ("tier_declined", "Entries not written: no room, no budget, or the tier rests."),
}
#: Gauges per tier: field of `TierStats` -> name and documentation.
TIER_GAUGES = {
    "capacity": ("tier_capacity_bytes", "Bytes that a secondary tier may take."),
    "used": ("tier_used_bytes", "Bytes of the entries of a secondary tier."),
    "entries": ("tier_entries", "Entries of a secondary tier."),
    "jobs": ("tier_jobs", "Copies to and from a secondary tier that have not ended."),
    "healthy": ("tier_healthy", "1, or 0 while a secondary tier rests after failures."),
}
LATE = PREFIX + "late_restores"
EVICTED = {EventKind.EVICTED_LIVE: "live", EventKind.EVICTED_DEMOTED: "demoted"}


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """Metrics by name, as vLLM registers them; counters are exported with ``_total``."""
    found: dict[str, OffloadingMetricMetadata] = {
        SLOTS: OffloadingGaugeMetadata(
            "Slots by group and state; a pinned slot counts as pinned only.",
            ("group", "kind", "state"),
        ),
        EVICTIONS: OffloadingCounterMetadata(
            "Entries evicted, live or after their demotion.", ("group", "entry")
        ),
        RESTORED_TOKENS: OffloadingCounterMetadata("Prompt tokens served from the tiers."),
        LOST_TOKENS: OffloadingCounterMetadata(
            "Prompt tokens whose attention blocks were there but that no state could serve."
        ),
    }
    for name, documentation in [*COUNTERS.values(), *BYTES.values()]:
        found[PREFIX + name] = OffloadingCounterMetadata(documentation, ("group",))
    for name, documentation in TIER_COUNTERS.values():
        found[PREFIX + name] = OffloadingCounterMetadata(documentation, ("tier",))
    for name, documentation in TIER_GAUGES.values():
        found[PREFIX + name] = OffloadingGaugeMetadata(documentation, ("tier",))
    found[LATE] = OffloadingCounterMetadata(
        "Requests that computed what a secondary tier did not deliver in time."
    )
    return found


class Meter:
    """Turns the cache's running totals into what changed since the last report."""

    def __init__(self, cache: TieredCache, workers: int) -> None:
        self.restored_tokens = 0
        self.lost_tokens = 0
        self._cache = cache
        self._workers = workers
        self._reported: dict[int, Counter[EventKind]] = {}
        self._slots: dict[int, SlotCounts] = {}
        self._tiers: dict[str, TierStats] = {}
        self._late = 0

    def take(self) -> OffloadingConnectorStats | None:
        """What changed since the last call, or None."""
        stats = OffloadingConnectorStats()
        for group_id, group in self._cache.groups.items():
            self._take_slots(stats, group_id, group.kind.value)
            self._take_counters(stats, group_id, group.slot_bytes * self._workers)
        if self.restored_tokens:
            stats.increase_counter(RESTORED_TOKENS, self.restored_tokens)
        if self.lost_tokens:
            stats.increase_counter(LOST_TOKENS, self.lost_tokens)
        self.restored_tokens = self.lost_tokens = 0
        if self._cache.tiering is not None:
            self._take_tiers(stats, self._cache.tiering)
        return None if stats.is_empty() else stats

    def _take_slots(self, stats: OffloadingConnectorStats, group_id: int, kind: str) -> None:
        counts = self._cache.primary.pools[group_id].counts()
        if counts == self._slots.get(group_id):
            return
        self._slots[group_id] = counts
        for state, value in counts._asdict().items():
            stats.set_gauge(SLOTS, value, (str(group_id), kind, state))

    def _take_counters(
        self, stats: OffloadingConnectorStats, group_id: int, slot_bytes: int
    ) -> None:
        total = self._cache.journal.counters.get(group_id)
        if total is None:
            return
        label = str(group_id)
        for kind, value in (total - self._reported.get(group_id, Counter())).items():
            if kind in COUNTERS:
                stats.increase_counter(PREFIX + COUNTERS[kind][0], value, (label,))
            elif kind in BYTES:
                stats.increase_counter(PREFIX + BYTES[kind][0], value * slot_bytes, (label,))
            elif kind in EVICTED:
                stats.increase_counter(EVICTIONS, value, (label, EVICTED[kind]))
        self._reported[group_id] = total.copy()

    def _take_tiers(self, stats: OffloadingConnectorStats, tiering: Tiering) -> None:
        late, self._late = tiering.promoter.late - self._late, tiering.promoter.late
        if late:
            stats.increase_counter(LATE, late)
        for tier in tiering.tiers:
            now = tier.stats()
            before = self._tiers.get(tier.name)
            for field, (name, _) in TIER_GAUGES.items():
                value = getattr(now, field)
                if before is None or value != getattr(before, field):
                    stats.set_gauge(PREFIX + name, value, (tier.name,))
            counted = before.counters if before is not None else Counter[str]()
            for field, value in (now.counters - counted).items():
                if field in TIER_COUNTERS:
                    stats.increase_counter(PREFIX + TIER_COUNTERS[field][0], value, (tier.name,))
            self._tiers[tier.name] = replace(now, counters=now.counters.copy())
