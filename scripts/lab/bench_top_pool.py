# SPDX-License-Identifier: Apache-2.0
"""A pool to measure the monitor with: a demo that has run for so long, or a full segment.

Run with ``python -m lab.bench_top_pool``: it says ``ready``, and lives as long as what started it.
The demo plays its past as fast as it can, so that a pool of any age is there after seconds, and
every one of an age has had the same past. The full segment has every row in use, and changes as
much as a busy server does.
"""

import argparse
import os
import time
from contextlib import closing
from itertools import count
from pathlib import Path

from tiercache.probe.attach import attach
from tiercache.replay.demo import NAP_S, Demo
from tiercache.stats import pools
from tiercache.stats.model import (
    Group,
    Health,
    Kind,
    Loss,
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
from tiercache.stats.rows import VICTIMS
from tiercache.stats.writer import SegmentWriter

GROUPS, SEQUENCES = 8, 4096
#: As often as a cache publishes at most, and what of a full segment then changes.
PERIOD_S, CHANGED, EVENTS = 0.25, 64, 64
HERE = Where.RAM_BLOCKS | Where.RAM_STATES


def play_demo(directory: Path, age: float) -> None:
    """Play a demo that began ``age`` seconds ago, for ever."""
    started = time.time() - age
    at = started

    def clock() -> float:
        return at

    demo = Demo(clock)
    if attach(demo.cache, name="bench", writer="demo", directory=directory, clock=clock) is None:
        raise SystemExit("no stats segment can be written")
    parent, said = os.getppid(), False
    while os.getppid() == parent:
        nap = min(max(demo.step(), 1e-3), NAP_S)
        if at + nap < time.time():
            at += nap
            continue
        if not said:
            print("ready", flush=True)
            said = True
        time.sleep(nap)
        at = time.time()


class Full:
    """A segment of a hybrid model with all its rows in use."""

    def __init__(self, directory: Path, now: float) -> None:
        self._began = now
        groups = [self._group(i, now) for i in range(GROUPS)]
        pool = Pool("bench", os.getpid(), "", now, 1, "serve", 1632, "lru", "", "")
        self.writer = SegmentWriter.create(
            directory, pool, groups, [self._tier(0)], sequences=SEQUENCES
        )
        for row in range(SEQUENCES):
            self.writer.put_sequence(row, self._sequence(row, now - row))
        for _ in range(8192 // EVENTS):
            self._events(now)
        self.publish(0, now)

    def publish(self, number: int, now: float) -> None:
        """Everything that a publication may change."""
        writer = self.writer
        totals = {"restored_tokens": number * 9_000, "lost_tokens": number}
        writer.put_groups([self._group(i, now, number) for i in range(GROUPS)])
        writer.put_tiers([self._tier(number)])
        restores = Restores(number, number * 9_000, number << 20, (0,) * 40 + (number,) * 88)
        writer.put_restores(restores, restores)
        for group in range(GROUPS):
            first = number % VICTIMS  # as if one had gone
            writer.put_victims(group, [self._victim(group, first + i) for i in range(VICTIMS)])
        for i in range(CHANGED):
            # Spread over the table, as conversations are.
            row = (number * CHANGED + i) * 61 % SEQUENCES
            writer.put_sequence(row, self._sequence(row, now))
        self._events(now)
        writer.put_state(now, phase=Phase.RUN, running=3, totals=totals)

    def _events(self, now: float) -> None:
        for i in range(EVENTS):
            kind = (Kind.STORED, Kind.DEMOTED, Kind.EVICTED_DEMOTED, Kind.SPILLED)[i // 2 % 4]
            numbers = {"group": i % GROUPS, "count": 1, "sequence": i // 8 + 1, "tokens": 1632}
            self.writer.event(kind, int(now * 1e9), nbytes=4 << 20, tier=0, **numbers)

    def _group(self, place: int, now: float, number: int = 0) -> Group:
        counts: dict[str, int] = dict.fromkeys(Kind, number * 7)
        kind, slots = ("state" if place else "full"), Slots(number % 3, 1, 13, 11, 1)
        return Group(f"g{place}", kind, slots, 4 << 20, 1632, now - 240, counts)

    def _tier(self, number: int) -> Tier:
        counts = {"stored": number, "stored_bytes": number << 24, "loaded_bytes": number << 20}
        restores = Restores(number, number * 9_000, number << 20, (0,) * 60 + (number,) * 68)
        numbers = (1 << 39, 1 << 38, 7_310, 1, 3, 2.4e9)
        return Tier("nvme0", "nvme", Health.OK, *numbers, restores, counts)

    def _victim(self, group: int, slot: int) -> Victim:
        slot_class = SlotClass.DEMOTED if slot % 4 else SlotClass.LIVE
        last_used = self._began - 300
        return Victim(f"g{group}", slot, slot_class, slot + 1, 1632, last_used, "nvme0", 1632)

    def _sequence(self, row: int, last_used: float) -> Sequence:
        """One of sixteen cannot be restored."""
        restorable = 0 if row % 16 == 0 else 80_000
        loss = None if restorable else Loss("g7", 80_000, last_used, row // 2 + 1)
        numbers = (100_000, 90_000, restorable, restorable, 2, 1)
        return Sequence(row + 1, 3, last_used, *numbers, HERE, "ram", 80_000, 0.4, loss)


def play_full(directory: Path) -> None:
    """Change a full segment for ever."""
    full, parent = Full(directory, time.time()), os.getppid()
    print("ready", flush=True)
    with closing(full.writer):
        for number in count(1):
            if os.getppid() != parent:
                return
            time.sleep(PERIOD_S)
            full.publish(number, time.time())


def main() -> None:
    """Parse arguments and play."""
    parser = argparse.ArgumentParser(prog="lab.bench_top_pool", description=__doc__)
    parser.add_argument("--age", type=float, help="seconds of a demo; without: a full segment")
    options = parser.parse_args()
    directory = pools.directory()
    if options.age is None:
        play_full(directory)
    else:
        play_demo(directory, options.age)


if __name__ == "__main__":
    main()
