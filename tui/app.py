# SPDX-License-Identifier: Apache-2.0
"""The ``tiercache-top`` command, which is also ``tiercache top``.

Covers its options and the ways of running: on a terminal, or as text or JSON. What each of them
needs is imported when it runs, so that ``--once`` does not load a terminal toolkit.
"""

import gc
import locale
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tiercache.cli import diagnostics, output
from tiercache.cli.diagnostics import ExitCode
from tiercache.tui.settings import MIN_INTERVAL_S, THEMES, Settings
from tiercache.tui.state import UiState, View

if TYPE_CHECKING:
    from tiercache.tui.sources import Source
    from tiercache.tui.text import Glyphs

PROGRAM = "tiercache-top"
DISTRIBUTION = "tiercache-kv"
#: Flags that are given each time.
FLAGS = "TIERCACHE_TOP"
#: Objects that are made between two looks for garbage; a picture makes and drops thousands.
GARBAGE = 50_000

EXAMPLES = """\b
Examples:
  tiercache-top
  tiercache-top --demo
  tiercache-top --url http://10.0.0.7:8000 -d 5
  tiercache-top -1 --view eviction --group g7
  tiercache-top -j | jq '.groups[] | {name, spare: .slots.spare}'
  tiercache-top --record night.tcr -j -n 3600 > /dev/null
  tiercache-top --replay night.tcr

$TIERCACHE_TOP has flags that are given each time, $TIERCACHE_DIR is where pools are, and
$NO_COLOR turns colours off.
"""


class Command(click.Command):
    """A command that reads flags from the environment, too, before those it was given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            given = shlex.split(os.environ.get(FLAGS, ""))
        except ValueError as failure:
            raise click.UsageError(f"${FLAGS}: {str(failure).lower()}", ctx) from failure
        return super().parse_args(ctx, [*given, *args])


@click.command(
    cls=Command, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.argument("pool", required=False, metavar="[POOL|PID|PATH]")
@click.option(
    *("-d", "--interval"),
    type=click.FloatRange(min=MIN_INTERVAL_S),
    metavar="SECONDS",
    help="Time from one look to the next.  [default: 1, or that of the recording]",
)
@click.option("-1", "--once", is_flag=True, help="Print one report; so does a pipe.")
@click.option("as_json", "-j", "--json", is_flag=True, help="Print one JSON document.")
@click.option(
    *("-n", "--count"),
    type=click.IntRange(min=1),
    metavar="N",
    help="Print so many reports, or lines of JSON.",
)
@click.option("-f", "--filter", "filtered", default="", metavar="WORDS", help="Filter of the list.")
@click.option("-s", "--sort", default="", metavar="COLUMN", help="Sort the list by this column.")
@click.option("--view", type=click.Choice(list(map(str, View))), default=View.OVERVIEW.value)
@click.option("--group", metavar="GROUP", help="Group of the eviction order.")
@click.option("ascii_only", "-U", "--ascii", is_flag=True, help="Draw with ASCII characters alone.")
@click.option("--no-color", is_flag=True, help="No colours; so does $NO_COLOR.")
@click.option(
    "--no-mouse",
    is_flag=True,
    expose_value=False,
    help="Changes nothing: the mouse is the terminal's.",
)
@click.option("--theme", type=click.Choice(THEMES), default=THEMES[0], show_default=True)
@click.option("--demo", is_flag=True, help="Look at a made pool, which ends with this program.")
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE", help="Play a recording.")
@click.option(
    "--record", type=click.Path(path_type=Path), metavar="FILE", help="Record to a new file."
)
@click.option("--url", metavar="URL", help="Metrics page of a server: groups, tiers, totals only.")
@click.option("listing", "--list", is_flag=True, help="List the pools of this machine.")
@click.version_option(None, "-V", "--version", package_name=DISTRIBUTION, prog_name=PROGRAM)
def top(*, once: bool, listing: bool, no_color: bool, **given: Any) -> ExitCode:
    """Watch the slots, demotions, evictions and restores of a running cache.

    Without an argument, of the only pool that runs on this machine.
    """
    if no_color:
        os.environ["NO_COLOR"] = "1"
    if listing:
        return _list(as_json=given["as_json"])
    settings = _settings(**given)
    prints = once or settings.as_json or settings.count is not None or not sys.stdout.isatty()
    from tiercache.tui.choosing import opened

    if not prints:
        _refuse_terminal()
    with opened(settings) as source:
        settings = _with_interval(settings, source, given["interval"])
        return _print(source, settings) if prints else _watch(source, settings)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the ``tiercache-top`` command."""
    diagnostics.run(top, PROGRAM, arguments)


