# SPDX-License-Identifier: Apache-2.0
"""What requests got from each source: a row per source, or a column each beside the groups."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text

from tiercache.stats.latency import percentile
from tiercache.tui import feed, flows, reasons, text
from tiercache.tui.frame import Frame
from tiercache.tui.styles import BAD, DIM, HEAD
from tiercache.tui.trends import MISSED, RAM, histogram, is_reduced, rate, restored, steps, total

NAME_WIDTH = 10
LABEL_WIDTH = 13
COLUMN_WIDTH = 9


class Source(NamedTuple):
    """A source with its totals since the baseline; what is not known is None."""

    name: str
    requests: int | None
    share: str
    tokens: int | None
    nbytes: int | None
    latencies: Sequence[int]
    per_second: float | None
    """Bytes, or tokens if the reader prefers them, over the last ten seconds."""


def known(frame: Frame) -> bool:
    """Whether the source of the snapshots tells anything about restores."""
    latest = frame.latest
    return latest is not None and not is_reduced(latest)


def names(frame: Frame) -> list[str]:
    latest = frame.latest
    return [] if latest is None else [RAM, *(tier.name for tier in latest.tiers), MISSED]


def sources(frame: Frame) -> list[Source]:
    """RAM, every tier, and what nobody had."""
    requests = [total(frame, restored(name, "requests")) for name in names(frame)]
    known = [number for number in requests if number is not None]
    everything = sum(known) if len(known) == len(requests) else None
    return [
        _source(frame, name, number, everything)
        for name, number in zip(names(frame), requests, strict=True)
    ]


def _source(frame: Frame, name: str, requests: int | None, everything: int | None) -> Source:
    field = "tokens" if frame.ui.tokens else "nbytes"
    return Source(
        name,
        requests,
        text.percent(requests, everything),
        total(frame, restored(name, "tokens")),
        total(frame, restored(name, "nbytes")),
        histogram(frame, name),
        rate(frame.history, restored(name, field)) if frame.is_live else None,
    )


def lines(frame: Frame, width: int, room: int) -> list[Text]:
    """A head and a line per source, the line of the misses always last."""
    shown = sources(frame)
    if room < 2 or not shown:
        return []
    kept = [*shown[: max(room - 2, 0)], shown[-1]] if len(shown) > room - 1 else shown
    spark = min(width - 1 - NAME_WIDTH - 7 - 6 - 8 - 8 - 9 - 11 - 2, feed.HISTORY_STEPS)
    spark = max(spark, 0)
    return [_head(frame, spark), *(_line(source, frame, spark, width) for source in kept)]


def _head(frame: Frame, spark: int) -> Text:
    size = "TOKENS" if frame.ui.tokens else "BYTES"
    cells = (("REQS", 7), ("SHARE", 6), ("P50", 8), ("P99", 8), (size, 9), ("NOW/s", 11))
    titles = "".join(text.right(title, width) for title, width in cells)
    span = flows.span(frame.history, frame.interval, spark)
    return Text(f" {text.fit('RESTORED', NAME_WIDTH)}{titles}  {span}", HEAD)


def _line(source: Source, frame: Frame, spark: int, width: int) -> Text:
    line = Text(f" {text.fit(_shown(source.name, frame), NAME_WIDTH)}", _style(frame))
    line.append(text.right(text.count(source.requests), 7)).append(text.right(source.share, 6))
    if source.name == MISSED:
        return line.append_text(_missed(source, frame, width - line.cell_len))
    line.append(text.right(_latency(source, 0.5), 8)).append(text.right(_latency(source, 0.99), 8))
    show, amount, field = _unit(source, frame)
    line.append(text.right(show(amount), 9)).append(text.right(show(source.per_second), 11))
    grown = steps(frame.history, restored(source.name, field), spark)
    return line.append("  ").append(text.sparkline(grown, spark, frame.glyphs.levels))


def _unit(source: Source, frame: Frame) -> tuple[Callable[[float | None], str], int | None, str]:
    if frame.ui.tokens:
        return text.tokens, source.tokens, "tokens"
    return text.size, source.nbytes, "nbytes"


def _missed(source: Source, frame: Frame, room: int) -> Text:
    """What nobody had, and, where there is room, what is here in vain."""
    words = Text(f"  {text.tokens(source.tokens)} tok computed anew")
    lost = [] if frame.latest is None else reasons.stranded(frame.latest.sequences)
    if lost:
        tokens = text.tokens(sum(sequence.stranded for sequence in lost))
        vain = f"stranded: {len(lost)} seq, {tokens} tok !"
        if words.cell_len + len(vain) + 2 <= room:
            words.append("  ").append(vain, BAD)
    return words


def width_beside(frame: Frame) -> int:
    """Cells that a column for each source takes."""
    return 1 + LABEL_WIDTH + COLUMN_WIDTH * len(names(frame))


def beside(frame: Frame, width: int, room: int) -> list[Text]:
    """A column per source, as far as they fit; the misses are kept."""
    shown = sources(frame)
    fit = max((width - 1 - LABEL_WIDTH) // COLUMN_WIDTH, 1)
    kept = shown if len(shown) <= fit else [*shown[: fit - 1], shown[-1]]
    table = [
        ("RESTORED", [_shown(s.name, frame) for s in kept]),
        ("requests", [text.count(s.requests) for s in kept]),
        ("share", [s.share for s in kept]),
        ("tokens", [text.tokens(s.tokens) for s in kept]),
        ("bytes", [_of_tier(s, text.size(s.nbytes)) for s in kept]),
        ("now, per sec", [_of_tier(s, _unit(s, frame)[0](s.per_second)) for s in kept]),
        ("latency p50", [_of_tier(s, _latency(s, 0.5)) for s in kept]),
        ("latency p95", [_of_tier(s, _latency(s, 0.95)) for s in kept]),
        ("latency p99", [_of_tier(s, _latency(s, 0.99)) for s in kept]),
    ]
    return [_row(label, cells, frame) for label, cells in table][: max(room, 0)]


def _row(label: str, cells: Sequence[str], frame: Frame) -> Text:
    style = HEAD if label == "RESTORED" else _style(frame)
    shown = (
        text.right(text.cut(cell, COLUMN_WIDTH - 1, frame.glyphs), COLUMN_WIDTH) for cell in cells
    )
    return Text(f" {text.fit(label, LABEL_WIDTH)}{''.join(shown)}", style)


def _of_tier(source: Source, value: str) -> str:
    """Nothing was moved for a request that got nothing."""
    return text.UNKNOWN if source.name == MISSED else value


def _latency(source: Source, share: float) -> str:
    return text.latency(percentile(source.latencies, share))


def _shown(name: str, frame: Frame) -> str:
    return text.cut(text.clean(name, frame.glyphs), NAME_WIDTH - 1, frame.glyphs)


def _style(frame: Frame) -> str:
    return "" if frame.is_live else DIM
