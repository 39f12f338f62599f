# SPDX-License-Identifier: Apache-2.0
"""Memory, restart and bookkeeping over the number of blocks, without a byte of payload.

Fills the index of a disk tier with so many entries, then, in fresh processes, opens the tier, looks
up a prefix, and replaces entries in its tables, 3,000,000 at most; then the same bookkeeping for a
primary tier. Times are CPU time but for `restart_s`. `restart_hold_s` is how long another thread
waited for the interpreter at most while the tier opened; `turn_worst_ms` is the longest of all
steps of 64 keys (disk) or of 512 (primary), for which the engine's scheduler waits. Rows `-fit` are
extrapolated.
"""

import argparse
import multiprocessing
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.bench_scale_disk import make, restart, turnover
from lab.bench_scale_ram import primary
from lab.bench_scale_report import Figures, Row, document, extrapolated, row, table
from lab.program import add_path, say

PREFIX = 10_000

EPILOG = """\
A tier of 10,000,000 entries takes 700 MB below --path, and 6 GB of memory while it is opened.

examples:
  scripts/bench_scale                                       some minutes
  scripts/bench_scale --json --path /mnt/nvme
  scripts/bench_scale --entries 100000,1000000 --resident 100000
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench_scale-", dir=options.path) as name:
        for entries in options.entries:
            rows.append(disk_row(Path(name), entries, options.rounds))
            say(table(rows[-1:]))
    for resident in options.resident:
        rows.append(primary_row(resident, options.rounds))
        say(table(rows[-1:]))
    for name in ("disk", "primary"):
        rows += extrapolated(rows, name, options.beyond)
    print(document(rows) if options.json else table(rows))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_scale",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_path(parser)
    sizes = "100000,1000000,3000000,10000000"
    add("--entries", type=numbers, default=sizes, metavar="N,…", help="(default: %(default)s)")
    sizes = "100000,1000000,3000000"
    add("--resident", type=numbers, default=sizes, metavar="N,…", help="(default: %(default)s)")
    sizes = "30000000,100000000"
    add("--beyond", type=numbers, default=sizes, metavar="N,…", help="and guessed for these")
    add("--rounds", type=int, default=7, metavar="N", help="(default: %(default)s)")
    add("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(arguments)


def numbers(text: str) -> list[int]:
    """Numbers above 0 in a list, which may be empty."""
    found = [int(part) for part in text.split(",") if part]
    if any(number < 1 for number in found):
        raise argparse.ArgumentTypeError(f"{text} is no list of numbers above 0")
    return found


def disk_row(directory: Path, entries: int, rounds: int) -> Row:
    path = directory / "large"
    say(f"a disk tier of {entries:,} entries: filling")
    figures = alone(make, path, entries)
    say("  opening")
    figures |= alone(restart, path, entries, min(PREFIX, entries), rounds)
    say("  replacing")
    figures |= alone(turnover, path, entries, rounds)
    shutil.rmtree(path)
    return row("disk", entries, figures)


def primary_row(resident: int, rounds: int) -> Row:
    say(f"a primary tier of {resident:,} keys")
    return row("primary", resident, alone(primary, resident, min(PREFIX, resident), rounds))


def alone(measure: Callable[..., Figures], *args: object) -> Figures:
    """What ``measure`` returns in a process that has imported it, and did nothing else before."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lab.bench_scale_disk", "lab.bench_scale_ram"])
    # Ends what it began when this process is told to end.
    with context.Pool(1) as pool:
        return pool.apply(measure, args)


if __name__ == "__main__":
    sys.exit(main())
