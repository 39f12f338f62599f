# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench_scale found: rows, what each entry costs, and what more would. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

SCHEMA = "tiercache.bench/1"
#: What is also shown by entry, and so many of its unit that are one of the other.
PER_ENTRY: Mapping[str, tuple[str, float]] = {
    "index_bytes": ("index_bytes_each", 1.0),
    "rss_bytes": ("rss_bytes_each", 1.0),
    "peak_bytes": ("peak_bytes_each", 1.0),
    "turned_rss_bytes": ("turned_rss_bytes_each", 1.0),
    "restart_cpu_s": ("restart_cpu_us_each", 1e6),
}

Figures = dict[str, float]
Row = dict[str, Any]


class Fit(NamedTuple):
    """A figure over the number of entries: ``fixed + each * entries``."""

    fixed: float
    each: float

    def at(self, entries: int) -> float:
        return self.fixed + self.each * entries


def fit(points: Sequence[tuple[int, float]]) -> Fit:
    """The line that is closest to ``(entries, figure)`` in relative terms; two points or more."""
    entries, found = (np.array(column, float) for column in zip(*points, strict=True))
    each, fixed = np.polyfit(entries, found, 1, w=1 / found)
    return Fit(float(fixed), float(each))


def row(name: str, entries: int, figures: Figures) -> Row:
    """A row of ``figures``, with those by entry that make sense."""
    by_entry = {
        short: figures[full] / entries * scale
        for full, (short, scale) in PER_ENTRY.items()
        if full in figures
    }
    shown = {key: rounded(value) for key, value in (figures | by_entry).items()}
    return {"name": name, "entries": entries, **shown}


def rounded(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


def extrapolated(rows: Iterable[Row], name: str, sizes: Sequence[int]) -> list[Row]:
    """What the figures of ``PER_ENTRY`` would be at ``sizes``, from two rows or more of a name."""
    measured = [row for row in rows if row["name"] == name]
    if len(measured) < 2:
        return []
    lines = {
        full: fit([(row["entries"], row[full]) for row in measured])
        for full in PER_ENTRY
        if all(row.get(full, 0) > 0 for row in measured)
    }
    return [
        row(f"{name}-fit", size, {full: line.at(size) for full, line in lines.items()})
        for size in sizes
    ]


def document(rows: Sequence[Row]) -> str:
    return json.dumps({"schema": SCHEMA, "rows": rows})


def table(rows: Sequence[Row]) -> str:
    """A block for each row: what it is of, and its figures."""
    blocks = []
    for row in rows:
        figures = {key: value for key, value in row.items() if key not in ("name", "entries")}
        width = max(map(len, figures))
        lines = [f"{row['name']}, {row['entries']:,} entries"]
        lines += [f"  {key.ljust(width)}  {value:>16,.6g}" for key, value in figures.items()]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
