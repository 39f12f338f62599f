# SPDX-License-Identifier: Apache-2.0
"""Recompute cost saved: who goes first is what is cheap to compute again, and idle for long.

Covers the order of keys whose worth it is told. What a key is worth follows from the checkpoints
around it, which ``demotion`` keeps; until it is told, it is worth nothing.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice

from tiercache.blocks import Key
from tiercache.policies.base import Evicted, Policy
from tiercache.policies.places import Place, Queue

#: A checkpoint that one other continues is resumed from only if that one is lost or edited away.
#: 0.01 does as well, on coding assistants and on chats; 0.02 costs up to 0.5 points.
SUPERSEDED_REUSE = 0.005
#: Seconds for which what was just used is as good as new: most tools answer within them.
FRESH_S = 20.0
#: A victim ages the others as half a second does: two fall to a request. Where time stands still,
#: as in a trace without times, they fall behind all the same.
VICTIM_S = 0.5
#: Worths are told apart to a fourth of an octave, so that few queues hold all there are.
GRADES_PER_OCTAVE = 4


def checkpoint_worth(saved_tokens: int, children: int) -> float:
    """Tokens that a checkpoint is expected to save.

    ``saved_tokens`` lie between it and the nearest one before it; ``children`` continue it.
    """
    reuse = SUPERSEDED_REUSE + children - 1 if children else 1.0
    return reuse * saved_tokens


def grade(worth: float) -> float:
    """``worth`` rounded down; among keys of one grade, only age decides."""
    if worth <= 0:
        return 0.0
    return math.exp2(math.floor(math.log2(worth) * GRADES_PER_OCTAVE) / GRADES_PER_OCTAVE)


class _Known:
    """A key: when it was last used, as ``Cost.time`` counts, and what it is worth."""

    __slots__ = ("grade", "used", "worth")

    def __init__(self, used: float) -> None:
        self.used = used
        self.worth = 0.0
        self.grade: float | None = None
        """In which queue it is: of the keys that are neither pinned nor demoted."""


class Cost(Policy):
    """Evicts demoted keys in the order of their demotion, then the live key of least value.

    The value is the worth by the time since the last use: who was idle for twice as long is half
    as likely to come back next. Whatever has the same worth falls behind at the same pace, so
    each grade of worth has a queue by age, and victims are the oldest of the queues, compared.
    A pinned key leaves its queue. Changes are O(log n) per key, and no call makes up for others.
    """

    name = "cost"
    appraises = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._now = 0.0
        self._victims = 0
        self._known: dict[Key, _Known] = {}
        self._demoted: OrderedDict[Key, None] = OrderedDict()
        self._pinned: dict[Key, bool] = {}
        """Pinned keys and whether for a load."""
        self._queues: dict[float, Queue] = {}
        """By grade, of which there are some hundred at most; none of them empty."""
        self._turns = count()

    @property
    def time(self) -> float:
        """Seconds and victims so far."""
        return self._now + VICTIM_S * self._victims

    def tell(self, now: float) -> None:
        self._now = max(self._now, now)

    def insert(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._known[key] = known = _Known(self.time)
            self._enqueue(key, known)

    def _enqueue(self, key: Key, known: "_Known") -> None:
        known.grade = its = grade(known.worth)
        if its not in self._queues:
            self._queues[its] = Queue()
        self._queues[its].add(Place(known.used, next(self._turns), key))

    def _dequeue(self, key: Key, known: "_Known") -> None:
        """Take ``key`` out of its queue, if it is in one."""
        if known.grade is None:
            return
        queue = self._queues[known.grade]
        queue.remove(key)
        if not queue:
            del self._queues[known.grade]
        known.grade = None

    def appraise(self, key: Key, worth: float) -> None:
        known = self._known.get(key)
        if known is None or known.worth == worth:
            return
        known.worth = worth
        if known.grade not in (None, grade(worth)):
            self._dequeue(key, known)
            self._enqueue(key, known)

    def touch(self, keys: Iterable[Key]) -> None:
        now, turns = self.time, self._turns
        for key in keys:
            known = self._known.get(key)
            if known is None:
                continue
            known.used = now
            if known.grade is not None:
                self._queues[known.grade].put_off(Place(now, next(turns), key))
                continue
            self._demoted.pop(key, None)
            if key not in self._pinned:
                self._enqueue(key, known)

    def demote(self, keys: Sequence[Key], *, first: bool = False) -> list[Key]:
        demoted, table = self._demoted, self._known
        moved = [key for key in dict.fromkeys(keys) if key in table and key not in demoted]
        for key in moved:
            self._dequeue(key, table[key])
            demoted[key] = None
        for key in reversed(keys) if first else ():
            if key in demoted:
                demoted.move_to_end(key, last=False)
        return moved

    def pin(self, keys: Collection[Key], *, hit: bool) -> None:
        for key in keys:
            self._dequeue(key, self._known[key])
            self._pinned[key] = hit or self._pinned.get(key, False)
            if hit:
                self._demoted.pop(key, None)

    def unpin(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for_load = self._pinned.pop(key, None)
            if for_load is None or key in self._demoted:
                continue
            known = self._known[key]
            if for_load:
                known.used = self.time
            self._enqueue(key, known)

    @property
    def pinned(self) -> Collection[Key]:
        return self._pinned.keys()

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            known = self._known.pop(key, None)
            if known is not None:
                self._dequeue(key, known)
                self._demoted.pop(key, None)
                self._pinned.pop(key, None)

    def peek(self, n: int, protected: Collection[Key] = ()) -> Evicted:
        free = (key for key in self._demoted if key not in self._pinned and key not in protected)
        demoted = list(islice(free, n))
        live = self._lowest(n - len(demoted), protected)
        return Evicted(demoted + live, len(demoted))

    def _lowest(self, n: int, protected: Collection[Key]) -> list[Key]:
        """The live keys of least value: from the heads of all queues on, whatever is next."""
        found: list[Key] = []
        now = self.time
        ahead = [self._at(worth, 0, now) for worth in self._queues] if n > 0 else []
        heapify(ahead)
        while ahead and len(found) < n:
            _, _, worth, index = heappop(ahead)
            queue = self._queues[worth]
            if queue[index].key not in protected:
                found.append(queue[index].key)
            for following in queue.below(index):
                heappush(ahead, self._at(worth, following, now))
        return found

    def _at(self, worth: float, index: int, now: float) -> tuple[float, Place, float, int]:
        """Value of a place, and where it is; of equal values, the place decides."""
        place = self._queues[worth][index]
        return worth / (now - place.since + FRESH_S), place, worth, index

    def evict(self, n: int, protected: Collection[Key] = ()) -> Evicted | None:
        victims = self.peek(n, protected)
        if len(victims.keys) < n:
            return None
        self._victims += n
        self.remove(victims.keys)
        return victims

    @property
    def demoted(self) -> int:
        return len(self._demoted) - len(self._demoted.keys() & self._pinned.keys())

    def is_demoted(self, key: Key) -> bool:
        return key in self._demoted

    def __len__(self) -> int:
        return len(self._known) - len(self._pinned)

    def __contains__(self, key: Key) -> bool:
        return key in self._known and key not in self._pinned
