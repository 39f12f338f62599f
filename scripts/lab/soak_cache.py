# SPDX-License-Identifier: Apache-2.0
"""Millions of blocks through the engine-free cache over a real disk, with faults while it is used.

Plays random conversations on `TieredCache`: turns, forks, idle and edited ones, aborts in every
phase, preemptions, resets, with pools that are always full; once with attention and states, once
with sliding windows. The bytes of each block follow from its key and epoch, and are compared in
full whenever it is restored, and again when the restore ends.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lab.program import add_path, say
from lab.soak_figures import BOUNDS, course, times
from lab.soak_life import LAYOUTS, Orders, capacity
from lab.soak_lives import Found, Lives, small_disk

SCHEMA: Final = "tiercache.soak/1"
#: What is played: kinds of faults at a time, and whether processes are killed.
FAULTS: Final[dict[str, list[tuple[list[str], bool]]]] = {
    "none": [([], False)],
    "eio": [(["eio"], False)],
    "enospc": [(["enospc"], False)],
    "slow": [(["slow"], False)],
    "kill": [([], True)],
    "all": [(["eio", "enospc", "slow"], False), (["eio", "enospc", "slow"], True)],
}
ENDLESS: Final = 1 << 62
#: How much of its quota a tier finds on a disk that gets full.
SMALL: Final = 0.6

EPILOG = """\
faults, of which each comes for a second or two, now and then, while blocks are stored and restored:
  eio     system calls that read, write or both fail, some of them or all
  enospc  the disk is smaller than the quota, and a ballast file takes what is left of it (a file
          system in a file, mounted; without the rights to: min_free leaves as little)
  slow    each such call takes up to 3 s
  kill    the process is killed at a random moment, and the next one opens the same folder: all that
          the tier had acknowledged and not evicted must be there, byte for byte
  all     the first three together, in one process, then in ones that are killed

Growth is what the second half has at most beyond what the first half had at most, once all is
full: after 60,000 blocks of a process. Of processes that are killed it is not said.

examples:
  scripts/soak                                  a million blocks, all faults
  scripts/soak --minutes 60 --faults kill --path /mnt/nvme
  scripts/soak --blocks 20000 --seed 7 --json   one JSON document on stdout

