# SPDX-License-Identifier: Apache-2.0
"""``tiercache stat``: a pool on one screen, or a line of rates per interval.

Covers the lines. The screen is ``tiercache.cli.summary``, the rates are ``tiercache.cli.rates``.
"""

import time
from typing import TYPE_CHECKING, Final

import click

from tiercache.cli import listing, output, pools, rates
from tiercache.cli.listing import Column, Form
from tiercache.cli.parameters import Count
from tiercache.cli.summary import FIELDS, screen, summary
from tiercache.cli.table import clock, latency
from tiercache.errors import ConfigError
from tiercache.stats.model import Snapshot

if TYPE_CHECKING:
    from tiercache.stats.reader import SegmentReader

SCHEMA: Final = "tiercache.stat/1"
RATES_SCHEMA: Final = "tiercache.stat.rates/1"
#: A server publishes at most this often.
LEAST_S: Final = 0.25
#: Lines between two heads, so that one is on any screen.
HEAD_EVERY: Final = 20


def _rate(value: float) -> str:
    return f"{value:.1f}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f}"


RATES: Final = (
    Column("time", "TIME", clock, least=8),
    Column("requests", "REQ", least=4),
    Column("hit_percent", "HIT%", _rate, least=5),
    Column("ram_percent", "RAM%", _rate, least=5, spare=True),
    Column("tiers_percent", "TIER%", _rate, least=5),
    Column("stranded_sequences", "STRAND", least=6),
    Column("spare", "SPARE", least=5),
    Column("stored_rate", "STOR/S", _rate, least=6),
    Column("demoted_rate", "DEM/S", _rate, least=6, spare=True),
    Column("evicted_demoted_rate", "EVD/S", _rate, least=6, spare=True),
    Column("evicted_live_rate", "EVL/S", _rate, least=6),
    Column("restored_bytes_rate", "RD MB/S", _megabytes, least=7),
    Column("stored_bytes_rate", "WR MB/S", _megabytes, least=7, spare=True),
    Column("p99_seconds", "P99", latency, least=6),
    Column("seconds"),
)

EXAMPLES = """\b
Columns of the lines:
  REQ     requests that restored something or found nothing
  HIT%    of these, how many restored something; from RAM and from TIERs below
  STRAND  conversations whose blocks are here and that cannot be restored
  SPARE   stores until some group evicts a live entry
  STOR/S, DEM/S      entries stored and demoted per second
  EVD/S, EVL/S       demoted and live entries evicted per second
  RD, WR MB/S, P99   restored and stored bytes, and how long restores took

\b
Examples:
  tiercache stat
  tiercache stat 1            a line per second, until the server ends or Ctrl-C
  tiercache stat 5 12 --csv
"""


@click.command(epilog=EXAMPLES)
@click.argument("interval", required=False, type=float, metavar="[INTERVAL]")
@click.argument("times", required=False, type=Count(), metavar="[COUNT]")
@pools.option
@listing.options
def stat(interval: float | None, times: int | None, pool: str | None, form: str | None) -> None:
    """Say on one screen how a pool does; with INTERVAL, a line of rates every so many seconds."""
    if interval is None:
        _summary(pools.look(pool), form)
        return
    if not LEAST_S <= interval <= 86_400:
        raise ConfigError("INTERVAL", interval, f"seconds of at least {LEAST_S}")
    with pools.reading(pool) as reader:
        _follow(reader, interval, times, Form(form or Form.TABLE))


def _follow(reader: "SegmentReader", interval: float, times: int | None, form: Form) -> None:
    lines = _Lines(form)
    before = reader.snapshot(now=pools.now())
    due = time.monotonic()
    while times is None or lines.printed < times:
        if not pools.runs(before):
            raise pools.NotRunning(before)
        due = max(due + interval, time.monotonic())
        pools.pause(max(due - time.monotonic(), 0.0))
        after = reader.snapshot(now=pools.now())
        lines.print(before, after)
        before = after


class _Lines:
    """Prints a line per interval, and the head where it is needed."""

    def __init__(self, form: Form) -> None:
        self.printed = 0
        self._form = form
        self._stream = listing.Stream(RATES)
        self._again = HEAD_EVERY if listing.width() is not None else 0

    def print(self, before: Snapshot, after: Snapshot) -> None:
        row = rates.interval(before, after)
        if not self.printed or (self._again and self.printed % self._again == 0):
            self._head()
        self.printed += 1
        match self._form:
            case Form.TABLE:
                output.text(self._stream.line(row))
            case Form.CSV:
                output.text(listing.csv_line(row[column.name] for column in RATES))
            case Form.JSON:
                found = listing.document(
                    RATES_SCHEMA, pools.source(after), [listing.projected(RATES, row)]
                )
                output.document(found, compact=True)

    def _head(self) -> None:
        if self._form is Form.TABLE:
            output.text(self._stream.head())
        elif self._form is Form.CSV and not self.printed:
            output.text(listing.csv_line(column.name for column in RATES))


def _summary(snapshot: Snapshot, form: str | None) -> None:
    if form in (None, Form.TABLE):
        for name, words in screen(snapshot):
            for line in listing.paragraph(name, words, 11):
                output.text(line)
        output.text(listing.fitted(pools.trailer(snapshot)))
        return
    listing.show(
        form,
        schema=SCHEMA,
        source=pools.source(snapshot),
        columns=FIELDS,
        rows=[summary(snapshot)],
    )
