# SPDX-License-Identifier: Apache-2.0
"""What is known of a source, put together as a frame to be drawn."""

from tiercache.stats.model import Snapshot
from tiercache.tui.feed import Feed
from tiercache.tui.frame import Frame
from tiercache.tui.sources import Source
from tiercache.tui.state import UiState
from tiercache.tui.text import Glyphs


def picture(
    source: Source,
    feed: Feed,
    now: float,
    *,
    ui: UiState,
    glyphs: Glyphs,
    baseline: Snapshot | None = None,
) -> Frame:
    """The frame of ``now``; in a recording that is when its latest snapshot was taken."""
    history = feed.history
    if source.span is not None and history:
        now = history[-1].taken
    return Frame(
        target=source.target,
        interval=feed.interval,
        now=now,
        status=feed.status(now),
        history=history,
        log=feed.log,
        events_lost=feed.events_lost,
        ui=ui,
        baseline=baseline,
        glyphs=glyphs,
    )
