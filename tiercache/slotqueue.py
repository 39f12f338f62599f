# SPDX-License-Identifier: Apache-2.0
"""An order of slots in which whole runs of them are moved at once.

Covers the order alone: who moves, and why, is up to the policies.
"""

from collections.abc import Container, Iterator
from itertools import filterfalse, islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Slots: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
#: Of each slot whether, and for what, it is pinned; 0 if it is not.
Pins: TypeAlias = NDArray[np.int8]

#: Entries of a part at most: to look at one takes as long as to call numpy a few times.
PART: Final = 1024
_NOWHERE: Final = np.iinfo(np.int64).min


class _Part(NamedTuple):
    """A stretch of the log: ``slots[i]`` was written at the place ``start + i``."""

    start: int
    slots: Slots

    @property
    def end(self) -> int:
        return self.start + len(self.slots)


class SlotQueue:
    """Slots from 0 to ``capacity - 1``, each in the queue once or not at all.

    A log: whatever moves is written again at the end, and a slot is where it was written last.
    Entries for other places are stale. They are swept out a few parts at a time, so that the log
    stays within a small multiple of the queue and no call makes up for all those before it.

    Complexity: O(1) per slot given, amortised, mostly in numpy. Locking: none.
    """

    def __init__(self, capacity: int) -> None:
        self._place = np.full(capacity, _NOWHERE, np.int64)
        """Where each slot was written last; places are in order."""
        self._parts = [_Part(0, np.empty(0, np.int64))]
        self._size = 0
        self._written = 0
        """Entries of all parts, stale ones included."""
        self._next = 0
        """Index of the part that is swept next: each in turn, whatever is put before it."""

    def __len__(self) -> int:
        return self._size

    def holds(self, slots: Slots) -> Mask:
        """Which of ``slots`` are in the queue."""
        return self._place[slots] > _NOWHERE

    def __iter__(self) -> Iterator[Slots]:
        """The slots in their order, some at a time. The queue must not be used meanwhile.

        Parts without any are dropped on the way: whoever comes again does not meet them again.
        """
        at = 0
        while at < len(self._parts):
            slots = self._current(self._parts[at])
            if len(slots) or at + 1 == len(self._parts):
                yield slots
                at += 1
            else:
                self._written -= len(self._parts.pop(at).slots)
                self._next -= at < self._next

    def _current(self, part: _Part) -> Slots:
        current: Mask = self._place[part.slots] == np.arange(part.start, part.end)
        return part.slots[current]

    def first(self, n: int, but: Container[int] = (), pins: Pins | None = None) -> list[int]:
        """The first ``n`` slots, or fewer, that are not in ``but`` and not pinned by ``pins``."""
        found: list[int] = []
        for some in self if n > 0 else ():
            free: list[int] = (some if pins is None else some[pins[some] == 0]).tolist()
            found += islice(filterfalse(but.__contains__, free), n - len(found))
            if len(found) == n:
                break
        return found

    def put_last(self, slots: Slots) -> None:
        """Move distinct slots to the end, or add them there; the last one is the last then."""
        last = self._parts[-1]
        self._enter(slots, last.end)
        if len(last.slots) + len(slots) <= PART:
            self._parts[-1] = _Part(last.start, np.concatenate((last.slots, slots)))
        else:
            self._parts += _split(last.end, slots)
        self._sweep(len(slots))

    def put_first(self, slots: Slots) -> None:
        """Move distinct slots to the front, or add them there; the first one is the first then."""
        first = self._parts[0]
        start = first.start - len(slots)
        self._enter(slots, start)
        if len(first.slots) + len(slots) <= PART:
            self._parts[0] = _Part(start, np.concatenate((slots, first.slots)))
        else:
            parts = _split(start, slots)
            self._parts[:0] = parts
            self._next += len(parts)
        self._sweep(len(slots))

    def _enter(self, slots: Slots, start: int) -> None:
        self._size += len(slots) - int(np.count_nonzero(self.holds(slots)))
        self._place[slots] = np.arange(start, start + len(slots))
        self._written += len(slots)

    def remove(self, slots: Slots) -> None:
        """Take distinct slots out; those that are not in the queue are ignored."""
        self._size -= int(np.count_nonzero(self.holds(slots)))
        self._place[slots] = _NOWHERE
        self._sweep(len(slots))

    def _sweep(self, changed: int) -> None:
        """Look at some four entries for each one that became stale, while most of all are."""
        for _ in range(1 + 4 * changed // PART):
            if self._written <= 2 * self._size + 2 * PART:
                break
            self._tidy()

    def _tidy(self) -> None:
        """Leave the stale entries of a part out, and take in the part behind it if it fits."""
        at = self._next if self._next < len(self._parts) else 0
        swept = self._parts[at : at + 2]
        kept = [self._current(part) for part in swept]
        if sum(map(len, kept)) > PART:
            del swept[1:], kept[1:]
        part = _Part(swept[0].start, np.concatenate(kept))
        # Places change, but not their order: there are no more of them than before.
        self._place[part.slots] = np.arange(part.start, part.end)
        self._parts[at : at + len(swept)] = [part]
        self._written -= sum(len(old.slots) for old in swept) - len(part.slots)
        self._next = at + (len(swept) == 1)


def _split(start: int, slots: Slots) -> list[_Part]:
    ats = range(0, len(slots), PART)
    return [_Part(start + at, slots[at : at + PART].copy()) for at in ats]
