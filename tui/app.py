# SPDX-License-Identifier: Apache-2.0
"""The ``tiercache-top`` command, which is also ``tiercache top``.

Covers its options and the ways of running: on a terminal, or once as text or JSON. What each
of them needs is imported when it runs, so that ``--once`` does not load a terminal toolkit.
"""

import locale
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from tiercache.cli import diagnostics, output
from tiercache.cli.diagnostics import ExitCode

if TYPE_CHECKING:
    from tiercache.tui.frame import Frame
    from tiercache.tui.sources import Source
    from tiercache.tui.text import Glyphs

PROGRAM = "tiercache-top"
DISTRIBUTION = "tiercache-kv"
DEFAULT_URL = "http://127.0.0.1:8000/metrics"
#: Below this the server would make pages faster than anyone reads them.
MIN_INTERVAL_S = 0.25
#: Of a report that goes to a pipe; a terminal has its own.
REPORT_WIDTH = 100

EXAMPLES = """\b
Examples:
  tiercache-top
  tiercache-top --url http://10.0.0.7:8000/metrics --interval 5
  tiercache-top --once --json | jq '.groups[] | {group, spare}'
"""


@click.command(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Metrics page of the server.")
@click.option(
    "--interval",
    type=click.FloatRange(min=MIN_INTERVAL_S),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time from one look to the next.",
)
@click.option("--once", is_flag=True, help="Print one report; exit 1 if there are no numbers.")
@click.option("as_json", "--json", is_flag=True, help="Print one JSON document (implies --once).")
@click.option("ascii_only", "--ascii", is_flag=True, help="Draw with ASCII characters alone.")
@click.version_option(None, "-V", "--version", package_name=DISTRIBUTION, prog_name=PROGRAM)
def top(url: str, interval: float, *, once: bool, as_json: bool, ascii_only: bool) -> ExitCode:
    """Watch the slots, demotions, evictions and restores of a running cache."""
    from tiercache.tui.sources import MetricsSource
    from tiercache.tui.text import ASCII, UNICODE

    source = MetricsSource(url)
    glyphs = ASCII if ascii_only or not _locale_is_utf8() else UNICODE
    if once or as_json:
        return _report(source, interval, glyphs, as_json=as_json)
    return _watch(source, interval, glyphs)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the ``tiercache-top`` command."""
    diagnostics.run(top, PROGRAM, arguments)


def _report(source: "Source", interval: float, glyphs: "Glyphs", *, as_json: bool) -> ExitCode:
    frame = _look(source, interval, glyphs)
    if as_json:
        from tiercache.tui.document import document

        output.document(document(frame))
    else:
        from tiercache.tui import view

        width = shutil.get_terminal_size((REPORT_WIDTH, 0)).columns
        output.styled(view.report(frame, width))
    return ExitCode.OK if frame.is_live else ExitCode.PROBLEM


def _look(source: "Source", interval: float, glyphs: "Glyphs") -> "Frame":
    from tiercache.tui.feed import Feed
    from tiercache.tui.frame import Frame
    from tiercache.tui.trouble import SourceError

    feed = Feed(time.time(), interval)
    try:
        feed.accept(source.fetch())
    except SourceError as failure:
        feed.fail(failure, time.time())
    now = time.time()
    return Frame(source.url, interval, now, feed.status(now), feed.history, glyphs=glyphs)


def _watch(source: "Source", interval: float, glyphs: "Glyphs") -> ExitCode:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("this is not a terminal; use --once or --json")
    if os.environ.get("TERM", "dumb") == "dumb":
        raise click.UsageError("this terminal cannot move its cursor (TERM=dumb); use --once")
    from tiercache.tui.monitor import Monitor

    monitor = Monitor(source, interval, glyphs)
    # Without the mouse the terminal itself can select and copy text.
    monitor.run(mouse=False)
    return ExitCode(monitor.return_code or ExitCode.OK)


def _locale_is_utf8() -> bool:
    """What the locale says of the terminal, whatever Python itself writes."""
    return locale.getencoding().lower().replace("-", "") == "utf8"
