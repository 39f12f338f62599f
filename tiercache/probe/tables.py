# SPDX-License-Identifier: Apache-2.0
"""The rows of groups and tiers: what a cache says of itself when asked.

Covers reading the books of one cache. What is asked how often is decided in ``publisher``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from tiercache.blocks import GroupSpec
from tiercache.cache import TieredCache
from tiercache.errors import TierCacheError
from tiercache.probe.restores import Restorations
from tiercache.stats.model import (
    Group,
    Health,
    Kind,
    Restores,
    SlotClass,
    Slots,
    Tier,
    Victim,
)
from tiercache.stats.rows import TIER_COUNTS
from tiercache.tiers.base import SecondaryTier


class Counted:
    """Entries of each group since the start that the journal does not count."""

    def __init__(self, group_ids: Iterable[int]) -> None:
        self._counts: dict[int, Counter[Kind]] = {group_id: Counter() for group_id in group_ids}

    def add(self, group_id: int, kind: Kind, n: int) -> None:
        self._counts[group_id][kind] += n

    def of(self, group_id: int) -> Counter[Kind]:
        return self._counts[group_id]


def describe(spec: GroupSpec, workers: int) -> Group:
    """What is fixed about a group."""
    return Group(
        f"g{spec.group_id}",
        spec.kind.value,
        Slots(0, 0, 0, 0, 0),
        spec.slot_bytes * workers,
        spec.tokens_per_chunk,
    )


def group(
    cache: TieredCache, fixed: Group, group_id: int, counted: Counted, oldest_live: float | None
) -> Group:
    """A group now."""
    counts: dict[str, int] = dict.fromkeys(map(str, Kind), 0)
    journal = cache.journal.counters.get(group_id, Counter())
    counts.update({kind.value: n for kind, n in journal.items()})
    counts.update({kind.value: n for kind, n in counted.of(group_id).items()})
    return Group(
        fixed.name,
        fixed.kind,
        Slots(*cache.primary.pools[group_id].counts()),
        fixed.slot_bytes,
        fixed.chunk_tokens,
        oldest_live,
        counts,
    )


def oldest_live(victims: Sequence[Victim]) -> float | None:
    """When the live entry that goes first was last used, if that is known."""
    live = (victim for victim in victims if victim.slot_class is SlotClass.LIVE)
    first = next(live, None)
    return None if first is None else first.last_used


def tiers(cache: TieredCache, restorations: Restorations) -> list[Tier]:
    """All secondary tiers now, the fastest first."""
    if cache.tiering is None:
        return []
    spiller = cache.tiering.spiller
    return [
        _tier(tier, spiller.queued(tier), restorations.tallies[tier.name].total())
        for tier in cache.tiering.tiers
    ]


def _tier(tier: SecondaryTier, queued: int, restores: Restores) -> Tier:
    stats = tier.stats()
    index: Mapping[str, int] = {}
    with suppress(TierCacheError):
        index = dict(tier.index_info())
    return Tier(
        name=tier.name,
        kind=tier.kind,
        health=Health.OK if stats.healthy else Health.RESTING,
        capacity=stats.capacity,
        used=stats.used,
        entries=stats.entries,
        jobs=stats.jobs,
        queued=queued,
        load_rate=tier.load_rate,
        restores=restores,
        counts=dict.fromkeys(TIER_COUNTS, 0) | stats.counters,
        index=index,
    )


def totals(cache: TieredCache, restorations: Restorations) -> dict[str, int]:
    """Counters of no group."""
    found = {
        "restored_tokens": restorations.restored_tokens,
        "lost_tokens": restorations.lost_tokens,
        "demotions_reused": cache.primary.reused,
    }
    if cache.tiering is not None:
        promoter = cache.tiering.promoter
        found |= {"late": promoter.late, "unworthy": promoter.unworthy}
    return found
