# SPDX-License-Identifier: Apache-2.0
"""What requests asked for, what they got, from where, and how long it took.

Covers the books of restores, which are told the time. A restore takes as long as its request
waited for the tiers, and as its copies to the device took; not the time in the engine's queue.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tiercache.probe.sequences import Followed
from tiercache.restore import RestorePlan
from tiercache.stats.model import LATENCY_US, Restores

RAM, MISS = "ram", "miss"


def bucket(seconds: float) -> int:
    """Which part of the latency histogram a duration counts in."""
    return min(bisect_right(LATENCY_US, seconds * 1e6), len(LATENCY_US) - 1)


class Tally:
    """What came from one source."""

    def __init__(self) -> None:
        self.requests = self.tokens = self.nbytes = 0
        self._histogram = [0] * len(LATENCY_US)

    def add(self, tokens: int, seconds: float | None) -> None:
        self.requests += 1
        self.tokens += tokens
        if seconds is not None:
            self._histogram[bucket(seconds)] += 1

    def total(self) -> Restores:
        return Restores(self.requests, self.tokens, self.nbytes, tuple(self._histogram))


class Outcome(NamedTuple):
    """What became of one restore, or of a request that got nothing."""

    source: str
    """``RAM``, ``MISS`` or the name of a tier."""
    tokens: int
    """Restored, or, for a miss, to be computed."""
    nbytes: int
    seconds: float | None
    lost: int
    """Tokens of attention that were there and that nothing could serve."""


@dataclass(slots=True)
class Load:
    """Copies to the device that have not ended."""

    began: float
    nbytes: dict[str, int]
    """By source."""
    tokens: int
    """What the request gets: as planned, until the engine says what it takes."""

    @property
    def source(self) -> str:
        """The slowest tier that had a part in it: each is slower than those before."""
        return next(reversed(self.nbytes), RAM)


@dataclass(eq=False, slots=True)
class Visit:
    """One open request."""

    followed: Followed | None = None
    known: int = 0
    """Tokens of its prompt that were a prompt before."""
    start: int = 0
    limit: int | None = None
    """Where it could have been served to; None: it did not ask."""
    plan: RestorePlan | None = None
    undecided: bool = True
    """Whether it is still to be said what it gets."""
    since: float | None = None
    """Since when it waits for tiers."""
    waited: float = 0.0
    load: Load | None = None


@dataclass(slots=True)
class Restorations:
    """Everything that was restored so far, by source. ``now`` is in seconds of one clock.

    ``tiers`` are named from the fastest to the slowest. ``step``: tokens that are computed again in
    any case at the end of what is known, as states are kept at the ends of blocks only.
    """

    tiers: Sequence[str] = ()
    step: int = 0
    restored_tokens: int = 0
    lost_tokens: int = 0
    tallies: dict[str, Tally] = field(init=False)

    def __post_init__(self) -> None:
        self.tallies = {source: Tally() for source in (RAM, MISS, *self.tiers)}

    def ask(self, visit: Visit, *, start: int, limit: int) -> None:
        """A request asks what can be restored from ``start`` up to ``limit`` tokens."""
        visit.start, visit.limit, visit.undecided = start, limit, True

    def answer(self, visit: Visit, plan: RestorePlan | None, now: float) -> None:
        """It was given a plan, or told to ask again."""
        if plan is None:
            visit.since = now if visit.since is None else visit.since
            return
        visit.plan = plan
        if visit.since is not None:
            visit.waited += now - visit.since
            visit.since = None

    def load(self, visit: Visit, nbytes: dict[str, int], now: float) -> None:
        """Copies began: bytes by source, in the order of ``tiers``."""
        visit.load = Load(now, nbytes, 0 if visit.plan is None else visit.plan.restored)

    def serve(self, visit: Visit, tokens: int) -> Outcome | None:
        """The engine goes on with ``tokens`` restored; returns what it came to if that is a miss.

        vLLM says so once more, with no tokens, when a load is done.
        """
        undecided, visit.undecided = visit.undecided, False
        if visit.load is not None:
            visit.load.tokens = tokens
            return None
        return self._miss(visit) if undecided and not tokens else None

    def loaded(self, visit: Visit, now: float) -> Outcome | None:
        """The copies have ended."""
        load, visit.load = visit.load, None
        if load is None:
            return None
        visit.undecided = False
        seconds, visit.waited = max(visit.waited + now - load.began, 0.0), 0.0
        self.restored_tokens += load.tokens
        self.tallies[load.source].add(load.tokens, seconds)
        for source, part in load.nbytes.items():
            self.tallies[source].nbytes += part
        nbytes = sum(load.nbytes.values())
        return Outcome(load.source, load.tokens, nbytes, seconds, self._lose(visit))

    def _miss(self, visit: Visit) -> Outcome | None:
        plan = visit.plan
        if visit.limit is None or (plan is not None and plan.ended_by is None):
            return None
        tokens = visit.limit - visit.start
        if tokens <= 0:
            return None
        lost = self._lose(visit)
        if visit.start and max(visit.known - visit.start, lost) <= self.step:
            return None  # the device has what was there before, the rest is new
        seconds, visit.waited = visit.waited or None, 0.0
        self.tallies[MISS].add(tokens, seconds)
        return Outcome(MISS, tokens, 0, seconds, lost)

    def _lose(self, visit: Visit) -> int:
        """Tokens that the latest plan could not serve; counted once."""
        plan, visit.plan = visit.plan, None
        lost = 0 if plan is None else plan.lost
        self.lost_tokens += lost
        return lost
