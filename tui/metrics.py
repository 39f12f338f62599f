# SPDX-License-Identifier: Apache-2.0
"""Reads the ``vllm:tiercache_*`` metrics of a Prometheus page.

Covers their names and labels, and vLLM's own count of open requests. Every other metric of the
page is skipped before it is parsed: a vLLM server exposes hundreds, histograms included, and the
monitor reads them once a second.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tiercache.stats.model import Group, Health, Kind, Phase, Restores, Slots, Snapshot, Tier
from tiercache.tui.trouble import SourceError, Trouble

VLLM = "vllm:"
PREFIX = "vllm:tiercache_"
#: Requests that are open: vLLM counts them in two gauges.
OPEN = ("num_requests_running", "num_requests_waiting")
SLOTS = "tiercache_slots"
CAPACITY = "tiercache_tier_capacity_bytes"
STATES = ("free", "storing", "live", "demoted", "pinned")

Labels = Mapping[str, str]
ANY: Labels = MappingProxyType({})

#: Counters of a group: kind of event -> metric and labels.
GROUP_COUNTERS: Mapping[Kind, tuple[str, Labels]] = {
    Kind.DEMOTED: ("tiercache_demotions", ANY),
    Kind.STRANDED: ("tiercache_stranded", ANY),
    Kind.EVICTED_DEMOTED: ("tiercache_evictions", {"entry": "demoted"}),
    Kind.EVICTED_LIVE: ("tiercache_evictions", {"entry": "live"}),
    Kind.REFUSED: ("tiercache_reserve_failures", ANY),
}
#: Counters of a tier: name in the model -> metric.
TIER_COUNTERS = {
    "stored_bytes": "tiercache_tier_stored_bytes",
    "loaded_bytes": "tiercache_tier_loaded_bytes",
    "evicted": "tiercache_tier_evictions",
    "corrupt": "tiercache_tier_corrupt",
    "failed": "tiercache_tier_failures",
    "declined": "tiercache_tier_declined",
}
#: Gauges of a tier that it must have.
TIER_GAUGES = (CAPACITY, "tiercache_tier_used_bytes", "tiercache_tier_entries")
JOBS = "tiercache_tier_jobs"
HEALTHY = "tiercache_tier_healthy"
#: Counters of no group. Bytes are counted by group, but here only their sum has a place.
TOTALS = {
    "restored_tokens": "tiercache_restored_tokens",
    "lost_tokens": "tiercache_lost_to_missing_state_tokens",
    "late": "tiercache_late_restores",
    "stored_bytes": "tiercache_stored_bytes",
    "restored_bytes": "tiercache_restored_bytes",
}


class _Sample(NamedTuple):
    labels: Labels
    value: int


Metrics = Mapping[str, list[_Sample]]
Place = tuple[str, str]
"""An engine and a group or tier of it."""


def parse(page: str, taken: float) -> Snapshot:
    """The snapshot on ``page``.

    A counter that is declared but has no sample yet was never incremented: 0. One that is not
    declared is unknown: it is missing.

    Raises:
        SourceError: if the page has no metric of ours, or the numbers cannot be used.
    """
    metrics = _read(page)
    if not any(name.startswith("tiercache_") for name in metrics):
        other = "" if VLLM in page else "; it does not look like vLLM's"
        raise SourceError(Trouble.NO_TIERCACHE, f"the page has no {PREFIX}* metric{other}")
    totals = {name: _count(metrics.get(metric)) for name, metric in TOTALS.items()}
    return Snapshot(
        taken=taken,
        heartbeat=taken,
        phase=Phase.RUN,
        alive=True,
        running=_running(metrics),
        pool=None,
        groups=tuple(_groups(metrics)),
        tiers=tuple(_tiers(metrics)),
        totals=_known(totals),
        source="metrics",
    )


def _read(page: str) -> Metrics:
    """Samples of our metrics by bare name; a declared metric without samples has none."""
    wanted = tuple(f"{VLLM}{name}" for name in ("tiercache_", *OPEN))
    ours = tuple(start + name for name in wanted for start in ("", "# TYPE ", "# HELP "))
    lines = [line for line in page.split("\n") if line.startswith(ours)]
    metrics: dict[str, list[_Sample]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            metrics.setdefault(_bare(family.name), [])
            for sample in family.samples:
                found = _Sample(sample.labels, _whole(sample.value))
                metrics.setdefault(_bare(sample.name), []).append(found)
    except (ValueError, LookupError, OverflowError) as failure:
        raise SourceError(Trouble.BAD_ANSWER, f"unreadable metrics: {failure}") from failure
    return metrics


def _bare(name: str) -> str:
    return name.removeprefix(VLLM).removesuffix("_total")


def _whole(value: float) -> int:
    if value < 0:
        raise ValueError(f"{value} is negative")
    return int(value)


def _running(metrics: Metrics) -> int | None:
    counts = [_count(metrics[name]) or 0 for name in OPEN if metrics.get(name)]
    return sum(counts) if counts else None


def _groups(metrics: Metrics) -> Iterator[Group]:
    slots = metrics.get(SLOTS, [])
    names = _names(slots, "group")
    kinds = {_place(sample, "group"): sample.labels.get("kind", "") for sample in slots}
    for place, name in names.items():
        counts = {
            kind.value: _count(metrics.get(metric), ("group", place), labels)
            for kind, (metric, labels) in GROUP_COUNTERS.items()
        }
        yield Group(name, kinds[place], _slots(slots, place, name), counts=_known(counts))


def _slots(samples: Iterable[_Sample], place: Place, name: str) -> Slots:
    found: dict[str, int] = {}
    for sample in samples:
        if _place(sample, "group") != place:
            continue
        state = sample.labels.get("state", "")
        if state in found:
            raise SourceError(Trouble.BAD_ANSWER, f"group {name}: {state} slots are given twice")
        found[state] = sample.value
    if missing := [state for state in STATES if state not in found]:
        raise SourceError(Trouble.BAD_ANSWER, f"group {name}: no {', '.join(missing)} slots")
    return Slots(*(found[state] for state in STATES))


def _tiers(metrics: Metrics) -> Iterator[Tier]:
    for place, name in _names(metrics.get(CAPACITY, []), "tier").items():
        where = ("tier", place)
        gauges = {gauge: _count(metrics.get(gauge), where) for gauge in TIER_GAUGES}
        if missing := [gauge for gauge, value in gauges.items() if value is None]:
            raise SourceError(Trouble.BAD_ANSWER, f"tier {name}: no {', '.join(missing)}")
        capacity, used, entries = (gauges[gauge] or 0 for gauge in TIER_GAUGES)
        healthy = HEALTHY not in metrics or _count(metrics[HEALTHY], where)
        counts = {each: _count(metrics.get(n), where) for each, n in TIER_COUNTERS.items()}
        yield Tier(
            name,
            kind="",
            health=Health.OK if healthy else Health.RESTING,
            capacity=capacity,
            used=used,
            entries=entries,
            jobs=_count(metrics.get(JOBS), where) or 0,
            queued=0,
            load_rate=None,
            restores=Restores(),
            counts=_known(counts),
        )


def _names(samples: Iterable[_Sample], label: str) -> dict[Place, str]:
    """What each place is called, in order; the engine is named where there are several."""
    places = sorted({_place(sample, label) for sample in samples}, key=_order)
    many = len({engine for engine, _ in places}) > 1
    mark = "g" if label == "group" else ""
    return {place: f"e{place[0]}.{mark}{place[1]}" if many else mark + place[1] for place in places}


def _place(sample: _Sample, label: str) -> Place:
    return sample.labels.get("engine", ""), sample.labels.get(label, "")


def _order(place: Place) -> list[tuple[bool, int, str]]:
    """Sorts 2 before 10, and numbers before names."""
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in place]


def _count(
    samples: Iterable[_Sample] | None, where: tuple[str, Place] | None = None, labels: Labels = ANY
) -> int | None:
    if samples is None:
        return None
    return sum(
        sample.value
        for sample in samples
        if (where is None or _place(sample, where[0]) == where[1])
        and labels.items() <= sample.labels.items()
    )


def _known(numbers: Mapping[str, int | None]) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if number is not None}
