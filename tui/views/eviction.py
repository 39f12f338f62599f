# SPDX-License-Identifier: Apache-2.0
"""The eviction order of one group: who goes next, and what would be lost."""

from collections.abc import Sequence as Rows
from typing import NamedTuple

from rich.text import Text

from tiercache.stats.model import Group, SlotClass, Snapshot, Victim
from tiercache.tui import notices, reasons, table, text
from tiercache.tui.filters import Facts, Matches, matching
from tiercache.tui.frame import Frame
from tiercache.tui.styles import BAD, DIM
from tiercache.tui.table import Column, number
from tiercache.tui.trends import moment, tier_named
from tiercache.tui.views import sequences

FIELDS = ("kind", "seq", "group", "tier")
ORDER = "order: free, then demoted (oldest first), then live by recency; pinned never"


class Row(NamedTuple):
    """A slot in its place: ``first`` to ``last`` stores take it. Free slots share a row."""

    first: int | None
    last: int | None
    victim: Victim | None
    age: float | None
    loss: str
    is_bad: bool = False

    @property
    def slot_class(self) -> str:
        return "free" if self.victim is None else self.victim.slot_class.name.lower()


def _place(row: Row) -> str:
    if row.first is None:
        return text.UNKNOWN
    return f"{row.first}" if row.first == row.last else f"{row.first}-{row.last}"


def _slot(row: Row) -> str:
    return text.UNKNOWN if row.victim is None else text.count(row.victim.slot)


def _sequence(row: Row) -> str:
    return text.UNKNOWN if row.victim is None else reasons.name(row.victim.sequence)


def _below(row: Row) -> str:
    return text.UNKNOWN if row.victim is None else row.victim.below or text.UNKNOWN


def _tokens(row: Row) -> int | None:
    return None if row.victim is None else row.victim.tokens


def _style(row: Row) -> str:
    if row.is_bad:
        return BAD
    return "" if row.slot_class == "live" else DIM


COLUMNS: Rows[Column[Row]] = (
    Column("#", 6, 0, _place, lambda r: r.first),
    Column("SLOT", 6, 4, _slot, lambda r: None if r.victim is None else r.victim.slot),
    Column("CLASS", 9, 1, lambda r: r.slot_class, lambda r: r.slot_class, left=True),
    Column("SEQ", 8, 2, _sequence, _sequence, left=True),
    number("AT TOKEN", 9, 6, _tokens, text.tokens),
    number("IDLE", 5, 5, lambda r: r.age, text.age),
    Column("BELOW", 8, 7, _below, _below, left=True),
    Column(
        "IF EVICTED", 26, 3, lambda r: r.loss, lambda r: r.loss, left=True, grows=True, style=_style
    ),
)


def group(frame: Frame) -> Group | None:
    """The group whose order is shown: the chosen one, or the one that loses a checkpoint next."""
    latest = frame.latest
    if latest is None:
        return None
    chosen = next((group for group in latest.groups if group.name == frame.ui.group), None)
    return chosen or reasons.neediest(latest.groups)


def order(frame: Frame) -> list[Row]:
    """The slots of the shown group in the order in which they go; what is in use comes last."""
    latest, shown = frame.latest, group(frame)
    if latest is None or shown is None:
        return []
    free = shown.slots.free
    head = [Row(0, free - 1, None, None, "nothing lost: nobody uses it")] if free > 0 else []
    victims = [victim for victim in latest.victims if victim.group == shown.name]
    going = [victim for victim in victims if victim.slot_class is not SlotClass.PINNED]
    pinned = [victim for victim in victims if victim.slot_class is SlotClass.PINNED]
    rows = [_row(victim, free + i, latest) for i, victim in enumerate(going)]
    return head + rows + [_row(victim, None, latest) for victim in pinned]


def _row(victim: Victim, place: int | None, latest: Snapshot) -> Row:
    age = None if victim.last_used is None else moment(latest) - victim.last_used
    is_bad = place is not None and victim.lost > 0 and victim.below is None
    return Row(place, place, victim, age, loss(victim, latest), is_bad)


