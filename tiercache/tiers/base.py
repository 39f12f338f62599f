# SPDX-License-Identifier: Apache-2.0
"""What a secondary tier is, and how it reaches the slots of the primary one.

Covers the protocol between the cache, which decides what is copied where, and a tier, which keeps
records and moves bytes on threads of its own. The conformance suite in tests/tiers holds every
tier to it.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import ClassVar, Literal, NamedTuple

from tiercache.blocks import GroupSpec, Key
from tiercache.errors import InvariantError

Spill = Literal["on_store", "on_evict"]


class SlotMemory:
    """The bytes of the primary tier's slots: per group id one flat buffer for each worker.

    A *record* is a slot as a tier keeps it: the slots of the same number of all workers, one
    after another. Locking: none; a slot's bytes belong to whoever the cache gave it to.
    """

    def __init__(
        self, groups: Sequence[GroupSpec], regions: Mapping[int, Sequence[memoryview]]
    ) -> None:
        self._slot_bytes = {group.group_id: group.slot_bytes for group in groups}
        self._regions = dict(regions)
        self.record_bytes = {
            group_id: len(buffers) * self._slot_bytes[group_id]
            for group_id, buffers in self._regions.items()
        }
        """Bytes of a record of each group, a multiple of ``SLOT_ALIGNMENT``."""
        self._slots = {
            group_id: min((buffer.nbytes for buffer in buffers), default=0)
            // self._slot_bytes[group_id]
            for group_id, buffers in self._regions.items()
        }

    def regions(self) -> list[memoryview]:
        """All of the memory, for who has to register it: a region for each group and worker."""
        return [region for workers in self._regions.values() for region in workers]

    def buffers(self, group_id: int, slots: Sequence[int]) -> list[memoryview]:
        """The bytes of ``slots``, in their order, not copied.

        One buffer for each worker and slot, or, with a single worker, for each run of neighbours.
        Raises: InvariantError for a slot that is not there, where a slice would just be short.
        """
        if slots and not 0 <= min(slots) <= max(slots) < self._slots[group_id]:
            raise InvariantError(
                f"group {group_id}: not all below {self._slots[group_id]}: {slots}"
            )
        workers, size = self._regions[group_id], self._slot_bytes[group_id]
        if len(workers) > 1:
            return [part[slot * size : (slot + 1) * size] for slot in slots for part in workers]
        return [workers[0][run.start * size : run.stop * size] for run in neighbours(slots)]


def neighbours(slots: Sequence[int]) -> Iterator[range]:
    """Runs of ascending neighbours in ``slots``, in their order."""
    start = 0
    for at in range(1, len(slots) + 1):
        if at == len(slots) or slots[at] != slots[at - 1] + 1:
            yield range(slots[start], slots[at - 1] + 1)
            start = at


class Batch(NamedTuple):
    """One job: records of one group, ``keys[i]`` in slot ``slots[i]`` of the primary tier.

    Several conversations go on from ``forks``, some of the keys: worth the most to a store that
    others share.
    """

    job_id: int
    group_id: int
    keys: list[Key]
    slots: list[int]
    forks: Collection[Key] = ()


class Done(NamedTuple):
    """A job has ended: its slots are the cache's again.

    ``failed`` keys were not copied, or not to be trusted: what their slots hold is garbage.
    ``nbytes`` were copied in ``seconds``.
    """

    job_id: int
    failed: Collection[Key]
    nbytes: int
    seconds: float


@dataclass(slots=True)
class TierStats:
    """What a tier shows of itself; bytes, and counts since it was opened."""

    capacity: int
    used: int
    """Bytes of all records, those that are being stored included."""
    entries: int
    """Records that could be loaded."""
    jobs: int
    """Jobs that have not ended."""
    healthy: bool
    counters: Counter[str] = field(default_factory=Counter)
    """``stored`` and ``loaded`` records and, with ``_bytes``, their bytes; ``evicted``;
    ``corrupt`` (bytes that did not verify), ``failed`` (errors), ``declined`` (no room or budget).
    """


class SecondaryTier(ABC):
    """A tier below host memory.

    Locking: none; every method is called from the scheduler's thread, returns at once, and never
    raises once the tier is open. A doubt is a miss.
    """

    kind: ClassVar[str]
    """The ``type`` of its settings."""
    seeks: ClassVar[bool] = False
    """Whether others store into it as well: ``seek`` may find what ``has`` does not know."""

    def __init__(self, name: str, memory: SlotMemory, *, spill: Spill = "on_store") -> None:
        self.name = name
        self.memory = memory
        self.spill = spill
        self.index_info: Callable[[], Mapping[str, int]] = dict
        """Gauges of its index on disk, if it has one; raises TierCacheError if that is closed."""

    @abstractmethod
    def has(self, key: Key) -> bool:
        """Whether ``key`` could be loaded now."""

    def leading(self, keys: list[Key], at: int = 0) -> int:
        """How many of ``keys`` from ``keys[at]`` on could be loaded now, up to the first that not.

        They are of one group.
        """
        return sum(1 for _ in takewhile(self.has, islice(keys, at, None)))

    def held(self, keys: list[Key]) -> list[Key]:
        """Those of ``keys`` that could be loaded now, in their order."""
        found: list[Key] = []
        at = 0
        while at < len(keys):
            there = self.leading(keys, at)
            found += keys[at : at + there]
            at += there or 1
        return found

    def seek(self, keys: Collection[Key]) -> Callable[[], bool] | None:
        """Begin to find out which of ``keys`` are there, for ``has``.

        Returns what says whether it is worth to go on waiting, which soon ends whatever happens;
        None if there is nothing to wait for. However many keys there are, neither this nor one
        call of that holds the scheduler up for more than a few milliseconds: it takes in a part of
        the answer at each.
        """
        return None

    @abstractmethod
    def missing(self, keys: Collection[Key]) -> list[Key]:
        """Those of ``keys`` that are neither there nor being stored, in their order."""

    @abstractmethod
    def store(self, batch: Batch) -> bool:
        """Begin to copy ready slots of missing keys into the tier.

        False if it is declined: no room, no budget, too much waiting, or the tier is sick. Then
        no ``Done`` follows. The caller leaves the slots alone until then.
        """

    @abstractmethod
    def load(self, batch: Batch) -> None:
        """Begin to copy records into slots that nobody reads; ahead of all stores that wait.

        A ``Done`` follows in any case, with the keys that are not there among the failed ones.
        """

    @abstractmethod
    def poll(self) -> list[Done]:
        """The jobs that ended since the last call."""

    @abstractmethod
    def touch(self, keys: Collection[Key]) -> None:
        """Keys were used; undoes a demotion. Unknown keys are ignored."""

    @abstractmethod
    def demote(self, keys: Collection[Key]) -> None:
        """Keys are superseded: evict them before all others. Unknown keys are ignored.

        Those that are being stored are known.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget every record, for good; jobs that run end, and leave nothing behind.

        What blocks are has changed, and their names have not: a tier that outlives its process
        keeps what is stored after this from the next one.
        """

    @property
    @abstractmethod
    def load_rate(self) -> float | None:
        """Bytes per second of recent loads; None as long as nothing was loaded."""

    @abstractmethod
    def stats(self) -> TierStats: ...

    @abstractmethod
    def close(self) -> None:
        """Finish what runs, drop what waits, release everything. May be called twice.

        A closed tier has nothing and declines everything.
        """
