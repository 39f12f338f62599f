# SPDX-License-Identifier: Apache-2.0
"""The index of a namespace, read from outside while its server writes or nobody does.

Covers opening LMDB's file without creating or repairing it, and reading it in short transactions.
LMDB gives each reader a place in ``lock.mdb``; nothing else is written. What pages mean is known to
``pages``.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from tiercache.errors import DamageError, TierCacheError
from tiercache.tiers.nvme.environment import (
    DATA,
    LMDB_PAGE_BYTES,
    LOCK,
    MAX_READERS,
    audit,
    is_ours,
    strange,
)
from tiercache.tiers.nvme.namespace import INDEX, owner
from tiercache.tiers.nvme.pages import PAGE_SLOTS, Entry, is_intact, page_key, unpack

#: Pages that one transaction reads: 8,128 entries, well below a millisecond.
CHUNK_PAGES: Final = 64
#: How often an index is looked at again that a server begins to write, or replaces, meanwhile.
_TRIES: Final = 3

#: A key of LMDB's table and its value.
Row = tuple[bytes, bytes]


class Reader(NamedTuple):
    """A process that has a place in LMDB's table of readers."""

    pid: int
    transaction: int | None
    """What it reads, and so keeps from being reused; None: nothing now."""
    alive: bool


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What LMDB says of an index; bytes and counts."""

    map_bytes: int
    file_bytes: int
    used_pages: int
    """Pages of the file that were ever used, free ones included."""
    free_pages: int
    page_bytes: int
    transactions: int
    readers: int
    """Places for readers that were ever used at once, of ``max_readers``."""
    max_readers: int


class IndexReader:
    """The index of the namespace ``directory``.

    Locking: none, one thread. Raises: DamageError if LMDB must not, or cannot, read it;
    TierCacheError if this process has no access, or has it open already.
    """

    def __init__(self, directory: Path) -> None:
        self._name = directory.name
        self._data = directory / INDEX / DATA
        self._environment = _open(directory)

    def close(self) -> None:
        self._environment.close()

    def rows(self, group_id: int) -> Iterator[list[Row]]:
        """The pages of a group as they are, by number: a list for each short transaction."""
        start, beyond = page_key(group_id, 0), page_key(group_id, 2**32 - 1)
        while chunk := self._chunk(start, beyond):
            yield chunk
            start = chunk[-1][0] + b"\0"

    def keys(self) -> list[bytes]:
        """All keys of the table, whatever they are."""
        with self._begin() as transaction, transaction.cursor() as cursor:
            return list(cursor.iternext(keys=True, values=False))

    def entry(self, group_id: int, slot: int) -> Entry | None:
        """What the index says of a slot now."""
        number, place = divmod(slot, PAGE_SLOTS)
        key = page_key(group_id, number)
        with self._begin() as transaction:
            page = transaction.get(key)
        return dict(unpack(page)).get(place) if page and is_intact(key, page) else None

    def info(self) -> IndexInfo:
        with self._begin() as transaction:
            stat = transaction.stat(None)
            info = self._environment.info()
        used = info["last_pgno"] + 1
        live = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return IndexInfo(
            map_bytes=info["map_size"],
            file_bytes=self._data.stat().st_size,
            used_pages=used,
            free_pages=max(0, used - live - 2),
            page_bytes=LMDB_PAGE_BYTES,
            transactions=info["last_txnid"],
            readers=info["num_readers"],
            max_readers=info["max_readers"],
        )

    def readers(self) -> list[Reader]:
        """Who has a place in LMDB's table. The dead ones go when a server next starts."""
        return list(_readers(self._environment.readers()))

    def _chunk(self, start: bytes, beyond: bytes) -> list[Row]:
        found: list[Row] = []
        try:
            with self._begin() as transaction, transaction.cursor() as cursor:
                more = cursor.set_range(start)
                while more and cursor.key() <= beyond and len(found) < CHUNK_PAGES:
                    found.append(cursor.item())
                    more = cursor.next()
        except lmdb.Error as error:
            raise DamageError(f"the index of {self._name} cannot be read: {error}") from error
        return found

    def _begin(self) -> "lmdb.Transaction[bytes]":
        try:
            return self._environment.begin()
        except lmdb.MapResizedError:
            self._environment.set_mapsize(0)  # what the server has now
            return self._environment.begin()
        except lmdb.Error as error:
            raise TierCacheError(f"the index of {self._name} cannot be read: {error}") from error


def _open(directory: Path) -> lmdb.Environment:
    """Open the index for reading, if LMDB can be trusted with it: it crashes over damage."""
    index = directory / INDEX
    damage: str | None = None
    for _ in range(_TRIES):
        live = _is_written(directory)
        try:
            damage = is_ours(index / DATA) if live else audit(index / DATA)
            if damage is None:
                environment = _connect(index)
                if not live or (damage := _audit_pinned(environment, index / DATA)) is None:
                    return environment
                environment.close()
        except OSError as error:
            raise TierCacheError(f"the index {index} cannot be read: {error}") from error
        except lmdb.Error as error:
            raise _refusal(index, error) from error
    raise DamageError(f"the index {index} is damaged: {damage}")


def _is_written(directory: Path) -> bool:
    """Whether another process may write; this one may have locked the namespace to look at it."""
    return owner(directory) not in {None, os.getpid()}


def _audit_pinned(environment: lmdb.Environment, data: Path) -> str | None:
    """Audit a file that is written meanwhile: a transaction keeps its pages from being reused."""
    with environment.begin():
        return audit(data)


def _connect(index: Path) -> lmdb.Environment:
    data, lock = index / DATA, index / LOCK
    if not data.is_file():
        raise DamageError(f"the index {index} is missing: no {DATA}")
    if what := strange(index):
        raise DamageError(f"the index {index} is damaged: {what}")
    if not lock.exists() and _is_written(index.parent):
        raise DamageError(f"the index {index} has no {LOCK}, and its server writes: restart that")
    return lmdb.open(
        str(index),
        readonly=True,
        create=False,
        lock=lock.exists(),
        map_size=0,  # what the file says
        max_readers=MAX_READERS,
        lib_version=0,
    )


def _refusal(index: Path, error: lmdb.Error) -> TierCacheError:
    if isinstance(error, lmdb.InvalidError | lmdb.CorruptedError | lmdb.VersionMismatchError):
        return DamageError(f"the index {index} is damaged: {error}")
    return TierCacheError(f"the index {index} cannot be opened: {error}")


def _readers(text: str) -> Iterator[Reader]:
    """LMDB prints its table: a head, then pid, thread and transaction ("-": none)."""
    for line in text.splitlines():
        words = line.split()
        if words and words[0].isdecimal():
            number = int(words[-1]) if words[-1].isdecimal() else None
            yield Reader(int(words[0]), number, Path(f"/proc/{words[0]}").exists())
