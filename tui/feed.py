# SPDX-License-Identifier: Apache-2.0
"""What is known of the server by now: the snapshots so far and how fresh they are.

Covers the states a reader is told about. Time is given with every call, in seconds since the
epoch; nothing here asks a clock or a server.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tiercache.stats.model import Event, Phase, Snapshot
from tiercache.tui.trouble import SourceError, Trouble

#: Two minutes at the default interval: steps from one snapshot to the next, a cell each.
HISTORY_STEPS = 120
#: As many events as a server keeps: the first look brings them all.
LOG_EVENTS = 8192
#: A look may take its whole interval and one may be lost before numbers are called old.
STALE_INTERVALS = 3
#: With very short intervals, ordinary jitter of a busy server is not worth an alarm.
STALE_AT_LEAST_S = 2.0

#: What a failure makes of a server that had numbers.
ENDS = (Trouble.UNREACHABLE, Trouble.NO_POOL)


class State(StrEnum):
    """How far the numbers on the screen can be believed."""

    WAITING = "WAITING"
    """No snapshot yet."""
    LIVE = "LIVE"
    """The last one is fresh."""
    IDLE = "IDLE"
    """The server runs and has had no requests for a while, so nothing changes."""
    STALE = "STALE"
    """There was one, but nothing newer came for a while."""
    GONE = "GONE"
    """There was one, and now nothing listens there."""
    CLOSED = "CLOSED"
    """The server has ended in order; these are its last numbers."""
    REPLAY = "REPLAY"
    """A recording is played; the reason says how far it is: ``00:12/03:10``."""
    NO_TIERCACHE = "NO TIERCACHE"
    """A server answers, but without this cache."""


@dataclass(frozen=True, slots=True)
class Status:
    """A state, since when it holds, and what was last heard, in words ("" when all is well)."""

    state: State
    since: float
    reason: str = ""


class Feed:
    """Everything heard so far, in order. ``span`` is from when to when a recording goes.

    Locking: none; one thread owns it.
    """

    def __init__(
        self, started: float, interval: float, span: tuple[float, float] | None = None
    ) -> None:
        self.interval = interval
        self.runs = 0
        """How often the server has been started anew."""
        self._span = span
        self._started = started
        self._snapshots: deque[Snapshot] = deque(maxlen=HISTORY_STEPS + 1)
        self._log: deque[Event] = deque(maxlen=LOG_EVENTS)
        self._failure: SourceError | None = None
        self._failing_since = started
        self._moved = started
        self._idle_since = started
        self._ended: float | None = None
        self._lost = 0

    @property
    def history(self) -> Sequence[Snapshot]:
        """Snapshots of this run of the server, the newest last."""
        return tuple(self._snapshots)

    @property
    def log(self) -> Sequence[Event]:
        """Events of this run of the server that were seen, the newest last."""
        return tuple(self._log)

    @property
    def trouble(self) -> Trouble | None:
        """Of what kind the failure is that came last, if no snapshot came after it."""
        return None if self._failure is None else self._failure.trouble

    @property
    def events_lost(self) -> int:
        """Events that were overwritten before they were seen."""
        return self._lost

    def accept(self, snapshot: Snapshot, now: float) -> None:
        self._failure = None
        if self._snapshots and _restarted(self._snapshots[-1], snapshot):
            self._forget()
            self.runs += 1
        said_all = self._ended is not None
        self._note_times(snapshot, now)
        self._lost = max(self._lost, snapshot.events_lost)
        self._log.extend(snapshot.events)
        if self._ended is None or self._span is not None:
            self._keep(snapshot)
        elif not said_all:
            # What an ended server said last does not get newer by being read again.
            last = self._snapshots[-1].taken if self._snapshots else self._moved
            self._keep(replace(snapshot, taken=last))

    def fail(self, failure: SourceError, now: float) -> None:
        if self._failure is None or self._failure.trouble is not failure.trouble:
            self._failing_since = now
        self._failure = failure
        if failure.trouble is Trouble.NO_TIERCACHE:
            self._forget()

    def status(self, now: float) -> Status:
        reason = "" if self._failure is None else str(self._failure)
        if self.trouble is Trouble.NO_TIERCACHE:
            return Status(State.NO_TIERCACHE, self._failing_since, reason)
        if not self._snapshots:
            return Status(State.WAITING, self._started, reason or "not asked yet")
        if self._span is not None:
            return self._replayed(self._snapshots[-1], *self._span)
        if self.trouble in ENDS:
            return Status(State.GONE, self._failing_since, reason)
        return self._reported(self._snapshots[-1], now)

    def _replayed(self, latest: Snapshot, first: float, last: float) -> Status:
        if self._failure is not None and self.trouble is not Trouble.ENDED:
            return Status(State.STALE, latest.taken, str(self._failure))
        position = f"{_minutes(latest.taken - first)}/{_minutes(last - first)}"
        return Status(State.REPLAY, self._started, position)

    def _reported(self, latest: Snapshot, now: float) -> Status:
        """What the server itself said last, as long as that is not too long ago."""
        if self._ended is not None:
            return _end(latest, self._ended)
        if now - latest.taken > self._patience:
            reason = "no answer yet" if self._failure is None else str(self._failure)
            return Status(State.STALE, latest.taken, reason)
        return self._running(latest, now)

    def _running(self, latest: Snapshot, now: float) -> Status:
        if latest.phase is Phase.FAILED:
            reason = "the server's probe met a fault and turned itself off; see its log"
            return Status(State.STALE, latest.heartbeat, reason)
        if latest.phase is Phase.INIT:
            return Status(State.WAITING, self._started, "the server starts, and has not reported")
        # Not between two requests of a busy server, which would only flicker.
        if latest.running == 0 and now - self._idle_since > self._patience:
            return Status(State.IDLE, self._idle_since)
        if latest.running != 0 and now - self._moved > self._patience:
            return Status(State.STALE, self._moved, f"{_requests(latest.running)}, but no step")
        return Status(State.LIVE, latest.taken, "" if self._failure is None else str(self._failure))

    def _keep(self, snapshot: Snapshot) -> None:
        if self._snapshots:
            self._snapshots[-1] = _thin(self._snapshots[-1])
        self._snapshots.append(snapshot)

    @property
    def _patience(self) -> float:
        return max(STALE_INTERVALS * self.interval, STALE_AT_LEAST_S)

    def _note_times(self, snapshot: Snapshot, now: float) -> None:
        """When the writer last moved, by our own clock.

        A replay writes times of its own clock, so a heartbeat that changes is what counts.
        """
        before = self._snapshots[-1] if self._snapshots else None
        if before is None:
            self._moved = min(snapshot.heartbeat, now)
        elif before.heartbeat != snapshot.heartbeat:
            self._moved = now
        was_idle = before is not None and before.running == 0
        # A metrics page has no heartbeat but the look at it, which says nothing of the engine.
        if not (was_idle and snapshot.source == "metrics"):
            self._idle_since = self._moved
        if snapshot.alive and snapshot.phase is not Phase.CLOSED:
            self._ended = None
        elif self._ended is None:
            self._ended = self._moved if before is None else now

    def _forget(self) -> None:
        self._snapshots.clear()
        self._log.clear()
        self._lost = 0
        self._ended = None


def _thin(snapshot: Snapshot) -> Snapshot:
    """What trends are made of; thousands of sequences a second would fill the memory."""
    return replace(snapshot, sequences=(), victims=(), events=())


def _minutes(seconds: float) -> str:
    whole = max(int(seconds), 0)
    return f"{whole // 60:02}:{whole % 60:02}"


def _end(latest: Snapshot, ended: float) -> Status:
    if latest.phase is Phase.CLOSED:
        return Status(State.CLOSED, ended, "the cache was closed in order")
    process = "the process" if latest.pool is None else f"pid {latest.pool.pid}"
    return Status(State.GONE, ended, f"{process} has ended")


def _requests(running: int | None) -> str:
    if running is None:
        return "it runs"
    return "1 request is open" if running == 1 else f"{running} requests are open"


def _restarted(earlier: Snapshot, later: Snapshot) -> bool:
    """Another process, or a counter that fell: they only grow in one run of a server."""
    if earlier.pool is not None and later.pool is not None:
        return (earlier.pool.pid, earlier.pool.started) != (later.pool.pid, later.pool.started)
    before, after = _counters(earlier), _counters(later)
    return any(after.get(name, number) < number for name, number in before.items())


def _counters(snapshot: Snapshot) -> Mapping[str, int]:
    grouped = {
        f"{group.name} {kind}": number
        for group in snapshot.groups
        for kind, number in group.counts.items()
    }
    return {**snapshot.totals, **grouped}
