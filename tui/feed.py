# SPDX-License-Identifier: Apache-2.0
"""What is known of the server by now: the snapshots so far and how fresh they are.

Covers the states a reader is told about. Time is given with every call, in seconds since the
epoch; nothing here asks a clock or a server.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tiercache.tui.snapshot import Snapshot
from tiercache.tui.trouble import SourceError, Trouble

#: Two minutes at the default interval: steps from one snapshot to the next, a cell each.
HISTORY_STEPS = 120
#: A scrape may take its whole interval and one may be lost before numbers are called old.
STALE_INTERVALS = 3
#: With very short intervals, ordinary jitter of a busy server is not worth an alarm.
STALE_AT_LEAST_S = 2.0


class State(StrEnum):
    """How far the numbers on the screen can be believed."""

    WAITING = "WAITING"
    """No snapshot yet."""
    LIVE = "LIVE"
    """The last one is fresh."""
    STALE = "STALE"
    """There was one, but nothing newer came for a while."""
    GONE = "GONE"
    """There was one, and now nothing listens there."""
    NO_TIERCACHE = "NO TIERCACHE"
    """A server answers, but without this cache."""


@dataclass(frozen=True, slots=True)
class Status:
    """A state, since when it holds, and what was last heard, in words ("" when all is well)."""

    state: State
    since: float
    reason: str = ""


class Feed:
    """Everything heard so far, in order.

    Locking: none; one thread owns it.
    """

    def __init__(self, started: float, interval: float) -> None:
        self._started = started
        self._patience = max(STALE_INTERVALS * interval, STALE_AT_LEAST_S)
        self._snapshots: deque[Snapshot] = deque(maxlen=HISTORY_STEPS + 1)
        self._failure: SourceError | None = None
        self._failing_since = started

    @property
    def history(self) -> Sequence[Snapshot]:
        """Snapshots of this run of the server, the newest last."""
        return tuple(self._snapshots)

    def accept(self, snapshot: Snapshot) -> None:
        self._failure = None
        if self._snapshots and _restarted(self._snapshots[-1], snapshot):
            self._snapshots.clear()
        self._snapshots.append(snapshot)

    def fail(self, failure: SourceError, now: float) -> None:
        if self._failure is None or self._failure.trouble is not failure.trouble:
            self._failing_since = now
        self._failure = failure
        if failure.trouble is Trouble.NO_TIERCACHE:
            self._snapshots.clear()

    def status(self, now: float) -> Status:
        reason = "" if self._failure is None else str(self._failure)
        trouble = None if self._failure is None else self._failure.trouble
        if trouble is Trouble.NO_TIERCACHE:
            return Status(State.NO_TIERCACHE, self._failing_since, reason)
        if not self._snapshots:
            return Status(State.WAITING, self._started, reason or "not asked yet")
        if trouble is Trouble.UNREACHABLE:
            return Status(State.GONE, self._failing_since, reason)
        taken = self._snapshots[-1].taken
        if now - taken > self._patience:
            return Status(State.STALE, taken, reason or "no answer yet")
        return Status(State.LIVE, taken, reason)


def _restarted(earlier: Snapshot, later: Snapshot) -> bool:
    """A counter only grows, so a smaller one belongs to another run of the server."""
    before, after = earlier.totals(), later.totals()
    return any((after[name] or 0) < (before[name] or 0) for name in after)
