# SPDX-License-Identifier: Apache-2.0
"""Who leaves the disk first: the order of one group's published keys.

Covers LRU, FIFO and S3-FIFO, each behind a queue of demoted keys. Not when to evict, nor which slot
a key has (``space``). No bytes, no clock, no I/O.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from typing import ClassVar, Final

from tiercache.blocks import Key
from tiercache.errors import ConfigError

_UNKNOWN: Final = object()


class DiskPolicy(ABC):
    """Eviction order of one group on disk.

    ``capacity`` is the number of slots that the group has. Demoted keys, which are superseded
    states, go before all others, the one that was demoted first at the head. Unlike a policy of
    the primary tier, it is told which keys are held with every eviction: they are few, as they
    are held while a job at the disk runs. Locking: none, one thread calls. Complexity: O(1) per
    key given, evicted or held, amortised over insertions and touches.
    """

    name: ClassVar[str]

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._demoted: OrderedDict[Key, None] = OrderedDict()

    @abstractmethod
    def insert(self, keys: Iterable[Key]) -> None:
        """Add new keys as the most recent ones, the last key the most recent."""

    @abstractmethod
    def touch(self, keys: Iterable[Key]) -> None:
        """Note a use of keys and undo their demotion; unknown keys are ignored."""

    @abstractmethod
    def demote(self, keys: Iterable[Key]) -> None:
        """Line keys up behind what was demoted before; demoted and unknown ones are ignored."""

    @abstractmethod
    def remove(self, keys: Iterable[Key]) -> None:
        """Forget keys that went for another reason than their age; unknown ones are ignored."""

    @abstractmethod
    def victims(self, n: int, held: Collection[Key] = ()) -> list[Key]:
        """Return the next ``n`` keys to go but ``held``, or fewer, and change nothing."""

    def evict(self, n: int, held: Collection[Key] = ()) -> list[Key]:
        """Take the next ``n`` victims out of the order, or fewer, and return them."""
        victims = self.victims(n, held)
        self.remove(victims)
        return victims

    @abstractmethod
    def __len__(self) -> int:
        """Number of keys in the order."""

    @abstractmethod
    def __contains__(self, key: Key) -> bool:
        """Whether ``key`` is in the order."""


class FIFO(DiskPolicy):
    """First in, first out; a use changes nothing but undoes a demotion, as if newly inserted."""

    name = "fifo"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # Not a dict: to find its first key, one must step over all that were deleted before it.
        self._live: OrderedDict[Key, None] = OrderedDict()

    def insert(self, keys: Iterable[Key]) -> None:
        live = self._live
        for key in keys:  # a third of the time that update() takes
            live[key] = None

    def touch(self, keys: Iterable[Key]) -> None:
        for key in keys if self._demoted else ():
            if key in self._demoted:
                del self._demoted[key]
                self._live[key] = None

    def demote(self, keys: Iterable[Key]) -> None:
        pop = self._live.pop
        for key in keys:
            if pop(key, _UNKNOWN) is None:
                self._demoted[key] = None

    def remove(self, keys: Iterable[Key]) -> None:
        pop = self._live.pop
        for key in keys:
            if pop(key, _UNKNOWN) is not None:
                self._demoted.pop(key, None)

    def victims(self, n: int, held: Collection[Key] = ()) -> list[Key]:
        return list(islice(_without(held, chain(self._demoted, self._live)), n))

    def __len__(self) -> int:
        return len(self._demoted) + len(self._live)

    def __contains__(self, key: Key) -> bool:
        return key in self._live or key in self._demoted


class LRU(FIFO):
    """Least recently used."""

    name = "lru"

    def touch(self, keys: Iterable[Key]) -> None:
        move_to_end = self._live.move_to_end
        for key in keys:
            try:
                move_to_end(key)
            except KeyError:
                if key in self._demoted:
                    del self._demoted[key]
                    self._live[key] = None


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
        self._small: OrderedDict[Key, int] = OrderedDict()
        self._main: OrderedDict[Key, int] = OrderedDict()
        # By hash, which is a third of a key's size. If two keys share one, a key skips a queue.
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def insert(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if hash(key) in self._ghosts:
                del self._ghosts[hash(key)]
                self._main[key] = 0
            else:
                self._small[key] = 0

    def touch(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for queue in (self._small, self._main):
                if key in queue:
                    queue[key] = min(queue[key] + 1, self.MAX_USES)
            if key in self._demoted:
                del self._demoted[key]
                self._main[key] = 0

    def demote(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for queue in (self._small, self._main):
                if key in queue:
                    del queue[key]
                    self._demoted[key] = None

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for queue in (self._small, self._main, self._demoted):
                queue.pop(key, None)

    def victims(self, n: int, held: Collection[Key] = ()) -> list[Key]:
        demoted, sweep = self._select(n, held)
        return demoted + sweep.victims

    def evict(self, n: int, held: Collection[Key] = ()) -> list[Key]:
        demoted, sweep = self._select(n, held)
        for key in demoted:
            del self._demoted[key]
        for key in sweep.from_small:
            del self._small[key]
        for key in sweep.from_main:  # where it may have come to in the same sweep
            self._small.pop(key, None)
            self._main.pop(key, None)
        for key, uses in sweep.moved:
            self._small.pop(key, None)
            self._main[key] = uses
            self._main.move_to_end(key)
        self._remember(sweep.from_small)
        return demoted + sweep.victims

    def _remember(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._ghosts[hash(key)] = None
        while len(self._ghosts) > self.capacity * 9 // 10:  # as many as the main queue has keys
            self._ghosts.popitem(last=False)

    def _select(self, n: int, held: Collection[Key]) -> tuple[list[Key], "_Sweep"]:
        demoted = list(islice(_without(held, self._demoted), n))
        sweep = _Sweep(self._small, self._main, self.capacity, held)
        sweep.run(n - len(demoted))
        return demoted, sweep

    def __len__(self) -> int:
        return len(self._demoted) + len(self._small) + len(self._main)

    def __contains__(self, key: Key) -> bool:
        return key in self._small or key in self._main or key in self._demoted


class _Sweep:
    """A series of evictions of S3-FIFO as they would be, with the queues left as they are.

    ``moved`` are the keys that end up at the end of the main queue, with their uses; what is in
    neither ``moved`` nor ``victims`` stays where it is, held keys included.
    """

    def __init__(
        self,
        small: OrderedDict[Key, int],
        main: OrderedDict[Key, int],
        capacity: int,
        held: Collection[Key],
    ) -> None:
        self.victims: list[Key] = []
        self.from_small: list[Key] = []
        self.from_main: list[Key] = []
        self.moved: deque[tuple[Key, int]] = deque()
        self._small, self._main = small, main
        self._small_left = iter(_without(held, small))
        self._main_left = iter(_without(held, main))
        self._small_size = len(small)
        self._least_small = capacity / 10

    def run(self, n: int) -> None:
        """Evict ``n`` keys, or all that can be."""
        for _ in range(n):
            if self._small_size >= self._least_small and self._evict_small():
                continue
            # The main queue once more: all of the small one may just have moved there.
            if not (self._evict_main() or self._evict_small() or self._evict_main()):
                return

    def _evict_small(self) -> bool:
        for key in self._small_left:
            self._small_size -= 1
            if self._small[key] <= 1:
                self.victims.append(key)
                self.from_small.append(key)
                return True
            self.moved.append((key, 0))
        return False

    def _evict_main(self) -> bool:
        for key, uses in self._oldest_first():
            if uses == 0:
                self.victims.append(key)
                self.from_main.append(key)
                return True
            self.moved.append((key, uses - 1))
        return False

    def _oldest_first(self) -> Iterator[tuple[Key, int]]:
        """The main queue from its end, what was moved to its head meanwhile included."""
        for key in self._main_left:
            yield key, self._main[key]
        while self.moved:
            yield self.moved.popleft()


def _without(held: Collection[Key], keys: Iterable[Key]) -> Iterable[Key]:
    return (key for key in keys if key not in held) if held else keys


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
