# SPDX-License-Identifier: Apache-2.0
"""A block of lines per tier: room, traffic, restores with their latency, failures, the index."""

from collections.abc import Iterator
from collections.abc import Sequence as Rows

from rich.text import Text

from tiercache.stats.latency import percentile
from tiercache.stats.model import LATENCY_US, Health, Snapshot, Tier
from tiercache.tui import feed, notices, table, text
from tiercache.tui.filters import Facts, Matches, matching
from tiercache.tui.frame import Frame
from tiercache.tui.groups import bar
from tiercache.tui.styles import BAD, BAR, CURSOR, DIM, HEAD
from tiercache.tui.trends import (
    RAM,
    Counter,
    histogram,
    is_reduced,
    of_tier,
    rate,
    restored,
    steps,
    total,
)

FIELDS = ("kind", "tier")
LABEL = 10
#: What went wrong is marked where it is not 0.
FAULTS = ("failed", "corrupt")
COUNTS = (*FAULTS, "declined", "evicted", "stored", "loaded")


def names(frame: Frame) -> tuple[list[str], Matches]:
    """RAM and the secondary tiers that the filter leaves."""
    latest = frame.latest
    if latest is None:
        return [], Matches((), "")
    everything = [RAM, *(tier.name for tier in latest.tiers)]
    kinds = {RAM: RAM, **{tier.name: tier.kind for tier in latest.tiers}}
    found = matching(
        frame.ui.filter,
        everything,
        lambda name: Facts(f"{name} {kinds[name]}", {"tier": (name,), "kind": (kinds[name],)}),
        FIELDS,
    )
    return [everything[i] for i in found.rows], found


def rows(frame: Frame) -> int:
    return len(names(frame)[0])


def titles() -> tuple[str, ...]:
    return ()


def selected(frame: Frame) -> str:
    shown, _ = names(frame)
    at = table.cursor(frame, len(shown))
    if at < 0:
        return ""
    return "  ".join(line.plain.strip() for line in block(frame, shown[at], 100))


def body(frame: Frame, width: int, room: int) -> list[Text]:
    """The blocks from the one under the cursor on; that one alone if it is shown at length."""
    shown, found = names(frame)
    latest = frame.latest
    everything = 0 if latest is None else len(latest.tiers) + 1
    title = f"TIERS  {totals_since(frame)}"
    head = table.heading(frame, width, title, len(shown), everything, problem=found.problem)
    at = table.cursor(frame, len(shown))
    if at < 0:
        return [head]
    if frame.ui.detail or frame.ui.zoomed:
        one = shown[at]
        return [head, *block(frame, one, width), *_latencies(frame, one, width, room)]
    blocks = [_marked(block(frame, name, width), i == at) for i, name in enumerate(shown)]
    first = _first(blocks, at, room - 1)
    body = [line for one in blocks[first:] for line in one]
    if latest is not None and not latest.tiers:
        body.extend(notices.paragraphs(frame, width, "", "There is no tier below RAM."))
    return [head, *body]


def totals_since(frame: Frame) -> str:
    if frame.baseline is None:
        return "totals since the server started"
    return f"totals since {text.clock(frame.baseline.taken)}"


def _first(blocks: Rows[Rows[Text]], at: int, room: int) -> int:
    """The first block to show, such that the one ``at`` is seen whole."""
    first = 0
    while first < at and sum(len(one) for one in blocks[first : at + 1]) > room:
        first += 1
    return first


def _marked(lines: list[Text], is_selected: bool) -> list[Text]:  # noqa: FBT001
    if is_selected and lines:
        lines[0] = Text(">").append_text(lines[0][1:])
        lines[0].stylize(CURSOR)
    return lines


def block(frame: Frame, name: str, width: int) -> list[Text]:
    """What there is to say of one tier."""
    latest = frame.latest
    tier = next((t for t in latest.tiers if t.name == name), None) if latest is not None else None
    if latest is None:
        return []
    facts = _ram(latest, width, frame) if tier is None else _tier(tier, width, frame)
    lines = [*facts, *_traffic(frame, name, tier, width), _restores(frame, name)]
    if tier is not None:
        lines.extend(_counts(frame, tier))
    if not frame.is_live:
        for line in lines:
            line.stylize(DIM)
    return [*lines, Text()]


def room_line(name: str, used: int, capacity: int, parts: Text, frame: Frame) -> Text:
    """How full a tier is, with its bar."""
    line = Text(f" {text.fit(text.cut(text.clean(name, frame.glyphs), 8, frame.glyphs), 8)}", HEAD)
    line.append(f"{text.right(text.size(used), 9)} /{text.right(text.size(capacity), 8)} ")
    line.append("[").append_text(parts).append("]")
    return line.append(text.right(text.percent(used, capacity), 5))


def ram_bytes(latest: Snapshot) -> tuple[int, int, int, int] | None:
    """Bytes of RAM that are live, demoted, busy and free; None if a slot's size is not known."""
    live = demoted = busy = free = 0
    for group in latest.groups:
        slots, size = group.slots, group.slot_bytes
        if size is None:
            return None
        live += size * slots.live
        demoted += size * slots.demoted
        busy += size * (slots.storing + slots.pinned)
        free += size * slots.free
    return live, demoted, busy, free


