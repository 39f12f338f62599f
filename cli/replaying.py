# SPDX-License-Identifier: Apache-2.0
"""Plays what ``tiercache replay`` was asked for, shows how far it is, and prints what came of it.

Covers caches, sources and the report. The options are in ``tiercache.cli.commands.replay``, what a
replay is in ``tiercache.replay``.
"""

import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

from tiercache.cli import diagnostics, output
from tiercache.cli.parameters import flat
from tiercache.cli.planning import plan
from tiercache.cli.table import count, share, short, table
from tiercache.errors import ConfigError
from tiercache.modelconfig import read_model
from tiercache.probe.attach import attach
from tiercache.replay import plots, registry, traces, workloads
from tiercache.replay.conversations import Selection
from tiercache.replay.report import Row, document, row
from tiercache.replay.simulate import Player, Setup
from tiercache.replay.turns import Stream, Turn

#: Requests between two updates of the progress bar.
PROGRESS_STEP: Final = 20
#: Skipped lines that are shown of a trace; of the others, how many there are.
SHOWN_LINES: Final = 5
#: Columns of a text plot where the terminal is wider, and lines.
PLOT_WIDTH, PLOT_HEIGHT = 80, 13


# --- caches


def counted_sizes(
    block_tokens: int, token_slots: Sequence[int], state_slots: Sequence[int], state_groups: int
) -> list[Setup]:
    """Caches of so many slots; raises click.UsageError if the numbers make no pairs."""
    pairs = max(len(token_slots), len(state_slots))
    if {len(token_slots), len(state_slots)} - {1, pairs}:
        raise click.UsageError(
            f"{len(token_slots)} numbers of --token-slots do not pair with "
            f"{len(state_slots)} of --state-slots; give as many, or one"
        )
    sizes = (
        (token_slots[index % len(token_slots)], state_slots[index % len(state_slots)])
        for index in range(pairs)
    )
    return [
        Setup.uniform(
            block_tokens=block_tokens,
            token_slots=tokens,
            state_slots=states,
            state_groups=state_groups,
        )
        for tokens, states in dict.fromkeys(sizes)
    ]


def planned_sizes(
    model_config: Path | None,
    budgets: Sequence[tuple[int, ...]],
    tp: int | None,
    reference_tokens: int | None,
) -> list[Setup]:
    """Caches as a server with such a model would divide its memory."""
    if model_config is None or not budgets:
        raise click.UsageError("--model-config and --budget need each other")
    workers = tp or 1
    model = read_model(model_config, tp=workers)
    geometries = (
        plan(
            "--budget",
            budget,
            model.groups,
            workers=workers,
            # A replay keeps as few states as a server that keeps the fewest.
            retention=0,
            reference_tokens=reference_tokens or model.context,
        )
        for budget in flat(budgets)
    )
    return [Setup(geometry.groups, geometry.slots) for geometry in geometries]


def setups(
    sizes: Sequence[Setup], policies: Sequence[str], disk_slots: int, *, publish: bool
) -> list[Setup]:
    """Every policy with every size, refused at once if one cannot be played."""
    for policy in policies:
        registry.check_policy(policy)
        if publish and policy in registry.OFFLINE:
            raise ConfigError("--policy", policy, "without --publish: it has no cache to look at")
        lacking = disk_slots or not all(size.state_slots for size in sizes)
        if policy in registry.OFFLINE and lacking:
            raise ConfigError("--policy", policy, "with state slots and without --nvme")
    return [
        replace(size, policy=policy, disk_slots=disk_slots) for policy in policies for size in sizes
    ]


# --- what is played


def open_sources(
    paths: Sequence[Path],
    scenarios: Sequence[str],
    *,
    block_tokens: int,
    selection: Selection,
    strict: bool,
) -> "list[Source]":
    """Everything that is to be played, opened; what cannot be is refused before anything is."""
    if not (paths or scenarios):
        allowed = f"a TRACE or --scenario, one of {', '.join(workloads.SCENARIOS)}"
        raise click.UsageError(f"nothing to replay: give {allowed}")
    sources = []
    for path in paths:
        skipped = Skipped()
        stream = traces.open_trace(
            path,
            block_tokens=block_tokens,
            selection=selection,
            strict=strict,
            report=skipped.note,
        )
        sources.append(Source(stream, skipped))
    for name in scenarios:
        made = workloads.scenario(name, block_tokens=block_tokens, selection=selection)
        sources.append(Source(made, Skipped()))
    return sources


@dataclass(slots=True)
class Skipped:
    """Lines of one trace that could not be read; counted when it is played first."""

    shown: list[str] = field(default_factory=list)
    lines: int = 0
    reported: bool = False

    def note(self, malformed: traces.Malformed) -> None:
        if not self.reported:
            self.lines += 1
            if self.lines <= SHOWN_LINES:
                self.shown.append(f"skipped {malformed}")

    def report(self) -> None:
        """Say once on stderr what was skipped."""
        if self.reported:
            return
        self.reported = True
        for line in self.shown:
            diagnostics.warning(line)
        if self.lines > len(self.shown):
            diagnostics.warning(f"skipped {count(self.lines)} lines in all; --strict refuses them")


