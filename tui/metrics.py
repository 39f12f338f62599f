# SPDX-License-Identifier: Apache-2.0
"""Reads the ``vllm:tiercache_*`` metrics of a Prometheus page.

Covers their names and labels. Every other metric of the page is skipped before it is parsed: a
vLLM server exposes hundreds, histograms included, and the monitor reads them once a second.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tiercache.slots import SlotCounts
from tiercache.tui.snapshot import Counters, Group, Snapshot
from tiercache.tui.trouble import SourceError, Trouble

PREFIX = "vllm:tiercache_"
SLOTS = "slots"
RESTORED_TOKENS = "restored_tokens"
LOST_TOKENS = "lost_to_missing_state_tokens"

Labels = Mapping[str, str]
ANY: Labels = MappingProxyType({})

#: Counters of a group that go by another name on the page, or are told apart by a label.
COUNTERS: Mapping[str, tuple[str, Labels]] = {
    "evicted_demoted": ("evictions", {"entry": "demoted"}),
    "evicted_live": ("evictions", {"entry": "live"}),
}


class _Place(NamedTuple):
    """The group that a sample belongs to."""

    engine: str
    group: str

    @property
    def order(self) -> list[tuple[bool, int, str]]:
        """Sorts 2 before 10, and numbers before names."""
        return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in self]


class _Sample(NamedTuple):
    labels: Labels
    value: int

    @property
    def place(self) -> _Place:
        return _Place(self.labels.get("engine", ""), self.labels.get("group", ""))


Metrics = Mapping[str, list[_Sample]]


def parse(page: str, taken: float) -> Snapshot:
    """The snapshot on ``page``.

    A counter that is declared but has no sample yet was never incremented: 0. One that is not
    declared is unknown: None.

    Raises:
        SourceError: if the page has no metric of ours, or the numbers cannot be used.
    """
    metrics = _read(page)
    if not metrics:
        other = "" if "vllm:" in page else "; it does not look like vLLM's"
        raise SourceError(Trouble.NO_TIERCACHE, f"the page has no {PREFIX}* metric{other}")
    slots = metrics.get(SLOTS, [])
    return Snapshot(
        taken=taken,
        models=tuple(sorted({s.labels["model_name"] for s in slots if "model_name" in s.labels})),
        groups=tuple(_groups(slots, metrics)),
        restored_tokens=_count(metrics.get(RESTORED_TOKENS)),
        lost_tokens=_count(metrics.get(LOST_TOKENS)),
    )


def _read(page: str) -> Metrics:
    """Samples of our metrics by bare name; a declared metric without samples has none."""
    ours = (PREFIX, f"# TYPE {PREFIX}", f"# HELP {PREFIX}")
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
    return name.removeprefix(PREFIX).removesuffix("_total")


def _whole(value: float) -> int:
    if value < 0:
        raise ValueError(f"{value} is negative")
    return int(value)


def _groups(slots: Iterable[_Sample], metrics: Metrics) -> Iterator[Group]:
    pools: dict[_Place, dict[str, int]] = {}
    kinds: dict[_Place, str] = {}
    for sample in slots:
        place, state = sample.place, sample.labels.get("state", "")
        pool = pools.setdefault(place, {})
        if state in pool:
            raise _unusable(place, f"{state} slots are given twice")
        pool[state] = sample.value
        kinds[place] = sample.labels.get("kind", "")
    for place in sorted(pools, key=lambda place: place.order):
        counts = _slot_counts(place, pools[place])
        yield Group(place.engine, place.group, kinds[place], counts, _counters(place, metrics))


def _slot_counts(place: _Place, pool: Mapping[str, int]) -> SlotCounts:
    missing = [state for state in SlotCounts._fields if state not in pool]
    if missing:
        raise _unusable(place, f"no {', '.join(missing)} slots")
    return SlotCounts(*(pool[state] for state in SlotCounts._fields))


def _counters(place: _Place, metrics: Metrics) -> Counters:
    sources = (COUNTERS.get(name, (name, ANY)) for name in Counters._fields)
    return Counters(*(_count(metrics.get(name), place, labels) for name, labels in sources))


def _count(
    samples: Iterable[_Sample] | None, place: _Place | None = None, labels: Labels = ANY
) -> int | None:
    if samples is None:
        return None
    return sum(
        sample.value
        for sample in samples
        if place in (None, sample.place) and labels.items() <= sample.labels.items()
    )


def _unusable(place: _Place, what: str) -> SourceError:
    return SourceError(
        Trouble.BAD_ANSWER, f"group {place.group!r} of engine {place.engine!r}: {what}"
    )
