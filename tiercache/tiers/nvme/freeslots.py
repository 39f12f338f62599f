# SPDX-License-Identifier: Apache-2.0
"""Which slots on disk are free, so that neighbours are found together.

Covers numbers only: not who has the other slots (``space``). No I/O, no clock.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import pairwise

from tiercache.errors import InvariantError
from tiercache.tiers.base import neighbours


class FreeSlots:
    """Free slots as runs of neighbours, each found by both its ends and by its length.

    A run that is long enough and no longer than need be is taken, or the longest there is.
    Complexity: O(1) per slot given or taken and a binary search per run; of N slots there are at
    most sqrt(2 N) different lengths to search in, 1,414 for a million.
    """

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        self._end_of: dict[int, int] = {}
        """By its first slot, the slot behind each run."""
        self._start_of: dict[int, int] = {}
        """The same the other way round."""
        self._starts: dict[int, dict[int, None]] = {}
        """First slots by the length of their runs."""
        self._lengths: list[int] = []
        """Sorted keys of ``_starts``."""
        self._count = 0
        for start, end in runs:
            self._add(start, end)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for start, end in self._end_of.items():
            yield from range(start, end)

    def take(self, n: int) -> list[int]:
        """Take ``n`` slots; the caller knows that there are as many."""
        taken: list[int] = []
        while wanted := n - len(taken):
            start, end = self._best(wanted)
            cut = min(start + wanted, end)
            self._remove(start, end)
            if cut < end:
                self._add(cut, end)
            taken.extend(range(start, cut))
        return taken

    def _best(self, wanted: int) -> tuple[int, int]:
        at = min(bisect_left(self._lengths, wanted), len(self._lengths) - 1)
        start = next(reversed(self._starts[self._lengths[at]]))
        return start, self._end_of[start]

    def give(self, slots: Iterable[int]) -> None:
        """Add slots that are not free."""
        for run in neighbours(sorted(slots)):
            self.give_run(run.start, run.stop)

    def give_run(self, start: int, end: int) -> None:
        """Add the slots from ``start`` to ``end - 1``, none of which is free."""
        first, behind = self._start_of.get(start, start), self._end_of.get(end, end)
        if first < start:
            self._remove(first, start)
        if behind > end:
            self._remove(end, behind)
        self._add(first, behind)

    def take_within(self, part: range) -> list[tuple[int, int]]:
        """Take the free slots of ``part``; returns them as runs. Looks at every run."""
        taken = []
        for start, end in list(self._end_of.items()):
            first, behind = max(start, part.start), min(end, part.stop)
            if first < behind:
                self._remove(start, end)
                taken.append((first, behind))
                for left in ((start, first), (behind, end)):
                    if left[0] < left[1]:
                        self._add(*left)
        return taken

    def _add(self, start: int, end: int) -> None:
        length = end - start
        self._end_of[start], self._start_of[end] = end, start
        if length not in self._starts:
            self._starts[length] = {}
            insort(self._lengths, length)
        self._starts[length][start] = None
        self._count += length

    def _remove(self, start: int, end: int) -> None:
        length = end - start
        del self._end_of[start], self._start_of[end], self._starts[length][start]
        if not self._starts[length]:
            del self._starts[length], self._lengths[bisect_left(self._lengths, length)]
        self._count -= length

    def validate(self) -> None:
        """Check that the tables agree and neighbouring runs are one; raises InvariantError."""
        runs = sorted(self._end_of.items())
        by_length = [(start, start + n) for n, starts in self._starts.items() for start in starts]
        checks = {
            "ends": {end: start for start, end in runs} == self._start_of,
            "lengths": sorted(by_length) == runs and sorted(self._starts) == self._lengths,
            "count": sum(end - start for start, end in runs) == self._count,
            "neighbours are one run": all(a[1] < b[0] for a, b in pairwise(runs)),
        }
        for invariant, holds in checks.items():
            if not holds:
                raise InvariantError(f"free slots: {invariant}: violated")


def gaps(taken: Iterable[int], slots: int) -> Iterator[tuple[int, int]]:
    """Runs of the slots from 0 to ``slots - 1`` that are not ``taken``, which are in any order."""
    marks = bytearray(slots + 1)
    marks[slots] = 1
    for slot in taken:
        marks[slot] = 1
    start = marks.find(0)
    while start >= 0:
        end = marks.find(1, start)
        yield start, end
        start = marks.find(0, end)