def loss(victim: Victim, latest: Snapshot) -> str:
    """What it costs the conversation when its slot is taken."""
    if victim.slot_class is SlotClass.PINNED:
        return "in use now: stays"
    if victim.lost <= 0:
        return "nothing lost"
    lost = f"{text.tokens(victim.lost)} tok"
    if victim.below is None:
        return f"RECOMPUTE {lost}"
    seconds = _seconds_to_read(victim.lost, victim.below, latest)
    estimate = "" if seconds is None else f" ~{text.latency(seconds)}"
    return f"reload {lost}{estimate}"


def _seconds_to_read(tokens: int, tier: str, latest: Snapshot) -> float | None:
    """An estimate: the attention blocks of so many tokens at the rate of recent loads."""
    found = tier_named(latest, tier)
    if found is None or not found.load_rate:
        return None
    bytes_per_token = 0.0
    for one in latest.groups:
        if reasons.holds_checkpoints(one):
            continue
        if one.slot_bytes is None or not one.chunk_tokens:
            return None
        bytes_per_token += one.slot_bytes / one.chunk_tokens
    return tokens * bytes_per_token / found.load_rate if bytes_per_token else None


def listed(frame: Frame) -> tuple[list[Row], Matches, int]:
    """What the filter leaves of the order, and how long that is without it."""
    everything = order(frame)
    found = matching(frame.ui.filter, everything, _facts, FIELDS)
    rows = [everything[i] for i in found.rows]
    return table.ordered(rows, COLUMNS, frame), found, len(everything)


def _facts(row: Row) -> Facts:
    victim = row.victim
    fields = {
        "kind": (row.slot_class,),
        "seq": (_sequence(row),),
        "group": () if victim is None else (victim.group,),
        "tier": (_below(row),),
    }
    return Facts(f"{row.slot_class} {_sequence(row)} {_below(row)} {row.loss}", fields)


def rows(frame: Frame) -> int:
    return len(listed(frame)[0])


def titles() -> tuple[str, ...]:
    return table.titles(COLUMNS)


def selected(frame: Frame) -> str:
    shown = listed(frame)[0]
    at = table.cursor(frame, len(shown))
    return "" if at < 0 else table.plain(shown[at], COLUMNS, frame)


def body(frame: Frame, width: int, room: int) -> list[Text]:
    """The order, what it means, and on demand the conversation of the slot under the cursor."""
    latest, chosen = frame.latest, group(frame)
    if latest is None or chosen is None or not (latest.victims or chosen.slots.free):
        return notices.not_told(frame, width, "the eviction order")
    shown, found, everything = listed(frame)
    head = [
        table.heading(frame, width, _title(chosen), len(shown), everything, problem=found.problem),
        *([] if frame.ui.zoomed else _first_loss(frame, chosen, width)),
    ]
    below = [] if frame.ui.zoomed else _below_list(frame, shown, width)
    lines = max(room - len(head) - len(below), sequences.MIN_LIST)
    return [*head, *table.listing(shown, COLUMNS, frame, width, lines), *below]


def _title(chosen: Group) -> str:
    slots = chosen.slots
    return (
        f"EVICTION ORDER  [ {chosen.name} ] {chosen.kind}, {text.count(slots.capacity)} slots  "
        f"spare {text.count(slots.spare)}"
    )


def _first_loss(frame: Frame, chosen: Group, width: int) -> list[Text]:
    """Which store is the first that costs something, and whom."""
    costly = next((row for row in order(frame) if row.first is not None and _costs(row)), None)
    if costly is None:
        return [Text(" None of the slots listed here would be missed.")]
    place = costly.first or 0
    when = "The next store" if place == 0 else f"After {place} more, a store"
    words = f" {when} in {chosen.name} takes a slot of {_sequence(costly)}: {costly.loss}"
    return [Text(text.clean(text.cut(words, width, frame.glyphs), frame.glyphs), _style(costly))]


def _costs(row: Row) -> bool:
    return row.victim is not None and row.victim.lost > 0


def _below_list(frame: Frame, shown: Rows[Row], width: int) -> list[Text]:
    at = table.cursor(frame, len(shown))
    victim = shown[at].victim if at >= 0 else None
    if not frame.ui.detail or victim is None or frame.latest is None:
        return [Text(), *notices.paragraphs(frame, width, ORDER)]
    one = next((s for s in frame.latest.sequences if s.number == victim.sequence), None)
    if one is None:
        return [Text(), Text(" Whose slot this is, is not known.")]
    return sequences.explanation(frame, one, width)