def _settings(
    *,
    interval: float | None,
    filtered: str,
    sort: str,
    view: str,
    group: str | None,
    **given: Any,
) -> Settings:
    ui = UiState(view=View(view), group=group, filter=filtered)
    ui = replace(ui, sort=_column(sort, ui))
    settings = Settings(interval=interval or 1.0, ui=ui, **given)
    chosen = {
        "POOL": settings.pool,
        "--url": settings.url,
        "--demo": settings.demo,
        "--replay": settings.replay,
    }
    named = [name for name, value in chosen.items() if value]
    if len(named) > 1:
        raise click.UsageError(f"{named[0]} and {named[1]} cannot be given together")
    if settings.replay is not None and settings.record is not None:
        raise click.UsageError("--record and --replay cannot be given together")
    return settings


def _column(name: str, ui: UiState) -> str:
    """The title of the column called ``name``, in any case."""
    if not name:
        return ""
    from tiercache.tui import view
    from tiercache.tui.feed import State, Status
    from tiercache.tui.frame import Frame

    titles = view.columns(Frame("", 1.0, 0.0, Status(State.WAITING, 0.0), ui=ui))
    for title in titles:
        if title.lower() == name.lower():
            return title
    known = ", ".join(titles) or "none to sort by"
    raise click.UsageError(f"no column {name!r} in --view {ui.view}; there are {known}")


def _with_interval(settings: Settings, source: "Source", asked: float | None) -> Settings:
    """A recording is played as fast as it was made, unless asked otherwise."""
    from tiercache.tui.record import Recording

    if isinstance(source, Recording) and asked is None:
        return replace(settings, interval=max(source.interval, MIN_INTERVAL_S))
    return settings


def _print(source: "Source", settings: Settings) -> ExitCode:
    from tiercache.tui.once import report

    try:
        return report(source, settings, _glyphs(settings))
    finally:
        source.close()


def _watch(source: "Source", settings: Settings) -> ExitCode:
    from tiercache.tui import terminal
    from tiercache.tui.monitor import Monitor

    glyphs = _glyphs(settings)
    # The toolkit stays as long as the program: no look for garbage need go through it.
    gc.freeze()
    gc.set_threshold(GARBAGE)
    with terminal.restored(PROGRAM):
        monitor = Monitor(source, settings.interval, glyphs, ui=settings.ui, theme=settings.theme)
        # Without the mouse the terminal itself can select and copy text.
        monitor.run(mouse=False)
    if monitor.return_code:
        diagnostics.error(PROGRAM, terminal.HINT)
    return ExitCode(monitor.return_code or ExitCode.OK)


def _refuse_terminal() -> None:
    for name, stream in (("stdin", sys.stdin), ("stderr", sys.stderr)):
        if not stream.isatty():  # keys come from the one, and the picture goes to the other
            raise click.UsageError(f"{name} is not a terminal; use --once or --json")
    if os.environ.get("TERM", "dumb") == "dumb":
        raise click.UsageError("this terminal cannot move its cursor (TERM=dumb); use --once")


def _list(*, as_json: bool) -> ExitCode:
    from tiercache.tui.listing import document, table

    if as_json:
        output.document(document())
        return ExitCode.OK
    for line in table():
        output.text(line)
    return ExitCode.OK


def _glyphs(settings: Settings) -> "Glyphs":
    from tiercache.tui.text import ASCII, UNICODE

    return ASCII if settings.ascii_only or not _locale_is_utf8() else UNICODE


def _locale_is_utf8() -> bool:
    """What the locale says of the terminal, whatever Python itself writes."""
    return locale.getencoding().lower().replace("-", "") == "utf8"
