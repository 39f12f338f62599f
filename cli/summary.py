# SPDX-License-Identifier: Apache-2.0
"""A pool on one screen: sums since its start, and how full it is now."""

from collections.abc import Iterator, Sequence
from typing import Final

from tiercache.cli import pools, rates
from tiercache.cli.listing import Column
from tiercache.cli.table import clean, count, duration, latency, plural, short, size
from tiercache.stats.latency import percentile
from tiercache.stats.model import Group, Health, Kind, Restores, Snapshot

FIELDS: Final = tuple(
    Column(name)
    for name in (
        "uptime_seconds",
        "running",
        "requests",
        "hit_percent",
        "restored_requests",
        "restored_tokens",
        "restored_bytes",
        "missed_requests",
        "missed_tokens",
        "p50_seconds",
        "p99_seconds",
        "used_bytes",
        "capacity_bytes",
        "tightest_group",
        "spare",
        "stored",
        "demoted",
        "evicted_demoted",
        "evicted_live",
        "refused",
        "sequences",
        "stranded_sequences",
        "cached_tokens",
        "restorable_tokens",
    )
)


def summary(snapshot: Snapshot) -> dict[str, object]:
    """Sums since the start, and levels."""
    got, missed = rates.restored(snapshot), snapshot.missed or rates.NOTHING
    groups, sequences = snapshot.groups, snapshot.sequences
    tight = rates.tightest(groups)
    kinds = (
        Kind.STORED,
        Kind.DEMOTED,
        Kind.EVICTED_DEMOTED,
        Kind.EVICTED_LIVE,
        Kind.REFUSED,
    )
    return {
        "uptime_seconds": None
        if snapshot.pool is None
        else pools.moment(snapshot) - snapshot.pool.started,
        "running": snapshot.running,
        "requests": got.requests + missed.requests,
        "hit_percent": rates.share(got.requests, got.requests + missed.requests),
        "restored_requests": got.requests,
        "restored_tokens": got.tokens,
        "restored_bytes": got.nbytes,
        "missed_requests": missed.requests,
        "missed_tokens": missed.tokens,
        "p50_seconds": percentile(got.histogram, 0.5),
        "p99_seconds": percentile(got.histogram, 0.99),
        "used_bytes": rates.used_bytes(groups),
        "capacity_bytes": rates.capacity_bytes(groups),
        "tightest_group": None if tight is None else tight.name,
        "spare": None if tight is None else tight.slots.spare,
        **{kind.value: rates.counted(groups, kind) for kind in kinds},
        "sequences": len(sequences),
        "stranded_sequences": rates.stranded(snapshot),
        "cached_tokens": sum(sequence.cached for sequence in sequences),
        "restorable_tokens": sum(sequence.restorable for sequence in sequences),
    }


def screen(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """The lines of the screen, with what each is about."""
    yield "pool", _pool(snapshot)
    yield from _fill(snapshot)
    yield from _restores(snapshot)
    yield "slots", _slots(snapshot.groups)
    yield "evicted", _evicted(snapshot.groups)
    yield from _sequences(snapshot)


def _pool(snapshot: Snapshot) -> str:
    running = "" if snapshot.running is None else f", {plural(snapshot.running, 'request')} open"
    if (pool := snapshot.pool) is None:
        return f"unknown{running}"
    up = duration(pools.moment(snapshot) - pool.started)
    workers = plural(pool.workers, "worker")
    what = f"{clean(pool.name)}, {clean(pool.writer)}, policy {clean(pool.policy)}, {workers}"
    return f"{what}, up {up}{running}"


def _fill(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    if snapshot.groups and all(group.slot_bytes for group in snapshot.groups):
        used, whole = rates.used_bytes(snapshot.groups), rates.capacity_bytes(snapshot.groups)
        yield "ram", _full(used, whole)
    for tier in snapshot.tiers:
        sick = "" if tier.health is Health.OK else f", {tier.health.value} after errors"
        waiting = f", {count(tier.queued)} waiting" if tier.queued else ""
        full = _full(tier.used, tier.capacity)
        yield clean(tier.name), f"{full}, {plural(tier.entries, 'entry', 'entries')}{waiting}{sick}"


def _full(used: int, whole: int) -> str:
    return f"{size(used)} of {size(whole)}, {_percent(used, whole)}"


def _restores(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    got, missed = rates.restored(snapshot), snapshot.missed or rates.NOTHING
    requests = got.requests + missed.requests
    if not requests:
        yield "restores", "no request yet"
        return
    sources = [("ram", snapshot.ram or rates.NOTHING)]
    sources += [(clean(tier.name), tier.restores) for tier in snapshot.tiers]
    each = ", ".join(f"{name} {count(restores.requests)}" for name, restores in sources)
    share = _percent(got.requests, requests)
    yield (
        "restores",
        f"{share} of {plural(requests, 'request')}: {each}; none {count(missed.requests)}",
    )
    yield "", f"{short(got.tokens)} tokens restored, {size(got.nbytes)}{_took(got)}"
    if missed.tokens:
        yield "", f"{short(missed.tokens)} tokens of requests that found nothing were computed"


def _took(restores: Restores) -> str:
    half, most = (percentile(restores.histogram, part) for part in (0.5, 0.99))
    if half is None or most is None:
        return ""
    return f"; half within {latency(half)}, 99 % within {latency(most)}"


def _slots(groups: Sequence[Group]) -> str:
    tight = rates.tightest(groups)
    if tight is None:
        return "no live entry"
    name = f"{clean(tight.name)} ({clean(tight.kind)})"
    if not tight.slots.spare:
        return f"{name} evicts a live entry with the next store !"
    return f"{plural(tight.slots.spare, 'store')} until {name} evicts a live entry"


def _evicted(groups: Sequence[Group]) -> str:
    demoted, live, refused = (
        count(rates.counted(groups, kind))
        for kind in (Kind.EVICTED_DEMOTED, Kind.EVICTED_LIVE, Kind.REFUSED)
    )
    return f"{demoted} demoted and {live} live entries; {refused} stores refused"


def _sequences(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    found = snapshot.sequences
    cached, restorable = sum(s.cached for s in found), sum(s.restorable for s in found)
    yield (
        "sequences",
        f"{count(len(found))}: {short(cached)} tokens cached, {short(restorable)} restorable",
    )
    if stranded := [s for s in found if s.is_stranded]:
        lost = short(sum(s.stranded for s in stranded))
        yield "", f"{len(stranded)} cannot be restored, {lost} tokens: tiercache seq --stranded"


def _percent(part: float, whole: float) -> str:
    share = rates.share(part, whole)
    return "-" if share is None else f"{share:.1f} %"
