# SPDX-License-Identifier: Apache-2.0
"""``tiercache next``: which slots of a group go next, and what would be lost with each."""

from collections.abc import Iterator, Sequence
from itertools import count as counting
from typing import Final

import click

from tiercache.cli import listing, output, pools, rates
from tiercache.cli.listing import Column, Form
from tiercache.cli.parameters import Count
from tiercache.cli.table import clean, count, duration, short
from tiercache.errors import TierCacheError
from tiercache.stats.model import Group, SlotClass, Snapshot, Victim

SCHEMA: Final = "tiercache.next/1"

COLUMNS: Final = tuple(
    Column(name)
    for name in (
        "group",
        "order",
        "slot",
        "class",
        "sequence",
        "tokens",
        "age_seconds",
        "below",
        "lost_tokens",
    )
)
#: The same for people: free slots as one row, and what is lost in words.
SHOWN: Final = (
    Column("place", "#"),
    Column("slot", "SLOT", spare=True),
    Column("class", "CLASS", left=True),
    Column("sequence", "SEQ", left=True),
    Column("tokens", "ENDS AT", count, spare=True),
    Column("age_seconds", "AGE", duration),
    Column("below", "BELOW", left=True),
    Column("consequence", "IF EVICTED", left=True),
)

EXAMPLES = """\b
Order: free slots, then demoted ones, the oldest first, then live ones in the
order of the eviction policy; pinned ones never (they have no #).

\b
Columns:
  ENDS AT  tokens of its sequence up to the end of the entry
  BELOW    the tier that has a copy

\b
Examples:
  tiercache next                  the group with the fewest spare slots
  tiercache next g7 -n 5
  tiercache next g7 --json | jq '[.data[].lost_tokens] | add'
"""


@click.command("next", epilog=EXAMPLES)
@click.argument("group", required=False, metavar="[GROUP]", shell_complete=pools.complete_groups)
@click.option(
    "-n", "rows", type=Count(), default=20, show_default=True, metavar="N", help="Slots to list."
)
@pools.option
@listing.options
def next_(group: str | None, rows: int, pool: str | None, form: str | None) -> None:
    """Say which slots of a group are evicted next, and what is lost with them.

    Without GROUP: the one that loses a live entry first.
    """
    snapshot = pools.look(pool)
    chosen = _chosen(snapshot, group)
    victims = [victim for victim in snapshot.victims if victim.group == chosen.name]
    found = order(chosen, victims, pools.moment(snapshot))[:rows]
    if form in {None, Form.TABLE}:
        output.text(listing.fitted(heading(chosen)))
    listing.show(
        form,
        schema=SCHEMA,
        source=pools.source(snapshot),
        columns=COLUMNS,
        rows=found,
        shown=(SHOWN, [*free_row(chosen), *map(_shown, found)]),
        notes=[pools.trailer(snapshot)],
    )


def _chosen(snapshot: Snapshot, name: str | None) -> Group:
    if name is not None:
        name = pools.chosen_group(snapshot, name)
        return next(group for group in snapshot.groups if group.name == name)
    group = rates.tightest(snapshot.groups) or next(iter(snapshot.groups), None)
    if group is None:
        raise TierCacheError("the pool has no groups yet: the server is still starting")
    return group


def heading(group: Group) -> str:
    """The group, and how long until something is lost."""
    slots = group.slots
    name = f"{clean(group.name)} ({clean(group.kind)}, {count(slots.capacity)} slots)"
    if not slots.live:
        return f"{name}: nothing live to lose"
    if not slots.spare:
        return f"{name}: the next store evicts a live entry"
    stores = "1 store" if slots.spare == 1 else f"{count(slots.spare)} stores"
    return f"{name}: {stores} until a live entry is evicted"


def order(group: Group, victims: Sequence[Victim], now: float) -> list[dict[str, object]]:
    """What is evicted, in the order of the stores that do it: the first ones use free slots."""
    place = counting(group.slots.free)
    return [
        {
            "group": victim.group,
            "order": None if victim.slot_class is SlotClass.PINNED else next(place),
            "slot": victim.slot,
            "class": victim.slot_class.name.lower(),
            "sequence": None if victim.sequence is None else pools.number(victim.sequence),
            "tokens": victim.tokens,
            "age_seconds": pools.since(victim.last_used, now),
            "below": victim.below,
            "lost_tokens": victim.lost,
        }
        for victim in victims
    ]


def free_row(group: Group) -> Iterator[dict[str, object]]:
    if free := group.slots.free:
        empty: dict[str, object] = dict.fromkeys(column.name for column in SHOWN)
        places = "0" if free == 1 else f"0-{free - 1}"
        yield {**empty, "place": places, "class": "free", "consequence": "nothing lost"}


def _shown(row: dict[str, object]) -> dict[str, object]:
    return {**row, "place": row["order"], "consequence": consequence(row)}


def consequence(row: dict[str, object]) -> str:
    """What it costs to be without the entry, in words."""
    lost = row["lost_tokens"]
    assert isinstance(lost, int)
    if row["class"] == "pinned":
        return "in use, not evicted"
    if not lost:
        return "nothing lost"
    if row["below"] is not None:
        return f"reload {short(lost)} tokens"
    return f"RECOMPUTE {short(lost)} tokens"
