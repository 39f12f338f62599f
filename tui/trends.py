# SPDX-License-Identifier: Apache-2.0
"""How the totals of a history grew."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tiercache.tui.snapshot import Snapshot

#: Rates are means over this long: one tick of a server in bursts says little.
RATE_WINDOW_S = 10.0


class Trend(NamedTuple):
    """A total, how fast it grows now, and how much it grew from each snapshot to the next.

    What is not known is None, or missing from ``steps``.
    """

    total: int | None
    per_second: float | None
    steps: Sequence[int]


def trends(history: Sequence[Snapshot]) -> Mapping[str, Trend]:
    """The trend of every total, by name; nothing without a snapshot."""
    readings = [(snapshot.taken, snapshot.totals()) for snapshot in history]
    names = readings[-1][1] if readings else ()
    return {name: _trend([(taken, totals[name]) for taken, totals in readings]) for name in names}


def _trend(readings: Sequence[tuple[float, int | None]]) -> Trend:
    known = [(taken, total) for taken, total in readings if total is not None]
    steps = [later - earlier for (_, earlier), (_, later) in pairwise(known)]
    return Trend(readings[-1][1], _rate(known), steps)


def _rate(known: Sequence[tuple[float, int]]) -> float | None:
    if not known:
        return None
    end, last = known[-1]
    start, first = next((taken, n) for taken, n in known if end - taken <= RATE_WINDOW_S)
    return (last - first) / (end - start) if end > start else None
