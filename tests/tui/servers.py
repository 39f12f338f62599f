# SPDX-License-Identifier: Apache-2.0
"""Servers to look at: what one says at a time, its segment, and its page of metrics."""

import os
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from tiercache.stats.model import (
    Event,
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
    Snapshot,
    Tier,
    Victim,
    Where,
)
from tiercache.stats.writer import SegmentWriter

START = 1_800_000_000.0
GIB = 2**30
POOL = Pool(
    name="qwen3-next",
    pid=41712,
    host="here",
    started=START - 11_564,
    workers=4,
    writer="serve",
    block_tokens=1632,
    policy="lru",
    tiercache="0.1",
    path="",
)
HISTOGRAM = tuple(37 if i == 70 else 0 for i in range(128))
STRANDED = Sequence(
    number=0xE00D3B,
    turns=3,
    last_used=START - 3480,
    tokens=508_800,
    cached=508_800,
    restorable=0,
    restorable_ram=0,
    live=0,
    demoted=0,
    where=Where.RAM_BLOCKS,
    source="miss",
    loss=Loss("g7", 508_800, START - 2400, 0x91BE02),
)
BUSY = replace(
    STRANDED,
    number=0xC7F3A1,
    last_used=START,
    restorable=508_800,
    restorable_ram=508_800,
    where=Where.RAM_BLOCKS | Where.RAM_STATES | Where.RUNNING,
    source="ram",
    restored=504_000,
    seconds=0.4,
    loss=None,
)
VICTIMS = (
    Victim("g1", 17, SlotClass.DEMOTED, 0xC7F3A1, 1904, START - 180, None, 0),
    Victim("g7", 12, SlotClass.LIVE, 0xE00D3B, 7950, START - 3120, "nvme0", 504_000),
    Victim("g7", 6, SlotClass.LIVE, None, None, None, None, 98_200),
)


def token_group(step: int) -> Group:
    counts: dict[str, int] = {
        Kind.STORED: 90 + step,
        Kind.RESTORED: step // 2,
        Kind.EVICTED_LIVE: 3,
    }
    slots = Slots(41, 0, 2198, 0, 16)
    return Group("g0", "full", slots, 7_204_864, 1632, START - 2280, counts)


def state_group(number: int, step: int) -> Group:
    slots = Slots(0, 1, 28, 0, 1) if number == 7 else Slots(4, 1, 13, 11, 1)
    lost = step // 3 if number == 7 else 0
    counts: dict[str, int] = {Kind.DEMOTED: 100 + 2 * step, Kind.EVICTED_DEMOTED: 60 + step}
    counts |= {Kind.EVICTED_LIVE: lost, Kind.REFUSED: lost}
    oldest = START - (240 if number == 7 else 3120)
    return Group(f"g{number}", "state", slots, 4_415_488, 1632, oldest, counts)


def event(number: int) -> Event:
    kind = Kind.RESTORED if number % 3 else Kind.EVICTED_LIVE
    tier = "nvme0" if kind is Kind.RESTORED else None
    when = START + number / 10
    return Event(number, when, kind, "g7", tier, 6, 0xE00D3B, 96_000, 3 * 10**9, 0.41)


def tier(step: int) -> Tier:
    return Tier(
        name="nvme0",
        kind="nvme",
        health=Health.OK,
        capacity=512 * GIB,
        used=204 * GIB,
        entries=81_204,
        jobs=1,
        queued=3,
        load_rate=2.4e9,
        restores=Restores(37 + step, 1_900_000, 41 * GIB, HISTOGRAM),
        counts={"stored": 900 + step, "loaded": 300, "failed": 0},
        index={"map_bytes": GIB, "file_bytes": 2**24, "readers": 1, "max_readers": 126},
    )


def qwen(step: int, **changes: object) -> Snapshot:
    """What a hybrid model's cache with eight groups says, so many seconds after ``START``."""
    snapshot = Snapshot(
        taken=START + step,
        heartbeat=START + step - 0.2,
        phase=Phase.RUN,
        alive=True,
        running=2,
        pool=POOL,
        groups=(token_group(step), *(state_group(number, step) for number in range(1, 8))),
        tiers=(tier(step),),
        ram=Restores(1204 + step, 61_200_000, 812 * GIB, HISTOGRAM),
        missed=Restores(5, 181_000, 0, HISTOGRAM),
        totals={"restored_tokens": 96_000 * (step // 2), "lost_tokens": 508_800 * (step // 5)},
        sequences=(STRANDED, BUSY),
        victims=VICTIMS,
        events=(event(step + 1),),
        events_total=step + 1,
    )
    return replace(snapshot, **changes)  # type: ignore[arg-type]


def published(folder: Path, snapshot: Snapshot, name: str = POOL.name) -> SegmentWriter:
    """The segment of a server of this process, which says what ``snapshot`` says."""
    pool = replace(POOL, name=name, pid=os.getpid(), started=time.time())
    writer = SegmentWriter.create(folder, pool, snapshot.groups, snapshot.tiers)
    publish(writer, snapshot, START)
    return writer


def publish(writer: SegmentWriter, snapshot: Snapshot, now: float) -> None:
    """Write all of ``snapshot`` as if it happened ``now``."""
    groups = [group.name for group in snapshot.groups]
    writer.put_groups(snapshot.groups)
    writer.put_tiers(snapshot.tiers)
    writer.put_restores(snapshot.ram or Restores(), snapshot.missed or Restores())
    for index, group in enumerate(groups):
        writer.put_victims(index, [v for v in snapshot.victims if v.group == group])
    for row, sequence in enumerate(snapshot.sequences):
        writer.put_sequence(row, sequence)
    _tell(writer, snapshot.events, groups)
    running = snapshot.running or 0
    writer.put_state(now, phase=Phase.RUN, running=running, totals=snapshot.totals)


def _tell(writer: SegmentWriter, events: Many[Event], groups: Many[str]) -> None:
    for each in events:
        writer.event(
            each.kind,
            int(each.when * 1e9),
            group=groups.index(each.group or ""),
            count=each.count,
            sequence=each.sequence or 0,
            tokens=each.tokens,
            nbytes=each.nbytes,
        )


class Outcome(NamedTuple):
    """What a command that has ended said."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


class Page:
    """A metrics page on this machine; ``text`` and ``status`` may change at any time."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        self.requests = 0
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.requests += 1
                self.send_response(page.status)
                self.end_headers()
                self.wfile.write(page.text.encode())

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Nothing listens there any more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
