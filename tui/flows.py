# SPDX-License-Identifier: Apache-2.0
"""The table of totals: what happened since the server started, and how fast it happens now."""

from collections.abc import Callable
from typing import NamedTuple

from rich.text import Text

from tiercache.tui import feed, text
from tiercache.tui.frame import Frame
from tiercache.tui.groups import BAD, HEAD

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
    shown = [_line(flow, frame, width) for flow in FLOWS if flow in kept]
    return [_head(frame, width), *shown] if shown else []


def _spark_width(width: int) -> int:
    return min(width - 3 - LABEL_WIDTH - 2 * NUMBER_WIDTH, feed.HISTORY_STEPS)


def _head(frame: Frame, width: int) -> Text:
    numbers = "".join(text.right(title, NUMBER_WIDTH) for title in ("TOTAL", "PER SEC"))
    head = f" {text.fit('SINCE THE SERVER STARTED', LABEL_WIDTH)}{numbers}"
    spark = _spark_width(width)
    if spark >= MIN_SPARK and len(frame.history) > 1:
        title = f"LAST {text.duration(spark * frame.interval)}"
        head += f"  {title if len(title) <= spark else ''}"
    return Text(head, style=HEAD)


def _line(flow: Flow, frame: Frame, width: int) -> Text:
    latest = frame.latest
    total = None if latest is None else latest.totals()[flow.name]
    rate = feed.rates(frame.history).get(flow.name) if frame.is_live else None
    line = Text(f" {text.fit(flow.label, LABEL_WIDTH)}", style="" if frame.is_live else "dim")
    loses = flow.is_loss and bool(rate)
    line.append(text.right(flow.show(total), NUMBER_WIDTH))
    line.append(text.right(flow.show(rate), NUMBER_WIDTH), style=BAD if loses else "")
    line.append(" !" if loses else "  ", style=BAD)
    if (spark := _spark_width(width)) >= MIN_SPARK:
        values = feed.steps(frame.history, flow.name)
        line.append(text.sparkline(values, spark, frame.glyphs.levels))
    return line
