# SPDX-License-Identifier: Apache-2.0
"""``tiercache tiers``: what each tier holds, what it served, and how fast."""

from collections.abc import Iterator
from typing import Final

import click

from tiercache.cli import listing, pools, rates
from tiercache.cli.listing import Column
from tiercache.cli.table import clean, count, latency, short, size
from tiercache.stats.latency import percentile
from tiercache.stats.model import Kind, Restores, Snapshot, Tier

SCHEMA: Final = "tiercache.tiers/1"
COUNTED: Final = (
    "stored",
    "loaded",
    "stored_bytes",
    "loaded_bytes",
    "evicted",
    "corrupt",
    "failed",
    "declined",
)
INDEX: Final = ("map_bytes", "file_bytes", "transactions", "readers", "max_readers")


def percent(value: float) -> str:
    return f"{value:.1f}"


COLUMNS: Final = (
    Column("tier", "TIER", left=True),
    Column("kind", None),
    Column("health", "STATE", left=True),
    Column("used_bytes", "USED", size),
    Column("capacity_bytes", "OF", size),
    Column("entries", "ENTRIES", count),
    Column("restores", "HITS", count),
    Column("hit_percent", "HIT%", percent),
    Column("p50_seconds", "P50", latency),
    Column("p99_seconds", "P99", latency),
    Column("restored_tokens", "TOKENS", short, spare=True),
    Column("restored_bytes", "BYTES", size, spare=True),
    Column("load_rate", "LOAD/S", size, spare=True),
    Column("jobs", "JOBS", count, spare=True),
    Column("queued", "WAITING", count, spare=True),
    Column("corrupt", "CORRUPT", count, spare=True),
    Column("failed", "FAILED", count, spare=True),
    *(Column(name) for name in COUNTED if name not in ("corrupt", "failed")),
    *(Column(f"index_{name}") for name in INDEX),
)

EXAMPLES = """\b
Columns:
  HITS   requests that restored something from there; ram is what was there
         without the help of a tier
  HIT%   of all requests that restored something or could have; the line
         "missed" has those that found nothing
  P50    half of the restores took less, 99 of 100 less than P99
  STATE  resting: left alone for a while after errors

A narrow terminal does without the last columns; --json has them all.

\b
Examples:
  tiercache tiers
  tiercache tiers --json | jq '.data[] | {tier, corrupt, failed}'
"""


@click.command(epilog=EXAMPLES)
@pools.option
@listing.options
def tiers(pool: str | None, form: str | None) -> None:
    """Say what each tier holds, what it restored and how fast."""
    snapshot = pools.look(pool)
    listing.show(
        form,
        schema=SCHEMA,
        source=pools.source(snapshot),
        columns=COLUMNS,
        rows=list(rows(snapshot)),
        notes=[*map(index_note, (t for t in snapshot.tiers if t.index)), pools.trailer(snapshot)],
    )


def rows(snapshot: Snapshot) -> Iterator[dict[str, object]]:
    """Host memory, the tiers below it, and what no tier had."""
    missed = snapshot.missed or rates.NOTHING
    requests = rates.restored(snapshot).requests + missed.requests
    yield {**_ram(snapshot), **_restored(snapshot.ram or rates.NOTHING, requests)}
    for tier in snapshot.tiers:
        yield {**_tier(tier), **_restored(tier.restores, requests)}
    yield {**_nothing("missed", "none"), **_restored(missed, requests)}


def index_note(tier: Tier) -> str:
    """A tier's LMDB index, in a line."""
    index = tier.index
    file, whole = (size(index.get(name, 0)) for name in ("file_bytes", "map_bytes"))
    readers = f"{index.get('readers', 0)} of {index.get('max_readers', 0)} readers"
    return f"{clean(tier.name)} index: {file} of {whole}, {readers}"


def _nothing(name: str, kind: str) -> dict[str, object]:
    empty: dict[str, object] = dict.fromkeys(column.name for column in COLUMNS)
    return {**empty, "tier": name, "kind": kind}


def _ram(snapshot: Snapshot) -> dict[str, object]:
    groups = snapshot.groups
    known = all(group.slot_bytes for group in groups)
    return {
        **_nothing("ram", "ram"),
        "health": "ok",
        "used_bytes": rates.used_bytes(groups) if known else None,
        "capacity_bytes": rates.capacity_bytes(groups) if known else None,
        "entries": sum(g.slots.capacity - g.slots.free for g in groups),
        "stored": rates.counted(groups, Kind.STORED),
        "stored_bytes": rates.stored_bytes(groups) if known else None,
    }


def _tier(tier: Tier) -> dict[str, object]:
    return {
        **_nothing(tier.name, tier.kind),
        "health": tier.health.value,
        "used_bytes": tier.used,
        "capacity_bytes": tier.capacity,
        "entries": tier.entries,
        "load_rate": tier.load_rate,
        "jobs": tier.jobs,
        "queued": tier.queued,
        **{name: tier.counts.get(name) for name in COUNTED},
        **{f"index_{name}": tier.index.get(name) for name in INDEX},
    }


def _restored(restores: Restores, requests: int) -> dict[str, object]:
    return {
        "restores": restores.requests,
        "hit_percent": rates.share(restores.requests, requests),
        "p50_seconds": percentile(restores.histogram, 0.5),
        "p99_seconds": percentile(restores.histogram, 0.99),
        "restored_tokens": restores.tokens,
        "restored_bytes": restores.nbytes,
    }
