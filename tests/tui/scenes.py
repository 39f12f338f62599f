# SPDX-License-Identifier: Apache-2.0
"""The pool of the design's pictures: a conversation lost its checkpoint, and more will."""

from dataclasses import replace

from tiercache.stats.model import (
    LATENCY_US,
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
from tiercache.tui.feed import State, Status
from tiercache.tui.frame import Frame
from tiercache.tui.state import UiState, View

#: 14:02:12 in UTC.
NOW = 1_799_935_332.0
SECONDS = 121
STRANDED, RESTING, SHORT, TAKER, READER, QUICK, BUSY = (
    *(0xE00D3B, 0x1F09BC, 0x77C1AA, 0x91BE02),
    *(0xAA41D0, 0x5D20E7, 0xC7F3A1),
)
MIN, GIB = 60.0, 2**30
HERE = Where.RAM_BLOCKS | Where.RAM_STATES

POOL = Pool(
    name="qwen3-next",
    pid=41712,
    host="gpu7",
    started=NOW - 11_564,
    workers=4,
    writer="serve",
    block_tokens=1632,
    policy="lru",
    tiercache="0.1.0",
    path="/dev/shm/tiercache-1000/qwen3-next.41712.0.tcs",
)


def histogram(**counts: int) -> tuple[int, ...]:
    """So many restores of about so many microseconds each: ``us900=600``."""
    numbers = [0] * len(LATENCY_US)
    for name, number in counts.items():
        wanted = int(name.removeprefix("us"))
        numbers[next(i for i, upper in enumerate(LATENCY_US) if upper > wanted)] += number
    return tuple(numbers)


def counts(**numbers: int) -> dict[str, int]:
    return {kind: 0 for kind in Kind if kind is not Kind.RESET} | {
        Kind[name.upper()]: number for name, number in numbers.items()
    }


def token_group(ago: float) -> Group:
    slots = Slots(free=41, storing=4, live=2198, demoted=0, pinned=12)
    told = counts(stored=9120 - int(ago), evicted_demoted=12, restored=38_000, stranded=312)
    return Group("g0", "full", slots, 4 * 7_204_864, 1632, NOW - 38 * MIN, told)


def state_group(number: int, ago: float) -> Group:
    slots = Slots(free=4, storing=1, live=13, demoted=11, pinned=1)
    demoted, oldest = 1860 - int(ago), 52 * MIN
    if number == 7:
        slots, demoted, oldest = Slots(0, 1, 28, 0, 1), 0, 4 * MIN
    told = counts(
        stored=1900 - int(ago),
        demoted=demoted,
        evicted_demoted=max(demoted - 11, 0),
        evicted_live=1 if number == 7 else 0,
        restored=1241,
    )
    return Group(f"g{number}", "state", slots, 4 * 4_415_488, 1632, NOW - oldest, told)


def nvme(ago: float) -> Tier:
    return Tier(
        name="nvme0",
        kind="nvme",
        health=Health.OK,
        capacity=512 * GIB,
        used=204 * GIB,
        entries=7_310,
        jobs=1,
        queued=3,
        load_rate=2.4 * GIB,
        restores=Restores(37, 1_900_000, 41 * GIB, histogram(us200_000=33, us1_700_000=4)),
        counts={
            "stored": 8_122,
            "loaded": 1_400,
            "stored_bytes": 240 * GIB - int(ago * 1.1 * GIB),
            "loaded_bytes": 41 * GIB - int(ago // 20) * 3 * GIB,
            "evicted": 812,
            "corrupt": 0,
            "failed": 0,
            "declined": 3,
        },
        index={
            "map_bytes": 16 * GIB,
            "file_bytes": 19 * 2**20,
            "transactions": 12_031,
            "readers": 2,
            "max_readers": 126,
        },
    )


def conversation(
    number: int, turns: int, idle: float, cached: int, restorable: int, **more: object
) -> Sequence:
    made = Sequence(
        number=number,
        turns=turns,
        last_used=NOW - idle,
        tokens=cached,
        cached=cached,
        restorable=restorable,
        restorable_ram=restorable,
        live=2,
        demoted=0,
        where=HERE,
        source="ram",
        restored=restorable,
        seconds=0.4,
    )
    return replace(made, **more)  # type: ignore[arg-type]


LOSS = Loss("g7", 508_368, NOW - 41 * MIN, TAKER)
SEQUENCES = (
    conversation(
        *(STRANDED, 3, 58 * MIN, 508_800, 0),
        live=0,
        where=Where.RAM_BLOCKS,
        source="miss",
        restored=0,
        seconds=None,
        loss=LOSS,
    ),
    conversation(RESTING, 61, 52 * MIN, 508_800, 504_288, seconds=5.8, where=HERE | Where.TIER),
    conversation(SHORT, 9, 41 * MIN, 98_200, 98_200, source=None, restored=0, seconds=None),
    conversation(TAKER, 40, 6 * MIN, 24_100, 24_100, demoted=1, where=HERE | Where.TIER),
    conversation(READER, 12, MIN, 98_200, 96_000, demoted=3, source="nvme0"),
    conversation(QUICK, 88, 9, 201_000, 201_000, demoted=4, seconds=1.7),
    conversation(BUSY, 117, 0, 308_000, 307_000, live=3, demoted=3, where=HERE | Where.RUNNING),
)


def victim(
    group: str,
    slot: int,
    kind: SlotClass,
    sequence: int,
    *,
    tokens: int,
    age: float,
    **more: object,
) -> Victim:
    made = Victim(group, slot, kind, sequence, tokens, NOW - age, None, 0)
    return replace(made, **more)  # type: ignore[arg-type]


def victims_of(group: str) -> tuple[Victim, ...]:
    far, near = {"tokens": 504_288, "lost": 504_288}, {"tokens": 24_100, "lost": 24_100}
    live = (
        victim(group, 12, SlotClass.LIVE, RESTING, **far, age=52 * MIN, below="nvme0"),
        victim(group, 6, SlotClass.LIVE, SHORT, tokens=98_200, lost=98_200, age=41 * MIN),
        victim(group, 29, SlotClass.LIVE, TAKER, **near, age=6 * MIN, below="nvme0"),
    )
    pinned = (
        victim(group, 2, SlotClass.PINNED, BUSY, tokens=307_000, age=0),
        victim(group, 19, SlotClass.PINNED, READER, tokens=96_000, age=0),
    )
    if group == "g7":
        return (*live[1:], *pinned)
    gone = [
        victim(group, 17 - i, SlotClass.DEMOTED, BUSY, tokens=20_000 * i, age=180)
        for i in range(1, 12)
    ]
    return (*gone, *live, *pinned)


def events() -> list[Event]:
    told = [
        (41 * MIN, Kind.EVICTED_LIVE, ("g7",), None, TAKER, 508_368, 0, None),
        (10, Kind.RESTORED, (None,), None, RESTING, 504_288, 8 * GIB, 5.8),
        (7, Kind.MISSED, (None,), None, STRANDED, 508_800, 0, None),
        (5, Kind.SPILLED, ("g0",), "nvme0", QUICK, 0, 87 * 2**20, 0.04),
        (3, Kind.RESTORED, (None,), "nvme0", READER, 96_000, 3 * GIB, 0.41),
        (1, Kind.STORED, tuple(f"g{i}" for i in range(1, 8)), None, BUSY, 307_000, 2**24, 0.004),
        (1, Kind.DEMOTED, tuple(f"g{i}" for i in range(1, 7)), None, BUSY, 303_000, 0, None),
    ]
    happened = [
        (ago, kind, group, tier, sequence, tokens, nbytes, seconds)
        for ago, kind, groups, tier, sequence, tokens, nbytes, seconds in told
        for group in groups
    ]
    return [
        Event(i + 100, NOW - ago, kind, group, tier, 1, sequence, tokens, nbytes, seconds)
        for i, (ago, kind, group, tier, sequence, tokens, nbytes, seconds) in enumerate(happened)
    ]


def snapshot(ago: float = 0.0) -> Snapshot:
    """The pool ``ago`` seconds before ``NOW``; its g7 had a spare slot until 40 s ago."""
    groups = (token_group(ago), *(state_group(number, ago) for number in range(1, 8)))
    if ago > 40:
        groups = (*groups[:7], replace(groups[7], slots=Slots(1, 1, 27, 0, 1)))
    return Snapshot(
        taken=NOW - ago,
        heartbeat=NOW - ago - 0.2,
        phase=Phase.RUN,
        alive=True,
        running=2,
        pool=POOL,
        groups=groups,
        tiers=(nvme(ago),),
        ram=Restores(
            1204, 61_200_000, 812 * GIB - int(ago // 3) * GIB, histogram(us850=1180, us3_900=24)
        ),
        missed=Restores(5, 181_000),
        totals={"restored_tokens": 63_100_000, "lost_tokens": 508_800, "demotions_reused": 12},
        sequences=SEQUENCES,
        victims=tuple(v for group in groups[1:] for v in victims_of(group.name)),
        events_total=88_213,
    )


def live() -> Frame:
    history = [snapshot(float(ago)) for ago in range(SECONDS - 1, -1, -1)]
    return Frame("qwen3-next", 1.0, NOW + 0.5, Status(State.LIVE, NOW), history, events())


def looking(frame: Frame, view: View = View.OVERVIEW, **changes: object) -> Frame:
    """``frame`` with other choices of the reader."""
    return replace(frame, ui=replace(UiState(view=view), **changes))  # type: ignore[arg-type]


def latest_with(frame: Frame, **changes: object) -> Frame:
    """``frame`` with its newest snapshot changed."""
    newest = replace(frame.history[-1], **changes)  # type: ignore[arg-type]
    return replace(frame, history=[*frame.history[:-1], newest])


def older(frame: Frame, seconds: float, state: State, reason: str = "") -> Frame:
    """The same numbers, so many seconds later."""
    status = Status(state, frame.now, reason)
    return replace(frame, now=frame.now + seconds, status=status)


def metrics(frame: Frame) -> Frame:
    """What a Prometheus page tells of the same pool."""
    return replace(frame, history=[_reduced(each) for each in frame.history], log=())


def _reduced(each: Snapshot) -> Snapshot:
    groups = [replace(g, slot_bytes=None, chunk_tokens=None, oldest_live=None) for g in each.groups]
    return Snapshot(
        taken=each.taken,
        heartbeat=each.taken,
        phase=Phase.RUN,
        alive=True,
        running=None,
        pool=None,
        groups=tuple(groups),
        tiers=tuple(_counted(tier) for tier in each.tiers),
        totals={"restored_tokens": 63_100_000, "lost_tokens": 508_800},
        source="metrics",
    )


def _counted(tier: Tier) -> Tier:
    counts = {name: n for name, n in tier.counts.items() if name not in ("stored", "loaded")}
    return replace(
        tier, kind="", queued=0, load_rate=None, restores=Restores(), counts=counts, index={}
    )
