# SPDX-License-Identifier: Apache-2.0
"""Changing a namespace from outside: alone, whole, and without leaving anything of another user's.

Covers the lock that keeps servers away, changes to the index in one transaction, and giving the
space of slots back. What is to be changed is decided by whoever calls.
"""

import ctypes
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import lmdb

from tiercache.errors import ConfigError, DamageError, PoolBusyError, TierCacheError
from tiercache.tiers.nvme.environment import (
    DATA,
    audit,
    clear_copy,
    compact,
    connect,
    strange,
    sync,
)
from tiercache.tiers.nvme.namespace import INDEX, LOCK, Namespace, owner
from tiercache.tiers.nvme.pages import Entry, Location, edit, is_intact, to_edits

#: What a transaction needs beside the file: each page may be written anew, and then freed.
_SPARE_BYTES: Final = 64 << 20
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
#: How a file system says that it has no holes.
_NO_HOLES: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
#: Zeros that are written at once.
WIPE_BYTES: Final = 8 << 20


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keep every server away from a namespace, as a server keeps others away.

    The time at which a server last opened it stays known, and files that are made meanwhile belong
    to whom the namespace belongs. Raises PoolBusyError, which names the process that has it, and
    TierCacheError.
    """
    opened_at = _modified(directory / LOCK)
    try:
        lock = Namespace(directory)
    except ConfigError as error:
        raise _busy(directory) from error
    except OSError as error:
        raise TierCacheError(f"the namespace {directory} cannot be locked: {error}") from error
    try:
        yield
    finally:
        if opened_at is not None:
            with suppress(OSError):
                os.utime(directory / LOCK, ns=opened_at)
        adopt(directory)
        lock.close()


def check_free(directory: Path) -> None:
    """Raise PoolBusyError if a process has a namespace now: before a question, not instead of it.

    Only whoever holds it is sure.
    """
    if owner(directory) not in {None, os.getpid()}:
        raise _busy(directory)


def _busy(directory: Path) -> PoolBusyError:
    pid = owner(directory)
    user = f"process {pid}" if pid else "a process"
    return PoolBusyError(f"the namespace {directory} is in use by {user}: stop that one first")


def adopt(directory: Path) -> None:
    """Give what root made in a user's namespace to that user."""
    if not directory.exists() or os.geteuid() != 0:
        return
    user, group = directory.stat().st_uid, directory.stat().st_gid
    for path in directory.rglob("*"):
        if path.lstat().st_uid != user:
            os.lchown(path, user, group)


def _modified(file: Path) -> tuple[int, int] | None:
    try:
        found = file.lstat()
    except OSError:
        return None
    return found.st_atime_ns, found.st_mtime_ns


class IndexWriter:
    """The index of a namespace that is held; nothing else may have it open. Use ``close``.

    Every change is on the disk when a method returns. Raises: DamageError if LMDB must not be
    given the file, lmdb.Error and OSError.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / INDEX
        if damage := strange(self._directory) or audit(self._data):
            raise DamageError(f"the index {self._directory} is damaged: {damage}")
        size = self._data.stat().st_size if self._data.exists() else 0
        self._environment = connect(self._directory, 4 * size + _SPARE_BYTES, durable=True)

    def change(
        self, changes: Mapping[Location, Entry | None], *, removed: Iterable[bytes] = ()
    ) -> None:
        """Set and remove entries, and remove pages, in one transaction."""
        removed = list(removed)
        while True:
            try:
                self._transact(changes, removed)
                break
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
        self._environment.sync(True)

    def _transact(self, changes: Mapping[Location, Entry | None], removed: Iterable[bytes]) -> None:
        with self._environment.begin(write=True) as transaction:
            for key in removed:
                transaction.delete(key)
            for key, edits in to_edits(changes).items():
                page = transaction.get(key)
                whole = page if page is not None and is_intact(key, page) else None
                transaction.put(key, edit(key, whole, edits))

    def free_readers(self) -> int:
        """Free the places of dead readers; returns how many there were."""
        return self._environment.reader_check()

    def compact(self) -> int:
        """Put a copy without free pages in the place of the file, and close. Bytes that went."""
        before = self._data.stat().st_size
        clear_copy(self._directory)
        compact(self._environment, self._directory)
        sync(self._directory)
        return before - self._data.stat().st_size

    def close(self) -> None:
        self._environment.close()

    @property
    def _data(self) -> Path:
        return self._directory / DATA


@contextmanager
def index_of(directory: Path) -> Iterator[IndexWriter]:
    """The index of a namespace that is held, for changes; closed at the end."""
    writer = IndexWriter(directory)
    try:
        yield writer
    finally:
        writer.close()


@contextmanager
def _writable(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield descriptor
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def wipe(file: Path, ranges: Sequence[tuple[int, int]]) -> None:
    """Overwrite ``ranges`` (first byte, byte behind the last) with zeros. Raises OSError."""
    zeros = memoryview(bytes(min(WIPE_BYTES, max((b - a for a, b in ranges), default=0))))
    with _writable(file) as descriptor:
        for start, end in ranges:
            at = start
            while at < end:
                at += os.pwrite(descriptor, zeros[: end - at], at)


def write_at(file: Path, offset: int, content: bytes) -> None:
    """Write ``content`` at ``offset`` bytes of a file, onto the disk. Raises OSError."""
    left = memoryview(content)
    with _writable(file) as descriptor:
        while left:
            done = os.pwrite(descriptor, left, offset)
            left, offset = left[done:], offset + done


def punch(file: Path, ranges: Sequence[tuple[int, int]]) -> bool:
    """Give the space of ``ranges`` back; they read as zeros then. False: no holes here."""
    with _writable(file) as descriptor:
        for start, end in ranges:
            if not _punch(descriptor, start, end - start):
                return False
    return True


def _punch(descriptor: int, offset: int, nbytes: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    mode = _PUNCH_HOLE | _KEEP_SIZE
    if libc.fallocate(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(nbytes)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_HOLES:
        return False
    raise OSError(code, os.strerror(code))


def cut(file: Path, nbytes: int) -> None:
    """Cut a file off. Raises OSError."""
    with _writable(file) as descriptor:
        os.ftruncate(descriptor, nbytes)