def ram_line(latest: Snapshot, width: int, frame: Frame) -> Text | None:
    """How full RAM is, by what its slots hold."""
    parts = ram_bytes(latest)
    if parts is None or not sum(parts):
        return None
    cells = bar(parts, width, frame.glyphs)
    return room_line(RAM, sum(parts) - parts[3], sum(parts), cells, frame)


def tier_line(tier: Tier, width: int, frame: Frame) -> Text:
    used = max(min(tier.used, tier.capacity), 0)
    live, _, _, free = text.share((used, 0, 0, tier.capacity - used), width)
    cells = Text(frame.glyphs.live * live, BAR[0]).append(frame.glyphs.free * free, "default")
    return room_line(tier.name, tier.used, tier.capacity, cells, frame)


def _bar_width(width: int) -> int:
    return max(min(width - 36, 100), 0)


def _ram(latest: Snapshot, width: int, frame: Frame) -> list[Text]:
    line = ram_line(latest, _bar_width(width), frame)
    if line is None:
        return [Text(f" {text.fit(RAM, 8)} bytes are not reported", HEAD)]
    slots = sum(group.slots.capacity for group in latest.groups)
    return [
        line,
        Text(f"   {text.count(slots)} slots in {len(latest.groups)} groups (1 shows them)"),
    ]


def _tier(tier: Tier, width: int, frame: Frame) -> list[Text]:
    reduced = frame.latest is None or is_reduced(frame.latest)
    queued = text.UNKNOWN if reduced else text.count(tier.queued)
    kind = f"{text.clean(tier.kind, frame.glyphs)}, " if tier.kind else ""
    state = Text(
        f"   {kind}{text.count(tier.entries)} entries, jobs {text.count(tier.jobs)}, "
        f"waiting to be written {queued}  "
    )
    if tier.health is not Health.OK:
        state.append("! rests after errors", BAD)
    return [tier_line(tier, _bar_width(width), frame), state]


def _traffic(frame: Frame, name: str, tier: Tier | None, width: int) -> Iterator[Text]:
    if tier is None:
        yield _rate_line("restored", restored(RAM, "nbytes"), frame, width)
        return
    yield _rate_line("read", of_tier(name, "loaded_bytes"), frame, width)
    yield _rate_line("written", of_tier(name, "stored_bytes"), frame, width)


def _rate_line(label: str, counter: Counter, frame: Frame, width: int) -> Text:
    spark = max(min(width - LABEL - 27, feed.HISTORY_STEPS), 0)
    per_second = rate(frame.history, counter) if frame.is_live else None
    now = "-" if per_second is None else f"{text.size(per_second)}/s"
    line = Text(f"   {text.fit(label, LABEL)}{text.right(now, 10)}")
    line.append(f"{text.right(text.size(total(frame, counter)), 9)} all ")
    grown = steps(frame.history, counter, spark)
    return line.append(text.sparkline(grown, spark, frame.glyphs.levels))


def _restores(frame: Frame, name: str) -> Text:
    latencies = histogram(frame, name)
    shares = ((99, 0.99), (95, 0.95), (50, 0.5))
    times = "  ".join(f"p{n} {text.latency(percentile(latencies, share))}" for n, share in shares)
    requests = text.count(total(frame, restored(name, "requests")))
    tokens = text.tokens(total(frame, restored(name, "tokens")))
    return Text(
        f"   {text.fit('restores', LABEL)}{text.right(requests, 10)}  {tokens} tok  {times}"
    )


def _counts(frame: Frame, tier: Tier) -> Iterator[Text]:
    line = Text("   ")
    for name in COUNTS:
        number = total(frame, of_tier(tier.name, name))
        is_fault = name in FAULTS and bool(number)
        line.append(
            f"{name} {text.count(number)}{'!' if is_fault else ''}  ", BAD if is_fault else ""
        )
    yield line
    if tier.index:
        yield Text(f"   {text.fit('index', LABEL)}{_index(tier)}")


def _index(tier: Tier) -> str:
    index = tier.index
    return "  ".join(
        (
            f"file {text.size(index.get('file_bytes'))} of {text.size(index.get('map_bytes'))}",
            f"readers {text.count(index.get('readers'))}/{text.count(index.get('max_readers'))}",
            f"transactions {text.count(index.get('transactions'))}",
        )
    )


def _latencies(frame: Frame, name: str, width: int, room: int) -> list[Text]:
    """The histogram, a line per doubling."""
    latencies = histogram(frame, name)
    doublings = [sum(latencies[i : i + 4]) for i in range(0, len(LATENCY_US), 4)]
    used = [i for i, number in enumerate(doublings) if number]
    if not used:
        return [Text(" no restore of it has been timed")]
    most, cells = max(doublings), max(min(width - 24, 60), 1)
    lines = [Text(" how long its restores took", HEAD)]
    for i in range(used[0], used[-1] + 1):
        upper = LATENCY_US[min(4 * i + 3, len(LATENCY_US) - 1)] / 1e6
        length = -(-doublings[i] * cells // most)
        row = f"   < {text.fit(text.latency(upper), 8)}{text.right(text.count(doublings[i]), 7)} "
        lines.append(Text(row).append(frame.glyphs.live * length, BAR[0]))
    return lines[: max(room - 8, 2)]
