# SPDX-License-Identifier: Apache-2.0
"""What a stats segment costs: an event, a row of each table, a reader's snapshot.

The writer plays the same calls twice in one run: alone, and beside a process that takes snapshots
without a pause. Figures are medians over the rounds, in microseconds per call; a call of a table
writes all that a publication writes of it: every group, every tier, 64 victims of one group, one
sequence. Snapshots are of a reader that has seen everything (idle), one for which a publication
of 100 sequences and 100 events is new, and one that sees the segment for the first time.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Any

from tiercache.stats.model import (
    Group,
    Health,
    Kind,
    Phase,
    Pool,
    Restores,
    Sequence,
    SlotClass,
    Slots,
    Tier,
    Victim,
    Where,
)
from tiercache.stats.reader import SegmentReader
from tiercache.stats.writer import SegmentWriter

SCHEMA = "tiercache.bench/1"
ROWS = 4096
FRESH = 100

Row = dict[str, Any]


class Bench:
    """A segment of a hybrid model's size, with every row in use."""

    def __init__(self, directory: Path, groups: int) -> None:
        pool = Pool("bench", os.getpid(), "", 0.0, 1, "demo", 16, "demote", "", "")
        counts: dict[str, int] = dict.fromkeys(Kind, 1)
        slots = Slots(1, 2, 3, 4, 5)
        restores = Restores(1, 2, 3, tuple(range(128)))
        self.groups = [
            Group(f"g{i}", "state", slots, 4096, 256, 1.0, counts) for i in range(groups)
        ]
        self.tier = Tier("nvme0", "nvme", Health.OK, 1 << 40, 1, 2, 3, 4, 1e9, restores)
        self.victims = [
            Victim("g0", n, SlotClass.LIVE, 7, 4096, 1.0, "nvme0", 64) for n in range(64)
        ]
        self.sequence = Sequence(7, 2, 1.0, 64, 48, 32, 16, 2, 1, Where.TIER, "ram", 48, 0.1)
        self.writer = SegmentWriter.create(
            directory, pool, self.groups, [self.tier], sequences=ROWS
        )
        self.fill()

    def fill(self) -> None:
        for _, call in self.calls():
            call()
        for row in range(ROWS):
            self.writer.put_sequence(row, self.sequence)

    def calls(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Everything a writer does, by name."""
        writer, restores, totals = self.writer, self.tier.restores, {"late": 1}
        yield (
            "event",
            lambda: writer.event(
                Kind.EVICTED_LIVE, 10**18, group=0, count=3, sequence=7, tokens=4096
            ),
        )
        yield "state", lambda: writer.put_state(1.0, phase=Phase.RUN, running=1, totals=totals)
        yield "groups", lambda: writer.put_groups(self.groups)
        yield "tiers", lambda: writer.put_tiers([self.tier])
        yield "restores", lambda: writer.put_restores(restores, restores)
        yield "victims", lambda: writer.put_victims(0, self.victims)
        yield "sequence", lambda: writer.put_sequence(5, self.sequence)

    def publish(self) -> None:
        """Something new for a reader."""
        for row in range(FRESH):
            self.writer.put_sequence(row, self.sequence)
            self.writer.event(Kind.STORED, 10**18, group=0, count=1)


def hammer(path: Path, ready: Flag, stop: Flag) -> None:
    """Take snapshots until told to stop."""
    with closing(SegmentReader(path)) as reader:
        reader.snapshot(now=0.0)
        ready.set()
        while not stop.is_set():
            reader.snapshot(now=0.0)


@contextmanager
def hammered(path: Path) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=hammer, args=(path, ready, stop))
    process.start()
    ready.wait()
    try:
        yield
    finally:
        stop.set()
        process.join()


def cost(call: Callable[[], None], calls: int, rounds: int) -> float:
    """Median microseconds of ``call``, made ``calls`` times in each round."""
    costs = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        costs.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(costs)


def snapshot_costs(bench: Bench, rounds: int) -> Iterator[tuple[str, float]]:
    path = bench.writer.path
    first, fresh, idle = [], [], []
    for _ in range(rounds):
        with closing(SegmentReader(path)) as reader:
            first.append(_snapshot(reader))
            bench.publish()
            fresh.append(_snapshot(reader))
            idle.append(_snapshot(reader))
    for name, costs in (("idle", idle), ("fresh", fresh), ("first", first)):
        yield f"snapshot-{name}", statistics.median(costs)


def _snapshot(reader: SegmentReader) -> float:
    start = time.perf_counter()
    reader.snapshot(now=0.0)
    return (time.perf_counter() - start) * 1e6


def measure(directory: Path, groups: int, calls: int, rounds: int) -> Iterator[Row]:
    """Yield a row for each call and each kind of snapshot."""
    bench = Bench(directory, groups)
    with closing(bench.writer):
        alone = {name: cost(call, calls, rounds) for name, call in bench.calls()}
        with hammered(bench.writer.path):
            read = {name: cost(call, calls, rounds) for name, call in bench.calls()}
        for name, us in alone.items():
            yield row(name, us, read[name])
        for name, us in snapshot_costs(bench, rounds):
            yield row(name, us, None)


def row(name: str, alone: float, read: float | None) -> Row:
    return {
        "name": name,
        "us": round(alone, 3),
        "read_us": None if read is None else round(read, 3),
    }


def table(rows: list[Row]) -> str:
    lines = [f"{'call':<16}{'alone µs':>10}{'read µs':>10}"]
    lines += [f"{r['name']!s:<16}{r['us']:>10}{r['read_us'] or '-':>10}" for r in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_stats",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  scripts/bench_stats\n  scripts/bench_stats --json --groups 2",
    )
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--calls", type=int, default=2000, help="calls in a round")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        rows = list(measure(Path(directory), args.groups, args.calls, args.rounds))
    print(json.dumps({"schema": SCHEMA, "rows": rows}) if args.json else table(rows))


if __name__ == "__main__":
    main()
