# SPDX-License-Identifier: Apache-2.0
"""What scripts/fleet found: rows, what the shared tier added, and which network pays. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.fleet_machines import DISK, RAM, SHARED, Counts, Fleet
from tiercache.blocks import GroupKind

SCHEMA = "tiercache.fleet/1"
HEADINGS = (
    *("machines", "routing", "disk", "shared", "ram %", "disk %", "shared %", "restored %"),
    *("gain", "moved", "of them %", "busiest", "GB/s each", "GB/s all"),
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a machine's blocks weigh, and how fast it does without them.

    Args:
        token_page: bytes of a block of the attention group, over all workers.
        state_page: bytes of a state in one group, over all workers.
        compute_rate: tokens that the machine prefills per second.
    """

    token_page: int
    state_page: int
    compute_rate: float

    def nbytes(self, counts: dict[GroupKind, int]) -> int:
        return sum(
            records * (self.state_page if kind is GroupKind.STATE else self.token_page)
            for kind, records in counts.items()
        )


def break_even(nbytes: float, tokens: float, compute_rate: float) -> float | None:
    """Bytes per second over which ``nbytes`` take as long as to compute ``tokens``.

    A slower network costs more time than the tokens are worth; None if there are none.
    """
    return nbytes * compute_rate / tokens if tokens > 0 else None


def row(trace: str, fleet: Fleet, counts: Counts, costs: Costs) -> Row:
    """The figures of one play; shares are of the prompt tokens."""
    prompt = max(counts.prompt_tokens, 1)
    read, written = costs.nbytes(counts.read), costs.nbytes(counts.written)
    shared = counts.restored[SHARED]
    return {
        "trace": trace,
        "machines": fleet.machines,
        "routing": fleet.routing,
        "token_slots": fleet.machine.token_slots,
        "state_slots": fleet.machine.state_slots,
        "disk_slots": fleet.machine.disk_slots,
        "shared_slots": fleet.shared_slots,
        "leaves": fleet.leaves,
        "requests": counts.requests,
        "prompt_tokens": counts.prompt_tokens,
        "restored_tokens": counts.restored_tokens,
        **{f"{tier}_share": round(counts.restored[tier] / prompt, 4) for tier in (RAM, DISK)},
        "shared_share": round(shared / prompt, 4),
        "restored_share": round(counts.restored_tokens / prompt, 4),
        "moved_requests": counts.moved_requests,
        "moved_restored_share": round(counts.moved_restored / max(counts.moved_tokens, 1), 4),
        "busiest": round(counts.busiest, 3),
        "read_bytes": read,
        "written_bytes": written,
        "break_even_restore": break_even(read, shared, costs.compute_rate),
    }


def with_gains(rows: Sequence[Row], costs: Costs) -> list[Row]:
    """The rows, with what their shared tier added to the same fleet without one, if that is there.

    ``gain`` is a share of the prompt tokens; ``break_even_all`` counts all that crossed the
    network, for the tokens that were gained.
    """
    alone = {_fleet(row): row for row in rows if not row["shared_slots"]}
    return [row | _gain(row, alone.get(_fleet(row)), costs) for row in rows]


def _fleet(row: Row) -> tuple[Any, ...]:
    """All that is chosen but the shared tier."""
    chosen = ("trace", "machines", "routing", "token_slots", "state_slots", "disk_slots", "leaves")
    return tuple(row[key] for key in chosen)


def _gain(row: Row, alone: Row | None, costs: Costs) -> Row:
    if alone is None or alone is row:
        return {"gain": None, "break_even_all": None}
    gained = row["restored_tokens"] - alone["restored_tokens"]
    crossed = row["read_bytes"] + row["written_bytes"]
    return {
        "gain": round(gained / max(row["prompt_tokens"], 1), 4),
        "break_even_all": break_even(crossed, gained, costs.compute_rate),
    }


def document(rows: Sequence[Row]) -> str:
    return json.dumps({"schema": SCHEMA, "data": rows})


def table(rows: Sequence[Row]) -> str:
    """A line for each row, under a heading for each trace."""
    parts = []
    for trace in dict.fromkeys(row["trace"] for row in rows):
        mine = [row for row in rows if row["trace"] == trace]
        lines = [HEADINGS, *map(_cells, mine)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join(map(str.rjust, line, widths)) for line in lines]
        about = f"{mine[0]['requests']:,} requests, {mine[0]['prompt_tokens']:,} prompt tokens"
        parts.append("\n".join([trace, about, *shown]))
    return "\n\n".join(parts)


def _cells(row: Row) -> tuple[str, ...]:
    shares = ("ram_share", "disk_share", "shared_share", "restored_share")
    return (
        str(row["machines"]),
        row["routing"],
        f"{row['disk_slots']:,}",
        f"{row['shared_slots']:,}",
        *(f"{100 * row[share]:.2f}" for share in shares),
        _cell(row["gain"], 100),
        f"{row['moved_requests']:,}",
        f"{100 * row['moved_restored_share']:.2f}" if row["moved_requests"] else "-",
        f"{row['busiest']:.2f}",
        _cell(row["break_even_restore"], 1e-9),
        _cell(row["break_even_all"], 1e-9),
    )


def _cell(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value * scale:.2f}"
