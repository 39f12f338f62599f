# SPDX-License-Identifier: Apache-2.0
"""``tiercache seq``: conversations, what their next turn could restore, and why not more.

Covers the list and one conversation at length. Conversations are inferred from prompts that
continue each other; nothing of a prompt is known here.
"""

from collections.abc import Callable, Iterator
from typing import Final

import click

from tiercache.cli import listing, output, pools, rates
from tiercache.cli.listing import Column, Form
from tiercache.cli.table import clean, clock, count, duration, latency, plural, short
from tiercache.stats.model import Loss, Sequence, SlotClass, Snapshot, Where

SCHEMA: Final = "tiercache.seq/1"

COLUMNS: Final = (
    Column("sequence", "SEQ", left=True),
    Column("turns", "TURNS", count),
    Column("idle_seconds", "IDLE", duration),
    Column("cached_tokens", "CACHED", short),
    Column("restorable_tokens", "RESTORABLE", short),
    Column("restorable_percent", "", lambda value: f"{value:.0f}%"),
    Column("restorable_ram_tokens"),
    Column("stranded_tokens"),
    Column("tokens"),
    Column("running"),
    Column("ram_blocks"),
    Column("ram_states"),
    Column("below"),
    Column("live_checkpoints"),
    Column("demoted_checkpoints"),
    Column("last_source"),
    Column("last_tokens"),
    Column("last_seconds"),
    Column("lost_group"),
    Column("lost_tokens"),
    Column("lost_when"),
    Column("lost_by"),
    Column("lost_unreadable"),
)
#: What people get besides.
SHOWN: Final = (
    *COLUMNS,
    Column("checkpoints", "STATES"),
    Column("where", "WHERE", left=True),
    Column("last", "LAST RESTORE", left=True, spare=True),
)

SORTS: Final[dict[str, Callable[[Sequence], float]]] = {
    "idle": lambda sequence: sequence.last_used,
    "stranded": lambda sequence: -sequence.stranded,
    "cached": lambda sequence: -sequence.cached,
    "turns": lambda sequence: -sequence.turns,
}

EXAMPLES = """\b
Columns:
  CACHED      tokens whose attention blocks are in some tier
  RESTORABLE  tokens that the next turn could restore; less than CACHED where
              no recurrent checkpoint reaches what is cached
  STATES      live and demoted checkpoints in host memory
  WHERE       ram, a tier below it, or both; "ram kv": blocks without a state

\b
Examples:
  tiercache seq
  tiercache seq c7f3              the first digits are enough
  tiercache seq --sort stranded
  tiercache seq --json | jq '.data[] | select(.restorable_tokens == 0)'
"""


@click.command(epilog=EXAMPLES)
@click.argument(
    "sequence", required=False, metavar="[SEQ]", shell_complete=pools.complete_sequences
)
@click.option("--sort", type=click.Choice(list(SORTS)), default="idle", help="What comes first.")
@click.option("--stranded", is_flag=True, help="Only those that cannot be restored at all.")
@pools.option
@listing.options
def seq(
    *, sequence: str | None, sort: str, stranded: bool, pool: str | None, form: str | None
) -> None:
    """List conversations, or say of one what can be restored and why not more."""
    snapshot = pools.look(pool)
    chosen = sorted(snapshot.sequences, key=SORTS[sort])
    if stranded:
        chosen = [each for each in chosen if each.is_stranded]
    if sequence is not None:
        number = pools.chosen_sequence(snapshot, sequence)
        chosen = [each for each in snapshot.sequences if each.number == number]
        if form in {None, Form.TABLE}:
            for line in detail(chosen[0], snapshot):
                output.text(line)
            return
    listing.show(
        form,
        schema=SCHEMA,
        source=pools.source(snapshot),
        columns=COLUMNS,
        rows=[row(each, snapshot) for each in chosen],
        shown=(SHOWN, [worded(each, snapshot) for each in chosen]),
        notes=[*totals(snapshot), pools.trailer(snapshot)],
    )


def row(sequence: Sequence, snapshot: Snapshot) -> dict[str, object]:
    loss = sequence.loss
    return {
        "sequence": pools.number(sequence.number),
        "turns": sequence.turns,
        "idle_seconds": pools.since(sequence.last_used, pools.moment(snapshot)),
        "cached_tokens": sequence.cached,
        "restorable_tokens": sequence.restorable,
        "restorable_percent": rates.share(sequence.restorable, sequence.cached),
        "restorable_ram_tokens": sequence.restorable_ram,
        "stranded_tokens": sequence.stranded,
        "tokens": sequence.tokens,
        "running": Where.RUNNING in sequence.where,
        "ram_blocks": Where.RAM_BLOCKS in sequence.where,
        "ram_states": Where.RAM_STATES in sequence.where,
        "below": Where.TIER in sequence.where,
        "live_checkpoints": sequence.live,
        "demoted_checkpoints": sequence.demoted,
        "last_source": sequence.source,
        "last_tokens": sequence.restored,
        "last_seconds": sequence.seconds,
        "lost_group": None if loss is None else loss.group,
        "lost_tokens": None if loss is None else loss.tokens,
        "lost_when": None if loss is None else loss.when,
        "lost_by": None if loss is None or loss.by is None else pools.number(loss.by),
        "lost_unreadable": None if loss is None else loss.unreadable,
    }


