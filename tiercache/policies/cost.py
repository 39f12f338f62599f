# SPDX-License-Identifier: Apache-2.0
"""Recompute cost saved: who goes first is what is cheap to compute again, and idle for long.

Covers the order of slots whose worth it is told. What a slot is worth follows from the checkpoints
around it, which ``demotion`` keeps; until it is told, it is worth nothing.
"""

import math
from collections import OrderedDict
from collections.abc import Container, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice

from tiercache.blocks import Key
from tiercache.policies.base import Policy, SomeSlots, Victims, numbers
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
    """``worth`` rounded down; among slots of one grade, only age decides."""
    if worth <= 0:
        return 0.0
    return math.exp2(math.floor(math.log2(worth) * GRADES_PER_OCTAVE) / GRADES_PER_OCTAVE)


class _Known:
    """A slot: when it was last used, as ``Cost.time`` counts, and what it is worth."""

    __slots__ = ("grade", "used", "worth")

    def __init__(self, used: float) -> None:
        self.used = used
        self.worth = 0.0
        self.grade: float | None = None
        """In which queue it is: of the slots that are neither pinned nor demoted."""


class Cost(Policy):
    """Evicts demoted slots in the order of their demotion, then the live slot of least value.

    The value is the worth by the time since the last use: who was idle for twice as long is half
    as likely to come back next. Whatever has the same worth falls behind at the same pace, so
    each grade of worth has a queue by age, and victims are the oldest of the queues, compared.
    A pinned slot leaves its queue. Changes are O(log n) per slot, and no call makes up for others.
    """

    name = "cost"
    appraises = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._now = 0.0
        self._victims = 0
        self._known: dict[int, _Known] = {}
        self._demoted: OrderedDict[int, None] = OrderedDict()
        self._pinned: dict[int, bool] = {}
        """Pinned slots and whether for a load."""
        self._queues: dict[float, Queue] = {}
        """By grade, of which there are some hundred at most; none of them empty."""
        self._turns = count()

    @property
    def time(self) -> float:
        """Seconds and victims so far."""
        return self._now + VICTIM_S * self._victims

    def tell(self, now: float) -> None:
        self._now = max(self._now, now)

    def insert(self, slots: SomeSlots, keys: Sequence[Key]) -> None:
        for slot in numbers(slots):
            self._known[slot] = known = _Known(self.time)
            self._enqueue(slot, known)

    def _enqueue(self, slot: int, known: "_Known") -> None:
        known.grade = its = grade(known.worth)
        if its not in self._queues:
            self._queues[its] = Queue()
        self._queues[its].add(Place(known.used, next(self._turns), slot))

    def _dequeue(self, slot: int, known: "_Known") -> None:
        """Take ``slot`` out of its queue, if it is in one."""
        if known.grade is None:
            return
        queue = self._queues[known.grade]
        queue.remove(slot)
        if not queue:
            del self._queues[known.grade]
        known.grade = None

    def appraise(self, slot: int, worth: float) -> None:
        known = self._known.get(slot)
        if known is None or known.worth == worth:
            return
        known.worth = worth
        if known.grade not in (None, grade(worth)):
            self._dequeue(slot, known)
            self._enqueue(slot, known)

    def touch(self, slots: SomeSlots) -> None:
        now, turns = self.time, self._turns
        for slot in numbers(slots):
            known = self._known.get(slot)
            if known is None:
                continue
            known.used = now
            if known.grade is not None:
                self._queues[known.grade].put_off(Place(now, next(turns), slot))
                continue
            self._demoted.pop(slot, None)
            if slot not in self._pinned:
                self._enqueue(slot, known)

    def demote(self, slots: SomeSlots, *, first: bool = False) -> list[int]:
        demoted, table = self._demoted, self._known
        moved = [
            slot for slot in dict.fromkeys(numbers(slots)) if slot in table and slot not in demoted
        ]
        for slot in moved:
            self._dequeue(slot, table[slot])
            demoted[slot] = None
        for slot in reversed(numbers(slots)) if first else ():
            if slot in demoted:
                demoted.move_to_end(slot, last=False)
        return moved

    def pin(self, slots: SomeSlots, *, hit: bool) -> None:
        for slot in numbers(slots):
            self._dequeue(slot, self._known[slot])
            self._pinned[slot] = hit or self._pinned.get(slot, False)
            if hit:
                self._demoted.pop(slot, None)

    def unpin(self, slots: SomeSlots) -> None:
        for slot in numbers(slots):
            for_load = self._pinned.pop(slot, None)
            if for_load is None or slot in self._demoted:
                continue
            known = self._known[slot]
            if for_load:
                known.used = self.time
            self._enqueue(slot, known)

    def remove(self, slots: SomeSlots) -> None:
        for slot in numbers(slots):
            known = self._known.pop(slot, None)
            if known is not None:
                self._dequeue(slot, known)
                self._demoted.pop(slot, None)
                self._pinned.pop(slot, None)

    def peek(self, n: int, protected: Container[int] = ()) -> Victims:
        free = (
            slot for slot in self._demoted if slot not in self._pinned and slot not in protected
        )
        demoted = list(islice(free, n))
        live = self._lowest(n - len(demoted), protected)
        return Victims(demoted + live, len(demoted))

    def _lowest(self, n: int, protected: Container[int]) -> list[int]:
        """The live slots of least value: from the heads of all queues on, whatever is next."""
        found: list[int] = []
        now = self.time
        ahead = [self._at(worth, 0, now) for worth in self._queues] if n > 0 else []
        heapify(ahead)
        while ahead and len(found) < n:
            _, _, worth, index = heappop(ahead)
            queue = self._queues[worth]
            if queue[index].slot not in protected:
                found.append(queue[index].slot)
            for following in queue.below(index):
                heappush(ahead, self._at(worth, following, now))
        return found

    def _at(self, worth: float, index: int, now: float) -> tuple[float, Place, float, int]:
        """Value of a place, and where it is; of equal values, the place decides."""
        place = self._queues[worth][index]
        return worth / (now - place.since + FRESH_S), place, worth, index

    def evict(self, n: int, protected: Container[int] = ()) -> Victims | None:
        victims = self.peek(n, protected)
        if len(victims.slots) < n:
            return None
        self._victims += n
        self.remove(victims.slots)
        return victims

    @property
    def has_demoted(self) -> bool:
        return bool(self._demoted)

    @property
    def demoted(self) -> int:
        return len(self._demoted) - len(self._demoted.keys() & self._pinned.keys())

    def demoted_of(self, slots: SomeSlots) -> list[int]:
        return [slot for slot in numbers(slots) if slot in self._demoted]

    def __len__(self) -> int:
        return len(self._known) - len(self._pinned)

    def __contains__(self, slot: int) -> bool:
        return slot in self._known and slot not in self._pinned