@dataclass(frozen=True, slots=True)
class How:
    """How sources are played."""

    show: bool
    """Whether there is a progress bar, if stderr is a terminal."""
    publish: bool = False
    """Whether each cache has a segment."""
    speed: float | None = None
    """Seconds of the requests per second; None: as fast as it goes."""


@dataclass(frozen=True, slots=True)
class Source:
    """A stream, and what could not be read of it."""

    stream: Stream
    skipped: Skipped

    def play(self, setups: Sequence[Setup], how: How) -> Iterator[Row]:
        """Play all setups, one after the other."""
        turns = self.stream.turns
        for setup in setups:
            label = f"{self.stream.name}, {setup.policy}, {_slots(setup)}"
            with _progress(label, turns, show=how.show and sys.stderr.isatty()) as progress:
                calls = (progress, _pacer(how.speed) if how.speed else None)
                watching = self._watching(setup) if how.publish else {}
                result = registry.play(self.stream, setup, progress=_all(calls), **watching)
            self.skipped.report()
            turns = result.tally.requests
            yield row(result)

    def _watching(self, setup: Setup) -> dict[str, Any]:
        """What has a player publish its cache."""
        name = f"{self.stream.name}-{setup.policy}-{setup.token_slots}+{setup.state_slots}"

        def watch(player: Player) -> None:
            attach(player.cache, name=name, writer="replay", clock=player.clock)

        return {"watch": watch, "epoch": time.time()}


def _all(
    calls: Sequence[Callable[[Turn], object] | None],
) -> Callable[[Turn], object] | None:
    """One call for all that there are."""
    present = [call for call in calls if call is not None]
    return (lambda turn: [call(turn) for call in present]) if present else None


def _pacer(speed: float) -> Callable[[Turn], None]:
    """Waits after each turn until its time has come."""
    begin = time.monotonic()

    def wait(turn: Turn) -> None:
        time.sleep(max(begin + turn.time / speed - time.monotonic(), 0.0))

    return wait


def _slots(setup: Setup) -> str:
    return f"{setup.token_slots}+{setup.state_slots} slots"


@contextmanager
def _progress(
    label: str, turns: int | None, *, show: bool
) -> Iterator[Callable[[Turn], object] | None]:
    """What is to be called after each turn; how many there are is not known the first time."""
    if not show:
        yield None
        return
    bar: Any = click.progressbar(
        None if turns else itertools.count(),  # without an end
        length=turns,
        label=label,
        file=sys.stderr,
        show_pos=True,
        update_min_steps=PROGRESS_STEP,
    )
    with bar:
        yield lambda _: bar.update(1)


# --- the report


def report(rows: Sequence[Row], *, nvme: int | None, as_json: bool) -> None:
    """Print the document, or tables and, if there are several sizes, plots."""
    if as_json:
        output.document(document(rows))
        return
    parts = [
        "\n".join(_table(list(group), nvme))
        for _, group in itertools.groupby(rows, key=lambda row: row["trace"])
    ]
    if len({(row["token_slots"], row["state_slots"]) for row in rows}) > 1:
        width = min(shutil.get_terminal_size().columns, PLOT_WIDTH)
        parts.append(plots.text_plot(rows, width=width, height=PLOT_HEIGHT))
    output.text("\n\n".join(parts))


def _table(rows: Sequence[Row], nvme: int | None) -> Iterator[str]:
    first = rows[0]
    disk = f", {count(nvme)} slots on disk" if nvme else ""
    yield first["trace"]
    yield (
        f"{count(first['requests'])} requests, {short(first['prompt_tokens'])} prompt tokens, "
        f"blocks of {count(first['block_tokens'])}{disk}"
    )
    columns = dict(COLUMNS)
    if "idle_restored_tokens" not in first:
        del columns["idle\nrestored"]
    yield from table(list(columns), [[cell(row) for cell in columns.values()] for row in rows])


COLUMNS: Final[dict[str, Callable[[Row], str]]] = {
    "policy": lambda row: row["policy"],
    "token\nslots": lambda row: count(row["token_slots"]),
    "state\nslots": lambda row: count(row["state_slots"]),
    "restored": lambda row: share(row["restored_share"]),
    "evicted\nlive": lambda row: count(row["evicted_live"]),
    "evicted\ndemoted": lambda row: count(row["evicted_demoted"]),
    "stranded\ntokens": lambda row: short(row["stranded_tokens"]),
    "idle\nrestored": lambda row: count(row["idle_restored_tokens"]),
    "time": lambda row: f"{row['seconds']:.1f} s",
}


# --- pictures


def check_picture(path: Path) -> None:
    """Refuse what cannot be drawn, or to where it cannot be, before hours were spent."""
    plots.check_picture(path)
    if not path.absolute().parent.is_dir():
        raise ConfigError("--plot", str(path), "a file in a folder that exists")


def draw(rows: Sequence[Row], path: Path) -> None:
    try:
        plots.save_plot(rows, path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error