def worded(sequence: Sequence, snapshot: Snapshot) -> dict[str, object]:
    return {
        **row(sequence, snapshot),
        "checkpoints": f"{sequence.live}+{sequence.demoted}",
        "where": where(sequence.where),
        "last": last(sequence),
    }


def where(places: Where) -> str:
    """In which tiers a sequence has something."""
    blocks, states = Where.RAM_BLOCKS in places, Where.RAM_STATES in places
    ram = "ram" if blocks and states else "ram kv" if blocks else "ram states" if states else ""
    tier = "tier" if Where.TIER in places else ""
    return "+".join(filter(None, (ram, tier))) or "gone"


def last(sequence: Sequence) -> str | None:
    """The last restore in a few words."""
    if sequence.source is None:
        return None
    if sequence.source == "miss":
        return "miss"
    took = "" if sequence.seconds is None else f" {latency(sequence.seconds)}"
    return f"{sequence.source} {short(sequence.restored)}{took}"


def totals(snapshot: Snapshot) -> Iterator[str]:
    sequences = snapshot.sequences
    cached, restorable = sum(s.cached for s in sequences), sum(s.restorable for s in sequences)
    stranded = rates.stranded(snapshot)
    lost = f"; {count(stranded)} cannot be restored at all" if stranded else ""
    tokens = f"{short(cached)} tokens cached, {short(restorable)} restorable"
    yield f"{plural(len(sequences), 'sequence')}: {tokens}{lost}"
    if snapshot.sequences_dropped:
        yield f"{count(snapshot.sequences_dropped)} older ones are not shown"


def detail(sequence: Sequence, snapshot: Snapshot) -> Iterator[str]:
    """One sequence at length."""
    name, now = pools.number(sequence.number), pools.moment(snapshot)
    running = ", a request of it runs now" * (Where.RUNNING in sequence.where)
    idle = duration(now - sequence.last_used)
    facts = {
        "sequence": f"{name}, {plural(sequence.turns, 'turn')}, idle for {idle}{running}",
        "length": f"{count(sequence.tokens)} tokens in whole blocks",
        "cached": f"{count(sequence.cached)} tokens of attention blocks, without a gap",
        "restorable": restorable(sequence),
        "checkpoints": f"{count(sequence.live)} live, {count(sequence.demoted)} demoted in ram",
        "where": where(sequence.where),
        "last restore": last(sequence) or "none yet",
        "why not more": reason(sequence, now),
        "next to go": "; ".join(at_risk(sequence, snapshot)) or "nothing soon",
    }
    for fact, words in facts.items():
        yield from listing.paragraph(fact, words)
    yield listing.fitted(pools.trailer(snapshot))


def at_risk(sequence: Sequence, snapshot: Snapshot) -> Iterator[str]:
    """By group, after how many stores something of it goes that is then missed."""
    for group in snapshot.groups:
        order = [
            v
            for v in snapshot.victims
            if v.group == group.name and v.slot_class is not SlotClass.PINNED
        ]
        mine = [at for at, v in enumerate(order) if v.sequence == sequence.number and v.lost]
        if mine:
            stores = group.slots.free + mine[0] + 1
            when = "with the next store" if stores == 1 else f"in {count(stores)} stores"
            yield f"{clean(group.name)} {when}"


def restorable(sequence: Sequence) -> str:
    """How far its next turn could be restored, and from where."""
    if not sequence.restorable:
        return "nothing"
    whole = f"{count(sequence.restorable)} tokens"
    if sequence.restorable == sequence.restorable_ram:
        return f"{whole}, all from ram"
    if not sequence.restorable_ram:
        return f"{whole}, from a tier below ram"
    return f"{whole} with the tiers below, {count(sequence.restorable_ram)} from ram alone"


def reason(sequence: Sequence, now: float) -> str:
    """Why its next turn could not restore more, as a sentence."""
    if sequence.loss is None:
        if not sequence.stranded:
            return "-"
        return f"no checkpoint serves the last {count(sequence.stranded)} tokens that are cached"
    return because(sequence.loss, now)


def because(loss: Loss, now: float) -> str:
    entry = f"the entry of {clean(loss.group)} that ends at {count(loss.tokens)} tokens"
    if loss.unreadable:
        return f"{entry} did not verify when a tier read it"
    if loss.when is None:
        return f"{entry} is in no tier: never stored, or evicted too long ago to be remembered"
    by = "" if loss.by is None else f" by a store of {pools.number(loss.by)}"
    return f"{entry} was evicted at {clock(loss.when, now)}{by}"
