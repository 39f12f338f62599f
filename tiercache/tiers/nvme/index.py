# SPDX-License-Identifier: Apache-2.0
"""The index on disk: which block lies in which slot, as a page table in LMDB.

Covers its transactions, growth and life in a process. Not the bytes of its pages (``pages``), nor
how a file is opened (``environment``); not what is looked up while serving, which the tier keeps in
RAM; not the records, nor whether their bytes are what their checksum says. That only one process
writes is for the namespace's lock to see to.

The table has as many pages as its slots need, however often they are written. So there is nothing
to compact, and the size of the file is known before.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import lmdb

from tiercache.blocks import group_suffix
from tiercache.errors import InvariantError, TierCacheError
from tiercache.tiers.nvme.environment import (
    DAMAGE,
    LMDB_PAGE_BYTES,
    LOCK_BYTES,
    disinherit,
    inherit,
    map_limit,
    open_environment,
    remove,
)
from tiercache.tiers.nvme.pages import (
    HASH_BYTES,
    PAGE_SLOTS,
    Edits,
    Entry,
    Loaded,
    Location,
    decode,
    edit,
    entries_of,
    is_intact,
    page_key,
    page_number,
    to_edits,
)

__all__ = [
    "HASH_BYTES",
    "PAGE_SLOTS",
    "Entry",
    "Index",
    "Loaded",
    "Location",
    "NotIndexedError",
    "index_bytes",
]

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class NotIndexedError(TierCacheError):
    """The index did not take a change: it is full, or LMDB or the disk failed. Says which."""


def index_bytes(slots: Mapping[int, int]) -> int:
    """Bytes that the index of so many slots by group can take on disk, at any time.

    Counts pages that were replaced and are not yet free, and the lock file. The index never takes
    more: it stores nothing rather.
    """
    return map_limit(slots) + LOCK_BYTES


class Index:
    """The entries of all groups, in the LMDB environment ``directory``.

    ``slots`` says how many slots each group has. With ``durable`` a change is on the disk when
    ``update`` returns; else it survives a killed process, and what a power loss tore is seen when
    the index is opened again. ``map_bytes`` is the size of the map to begin with; it is at most
    ``index_bytes``, and grows up to that.

    A directory that LMDB cannot read is emptied, and a new index begun: one line in the log.

    Locking: ``update``, ``load``, ``clear`` and ``close`` from any thread, one at a time;
    ``check_readers`` and ``info`` at any time.

    Raises: TierCacheError if the directory cannot be used, if this process has it open already, if
    a forked child uses what its parent opened, or after ``close``.
    """

    damaged: int
    """Pages, and whole environments, that were dropped as they were damaged."""
    next_stamp: int
    """Greater than every stamp that was loaded."""

    def __init__(
        self, directory: Path, slots: Mapping[int, int], *, durable: bool, map_bytes: int = 1 << 40
    ) -> None:
        self.damaged = 0
        self.next_stamp = 0
        self._directory = directory.resolve()
        self._slots = dict(slots)
        self._durable = durable
        self._limit = map_limit(slots)
        self._map_bytes = min(map_bytes, self._limit)
        self._pid = os.getpid()
        # Growing and reopening unmap the pages that info() reads, and let its thread run meanwhile.
        self._map_lock = threading.Lock()
        _claim(self._directory, self)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            inherit(self._directory)
            self._environment = self._open()
        except (OSError, lmdb.Error) as error:
            _OPEN.pop(self._directory, None)
            raise TierCacheError(f"the index {directory} cannot be opened: {error}") from error

    def load(self, group_id: int) -> Loaded:
        """Read the entries of a group, with their keys.

        Damaged pages, entries beyond the group's slots, and all but the youngest entry of a hash
        are left out, and removed.
        """
        self._check_process()
        try:
            numbers, entries, torn = self._read(group_id)
        except lmdb.Error as error:
            self._report(f"begins anew: {error}", 1)
            self._recover(anew=True)
            return Loaded([], [], [])
        loaded, stale, next_stamp = decode(
            numbers, entries, self._slots[group_id], group_suffix(group_id)
        )
        self.next_stamp = max(self.next_stamp, next_stamp)
        if torn:
            self._report(f"dropped {len(torn)} damaged pages of group {group_id}", len(torn))
        # What cannot be removed now is left out again when it is loaded again.
        with suppress(NotIndexedError):
            self._write(to_edits({Location(group_id, slot): None for slot in stale}), torn)
        return loaded

    def update(self, changes: Mapping[Location, Entry | None]) -> None:
        """Set entries, or remove them (None), in one transaction: all of them or none.

        Raises:
            NotIndexedError: nothing was changed. Later there may be room again: a process that
                reads keeps the pages that it sees from being reused.
            InvariantError: a slot that does not exist, or an entry that does not fit.
        """
        self._check_process()
        for location in changes:
            if not 0 <= location.slot < self._slots.get(location.group_id, 0):
                raise InvariantError(f"the index has no {location}")
        self._write(to_edits(changes), [])

    def clear(self) -> None:
        """Remove all entries, those to come as well when the index is opened next.

        Who clears has changed what blocks are, as new weights do, and the directory's name does not
        say so: what is stored from here on is right for this process only. Raises NotIndexedError.
        """
        self._check_process()
        try:
            disinherit(self._directory)
            self._reopen(anew=True)
        except (OSError, lmdb.Error) as error:
            raise NotIndexedError(f"the index was not cleared: {error}") from error

    def check_readers(self) -> int:
        """Free what killed readers hold; returns how many there were."""
        return self._ask(lmdb.Environment.reader_check)

    def info(self) -> dict[str, int]:
        """Bytes of the map and of the file, transactions so far, readers' places in use and all."""
        info = self._ask(lmdb.Environment.info)
        return {
            "map_bytes": info["map_size"],
            "file_bytes": (info["last_pgno"] + 1) * LMDB_PAGE_BYTES,
            "transactions": info["last_txnid"],
            "readers": info["num_readers"],
            "max_readers": info["max_readers"],
        }

    def close(self) -> None:
        """Close the environment. Does nothing the second time, nor in a forked child."""
        if self._pid != os.getpid():
            return
        with self._map_lock:
            self._environment.close()
        if _OPEN.get(self._directory) is self:
            del _OPEN[self._directory]

    def _ask(self, question: Callable[[lmdb.Environment], Answer]) -> Answer:
        self._check_process()
        try:
            with self._map_lock:
                return question(self._environment)
        except lmdb.Error as error:
            raise TierCacheError(f"the index {self._directory} does not answer: {error}") from error

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise TierCacheError(
                f"the index {self._directory} was opened by process {self._pid}; process "
                f"{os.getpid()}, forked from it, cannot use it"
            )

    def _open(self) -> lmdb.Environment:
        environment, damage = open_environment(self._directory, self._slots, durable=self._durable)
        if damage:
            self._report(f"begins anew: {damage}", 1)
        if self._map_bytes < self._limit:
            environment.set_mapsize(self._map_bytes)
        return environment

    def _read(self, group_id: int) -> tuple[list[int], bytes, list[bytes]]:
        """Numbers and entries of the group's pages, and the keys of damaged ones."""
        numbers, entries, torn = [], [], []
        with self._environment.begin(buffers=True) as transaction:
            for key, page in _pages(transaction, group_id):
                if is_intact(key, page):
                    numbers.append(page_number(key))
                    entries.append(entries_of(page))
                else:
                    torn.append(key)
            # Only until the transaction ends are these views of anything.
            return numbers, b"".join(entries), torn

    def _write(self, edits: Edits, deleted: list[bytes]) -> None:
        try:
            while edits or deleted:
                try:
                    return self._transact(edits, deleted)
                except lmdb.MapFullError:
                    self._grow()
        except lmdb.Error as error:
            if isinstance(error, DAMAGE):
                self._recover()
            raise NotIndexedError(f"the index was not changed: {error}") from error

    def _transact(self, edits: Edits, deleted: list[bytes]) -> None:
        with self._environment.begin(write=True) as transaction:
            for key in deleted:
                transaction.delete(key)
            for key in sorted(edits):
                page = self._intact(key, transaction.get(key))
                transaction.put(key, edit(key, page, edits[key]))

    def _intact(self, key: bytes, page: bytes | None) -> bytes | None:
        if page is None or is_intact(key, page):
            return page
        self._report("dropped a damaged page", 1)
        return None

    def _grow(self) -> None:
        with self._map_lock:
            size = self._environment.info()["map_size"]
            if size >= self._limit:
                if self._environment.reader_check():
                    return  # to find the pages that killed processes were reading
                raise NotIndexedError(f"the index is full, at {size} bytes")
            self._environment.set_mapsize(min(2 * size, self._limit))

    def _recover(self, *, anew: bool = False) -> None:
        """After LMDB gave up on its environment: go on with what the file holds, or without."""
        try:
            self._reopen(anew=anew)
        except (OSError, lmdb.Error) as error:
            logger.warning("tiercache index %s: cannot be reopened: %s", self._directory, error)

    def _reopen(self, *, anew: bool) -> None:
        with self._map_lock:
            self._environment.close()
            if anew:
                remove(self._directory)
            self._environment = self._open()

    def _report(self, what: str, damaged: int) -> None:
        self.damaged += damaged
        logger.warning("tiercache index %s: %s", self._directory, what)


#: LMDB's locks belong to the process: to close a second environment would drop the first one's.
_OPEN: Final[WeakValueDictionary[Path, Index]] = WeakValueDictionary()
_OPEN_LOCK: Final = threading.Lock()


def _claim(directory: Path, index: Index) -> None:
    with _OPEN_LOCK:
        if directory in _OPEN:
            raise TierCacheError(f"the index {directory} is already open in this process")
        _OPEN[directory] = index


def _pages(
    transaction: "lmdb.Transaction[memoryview]", group_id: int
) -> Iterator[tuple[bytes, memoryview]]:
    beyond = page_key(group_id, 2**32 - 1)
    with transaction.cursor() as cursor:
        if cursor.set_range(page_key(group_id, 0)):
            for view, page in cursor:
                key = bytes(view)
                if key > beyond:
                    return
                yield key, page
