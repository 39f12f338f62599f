# SPDX-License-Identifier: Apache-2.0
"""The table of totals: what happened since the server started, and how fast it happens now."""

from collections.abc import Callable
from typing import NamedTuple

from rich.text import Text

from tiercache.tui import feed, text
from tiercache.tui.frame import Frame
from tiercache.tui.groups import BAD, HEAD
from tiercache.tui.trends import Trend, trends

LABEL_WIDTH = 31
NUMBER_WIDTH = 10
MIN_SPARK = 8


class Flow(NamedTuple):
    """A total. Those with a lower ``rank`` stay when the screen gets lower."""

    name: str
    label: str
    show: Callable[[float | None], str]
    rank: int
    is_loss: bool = False


FLOWS = (
    Flow("stored_bytes", "stored", text.size, 3),
    Flow("restored_bytes", "restored", text.size, 4),
    Flow("restored_tokens", "restored tokens", text.count, 1),
    Flow("lost_tokens", "tokens lost to a missing state", text.count, 2, is_loss=True),
    Flow("demotions", "states demoted", text.count, 5),
    Flow("stranded", "blocks that no state can serve", text.count, 8),
    Flow("evicted_demoted", "evicted, demoted", text.count, 6),
    Flow("evicted_live", "evicted, live", text.count, 0, is_loss=True),
    Flow("reserve_failures", "stores that found no room", text.count, 7, is_loss=True),
)


def table(frame: Frame, width: int, lines: int) -> list[Text]:
    """A head and as many totals as ``lines`` allows."""
    kept = sorted(FLOWS, key=lambda flow: flow.rank)[: max(lines - 1, 0)]
    spark_width = min(width - 3 - LABEL_WIDTH - 2 * NUMBER_WIDTH, feed.HISTORY_STEPS)
    if spark_width < MIN_SPARK:
        spark_width = 0
    grown = trends(frame.history)
    shown = [_line(flow, grown[flow.name], frame, spark_width) for flow in FLOWS if flow in kept]
    return [_head(frame, spark_width), *shown] if shown else []


def _head(frame: Frame, spark_width: int) -> Text:
    numbers = "".join(text.right(title, NUMBER_WIDTH) for title in ("TOTAL", "PER SEC"))
    span = f"LAST {text.duration(spark_width * frame.interval)}"
    title = span if spark_width >= len(span) and len(frame.history) > 1 else ""
    return Text(f" {text.fit('SINCE THE SERVER STARTED', LABEL_WIDTH)}{numbers}  {title}", HEAD)


def _line(flow: Flow, trend: Trend, frame: Frame, spark_width: int) -> Text:
    rate = trend.per_second if frame.is_live else None
    loses = flow.is_loss and bool(rate)
    line = Text(f" {text.fit(flow.label, LABEL_WIDTH)}", "" if frame.is_live else "dim")
    line.append(text.right(flow.show(trend.total), NUMBER_WIDTH))
    line.append(text.right(flow.show(rate), NUMBER_WIDTH), BAD if loses else "")
    line.append(" !" if loses else "  ", BAD)
    return line.append(text.sparkline(trend.steps, spark_width, frame.glyphs.levels))
