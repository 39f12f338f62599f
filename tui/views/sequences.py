# SPDX-License-Identifier: Apache-2.0
"""Conversations: what is cached of each, how much of that can be restored, and why not more."""

from collections.abc import Sequence as Rows
from operator import attrgetter

from rich.text import Text

from tiercache.stats.model import Sequence, Where
from tiercache.tui import notices, reasons, table, text
from tiercache.tui.filters import Facts, Matches, matching
from tiercache.tui.frame import Frame
from tiercache.tui.remembering import remembering
from tiercache.tui.styles import BAD, DIM, HEAD
from tiercache.tui.table import Column, number
from tiercache.tui.trends import moment

FIELDS = ("seq", "group", "tier")
MEANING = (
    "CACHED: attention blocks that are kept. RESTORABLE: as far as a checkpoint reaches them; "
    "the rest is computed again. STATES: checkpoints in RAM, live + demoted."
)
#: A list keeps this many lines when the explanation below it is long.
MIN_LIST = 5


def _restorable(one: Sequence) -> str:
    share = text.right(text.percent(one.restorable, one.cached), 4)
    return f"{text.tokens(one.restorable)} {share}{'!' if one.is_stranded else ' '}"


def where(sequence: Sequence) -> str:
    """Where a conversation has something: ``kv`` are attention blocks."""
    has = sequence.where
    kinds = ((Where.RAM_BLOCKS, "kv"), (Where.RAM_STATES, "state"))
    ram = "+".join(word for flag, word in kinds if flag & has)
    places = [f"ram {ram}" if ram else "", "tier" if has & Where.TIER else ""]
    return ", ".join(place for place in places if place) or text.UNKNOWN


def last(sequence: Sequence) -> str:
    """Its last restore: from where, how much, and how long that took."""
    if sequence.source is None:
        return text.UNKNOWN
    if sequence.source == "miss":
        return "nothing"
    took = "" if sequence.seconds is None else f" {text.latency(sequence.seconds)}"
    return f"{sequence.source} {text.tokens(sequence.restored)}{took}"


def _why(one: Sequence) -> str:
    why = reasons.short(one)
    runs = bool(one.where & Where.RUNNING)
    return "runs now" if runs and why == text.UNKNOWN else why


def _alarm(one: Sequence) -> str:
    return BAD if one.is_stranded else ""


def _name(one: Sequence) -> str:
    return reasons.name(one.number)


def _states(one: Sequence) -> str:
    return f"{one.live}+{one.demoted}"


def columns(now: float) -> Rows[Column[Sequence]]:
    """All of them, as of ``now``."""
    return (
        Column("SEQ", 8, 0, _name, lambda one: one.number, left=True),
        number("TURNS", 6, 6, lambda one: one.turns),
        number("IDLE", 5, 4, lambda one: _idle(one, now), text.age),
        number("CACHED", 8, 1, lambda one: one.cached, text.tokens),
        Column(
            *("RESTORABLE", 14, 2, _restorable, lambda one: one.restorable),
            style=_alarm,
            marked=True,
        ),
        number("FROM RAM", 9, 9, lambda one: one.restorable_ram, text.tokens),
        Column("STATES", 7, 5, _states, lambda one: one.live + one.demoted),
        Column("WHERE", 20, 8, where, where, left=True),
        Column("LAST RESTORE", 21, 7, last, last, left=True),
        Column("WHY NOT MORE", 20, 3, _why, _why, left=True, grows=True, style=_alarm),
    )


def _idle(one: Sequence, now: float) -> float:
    return max(now - one.last_used, 0.0)


def fitting(frame: Frame, width: int) -> list[table.Fitted[Sequence]]:
    """The columns that fit in ``width`` cells."""
    return table.fitting(_columns(frame), width)


def _columns(frame: Frame) -> Rows[Column[Sequence]]:
    return columns(0.0 if frame.latest is None else moment(frame.latest))


def listed(frame: Frame) -> tuple[list[Sequence], Matches]:
    """The conversations that the filter leaves; on their own, those in trouble come first."""
    latest = frame.latest
    if latest is None:
        return [], Matches((), "")
    ordered = _in_trouble_first(latest.sequences)
    found = matching(frame.ui.filter, ordered, _facts, FIELDS)
    chosen = [ordered[i] for i in found.rows]
    return table.ordered(chosen, _columns(frame), frame), found


