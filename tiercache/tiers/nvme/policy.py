# SPDX-License-Identifier: Apache-2.0
"""Who leaves the disk first: the order of one group's published slots.

Covers LRU, FIFO and S3-FIFO, each behind a queue of demoted slots. Not when to evict, nor which
slot a key has (``space``). No bytes, no clock, no I/O.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tiercache.blocks import Key
from tiercache.errors import ConfigError
from tiercache.ghosts import NAME, Ghosts, Names, short_names
from tiercache.slotqueue import Mask, SlotQueue, Slots


class DiskPolicy(ABC):
    """Eviction order of one group's slots on disk, numbered from 0 to ``capacity - 1``.

    Demoted slots, which hold superseded states, go before all others, the one that was demoted
    first at the head. Unlike a policy of the primary tier, it is told which slots are held with
    every eviction: they are few, as they are held while a job at the disk runs. Slots are given
    once in a call, if it does not say otherwise. Locking: none, one thread calls. Complexity: O(1)
    per slot given, evicted or held, amortised over insertions and touches.
    """

    name: ClassVar[str]

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._demoted = SlotQueue(capacity)

    @abstractmethod
    def insert(self, slots: Sequence[int], keys: Sequence[Key]) -> None:
        """Add new slots as the most recent ones, the last one the most recent.

        ``keys[i]`` is what ``slots[i]`` holds from now on.
        """

    @abstractmethod
    def touch(self, slots: Sequence[int]) -> None:
        """Note a use of slots and undo their demotion; unknown ones are ignored.

        A slot that is there several times was used as often.
        """

    @abstractmethod
    def demote(self, slots: Sequence[int]) -> None:
        """Line slots up behind what was demoted before; demoted and unknown ones are ignored."""

    @abstractmethod
    def remove(self, slots: Sequence[int]) -> None:
        """Forget slots that went for another reason than their age; unknown ones are ignored."""

    @abstractmethod
    def victims(self, n: int, held: Container[int] = ()) -> list[int]:
        """Return the next ``n`` slots to go but ``held``, or fewer, and change nothing."""

    def evict(self, n: int, held: Container[int] = ()) -> list[int]:
        """Take the next ``n`` victims out of the order, or fewer, and return them."""
        victims = self.victims(n, held)
        self.remove(victims)
        return victims

    @abstractmethod
    def __len__(self) -> int:
        """Number of slots in the order."""

    @abstractmethod
    def __contains__(self, slot: int) -> bool:
        """Whether ``slot`` is in the order."""

    def _undo_demotions(self, slots: Iterable[int]) -> Slots:
        """Take those of ``slots`` that are demoted out of their queue and return them."""
        if not len(self._demoted):
            return _array(())
        distinct = _array(dict.fromkeys(slots))
        demoted = distinct[self._demoted.holds(distinct)]
        self._demoted.remove(demoted)
        return demoted


class FIFO(DiskPolicy):
    """First in, first out; a use changes nothing but undoes a demotion, as if newly inserted."""

    name = "fifo"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._live = SlotQueue(capacity)

    def insert(self, slots: Sequence[int], keys: Sequence[Key]) -> None:
        self._live.put_last(_array(slots))

    def touch(self, slots: Sequence[int]) -> None:
        self._live.put_last(self._undo_demotions(slots))

    def demote(self, slots: Sequence[int]) -> None:
        _move(_array(slots), self._live, to=self._demoted)

    def remove(self, slots: Sequence[int]) -> None:
        known = _array(slots)
        self._live.remove(known)
        self._demoted.remove(known)

    def victims(self, n: int, held: Container[int] = ()) -> list[int]:
        demoted = self._demoted.first(n, held)
        return demoted + self._live.first(n - len(demoted), held)

    def __len__(self) -> int:
        return len(self._demoted) + len(self._live)

    def __contains__(self, slot: int) -> bool:
        return bool(_in_any(_array([slot]), self._demoted, self._live))


class LRU(FIFO):
    """Least recently used."""

    name = "lru"

    def touch(self, slots: Sequence[int]) -> None:
        used = _array(dict.fromkeys(reversed(slots)))[::-1]
        _move(used, self._live, self._demoted, to=self._live)


class S3FIFO(DiskPolicy):
    """Three static queues (Yang et al., SOSP 2023): most keys are used once and leave early.

    A new key enters the small queue, or the main one if it is remembered as a ghost: evicted from
    the small queue not long ago. At the end of the small queue, a key that was used more than once
    moves to the main queue, and any other is evicted; at the end of the main queue, one that was
    used is inserted again with one use less. Evictions are from the small queue while that has a
    tenth of the capacity, else from the main queue.

    Where the paper leaves it open: each eviction takes one key, so a main queue that overflows is
    trimmed by the next; a ghost that comes back is a ghost no longer; if all keys of one queue
    are held, or it is empty, the other one is taken. A demoted key is neither in a queue nor a
    ghost, and comes back to the main queue: like a ghost, it is in use after all.
    """

    name = "s3fifo"
    MAX_USES: Final = 3  # two bits

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small, self._main = SlotQueue(capacity), SlotQueue(capacity)
        self._uses = np.zeros(capacity, np.int64)
        self._names: Names = np.zeros(capacity, NAME)
        """Of the key in each slot. If two keys share one, a key skips a queue."""
        self._ghosts = Ghosts(capacity * 9 // 10)  # as many as the main queue has keys

    def insert(self, slots: Sequence[int], keys: Sequence[Key]) -> None:
        new, names = _array(slots), short_names(keys)
        ghosts = self._ghosts.recall(names)
        self._main.put_last(new[ghosts])
        self._small.put_last(new[~ghosts])
        self._uses[new] = 0
        self._names[new] = names

    def touch(self, slots: Sequence[int]) -> None:
        back, used = self._undo_demotions(slots), _array(slots)
        self._main.put_last(back)
        self._uses[back] = -1  # the use that brings it back does not count
        np.add.at(self._uses, used, 1)
        self._uses[used] = np.minimum(self._uses[used], self.MAX_USES)

    def demote(self, slots: Sequence[int]) -> None:
        _move(_array(slots), self._small, self._main, to=self._demoted)

    def remove(self, slots: Sequence[int]) -> None:
        known = _array(slots)
        for queue in (self._small, self._main, self._demoted):
            queue.remove(known)

    def victims(self, n: int, held: Container[int] = ()) -> list[int]:
        demoted, sweep = self._select(n, held)
        return demoted + sweep.victims

    def evict(self, n: int, held: Container[int] = ()) -> list[int]:
        demoted, sweep = self._select(n, held)
        victims = demoted + sweep.victims
        self.remove(victims)
        moved = _array(slot for slot, _ in sweep.moved)
        self._small.remove(moved)
        self._main.put_last(moved)
        self._uses[moved] = [uses for _, uses in sweep.moved]
        self._ghosts.remember(self._names[sweep.from_small])
        return victims

    def _select(self, n: int, held: Container[int]) -> tuple[list[int], "_Sweep"]:
        demoted = self._demoted.first(n, held)
        sweep = _Sweep(self._small, self._main, self._uses, held)
        sweep.run(n - len(demoted))
        return demoted, sweep

    def __len__(self) -> int:
        return len(self._demoted) + len(self._small) + len(self._main)

    def __contains__(self, slot: int) -> bool:
        return bool(_in_any(_array([slot]), self._demoted, self._small, self._main))


class _Sweep:
    """A series of evictions of S3-FIFO as they would be, with the queues left as they are.

    ``moved`` are the slots that end up at the end of the main queue, with their uses; what is in
    neither ``moved`` nor ``victims`` stays where it is, held slots included.
    """

    def __init__(
        self, small: SlotQueue, main: SlotQueue, uses: NDArray[np.int64], held: Container[int]
    ) -> None:
        self.victims: list[int] = []
        self.from_small: list[int] = []
        self.moved: deque[tuple[int, int]] = deque()
        self._small_left = _with_uses(small, uses, held)
        self._main_left = _with_uses(main, uses, held)
        self._small_size = len(small)
        self._least_small = len(uses) / 10

    def run(self, n: int) -> None:
        """Evict ``n`` slots, or all that can be."""
        for _ in range(n):
            if self._small_size >= self._least_small and self._evict_small():
                continue
            # The main queue once more: all of the small one may just have moved there.
            if not (self._evict_main() or self._evict_small() or self._evict_main()):
                return

    def _evict_small(self) -> bool:
        for slot, uses in self._small_left:
            self._small_size -= 1
            if uses <= 1:
                self.victims.append(slot)
                self.from_small.append(slot)
                return True
            self.moved.append((slot, 0))
        return False

    def _evict_main(self) -> bool:
        for slot, uses in chain(self._main_left, self._moved_to_main()):
            if uses == 0:
                self.victims.append(slot)
                return True
            self.moved.append((slot, uses - 1))
        return False

    def _moved_to_main(self) -> Iterator[tuple[int, int]]:
        """What was moved to the head of the main queue, once its end has come to there."""
        while self.moved:
            yield self.moved.popleft()


def _array(slots: Iterable[int]) -> Slots:
    return np.fromiter(slots, np.int64)


def _in_any(slots: Slots, *queues: SlotQueue) -> Mask:
    """Which of ``slots`` are in one of the queues."""
    found: Mask = np.logical_or.reduce([queue.holds(slots) for queue in queues])
    return found


def _move(slots: Slots, *queues: SlotQueue, to: SlotQueue) -> None:
    """Move those of ``slots`` that are in one of ``queues`` to the end of another, or of one."""
    known = slots[_in_any(slots, *queues)]
    for queue in queues:
        if queue is not to:
            queue.remove(known)
    to.put_last(known)


def _with_uses(
    queue: SlotQueue, uses: NDArray[np.int64], held: Container[int]
) -> Iterator[tuple[int, int]]:
    """The slots of a queue but ``held``, each with its uses. Neither may change meanwhile."""
    for part in queue:
        for slot, count in zip(part.tolist(), uses[part].tolist(), strict=True):
            if slot not in held:
                yield slot, count


_POLICIES: Final[dict[str, type[DiskPolicy]]] = {
    policy.name: policy for policy in (LRU, FIFO, S3FIFO)
}
DISK_POLICIES: Final = tuple(_POLICIES)


def make_disk_policy(name: str, capacity: int) -> DiskPolicy:
    """Return a new policy for a group of ``capacity`` slots.

    Raises:
        ConfigError: there is no policy of that name.
    """
    if name not in _POLICIES:
        raise ConfigError("policy", name, " or ".join(map(repr, DISK_POLICIES)))
    return _POLICIES[name](capacity)
