# SPDX-License-Identifier: Apache-2.0
"""What happened in a pool from the start, or between two snapshots of it.

Covers sums over groups and tiers, and differences; pure. How they are printed is for
the commands.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Listed
from itertools import zip_longest
from operator import add, sub
from typing import Final

from tiercache.stats.latency import percentile
from tiercache.stats.model import Group, Kind, Restores, Snapshot

NOTHING: Final = Restores()


def restored(snapshot: Snapshot) -> Restores:
    """What requests got from RAM and all tiers together."""
    total = snapshot.ram or NOTHING
    for tier in snapshot.tiers:
        total = _combined(add, total, tier.restores)
    return total


def between(before: Restores, after: Restores) -> Restores:
    return _combined(sub, after, before)


def counted(groups: Iterable[Group], kind: Kind) -> int:
    """Entries over all groups."""
    return sum(group.counts.get(kind, 0) for group in groups)


def stored_bytes(groups: Iterable[Group]) -> int:
    """Bytes that were copied from the device, over all workers."""
    return sum(group.counts.get(Kind.STORED, 0) * (group.slot_bytes or 0) for group in groups)


def share(part: float, whole: float) -> float | None:
    """``part`` in per cent of ``whole``; None of nothing."""
    return 100 * part / whole if whole else None


def used_bytes(groups: Iterable[Group]) -> int:
    return sum(g.slot_bytes * (g.slots.capacity - g.slots.free) for g in groups if g.slot_bytes)


def capacity_bytes(groups: Iterable[Group]) -> int:
    return sum(g.slot_bytes * g.slots.capacity for g in groups if g.slot_bytes)


def tightest(groups: Listed[Group]) -> Group | None:
    """The group that loses a live entry first: of those that have one, the least spare slots."""
    return min((g for g in groups if g.slots.live), key=lambda g: g.slots.spare, default=None)


def interval(before: Snapshot, after: Snapshot) -> dict[str, object]:
    """Rates from one snapshot to the next; levels are those of the second.

    Rates are per second and shares per cent; None where nothing happened.
    """
    seconds = max(after.taken - before.taken, 1e-9)
    ram = between(before.ram or NOTHING, after.ram or NOTHING)
    got = between(restored(before), restored(after))
    missed = between(before.missed or NOTHING, after.missed or NOTHING)
    requests = got.requests + missed.requests

    def rate(kind: Kind) -> float:
        return (counted(after.groups, kind) - counted(before.groups, kind)) / seconds

    return {
        "time": after.taken,
        "seconds": seconds,
        "requests": requests,
        "hit_percent": share(got.requests, requests),
        "ram_percent": share(ram.requests, requests),
        "tiers_percent": share(got.requests - ram.requests, requests),
        "stranded_sequences": stranded(after),
        "stored_rate": rate(Kind.STORED),
        "demoted_rate": rate(Kind.DEMOTED),
        "evicted_demoted_rate": rate(Kind.EVICTED_DEMOTED),
        "evicted_live_rate": rate(Kind.EVICTED_LIVE),
        "restored_bytes_rate": got.nbytes / seconds,
        "stored_bytes_rate": (stored_bytes(after.groups) - stored_bytes(before.groups)) / seconds,
        "p99_seconds": percentile(got.histogram, 0.99),
        "spare": None if (tight := tightest(after.groups)) is None else tight.slots.spare,
    }


def stranded(snapshot: Snapshot) -> int:
    """Sequences that have attention blocks and cannot be restored at all."""
    return sum(sequence.is_stranded for sequence in snapshot.sequences)


def _combined(operation: Callable[[int, int], int], one: Restores, other: Restores) -> Restores:
    pairs = zip_longest(one.histogram, other.histogram, fillvalue=0)
    return Restores(
        operation(one.requests, other.requests),
        operation(one.tokens, other.tokens),
        operation(one.nbytes, other.nbytes),
        tuple(operation(a, b) for a, b in pairs),
    )
