# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench_nvme found: rows from the figures of all rounds, and the table. Pure."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SCHEMA = "tiercache.bench/1"
CONTENDERS = ("ours", "fio", "vllm_fs", "lmcache")
MIB = 1 << 20
HEADINGS = ("operation", "block", "busy", *CONTENDERS, "unit", "of fio", "of vllm_fs")

Row = dict[str, Any]


class Case(NamedTuple):
    """An operation, and under which conditions."""

    name: str
    block_bytes: int
    busy: bool


@dataclass
class Figures:
    """GB/s by case and contender: one per round, all of a round in the same place."""

    cases: dict[Case, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, case: Case, contender: str, nbytes: int, seconds: float) -> None:
        figures = self.cases.setdefault(case, {}).setdefault(contender, [])
        figures.append(nbytes / seconds / 1e9)

    def rows(self) -> list[Row]:
        """Operations stay in the order in which they were added."""
        return [_row(case, found) for case, found in sorted(self.cases.items(), key=_order)]


def _order(item: tuple[Case, object]) -> tuple[bool, int]:
    case = item[0]
    return case.busy, case.block_bytes


def _row(case: Case, found: Mapping[str, Sequence[float]]) -> Row:
    medians = {name: _rounded(statistics.median(found[name])) for name in found}
    return {
        "name": case.name,
        "block_bytes": case.block_bytes,
        "busy": case.busy,
        **{name: medians.get(name) for name in CONTENDERS},
        "ratio_fio": ratio(found, "fio"),
        "ratio_vllm_fs": ratio(found, "vllm_fs"),
    }


def ratio(found: Mapping[str, Sequence[float]], rival: str) -> float | None:
    """Median of what we reach of the rival's speed in each round; None if it took no part."""
    if rival not in found:
        return None
    pairs = zip(found["ours"], found[rival], strict=True)
    return _rounded(statistics.median(mine / theirs for mine, theirs in pairs))


def _rounded(value: float) -> float:
    return round(value, 3)


def single(name: str, values: Sequence[float]) -> Row:
    """The row of a figure that only we have."""
    nobody = dict.fromkeys((*CONTENDERS, "ratio_fio", "ratio_vllm_fs"))
    mine = _rounded(statistics.median(values))
    return {"name": name, "block_bytes": None, "busy": False, **nobody, "ours": mine}


def document(rows: Sequence[Row]) -> str:
    return json.dumps({"schema": SCHEMA, "rows": rows})


def unit(row: Row) -> str:
    return {"lookup": "ms", "restart": "s"}.get(row["name"], "GB/s")


def table(rows: Sequence[Row], notes: Sequence[str]) -> str:
    lines = [HEADINGS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(_padded(line, widths)).rstrip() for line in lines]
    return "\n".join([*shown, "", *notes])


def _cells(row: Row) -> tuple[str, ...]:
    size = row["block_bytes"]
    return (
        row["name"],
        "-" if size is None else f"{size / MIB:g} MiB",
        "yes" if row["busy"] else "no",
        *(_cell(row[name]) for name in CONTENDERS),
        unit(row),
        _cell(row["ratio_fio"]),
        _cell(row["ratio_vllm_fs"]),
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cells[0].ljust(widths[0]),
        *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)),
    ]
