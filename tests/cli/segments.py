# SPDX-License-Identifier: Apache-2.0
"""A pool whose segment is written by the writer that a server uses, in numbers worth looking at."""

import os
from dataclasses import replace
from pathlib import Path

from tiercache.stats.model import (
    LATENCY_US,
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
from tiercache.stats.writer import SegmentWriter

#: When everything below is.
NOW = 1_800_000_000.0

POOL = Pool(
    name="qwen3-next",
    pid=os.getpid(),
    host="here",
    started=NOW - 11_564,
    workers=4,
    writer="serve",
    block_tokens=1_632,
    policy="lru",
    tiercache="0.1",
    path="",
)


def _group(index: int, slots: Slots, idle: float) -> Group:
    kind, slot_bytes = ("full", 7_204_864) if index == 0 else ("state", 4_415_488)
    counts: dict[str, int] = {
        Kind.STORED: 11_204,
        Kind.DEMOTED: 11_139,
        Kind.EVICTED_DEMOTED: 11_127,
    }
    return Group(
        name=f"g{index}",
        kind=kind,
        slots=slots,
        slot_bytes=4 * slot_bytes,
        chunk_tokens=1_632,
        oldest_live=NOW - idle,
        counts={**counts, Kind.EVICTED_LIVE: int(index == 7)},
    )


GROUPS = (
    _group(0, Slots(41, 4, 2_198, 0, 12), 2_280),
    *(_group(index, Slots(4, 1, 13, 11, 1), 3_120) for index in range(1, 7)),
    _group(7, Slots(0, 0, 28, 0, 2), 240),
)


def latencies(*seconds: float) -> tuple[int, ...]:
    """A histogram of these times."""
    found = [0] * len(LATENCY_US)
    for each in seconds:
        found[next(i for i, bound in enumerate(LATENCY_US) if each * 1e6 < bound)] += 1
    return tuple(found)


RAM = Restores(1_204, 61_200_000, 812_000_000_000, latencies(*[0.0009] * 1_190, *[0.0041] * 14))
MISSED = Restores(5, 181_000, 0, ())
NVME = Tier(
    name="nvme0",
    kind="nvme",
    health=Health.OK,
    capacity=512 * 2**30,
    used=204 * 2**30,
    entries=31_022,
    jobs=1,
    queued=3,
    load_rate=2.4e9,
    restores=Restores(37, 1_900_000, 41_000_000_000, latencies(*[0.212] * 35, *[1.9] * 2)),
    counts={"stored": 40_000, "loaded": 2_000, "stored_bytes": 10**12, "loaded_bytes": 41 * 10**9},
    index={
        "map_bytes": 64 << 20,
        "file_bytes": 9 << 20,
        "transactions": 88_213,
        "readers": 1,
        "max_readers": 512,
    },
)

STRANDED = Sequence(
    number=0xE00D3B,
    turns=3,
    last_used=NOW - 3_480,
    tokens=508_800,
    cached=508_800,
    restorable=0,
    restorable_ram=0,
    live=0,
    demoted=0,
    where=Where.RAM_BLOCKS,
    source="miss",
    restored=0,
    loss=Loss("g7", 508_800, NOW - 2_400, 0x91BE02),
)
IDLE = Sequence(
    number=0x1F09BC,
    turns=61,
    last_used=NOW - 3_120,
    tokens=508_800,
    cached=508_800,
    restorable=504_288,
    restorable_ram=96_288,
    live=2,
    demoted=0,
    where=Where.RAM_BLOCKS | Where.RAM_STATES | Where.TIER,
    source="ram",
    restored=504_288,
    seconds=5.8,
)
BUSY = Sequence(
    number=0xC7F3A1,
    turns=117,
    last_used=NOW,
    tokens=308_000,
    cached=308_000,
    restorable=308_000,
    restorable_ram=308_000,
    live=3,
    demoted=3,
    where=Where.RAM_BLOCKS | Where.RAM_STATES | Where.RUNNING,
)
SEQUENCES = (IDLE, STRANDED, BUSY)

VICTIMS = {
    1: (
        Victim("g1", 17, SlotClass.DEMOTED, 0xC7F3A1, 1_906_176, NOW - 180, None, 0),
        Victim("g1", 22, SlotClass.DEMOTED, 0x91BE02, 589_152, NOW - 120, "nvme0", 0),
        Victim("g1", 12, SlotClass.LIVE, 0x1F09BC, 504_288, NOW - 3_120, "nvme0", 504_288),
        Victim("g1", 6, SlotClass.LIVE, None, 98_200, NOW - 2_460, None, 98_200),
        Victim("g1", 2, SlotClass.PINNED, 0xC7F3A1, 308_000, NOW, None, 0),
    ),
    7: (
        Victim("g7", 12, SlotClass.LIVE, 0x1F09BC, 504_288, NOW - 240, "nvme0", 504_288),
        Victim("g7", 6, SlotClass.LIVE, 0xC7F3A1, 98_200, NOW - 60, None, 98_200),
    ),
}


def write(directory: Path, *, pool: Pool = POOL, rank: int = 0) -> SegmentWriter:
    """The segment of a running server; the caller closes the writer."""
    writer = SegmentWriter.create(directory, pool, GROUPS, [NVME], rank=rank)
    writer.put_state(NOW - 0.3, phase=Phase.RUN, running=2, totals={})
    writer.put_restores(RAM, MISSED)
    for group, victims in VICTIMS.items():
        writer.put_victims(group, victims)
    for row, sequence in enumerate(SEQUENCES):
        writer.put_sequence(row, sequence)
    happen(writer)
    return writer


def happen(writer: SegmentWriter, *, since: float = NOW - 60) -> None:
    """Four events."""
    at = round(since * 1e9)
    writer.event(Kind.STORED, at, group=1, count=6, sequence=0xC7F3A1, tokens=308_000)
    writer.event(Kind.DEMOTED, at + 2_000_000, group=1, count=6, sequence=0xC7F3A1, tokens=306_368)
    writer.event(
        Kind.RESTORED,
        at + 10**9,
        tier=0,
        count=90,
        sequence=0xAA41D0,
        tokens=96_000,
        nbytes=3_100_000_000,
        duration_us=410_000,
    )
    writer.event(Kind.EVICTED_LIVE, at + 2 * 10**9, group=7, count=1, sequence=0xE00D3B)


def served_more(tier: Tier, requests: int) -> Tier:
    """A tier from which so many more requests were restored."""
    restores = replace(tier.restores, requests=tier.restores.requests + requests)
    return replace(tier, restores=restores)