Exit code 0: nothing was lost, nothing wrong was served, nothing grew. 1: something was. 2: wrong
arguments.
"""


@dataclass(frozen=True, slots=True)
class Phase:
    """A layout under some kinds of faults."""

    layout: str
    kinds: list[str]
    kills: bool

    @property
    def faults(self) -> str:
        return "+".join([*self.kinds, *["kill"] * self.kills]) or "none"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    say(f"seed {seed}")
    begun = time.monotonic()
    plays = [
        Phase(layout, kinds, kills) for kinds, kills in FAULTS[options.faults] for layout in LAYOUTS
    ]
    rows = [(phase, soak(phase, options, seed, at, len(plays))) for at, phase in enumerate(plays)]
    result = document(seed, options.faults, time.monotonic() - begun, rows)
    print(json.dumps(result) if options.json else table(result))
    for problem in result["problems"]:
        say(problem)
    return 1 if result["problems"] else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--blocks", type=_positive, default=1_000_000, metavar="N", help="stored (default: 1e6)"
    )
    length.add_argument("--minutes", type=_minutes, metavar="M", help="instead of --blocks")
    add("--faults", choices=list(FAULTS), default="all", help="(default: %(default)s)")
    add("--seed", type=int, help="of what happens (default: a new one, which is told)")
    add_path(parser)
    add("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(float(text))
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _minutes(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def soak(phase: Phase, options: argparse.Namespace, seed: int, number: int, phases: int) -> Found:
    """Play one phase in folders of its own, which are gone afterwards."""
    say(f"{number + 1} of {phases}: {phase.layout}, faults: {phase.faults}")
    dice = random.Random(f"{seed}/phase {number}")
    with ExitStack() as stack:
        make = tempfile.TemporaryDirectory
        folder = Path(stack.enter_context(make(prefix="soak-", dir=options.path)))
        shared = Path(stack.enter_context(make(prefix="tiercache-soak-", dir="/dev/shm")))
        orders = Orders(
            seed=seed,
            number=number * 1_000_000,
            layout=phase.layout,
            kinds=phase.kinds,
            path=str(folder / "tier"),
            journal=str(folder / "journal"),
            shared=str(shared),
            blocks=ENDLESS if options.minutes else -(-options.blocks // phases),
            seconds=options.minutes * 60 / phases if options.minutes else float(ENDLESS),
        )
        if "enospc" in phase.kinds:
            orders = _crowded(orders, folder, stack)
        lives = Lives(folder, Path(orders.path), dice)
        _play(lives, orders, kills=phase.kills)
    return lives.found


def _crowded(orders: Orders, folder: Path, stack: ExitStack) -> Orders:
    """On a disk that holds less than the quota."""
    nbytes = int(capacity(orders.layout) * SMALL)
    small = stack.enter_context(small_disk(folder, nbytes))
    if small is None:
        say("no file system can be mounted here: min_free makes the disk small")
        return replace(orders, min_free=max(0, shutil.disk_usage(folder).free - nbytes))
    return replace(orders, path=str(small / "tier"), ballast=str(small / "ballast"))


def _play(lives: Lives, orders: Orders, *, kills: bool) -> None:
    """The processes of a phase; the last one only looks at what is there."""
    found = lives.found
    begun = time.monotonic()
    while not found.problems:
        endless = replace(orders, blocks=ENDLESS, seconds=float(ENDLESS))
        lives.live(endless if kills else orders, kill=kills)
        found.seconds = time.monotonic() - begun
        orders = replace(orders, number=orders.number + 1)
        stored = found.counts["stored"]
        say(f"  {found.seconds:.0f} s, {stored:,} blocks stored, {found.counts['kills']} kills")
        if not kills or stored >= orders.blocks or found.seconds >= orders.seconds:
            break
    if not found.problems:
        lives.live(replace(orders, kinds=[], blocks=0), kill=False)


# --- what came of it


def document(
    seed: int, faults: str, seconds: float, rows: Sequence[tuple[Phase, Found]]
) -> dict[str, Any]:
    phases = [_row(phase, found) for phase, found in rows]
    counts: Counter[str] = sum((found.counts for _, found in rows), Counter())
    injected: Counter[str] = sum((found.injected for _, found in rows), Counter())
    calls = [each for _, found in rows for each in found.calls]
    names = sorted({name for each in calls for name in each})
    by_call = {name: times(each[name] for each in calls if name in each) for name in names}
    every = times(times_of for each in calls for times_of in each.values())
    problems = [f"{row['layout']}, {row['faults']}: {p}" for row in phases for p in row["problems"]]
    return {
        "schema": SCHEMA,
        "seed": seed,
        "faults": faults,
        "seconds": round(seconds, 1),
        **_counts(counts),
        "injected": dict(injected),
        **{name: _widest(phases, name) for name in BOUNDS},
        "bounds": BOUNDS,
        "worst_step_ms": every.worst_ms,
        "worst_step_cpu_ms": every.worst_cpu_ms,
        "p99_step_ms": every.p99_ms,
        "calls": {name: found._asdict() for name, found in by_call.items()},
        "phases": phases,
        "problems": problems,
    }


def _counts(counts: Counter[str]) -> dict[str, Any]:
    return {
        "blocks": {
            "stored": counts["stored"],
            "restored": counts["restored"],
            "restored_by_source": {"ram": counts["ram"], "disk": counts["disk"]},
            "compared": counts["verified"],
            "looked_at_after_restarts": counts["looked"],
        },
        "wrong": counts["wrong"],
        "lost": counts["lost"],
        "requests": counts["requests"],
        "restores": counts["restores"],
        "kills": counts["kills"],
        "processes": counts["lives"],
        "resets": counts["resets"],
        "preemptions": counts["preemptions"],
        "failed_copies": counts["failed"],
        "refused": counts["refused"],
        "validated": counts["checks"],
        "aborts": {
            "waiting": counts["aborts_waiting"],
            "loading": counts["aborts_loading"],
            "running": counts["aborts_running"],
        },
    }


def _row(phase: Phase, found: Found) -> dict[str, Any]:
    courses = {name: course([] if phase.kills else found.samples, name) for name in BOUNDS}
    grown = [
        f"{name} grew by {each['growth']} in the second half, beyond {BOUNDS[name]}"
        for name, each in courses.items()
        if each["growth"] is not None and each["growth"] > BOUNDS[name]
    ]
    return {
        "layout": phase.layout,
        "faults": phase.faults,
        "seconds": round(found.seconds, 1),
        **_counts(found.counts),
        "injected": dict(found.injected),
        **courses,
        "disk_bytes": {"max": found.most_bytes, "quota": capacity(phase.layout)},
        "problems": [*found.problems, *grown],
    }


def _widest(phases: Sequence[dict[str, Any]], name: str) -> dict[str, float | None]:
    """Of the phase in which a figure grew most."""
    return max((row[name] for row in phases), key=lambda each: each["growth"] or 0.0)


def table(found: dict[str, Any]) -> str:
    lines = [f"{'phase':<34}{'stored':>11}{'restored':>11}{'disk':>10}{'wrong':>7}{'lost':>6}"]
    lines[0] += f"{'kills':>7}{'resets':>8}{'aborts':>8}{'RSS MB':>8}{'growth':>8}"
    for row in found["phases"]:
        blocks, rss = row["blocks"], row["rss_mb"]
        cells = [
            *((11, blocks["stored"]), (11, blocks["restored"])),
            *((10, blocks["restored_by_source"]["disk"]), (7, row["wrong"]), (6, row["lost"])),
            *((7, row["kills"]), (8, row["resets"]), (8, sum(row["aborts"].values()))),
            *((8, rss["max"]), (8, rss["growth"])),
        ]
        name = f"{row['layout']}, {row['faults']}"
        lines.append(f"{name:<34}" + "".join(f"{_cell(value):>{width}}" for width, value in cells))
    worst = f"longest call {found['worst_step_ms']} ms ({found['worst_step_cpu_ms']} ms at work)"
    worst += f", 99 % below {found['p99_step_ms']} ms"
    met = ", ".join(f"{kind} {count:,}" for kind, count in found["injected"].items())
    lines += ["", f"{worst}; faults met: {met or 'none'}; seed {found['seed']}"]
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
