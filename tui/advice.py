# SPDX-License-Identifier: Apache-2.0
"""The advisor: what needs a human, the worst first, each in one line with its cure.

Covers what is said of numbers that are fresh; how fresh they are is ``notices``.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from tiercache.stats.latency import percentile
from tiercache.stats.model import Health, Kind, Phase, Snapshot, Tier
from tiercache.tui import reasons, text
from tiercache.tui.frame import Frame
from tiercache.tui.styles import BAD, WARN
from tiercache.tui.trends import counted, lasting, named, rate

#: Readers of the index that are left before it turns new ones away.
FEW_READERS = 4


class Advice(NamedTuple):
    """What is the matter, and what can be done about it."""

    matter: str
    cure: str
    is_bad: bool = True


def advice(frame: Frame) -> list[Advice]:
    """Everything that needs attention now; nothing about numbers that are not fresh."""
    latest = frame.latest
    if latest is None or not frame.is_live:
        return []
    return [*_groups(frame, latest), *_stranded(latest), *_tiers(frame, latest), *_probe(latest)]


def _groups(frame: Frame, latest: Snapshot) -> Iterator[Advice]:
    group = reasons.neediest(latest.groups)
    if group is not None and reasons.is_alarming(group):
        which = reasons.equals(latest.groups, group)
        yield Advice(
            f"{which} spare 0{_how_long(frame, group.name)}: "
            "the next store evicts a live checkpoint",
            reasons.CURE,
        )
    if rate(frame.history, counted(Kind.REFUSED)):
        yield Advice(
            "stores find no room: every slot that could go is in use",
            "raise cpu_bytes_to_use or serve fewer requests at once",
        )


def _how_long(frame: Frame, group: str) -> str:
    """Since when a group has no spare slot; the history may be shorter than that."""
    seconds = lasting(frame.history, lambda snapshot: _has_no_spare(snapshot, group))
    if not seconds:
        return ""
    over = "over " if _has_no_spare(frame.history[0], group) else ""
    return f" for {over}{text.duration(seconds)}"


def _has_no_spare(snapshot: Snapshot, name: str) -> bool:
    return any(group.name == name and group.slots.spare <= 0 for group in snapshot.groups)


def _stranded(latest: Snapshot) -> Iterator[Advice]:
    found = reasons.stranded(latest.sequences)
    if not found:
        return
    tokens = text.tokens(sum(sequence.stranded for sequence in found))
    name, why = reasons.name(found[0].number), reasons.short(found[0])
    if len(found) == 1:
        matter = f"{name} cannot be restored: {tokens} tokens cached, {why}"
    else:
        matter = f"{len(found)} conversations cannot be restored: {tokens} tokens; {name}: {why}"
    yield Advice(matter, "2 shows why")


def _tiers(frame: Frame, latest: Snapshot) -> Iterator[Advice]:
    for tier in latest.tiers:
        if tier.health is not Health.OK:
            yield Advice(
                f"{tier.name} rests after errors: nothing is read from it or written to it",
                "see 4, and the server's log",
            )
        yield from _index(tier)
    if rate(frame.history, named("unworthy")):
        yield Advice(
            f"{_slowest(latest)} p99 restore: computing is faster, so some is not read",
            "a faster disk would help; 4 shows how long it takes",
            is_bad=False,
        )


def _slowest(latest: Snapshot) -> str:
    """The tier with the longest restores, and how long they take."""
    slow = {tier.name: percentile(tier.restores.histogram, 0.99) for tier in latest.tiers}
    timed = {name: seconds for name, seconds in slow.items() if seconds is not None}
    if not timed:
        return "tiers:"
    name = max(timed, key=lambda name: timed[name])
    return f"{name} {text.latency(timed[name])}"


def _index(tier: Tier) -> Iterator[Advice]:
    readers, most = tier.index.get("readers"), tier.index.get("max_readers")
    if readers is not None and most is not None and most - readers < FEW_READERS:
        yield Advice(
            f"{tier.name} index has {readers} of {most} readers",
            "end programs that read it",
        )


def _probe(latest: Snapshot) -> Iterator[Advice]:
    if latest.sequences_dropped:
        yield Advice(
            f"{latest.sequences_dropped} conversations have no row and are not counted here",
            "",
            is_bad=False,
        )
    if latest.phase is Phase.INIT:
        yield Advice("the cache is starting: numbers are not complete yet", "", is_bad=False)


def lines(frame: Frame, width: int) -> list[Text]:
    """Each on a row of its own, with its cure: for screens that have room."""
    return [_row(item, frame, width) for item in advice(frame)]


def _row(item: Advice, frame: Frame, width: int) -> Text:
    """The matter and its cure; where that is too long, the matter up to its explanation."""
    cure = f"; {item.cure}" if item.cure else ""
    whole = text.clean(item.matter + cure, frame.glyphs)
    if cell_len(whole) + 4 > width:
        whole = text.clean(item.matter.partition(": ")[0] + cure, frame.glyphs)
    return Text(f" ! {text.cut(whole, width - 4, frame.glyphs)}", _style(item))


def _style(item: Advice) -> str:
    return BAD if item.is_bad else WARN


def line(frame: Frame, width: int) -> Text | None:
    """As much of it as one row can say, and how much more there is; None if all is well."""
    found = advice(frame)
    if not found:
        return None
    matters = [f"! {text.clean(item.matter, frame.glyphs)}" for item in found]
    said, kept = _fitting(matters, width - 2)
    more = f"  +{len(found) - kept}" if kept < len(found) else ""
    cure = f"; {found[0].cure}" if kept == 1 and found[0].cure else ""
    if cell_len(said + cure + more) > width - 2:
        cure = ""
    said = text.cut(said + cure, width - 2 - len(more), frame.glyphs)
    return Text(f" {said}{more}", _style(found[0]))


def _fitting(matters: Sequence[str], room: int) -> tuple[str, int]:
    """The first ones joined, as many as fit, and how many those are."""
    said, kept = matters[0], 1
    for matter in matters[1:]:
        longer = f"{said}  {matter}"
        if cell_len(longer) > room:
            break
        said, kept = longer, kept + 1
    return said, kept
