# SPDX-License-Identifier: Apache-2.0
"""The table of counters: what happened in all groups together, and how fast it happens now."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text

from tiercache.stats.model import Kind
from tiercache.tui import feed, text
from tiercache.tui.frame import Frame
from tiercache.tui.styles import BAD, DIM, HEAD
from tiercache.tui.trends import Counter, counted, named, rate, steps, total

LABEL_WIDTH = 31
NUMBER_WIDTH = 9
MIN_SPARK = 8


class Flow(NamedTuple):
    """A counter. Those with a lower ``rank`` stay when the screen gets lower.

    One that is ``optional`` is left out where nobody reports it.
    """

    label: str
    read: Counter
    rank: int
    show: Callable[[float | None], str] = text.count
    is_loss: bool = False
    optional: bool = True


FLOWS = (
    Flow("evicted while live", counted(Kind.EVICTED_LIVE), 0, is_loss=True, optional=False),
    Flow("restored tokens", named("restored_tokens"), 1, text.tokens, optional=False),
    Flow("tokens lost to a missing state", named("lost_tokens"), 2, text.tokens, is_loss=True),
    Flow("demoted (superseded)", counted(Kind.DEMOTED), 3, optional=False),
    Flow("demoted, then used after all", named("demotions_reused"), 11),
    Flow("evicted after demotion", counted(Kind.EVICTED_DEMOTED), 4, optional=False),
    Flow("blocks without a checkpoint", counted(Kind.STRANDED), 6),
    Flow("stored", counted(Kind.STORED), 5),
    Flow("stored bytes", named("stored_bytes"), 8, text.size),
    Flow("restored bytes", named("restored_bytes"), 9, text.size),
    Flow("stores that found no room", counted(Kind.REFUSED), 7, is_loss=True),
    Flow("copies from the device failed", counted(Kind.FAILED), 10, is_loss=True),
    Flow("restores that came too late", named("late"), 12, is_loss=True),
    Flow("restores slower than computing", named("unworthy"), 13),
)


def shown(frame: Frame) -> list[Flow]:
    """The counters that the source knows."""
    latest = frame.latest
    if latest is None:
        return []
    return [flow for flow in FLOWS if not flow.optional or flow.read(latest) is not None]


def lines(frame: Frame, width: int, room: int) -> list[Text]:
    """A head and as many counters as ``room`` allows."""
    flows = shown(frame)
    kept = sorted(flows, key=lambda flow: flow.rank)[: max(room - 1, 0)]
    spark = min(width - 4 - LABEL_WIDTH - 2 * NUMBER_WIDTH, feed.HISTORY_STEPS)
    spark = spark if spark >= MIN_SPARK else 0
    body = [_line(flow, frame, spark) for flow in flows if flow in kept]
    return [_head(frame, spark), *body] if body else []


def since(frame: Frame) -> str:
    """From when on totals are counted."""
    if frame.baseline is None:
        return "SINCE THE SERVER STARTED"
    return f"SINCE {text.clock(frame.baseline.taken)} (r)"


def span(history: Sequence[object], interval: float, width: int) -> str:
    """The head of a sparkline: how much time it covers."""
    title = f"LAST {text.duration(width * interval)}"
    return title if width >= len(title) and len(history) > 1 else ""


def _head(frame: Frame, spark: int) -> Text:
    numbers = "".join(text.right(title, NUMBER_WIDTH) for title in ("TOTAL", "PER SEC"))
    title = span(frame.history, frame.interval, spark)
    return Text(f" {text.fit(since(frame), LABEL_WIDTH)}{numbers}  {title}", HEAD)


def _line(flow: Flow, frame: Frame, spark: int) -> Text:
    per_second = rate(frame.history, flow.read) if frame.is_live else None
    loses = flow.is_loss and bool(per_second)
    line = Text(f" {text.fit(flow.label, LABEL_WIDTH)}", "" if frame.is_live else DIM)
    line.append(text.right(flow.show(total(frame, flow.read)), NUMBER_WIDTH))
    line.append(text.right(flow.show(per_second), NUMBER_WIDTH), BAD if loses else None)
    line.append(" !" if loses else "  ", BAD)
    grown = steps(frame.history, flow.read, spark)
    return line.append(text.sparkline(grown, spark, frame.glyphs.levels))
