# SPDX-License-Identifier: Apache-2.0
"""How the counters of a history grew: totals since a baseline, rates, and steps for a sparkline.

A counter is a function of a snapshot. What a snapshot does not know stays unknown, and a counter
that shrank gives neither a rate nor a step: it belongs to another run.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from tiercache.stats.model import Kind, Restores, Snapshot, Tier
from tiercache.tui.frame import Frame

Counter = Callable[[Snapshot], int | None]

#: Rates are means over this long: one tick of a server in bursts says little.
RATE_WINDOW_S = 10.0
RAM = "ram"
MISSED = "miss"


def moment(snapshot: Snapshot) -> float:
    """The time of a snapshot by the writer's clock: a replay has its own, and ages are by that."""
    pool = snapshot.pool
    return snapshot.heartbeat if pool is not None and pool.writer != "serve" else snapshot.taken


def rate(history: Sequence[Snapshot], counter: Counter) -> float | None:
    """Growth per second over the last ten seconds; None without two readings."""
    if not history:
        return None
    start = last = history[-1]
    for snapshot in reversed(history):
        if last.taken - snapshot.taken > RATE_WINDOW_S:
            break
        start = snapshot
    return _speed(start, last, counter)


def steps(history: Sequence[Snapshot], counter: Counter, number: int) -> list[float | None]:
    """Growth per second from each snapshot to the next, for the last ``number`` of them."""
    recent = history[-number - 1 :] if number > 0 else ()
    return [_speed(earlier, later, counter) for earlier, later in pairwise(recent)]


def _speed(earlier: Snapshot, later: Snapshot, counter: Counter) -> float | None:
    before, after = counter(earlier), counter(later)
    passed = later.taken - earlier.taken
    if before is None or after is None or after < before or passed <= 0:
        return None
    return (after - before) / passed


def total(frame: Frame, counter: Counter) -> int | None:
    """The counter since the baseline, or since the server started if there is none."""
    latest = frame.latest
    now = None if latest is None else counter(latest)
    if now is None or frame.baseline is None:
        return now
    before = counter(frame.baseline)
    return now - before if before is not None and now >= before else None


def counted(kind: Kind) -> Counter:
    """Entries of all groups; unknown if one of them does not tell."""

    def read(snapshot: Snapshot) -> int | None:
        numbers = [group.counts.get(kind) for group in snapshot.groups]
        known = [number for number in numbers if number is not None]
        return sum(known) if known and len(known) == len(numbers) else None

    return read


def named(name: str) -> Counter:
    """One of ``Snapshot.totals``."""
    return lambda snapshot: snapshot.totals.get(name)


def of_tier(tier: str, name: str) -> Counter:
    """One of ``Tier.counts``."""

    def read(snapshot: Snapshot) -> int | None:
        found = tier_named(snapshot, tier)
        return None if found is None else found.counts.get(name)

    return read


def restored(source: str, field: str) -> Counter:
    """``requests``, ``tokens`` or ``nbytes`` that came from a source."""

    def read(snapshot: Snapshot) -> int | None:
        found = restores(snapshot, source)
        return None if found is None else int(getattr(found, field))

    return read


def restores(snapshot: Snapshot, source: str) -> Restores | None:
    """What requests got from ``ram``, from ``miss`` (nothing) or from a tier."""
    if source == RAM:
        return snapshot.ram
    if source == MISSED:
        return snapshot.missed
    tier = tier_named(snapshot, source)
    return None if tier is None or is_reduced(snapshot) else tier.restores


def is_reduced(snapshot: Snapshot) -> bool:
    """Whether it was made of metrics: what tiers then say of restores and queues means nothing."""
    return snapshot.ram is None


def tier_named(snapshot: Snapshot, name: str) -> Tier | None:
    return next((tier for tier in snapshot.tiers if tier.name == name), None)


def histogram(frame: Frame, source: str) -> Sequence[int]:
    """Latencies of a source since the baseline; nothing where that is not known."""
    found = None if frame.latest is None else restores(frame.latest, source)
    if found is None:
        return ()
    if frame.baseline is None:
        return found.histogram
    before = restores(frame.baseline, source)
    if before is None or len(before.histogram) > len(found.histogram):
        return ()
    padded = [*before.histogram, *[0] * (len(found.histogram) - len(before.histogram))]
    grown = [now - then for now, then in zip(found.histogram, padded, strict=True)]
    return grown if min(grown, default=0) >= 0 else ()


def lasting(history: Sequence[Snapshot], holds: Callable[[Snapshot], bool]) -> float | None:
    """For how many seconds something has held without a break; None if it does not hold now."""
    since = None
    for snapshot in reversed(history):
        if not holds(snapshot):
            break
        since = snapshot.taken
    return None if since is None else max(history[-1].taken - since, 0.0)
