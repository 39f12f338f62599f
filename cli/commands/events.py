# SPDX-License-Identifier: Apache-2.0
"""``tiercache events``: what happened to the entries of a pool, and what happens now."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import click

from tiercache.cli import diagnostics, listing, output, pools
from tiercache.cli.listing import Column, Form
from tiercache.cli.parameters import Count, Listed, flat
from tiercache.cli.table import count, latency, short, size
from tiercache.stats.model import Event, Kind, Snapshot

SCHEMA: Final = "tiercache.events/1"
#: Often enough that what is followed seems to come at once, and the ring is never overrun: it has
#: 8,192 places.
POLL_S: Final = 0.25

#: Groups are handled one after the other in a step of the engine.
AT_ONCE_S: Final = 0.02


def moment(when: float) -> str:
    """Local time with milliseconds."""
    milliseconds = int(when * 1000) % 1000
    return f"{time.strftime('%H:%M:%S', time.localtime(when))}.{milliseconds:03}"


COLUMNS: Final = (
    Column("when", "TIME", moment, left=True, least=12),
    Column("event", "EVENT", lambda kind: kind.replace("_", " "), left=True, least=15),
    Column("sequence", "SEQ", left=True, least=6),
    Column("group", "GROUP", left=True, least=5),
    Column("tier", "TIER", left=True, least=5),
    Column("count", "COUNT", count, least=5),
    Column("tokens", "TOKENS", lambda tokens: short(tokens) if tokens else "-", least=6),
    Column("bytes", "BYTES", lambda nbytes: size(nbytes) if nbytes else "-", least=8, spare=True),
    Column("seconds", "TOOK", latency, least=6, spare=True),
    Column("number"),
)

EXAMPLES = """\b
Columns:
  SEQ     on whose behalf; "tiercache seq" says more of it
  COUNT   entries
  TOKENS  restored or missed, or where the entry ends

\b
Examples:
  tiercache events -n 20
  tiercache events -f --kind evicted_live,missed
  tiercache events --seq c7f3a1 --json
"""


@click.command(epilog=EXAMPLES)
@click.option("-f", "--follow", is_flag=True, help="Go on until the server ends, or Ctrl-C.")
@click.option("-n", "last", type=Count(), metavar="N", help="The last N only.")
@click.option(
    "kinds",
    "--kind",
    multiple=True,
    type=Listed(click.Choice([kind.value for kind in Kind])),
    metavar="K",
    help=f"One or more of {', '.join(Kind)}.",
)
@click.option(
    "sequence",
    "--seq",
    metavar="SEQ",
    shell_complete=pools.complete_sequences,
    help="Of one sequence.",
)
@click.option(
    "--group", metavar="GROUP", shell_complete=pools.complete_groups, help="Of one group."
)
@pools.option
@listing.options
def events(
    *,
    kinds: tuple[tuple[str, ...], ...],
    sequence: str | None,
    group: str | None,
    last: int | None,
    follow: bool,
    pool: str | None,
    form: str | None,
) -> None:
    """List the newest events of a pool, the newest last.

    JSON is a line for each. A pool keeps the last 8,192 events; how many were missed is a warning.
    """
    with pools.reading(pool) as reader:
        snapshot = reader.snapshot(now=pools.now())
        wanted = _wanted(snapshot, flat(kinds), sequence, group)
        show = _Printer(form)
        show(snapshot, filter(wanted, snapshot.events), last=last)
        if not follow:
            show.end(snapshot)
            return
        while pools.runs(snapshot):
            before = snapshot.events_lost
            pools.pause(POLL_S)
            snapshot = reader.snapshot(now=pools.now())
            if lost := snapshot.events_lost - before:
                diagnostics.warning(f"{count(lost)} events came too fast to be read")
            show(snapshot, filter(wanted, snapshot.events))
    raise pools.NotRunning(snapshot)


def row(event: Event) -> dict[str, object]:
    return {
        "when": event.when,
        "event": event.kind.value,
        "sequence": None if event.sequence is None else pools.number(event.sequence),
        "group": event.group,
        "tier": event.tier,
        "count": event.count,
        "tokens": event.tokens,
        "bytes": event.nbytes,
        "seconds": event.seconds,
        "number": event.number,
    }


def merged(events: Iterable[Event]) -> Iterator[Event]:
    """Events, with those that only differ in their groups as one: ``g1-g6``."""
    run: list[Event] = []
    for event in events:
        if run and not _joins(run, event):
            yield _span(run)
            run = []
        run.append(event)
    if run:
        yield _span(run)


def _joins(run: Sequence[Event], event: Event) -> bool:
    def alike(each: Event) -> tuple[object, ...]:
        return each.kind, each.sequence, each.tier, each.tokens

    groups = {each.group for each in run}
    return (
        alike(run[-1]) == alike(event)
        and event.group is not None
        and event.group not in groups | {None}
        and event.when - run[0].when < AT_ONCE_S
    )


def _span(run: Sequence[Event]) -> Event:
    if len(run) == 1:
        return run[0]
    return replace(
        run[0],
        group=_names([event.group or "" for event in run]),
        count=sum(event.count for event in run),
        nbytes=sum(event.nbytes for event in run),
        seconds=max((e.seconds for e in run if e.seconds is not None), default=None),
    )


def _names(groups: Sequence[str]) -> str:
    """Neighbours by their ends, others one by one."""
    numbers = [int(name[1:]) for name in groups if name[:1] == "g" and name[1:].isdecimal()]
    if numbers == list(range(numbers[0], numbers[0] + len(groups)) if numbers else ()):
        return f"{groups[0]}-{groups[-1]}"
    return ",".join(groups)


def _wanted(
    snapshot: Snapshot, kinds: Collection[str], sequence: str | None, group: str | None
) -> Callable[[Event], bool]:
    number = None if sequence is None else _sequence(snapshot, sequence)
    name = None if group is None else pools.chosen_group(snapshot, group)

    def wanted(event: Event) -> bool:
        return (
            (not kinds or event.kind in kinds)
            and (number is None or event.sequence == number)
            and (name is None or event.group == name)
        )

    return wanted


def _sequence(snapshot: Snapshot, prefix: str) -> int:
    """A sequence that is known, or one of which only events are left."""
    left = {e.sequence for e in snapshot.events if e.sequence is not None}
    whole = [number for number in left if pools.number(number) == prefix.lower()]
    return whole[0] if whole else pools.chosen_sequence(snapshot, prefix)


class _Printer:
    """Prints events as they come."""

    def __init__(self, form: str | None) -> None:
        self._form = Form(form or Form.TABLE)
        self._stream = listing.Stream(COLUMNS)
        match self._form:
            case Form.TABLE:
                output.text(self._stream.head())
            case Form.CSV:
                output.text(listing.csv_line(column.name for column in COLUMNS))

    def __call__(
        self, snapshot: Snapshot, events: Iterable[Event], *, last: int | None = None
    ) -> None:
        found = list(merged(events) if self._form is Form.TABLE else events)
        for event in found[-last:] if last else found:
            match self._form:
                case Form.TABLE:
                    output.text(self._stream.line(row(event)))
                case Form.CSV:
                    output.text(listing.csv_line(row(event)[column.name] for column in COLUMNS))
                case Form.JSON:
                    line = listing.document(SCHEMA, pools.source(snapshot), [row(event)])
                    output.document(line, compact=True)

    def end(self, snapshot: Snapshot) -> None:
        if self._form is not Form.TABLE:
            return
        if gone := snapshot.events_lost:
            output.text(f"{count(gone)} older events are gone")
        output.text(listing.fitted(pools.trailer(snapshot)))
