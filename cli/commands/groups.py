# SPDX-License-Identifier: Apache-2.0
"""``tiercache groups``: the slots of each group, and what the next stores will evict."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

import click

from tiercache.cli import listing, pools
from tiercache.cli.listing import Column
from tiercache.cli.table import clean, count, duration, size
from tiercache.stats.model import Group, Kind, Snapshot

SCHEMA: Final = "tiercache.groups/1"

COLUMNS: Final = (
    Column("group", "GROUP", left=True),
    Column("kind", "KIND", left=True),
    Column("slots", "SLOTS", count),
    Column("free", "FREE", count),
    Column("live", "LIVE", count),
    Column("demoted", "DEMOTED", count),
    Column("busy", "PINNED", count),
    Column("spare", "SPARE", count),
    Column("tail_seconds", "TAIL", duration),
    Column("slot_bytes", "PAGE", size, spare=True),
    Column("pinned"),
    Column("storing"),
    Column("chunk_tokens"),
    *(Column(kind.value) for kind in (Kind.STORED, Kind.EVICTED_DEMOTED, Kind.EVICTED_LIVE)),
)

EXAMPLES = """\b
Columns:
  PINNED  slots that are being stored or restored just now
  SPARE   stores until a live entry is evicted: free and demoted slots
  TAIL    age of the live entry that goes first: how long an untouched
          conversation lasts
  PAGE    bytes of a slot, over all workers

\b
Examples:
  tiercache groups
  tiercache groups --json | jq '.data[] | select(.spare == 0).group'
"""


@click.command(epilog=EXAMPLES)
@pools.option
@listing.options
def groups(pool: str | None, form: str | None) -> None:
    """Say how the slots of each group are used.

    Groups that are alike are one line; CSV and JSON have them one by one.
    """
    snapshot = pools.look(pool)
    now = pools.moment(snapshot)
    listing.show(
        form,
        schema=SCHEMA,
        source=pools.source(snapshot),
        columns=COLUMNS,
        rows=[row(group, now) for group in snapshot.groups],
        shown=(COLUMNS, [row(group, now) for group in merged(snapshot)]),
        notes=[*filter(None, map(note, merged(snapshot))), pools.trailer(snapshot)],
    )


def row(group: Group, now: float) -> dict[str, object]:
    slots = group.slots
    return {
        "group": group.name,
        "kind": group.kind,
        "slots": slots.capacity,
        "free": slots.free,
        "live": slots.live,
        "demoted": slots.demoted,
        "busy": slots.pinned + slots.storing,
        "spare": slots.spare,
        "tail_seconds": pools.since(group.oldest_live, now),
        "slot_bytes": group.slot_bytes,
        "pinned": slots.pinned,
        "storing": slots.storing,
        "chunk_tokens": group.chunk_tokens,
        "stored": group.counts.get(Kind.STORED),
        "evicted_demoted": group.counts.get(Kind.EVICTED_DEMOTED),
        "evicted_live": group.counts.get(Kind.EVICTED_LIVE),
    }


def note(group: Group) -> str:
    """What the next store does to the group, where that is not harmless."""
    if group.slots.spare or not group.slots.capacity:
        return ""
    if not group.slots.live:
        return f"! {clean(group.name)}: the next store is refused, as all slots are pinned"
    entry = "checkpoint" if group.kind == "state" else "block"
    return f"! {clean(group.name)}: the next store evicts a live {entry}"


def merged(snapshot: Snapshot) -> Iterator[Group]:
    """Groups, with neighbours that are alike as one: ``g1-g6``."""
    now = pools.moment(snapshot)
    for _, run in groupby(snapshot.groups, key=lambda group: _look(group, now)):
        yield _span(list(run))


def _look(group: Group, now: float) -> tuple[object, ...]:
    shown = [column for column in COLUMNS[1:] if column.head is not None]
    values = row(group, now)
    return tuple(listing.cell(column, values) for column in shown)


def _span(run: Sequence[Group]) -> Group:
    first, last = run[0], run[-1]
    if first is last:
        return first
    return replace(first, name=f"{clean(first.name)}-{clean(last.name)}")
