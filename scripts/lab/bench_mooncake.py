# SPDX-License-Identifier: Apache-2.0
"""The Mooncake tier beside the store's own client, over TCP to a process on this machine.

Stores blocks and loads them again: in each round the tier and the bare client do both in turn, each
with a connection of its own. GB/s (10^9 bytes), medians over the rounds; the ratio is the median of
each round's ratio. `cpu` is what this process takes, in seconds per GB: whoever waits for the
client keeps a core busy. Then `seek`: the longest that asking for 10,000 keys holds up the caller,
beside one call of the client for all of them (ms).
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from lab.bench_mooncake_contenders import Bare, Contender, Ours
from lab.bench_nvme_contenders import Workload
from lab.bench_nvme_report import SCHEMA, ratio
from lab.program import block_size, block_sizes, positive
from lab.store import machine, master, program
from tiercache.tiers.mooncake.client import POOL

SEEK_KEYS = 10_000
COLUMNS = ("ours", "raw", "ratio_raw", "ours_cpu", "raw_cpu")
HEADINGS = ("operation", "block", "ours", "raw", "unit", "of raw", "cpu", "raw's")
MISSING = "bench_mooncake: a package is missing: pip install 'tiercache-kv[mooncake]'"

EPILOG = """\
examples:
  scripts/bench_mooncake                                 a table, in a minute
  scripts/bench_mooncake --json                          one JSON document on stdout
  scripts/bench_mooncake --sizes 64KiB --rounds 15 --depth 1

Exit code 0: measured. 1: a call of the store failed. 2: wrong arguments, or no package.
"""

Row = dict[str, Any]


@dataclass
class Case:
    """The figures of an operation by contender, one per round."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contender: str, nbytes: int, seconds: float, cpu_seconds: float) -> None:
        self.rates.setdefault(contender, []).append(nbytes / seconds / 1e9)
        self.cpu.setdefault(contender, []).append(cpu_seconds / nbytes * 1e9)


Cases = dict[tuple[str, int | None], Case]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if program() is None:
        print(MISSING, file=sys.stderr)
        return 2
    os.environ.setdefault(POOL, "1")
    cases: Cases = {}
    most = max(options.bytes, *options.sizes)
    with master() as running, machine(running, 3 * most + (64 << 20)):
        for size in options.sizes:
            work = Workload.of(size, options.bytes)
            print(f"{size / 2**20:g} MiB: {work.blocks} blocks", file=sys.stderr)
            with contest(running.address, work, options.depth) as contenders:
                for number in range(options.rounds):
                    play(contenders, cases, number)
        with contest(running.address, Workload(4096, 1), options.depth) as contenders:
            rows = [*map(row, cases, cases.values()), seek_row(contenders, options.rounds)]
    print(json.dumps({"schema": SCHEMA, "rows": rows}) if options.json else table(rows))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_mooncake",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--bytes",
        type=block_size,
        default="128MiB",
        help="of each operation (default: %(default)s)",
    )
    add("--sizes", type=block_sizes, default="64KiB,1MiB,7MiB,31MiB", help="(default: %(default)s)")
    add("--rounds", type=positive, default=5, metavar="N", help="(default: %(default)s)")
    add("--depth", type=positive, metavar="N", help="the tier's queue_depth (default: its own)")
    add("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(arguments)


@contextmanager
def contest(address: str, work: Workload, depth: int | None) -> Iterator[list[Contender]]:
    with ExitStack() as undo:
        contenders: list[Contender] = []
        for made in (Ours(address, work, depth), Bare(address, work)):
            undo.callback(made.close)
            contenders.append(made)
        yield contenders


def play(contenders: list[Contender], cases: Cases, number: int) -> None:
    """A round; who begins changes from one to the next."""
    first = number % len(contenders)
    for name in ("store", "load"):
        for contender in contenders[first:] + contenders[:first]:
            seconds, cpu_seconds = timed(getattr(contender, name))
            case = cases.setdefault((name, contender.work.block_bytes), Case())
            case.add(contender.name, contender.work.nbytes, seconds, cpu_seconds)
    for contender in contenders:
        contender.check()
        contender.forget()


def timed(call: Callable[[], object]) -> tuple[float, float]:
    start, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - cpu


def row(of: tuple[str, int | None], case: Case) -> Row:
    return {
        "name": of[0],
        "block_bytes": of[1],
        "ours": _median(case.rates["ours"]),
        "raw": _median(case.rates["raw"]),
        "ratio_raw": ratio(case.rates, "raw"),
        "ours_cpu": _median(case.cpu["ours"]),
        "raw_cpu": _median(case.cpu["raw"]),
    }


def seek_row(contenders: Sequence[Contender], rounds: int) -> Row:
    found = {
        contender.name: [contender.seek(SEEK_KEYS, number) * 1e3 for number in range(rounds)]
        for contender in contenders
    }
    figures = {name: _median(values) for name, values in found.items()}
    empty = dict.fromkeys(COLUMNS)
    return {"name": "seek", "block_bytes": None, **empty, **figures}


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)


def table(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )


def _cells(found: Row) -> tuple[str, ...]:
    size = found["block_bytes"]
    shown = ["-" if found[name] is None else f"{found[name]:.2f}" for name in COLUMNS]
    block = "-" if size is None else f"{size / 2**20:g} MiB"
    return (found["name"], block, *shown[:2], "ms" if size is None else "GB/s", *shown[2:])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except RuntimeError as error:
        print(f"bench_mooncake: {error}", file=sys.stderr)
        sys.exit(1)
