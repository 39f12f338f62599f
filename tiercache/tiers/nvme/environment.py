# SPDX-License-Identifier: Apache-2.0
"""Opening the index's LMDB environment: only what is sound, and never larger than its limit.

Covers the audit before LMDB sees a file, LMDB's settings, and making an environment fit fewer slots
than it was made for. Not what its pages say.
"""

import mmap
import os
import shutil
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb
import lmdb.verify

from tiercache.tiers.nvme.pages import PAGE_BYTES, is_page_of, page_count

#: A killed reader keeps its place in LMDB's table until somebody looks; hundreds may pile up.
MAX_READERS: Final = 512
#: What the lock file takes for as many readers.
LOCK_BYTES: Final = 40 << 10
#: LMDB takes the pages of this machine, up to 32 KiB.
LMDB_PAGE_BYTES: Final = min(mmap.PAGESIZE, 32 << 10)
#: A page that was replaced is free two transactions later: if each writes all pages, three
#: generations lie in the file. Measured: at most 3.3, and 24 pages of LMDB's own.
_GENERATIONS: Final = 4
_SPARE_PAGES: Final = 32

#: What LMDB says of a file, or of an environment, that it cannot go on with.
DAMAGE: Final = (
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
#: LMDB's two meta pages start with a header, magic and version. Then come the address of a fixed
#: map, the map's size, and for the free list and for the table: a number, flags, depth and five
#: counts. The free list's number is the page size; its only flag says that its keys are integers.
#: The audit of lmdb.verify takes other flags for somebody's choice, and LMDB acts on them.
_META: Final = struct.Struct("=24xQ8xIH42xIH42x")
_OURS: Final = (0, LMDB_PAGE_BYTES, 0x08, 0, 0)
DATA, LOCK, COMPACT = "data.mdb", "lock.mdb", "compact"
#: A file beside them: what the environment holds is not for the process that opens it next.
CLEARED = "cleared"


def map_limit(slots: Mapping[int, int]) -> int:
    """Bytes of the largest map, and so of the largest file, for so many slots by group."""
    pages = sum(map(page_count, slots.values()))
    # LMDB puts 16 bytes before a value. One that fits into a leaf takes at most a page, too.
    lmdb_pages_each = -(-(16 + PAGE_BYTES) // LMDB_PAGE_BYTES)
    return (_GENERATIONS * pages * lmdb_pages_each + _SPARE_PAGES) * LMDB_PAGE_BYTES


def open_environment(
    directory: Path, slots: Mapping[int, int], *, durable: bool
) -> tuple[lmdb.Environment, str | None]:
    """Open the environment, and say why it began anew if it did.

    Without pages of no slot. The map has the size of the limit. Raises OSError and lmdb.Error.
    """
    clear_copy(directory)
    damage = strange(directory) or audit(directory / DATA)
    if not damage:
        try:
            return _fit(directory, slots, durable=durable), None
        except DAMAGE as error:
            damage = str(error)
    remove(directory)
    return _fit(directory, slots, durable=durable), damage


def remove(directory: Path) -> None:
    """Remove the files of a closed environment."""
    for name in (LOCK, DATA):
        (directory / name).unlink(missing_ok=True)


def disinherit(directory: Path) -> None:
    """Have ``inherit`` remove the environment; on the disk when this returns. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(directory / CLEARED, flags, 0o600))
    sync(directory)


def inherit(directory: Path) -> None:
    """Take over what a former process left, or remove it if that said so. Raises OSError."""
    if os.path.lexists(directory / CLEARED):
        remove(directory)
        (directory / CLEARED).unlink()


def sync(path: Path) -> None:
    """Return when the disk has a file, or the names in a directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def strange(directory: Path) -> str | None:
    """What LMDB, which writes through links, must not be given: what is there and no regular file.

    Of the file of readers, too: LMDB overwrites what it leads to.
    """
    for name in (DATA, LOCK):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG((directory / name).lstat().st_mode):
                return f"{name} is no regular file"
    return None


def audit(data: Path) -> str | None:
    """Why LMDB must not be given this file: it trusts what it reads, and crashes over damage."""
    if not _size(data):
        return None
    try:
        found: list[str] = lmdb.verify.verify(str(data))  # type: ignore[no-untyped-call]
    except lmdb.verify.VerifyError as error:
        return str(error)
    return found[0] if found else is_ours(data)


def is_ours(data: Path) -> str | None:
    """Why the tables of a file are not the index's. What it looks at never changes."""
    with data.open("rb") as file:
        start = file.read(2 * LMDB_PAGE_BYTES)
    places = (0, LMDB_PAGE_BYTES)
    if start and (
        len(start) < 2 * LMDB_PAGE_BYTES
        or any(_META.unpack_from(start, at) != _OURS for at in places)
    ):
        return "its tables are not of the kind that the index has"
    return None


def _fit(directory: Path, slots: Mapping[int, int], *, durable: bool) -> lmdb.Environment:
    limit = map_limit(slots)
    # Removing takes room, too.
    environment = connect(directory, 2 * max(limit, _size(directory / DATA)), durable=durable)
    try:
        environment.reader_check()
        _trim(environment, slots)
        if _size(directory / DATA) > limit:
            compact(environment, directory)
            environment = connect(directory, limit, durable=durable)
        environment.set_mapsize(limit)
    except BaseException:
        environment.close()
        raise
    return environment


def connect(directory: Path, map_bytes: int, *, durable: bool) -> lmdb.Environment:
    return lmdb.open(
        str(directory),
        map_size=map_bytes,
        mode=0o600,
        sync=durable,
        metasync=False,
        writemap=False,
        max_readers=MAX_READERS,
        lib_version=0,  # 3.0 brings two engines that do not read each other's files
    )


def _trim(environment: lmdb.Environment, slots: Mapping[int, int]) -> None:
    """Remove what is no page of a slot."""
    with environment.begin(write=True) as transaction:
        with transaction.cursor() as cursor:
            keys = list(cursor.iternext(keys=True, values=False))
        for key in keys:
            if not is_page_of(key, slots):
                transaction.delete(key)


def clear_copy(directory: Path) -> None:
    """Remove what an interrupted ``compact`` left, whatever it is."""
    copy = directory / COMPACT
    if copy.is_dir() and not copy.is_symlink():
        shutil.rmtree(copy, ignore_errors=True)
    else:
        copy.unlink(missing_ok=True)


def compact(environment: lmdb.Environment, directory: Path) -> None:
    """Close the environment and put a copy without free pages in its place."""
    target = directory / COMPACT
    target.mkdir(mode=0o700)
    environment.copy(str(target), compact=True)
    environment.close()
    (target / DATA).chmod(0o600)
    # Readers of the old file keep its lock file, which counts that file's transactions.
    (directory / LOCK).unlink(missing_ok=True)
    (target / DATA).replace(directory / DATA)
    target.rmdir()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
