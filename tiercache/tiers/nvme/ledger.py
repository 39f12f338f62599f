# SPDX-License-Identifier: Apache-2.0
"""What of the tier's decisions reaches its index, and in which order.

Covers the one writer of the index while the tier serves, on the I/O loop: entries that are
published, entries that go, and clearing. When that happens is decided by ``tier``.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from tiercache.errors import TierCacheError
from tiercache.tiers.nvme.index import Entry, Index, Location
from tiercache.tiers.nvme.io import in_thread


class Ledger:
    """Writes an index on behalf of jobs.

    Locking: coroutines and ``unpublish`` on the I/O loop; ``era`` is changed by the scheduler's
    thread, and ``close`` is called when the loop has ended. Raises: TierCacheError.
    """

    era = 0
    """How often the tier was cleared."""
    cleared = 0
    """The era of which the index knows."""

    def __init__(self, index: Index, groups: Iterable[int]) -> None:
        self._index = index
        self._lock = asyncio.Lock()
        self._going: dict[int, set[Location]] = {group_id: set() for group_id in groups}
        """Entries of each group that the index still has and the tier does not."""

    @property
    def is_current(self) -> bool:
        """Whether everything that was cleared has left the index."""
        return self.cleared == self.era

    def unpublish(self, locations: Iterable[Location]) -> None:
        """Remove entries with what is published next in their group.

        Not in a transaction of their own: beside a busy interpreter each costs as much as a write.
        A crash before that leaves entries whose records belong to other keys and do not verify.
        """
        for location in locations:
            self._going[location.group_id].add(location)

    async def publish(self, group_id: int, changes: Mapping[Location, Entry], era: int) -> None:
        """Index what a job of ``era`` has written, all or nothing.

        Jobs begin in the order in which slots are allocated: when a slot is published, the
        removal of whoever left it is known, and must not come later.
        """
        async with self._lock:
            if era != self.era:
                raise TierCacheError("the tier was cleared meanwhile")
            going = self._going[group_id]
            removals = dict.fromkeys(going)
            await in_thread(self._index.update, {**removals, **changes})
            going.difference_update(removals, changes)

    async def clear(self) -> None:
        """Remove all entries."""
        era = self.era
        async with self._lock:
            await in_thread(self._index.clear)
            self._forget()
        self.cleared = era

    def _forget(self) -> None:
        for going in self._going.values():
            going.clear()

    def close(self, removals: Iterable[Location]) -> None:
        """Bring the index up to date, as far as it takes that. What is left does not verify."""
        self.unpublish(removals)
        with suppress(TierCacheError):
            if not self.is_current:
                self._index.clear()
                self._forget()
            self._index.update(dict.fromkeys(set().union(*self._going.values())))
