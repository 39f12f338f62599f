# SPDX-License-Identifier: Apache-2.0
"""What happened: events, their counters, and the fate of entries that are gone.

Covers the record only; who shows it (metrics, logs, monitor) listens.
"""

from collections import Counter
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import NamedTuple

from tiercache.blocks import Key

#: Entries per generation whose eviction is remembered, to explain later misses: 2 generations
#: of 200 bytes each (110 where many are evicted together) are 26 MB at most.
REMEMBERED_EVICTIONS = 65_536


class EventKind(StrEnum):
    """What can happen to entries of a group."""

    STORED = "stored"
    PROMOTED = "promoted"
    FAILED = "failed"
    RESTORED = "restored"
    DEMOTED = "demoted"
    STRANDED = "stranded"
    EVICTED_LIVE = "evicted_live"
    EVICTED_DEMOTED = "evicted_demoted"
    REFUSED = "refused"
    RESET = "reset"


class Event(NamedTuple):
    """Something that happened to ``keys`` of one group on behalf of a request."""

    kind: EventKind
    group_id: int
    keys: Collection[Key]
    request_id: str


class Fate(NamedTuple):
    """How an entry was lost: ``when`` in seconds of the journal's clock.

    ``by`` is the request that it was evicted for, or the tier in which it was ``unreadable``.
    """

    when: float
    by: str
    unreadable: bool = False


Listener = Callable[[Event], None]


class Journal:
    """Counts events by group and kind, passes them on, and remembers recent evictions.

    Listeners run under the caller's lock, so they must be quick, and must not raise.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counters: dict[int, Counter[EventKind]] = {}
        self.listeners: list[Listener] = []
        self.clock = clock
        self._recent: dict[Key, Fate] = {}
        self._older: dict[Key, Fate] = {}

    def record(
        self, kind: EventKind, group_id: int, keys: Collection[Key], request_id: str
    ) -> None:
        """Record one event of ``kind`` per key; no keys, no event."""
        if not keys:
            return
        self.counters.setdefault(group_id, Counter())[kind] += len(keys)
        if kind in (EventKind.EVICTED_LIVE, EventKind.EVICTED_DEMOTED):
            self._remember(keys, Fate(self.clock(), request_id))
        event = Event(kind, group_id, keys, request_id)
        for listener in self.listeners:
            listener(event)

    def note_unreadable(self, keys: Collection[Key], tier: str) -> None:
        """Remember that ``tier`` had keys whose bytes could not be read or did not verify."""
        self._remember(keys, Fate(self.clock(), tier, unreadable=True))

    def _remember(self, keys: Collection[Key], fate: Fate) -> None:
        if len(self._recent) + len(keys) > REMEMBERED_EVICTIONS:
            self._recent, self._older = {}, self._recent
        self._recent.update(dict.fromkeys(keys, fate))

    def fate(self, key: Key) -> Fate | None:
        """How ``key`` was lost last, if that is still remembered."""
        return self._recent.get(key) or self._older.get(key)

    def count(self, group_id: int, kind: EventKind) -> int:
        return self.counters.get(group_id, Counter())[kind]

    def total(self, kind: EventKind) -> int:
        return sum(counter[kind] for counter in self.counters.values())