@remembering
def _in_trouble_first(sequences: Rows[Sequence]) -> Rows[Sequence]:
    """The largest losses, then the others by how lately they were used."""
    # Written out, as thousands are looked at in each picture: who cannot be restored is halved.
    halved = [one for one in sequences if 2 * one.restorable < one.cached]
    halved.sort(key=lambda one: (not one.is_stranded, -one.stranded))
    others = [one for one in sequences if 2 * one.restorable >= one.cached]
    others.sort(key=attrgetter("last_used"), reverse=True)
    return halved + others


def _facts(sequence: Sequence) -> Facts:
    loss = sequence.loss
    name = reasons.name(sequence.number)
    tiers = [sequence.source or "", "tier" if sequence.where & Where.TIER else ""]
    fields = {"seq": (name,), "tier": tiers, "group": () if loss is None else (loss.group,)}
    words = "stranded" if sequence.is_stranded else ""
    shown = f"{name} {reasons.short(sequence)} {where(sequence)} {last(sequence)} {words}"
    return Facts(shown, fields)


def rows(frame: Frame) -> int:
    return len(listed(frame)[0])


def titles() -> tuple[str, ...]:
    return table.titles(columns(0.0))


def selected(frame: Frame) -> str:
    shown, _ = listed(frame)
    at = table.cursor(frame, len(shown))
    return "" if at < 0 else table.plain(shown[at], _columns(frame), frame)


def body(frame: Frame, width: int, room: int) -> list[Text]:
    """The list, and below it the row under the cursor in words."""
    latest = frame.latest
    shown, found = listed(frame)
    if latest is None or not latest.sequences:
        return notices.not_told(frame, width, "conversations")
    number_of = len(latest.sequences)
    head = table.heading(frame, width, totals(frame), len(shown), number_of, problem=found.problem)
    if frame.ui.zoomed:
        return [head, *table.listing(shown, _columns(frame), frame, width, room - 1)]
    at = table.cursor(frame, len(shown))
    explained = shown[max(at, 0)] if shown and (at >= 0 or shown[0].is_stranded) else None
    below = [] if explained is None else explanation(frame, explained, width)
    meaning = ["", *notices.wrapped(MEANING, width - 2)]
    if 2 + len(shown) + len(below) + len(meaning) <= room:
        below.extend(Text(f" {line}") for line in meaning)
    lines = max(room - 1 - len(below), MIN_LIST)
    return [head, *table.listing(shown, _columns(frame), frame, width, lines), *below]


def totals(frame: Frame) -> str:
    latest = frame.latest
    return _totals(() if latest is None else latest.sequences)


@remembering
def _totals(sequences: Rows[Sequence]) -> str:
    lost = len(reasons.stranded(sequences))
    cached = text.tokens(sum([one.cached for one in sequences]))
    restorable = text.tokens(sum([one.restorable for one in sequences]))
    return f"SEQUENCES {len(sequences)}  cached {cached}  restorable {restorable}  stranded {lost}"


def explanation(frame: Frame, one: Sequence, width: int) -> list[Text]:
    """What can be restored of a conversation and why not more; at length if it was asked for."""
    latest = frame.latest
    if latest is None:
        return []
    style = BAD if one.is_stranded else HEAD
    if not frame.is_live:
        style = DIM
    as_of = "" if frame.is_live else f"As of {text.clock(latest.taken)}: "
    said = as_of + " ".join(reasons.sentences(one, latest))
    lines = [Text(line.plain, style) for line in notices.paragraphs(frame, width, said)]
    more = _facts_at_length(frame, one) if frame.ui.detail else []
    return [Text(), *lines, *notices.paragraphs(frame, width, *more)]


def _facts_at_length(frame: Frame, one: Sequence) -> list[str]:
    idle = text.duration(_idle(one, frame.now if frame.latest is None else moment(frame.latest)))
    first = f"{one.turns} turns, {text.tokens(one.tokens)} tokens, idle {idle}, in {where(one)}"
    second = (
        f"restorable {text.tokens(one.restorable)}, from RAM alone "
        f"{text.tokens(one.restorable_ram)}; checkpoints in RAM: {one.live} live, "
        f"{one.demoted} demoted"
    )
    return [first, second, f"last restore: {last(one)}", *_going_next(frame, one)]


def _going_next(frame: Frame, sequence: Sequence) -> list[str]:
    """Where its entries stand in the eviction order of each group."""
    first: dict[str, int] = {}
    for group, place, victim in reasons.places(frame.latest):
        if victim.sequence == sequence.number:
            first.setdefault(group, place)
    groups: dict[int, list[str]] = {}
    for group, place in first.items():
        groups.setdefault(place, []).append(group)
    places = [f"#{place} in {reasons.span(names)}" for place, names in sorted(groups.items())]
    return [f"its first to be evicted: {', '.join(places)} (3 shows the order)"] if places else []
