# SPDX-License-Identifier: Apache-2.0
"""A pool of the NVMe tier read from outside, while a server writes to it or nobody does.

Covers which namespaces there are, their entries and where their records lie. Nothing here creates,
repairs or locks anything, but for the place that LMDB gives each reader in ``index/lock.mdb``. What
is damaged, and how it is put right, is ``audit`` and ``repair``.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tiercache.blocks import Key, make_key
from tiercache.errors import FormatError, NoPoolError, TierCacheError
from tiercache.tiers.nvme.environment import CLEARED, DATA
from tiercache.tiers.nvme.namespace import (
    FORMAT,
    INDEX,
    LOCK,
    NAME,
    occupied,
    owner,
    read_meta,
)
from tiercache.tiers.nvme.pages import PAGE_SLOTS, is_intact, page_number, unpack
from tiercache.tiers.nvme.reader import IndexReader
from tiercache.tiers.nvme.segments import SEGMENT_BYTES, segment_name

#: A key of the index has two bytes for the group.
_MOST_GROUPS: Final = 1 << 16
_MOST_RECORD_BYTES: Final = 1 << 40


class StoredEntry(NamedTuple):
    """What the index says of one slot."""

    group_id: int
    slot: int
    block_hash: bytes
    checksum: int
    stamp: int
    """A count, not a time: the higher, the younger, in all groups of a namespace."""

    @property
    def key(self) -> Key:
        return make_key(self.block_hash, self.group_id)


class RecordAt(NamedTuple):
    """Where a record lies: ``nbytes`` bytes at ``offset`` of ``file``, which may be missing."""

    file: Path
    offset: int
    nbytes: int


class OfflineNamespace:
    """The namespace in ``directory``, not locked: what it holds may change at any time.

    The index is opened when something of it is asked for, and stays open until ``close``. Locking:
    none, one thread. Raises: TierCacheError if this process has no access, or has the index open
    already; FormatError and DamageError where the index is asked.
    """

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.torn = 0
        """Damaged pages that were left out so far."""
        self._index: IndexReader | None = None
        try:
            self.meta: Mapping[str, Any] | None = read_meta(directory)
        except IsADirectoryError:
            self.meta = None
        except OSError as error:
            raise TierCacheError(f"{directory} cannot be read: {error}") from error

    # --- what it is

    @property
    def name(self) -> str:
        """The fingerprint's hash: 16 hex digits."""
        return self.directory.name

    @property
    def format(self) -> int | None:
        """Version of what lies here; None if meta.json is missing or damaged."""
        return None if self.meta is None else int(self.meta["format"])

    @property
    def is_cleared(self) -> bool:
        """Whether its server has cleared it: what it holds is for that process, and no other."""
        return os.path.lexists(self.directory / INDEX / CLEARED)

    @property
    def created_by(self) -> str | None:
        return None if self.meta is None else str(self.meta.get("created_by"))

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What the bytes are of, ``record_bytes`` included; nothing if meta.json is damaged."""
        found: Mapping[str, Any] = {} if self.meta is None else self.meta["fingerprint"]
        return found

    @property
    def model(self) -> str | None:
        """What the model is called, if the fingerprint says so."""
        found = self.fingerprint.get("model")
        return found if isinstance(found, str) else None

    @cached_property
    def record_bytes(self) -> dict[int, int]:
        """Bytes of a record by group; nothing if meta.json does not say."""
        found = self.fingerprint.get("record_bytes")
        if not isinstance(found, Mapping):
            return {}
        return {int(group): size for group, size in sorted(found.items()) if is_group(group, size)}

    @property
    def groups(self) -> list[int]:
        return sorted(self.record_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes that all its files occupy."""
        return occupied(self.directory)

    @property
    def opened_at(self) -> float | None:
        """When a server last opened it, seconds of the wall clock."""
        try:
            return (self.directory / LOCK).stat().st_mtime
        except OSError:
            return None

    @property
    def pid(self) -> int | None:
        """The process that has it open for writing, if one that we can see has; 0: unknown which.

        Not by trying the lock: a server that starts at that moment would be refused.
        """
        return owner(self.directory)

    # --- what is in it

    @property
    def index_directory(self) -> Path:
        return self.directory / INDEX

    def group_directory(self, group_id: int) -> Path:
        return self.directory / f"g{group_id}"

    def slots_per_segment(self, group_id: int) -> int:
        return max(1, self.segment_bytes // self.record_bytes[group_id])

    def location(self, group_id: int, slot: int) -> RecordAt:
        """Where the record of a slot lies, if it is there. KeyError for a group that is not."""
        number, index = divmod(slot, self.slots_per_segment(group_id))
        size = self.record_bytes[group_id]
        file = self.group_directory(group_id) / segment_name(number)
        return RecordAt(file, index * size, size)

    def entries(self, group_id: int) -> Iterator[list[StoredEntry]]:
        """The entries of a group by slot, a list for each short transaction.

        Damaged pages are left out, and counted in ``torn``. Nothing is sorted out otherwise: of
        entries with the same hash the youngest counts, and a record need not be there.
        """
        for rows in self.index.rows(group_id) if self.indexed else ():
            found: list[StoredEntry] = []
            for key, page in rows:
                if is_intact(key, page):
                    first = page_number(key) * PAGE_SLOTS
                    found += (StoredEntry(group_id, first + at, *row) for at, row in unpack(page))
                else:
                    self.torn += 1
            yield found

    @property
    def index(self) -> IndexReader:
        """The index, opened. Raises FormatError, DamageError, TierCacheError."""
        if self._index is None:
            if self.format not in {None, FORMAT}:
                found = f"format {self.format} found, this version reads {FORMAT}"
                raise FormatError(f"the namespace {self.directory} cannot be read: {found}")
            self._index = IndexReader(self.directory)
        return self._index

    @property
    def indexed(self) -> bool:
        """Whether there is an index at all."""
        data = self.index_directory / DATA
        return data.is_file() and data.stat().st_size > 0

    def close(self) -> None:
        """Close the index. It is opened again when it is asked."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OfflinePool:
    """The namespaces below ``path``; closes all of them at its end."""

    def __init__(self, path: Path, namespaces: Sequence[OfflineNamespace]) -> None:
        self.path = path
        self.namespaces = tuple(namespaces)

    def only(self, name: str | None = None) -> OfflineNamespace:
        """The one namespace, or the one whose name begins with ``name``. Raises NoPoolError."""
        chosen = [one for one in self.namespaces if one.name.startswith(name or "")]
        if len(chosen) == 1:
            return chosen[0]
        listed = ", ".join(one.name for one in self.namespaces) or "none"
        if chosen and name is None:
            text = f"{self.path} has several namespaces: {listed}; name one with --namespace"
        else:
            which = "several namespaces whose names begin" if chosen else "no namespace that begins"
            text = f"{self.path} has {which} with {name!r}; there are: {listed}"
        raise NoPoolError(text)

    def close(self) -> None:
        for namespace in self.namespaces:
            namespace.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_readonly(path: Path, *, segment_bytes: int = SEGMENT_BYTES) -> OfflinePool:
    """The pool at ``path``: a tier's directory, or a namespace in it.

    ``segment_bytes`` is what the tier was opened with. Raises NoPoolError if there is none, and
    TierCacheError if it cannot be looked at.
    """
    try:
        found = list(_namespaces(path))
    except OSError as error:
        raise TierCacheError(f"{path} cannot be read: {error}") from error
    if not found:
        raise NoPoolError(
            f"there is no pool in {path}: expected the path of an nvme tier, or a namespace in it"
        )
    return OfflinePool(
        path, [OfflineNamespace(each, segment_bytes=segment_bytes) for each in found]
    )


def is_group(group: str, size: object) -> bool:
    """Whether a group, as JSON names it, and the bytes of its records are ones that can be."""
    is_number = group.isascii() and group.isdecimal() and len(group) <= len(str(_MOST_GROUPS))
    return (
        is_number
        and int(group) < _MOST_GROUPS
        and type(size) is int
        and 0 < size < _MOST_RECORD_BYTES
    )


def is_namespace(directory: Path) -> bool:
    """Whether a directory is named like a namespace, and is no link."""
    return bool(NAME.fullmatch(directory.name)) and stat.S_ISDIR(directory.lstat().st_mode)


def _namespaces(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        return
    if NAME.fullmatch(path.resolve().name):
        yield path.resolve()
        return
    yield from (each for each in sorted(path.iterdir()) if is_namespace(each))
