# SPDX-License-Identifier: Apache-2.0
"""Segments as files: their names, their directory, and who may touch them.

Covers what is private to its user, and reading without trust: a file is never mapped by a reader,
as one that shrinks under a mapping ends the program. What the bytes mean is ``format``.
"""

import errno
import mmap
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tiercache.errors import FormatError, NoPoolError
from tiercache.stats.format import Column

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: ``<pool>.<pid>.<rank>.tcs``, with ``.new`` until the header is complete.
_NAME = re.compile(r"(.+)\.([0-9]{1,9})\.([0-9]{1,5})\.tcs(\.new)?")
#: Of a pool's name in that of its file; a file's name has at most 255 bytes.
_LONGEST = 200
SUFFIX = ".tcs"
_NEW_SUFFIX = ".new"


class FileName(NamedTuple):
    """What a segment's file is called after."""

    pool: str
    pid: int
    rank: int
    is_new: bool = False
    """Whether its writer has not completed it."""

    def __str__(self) -> str:
        return f"{plain(self.pool)}.{self.pid}.{self.rank}{SUFFIX}{_NEW_SUFFIX * self.is_new}"

    @classmethod
    def parse(cls, name: str) -> "FileName | None":
        """None: this is not the name of a segment."""
        if not (found := _NAME.fullmatch(name)):
            return None
        pool, pid, rank, new = found.groups()
        return cls(pool, int(pid), int(rank), new is not None)


def plain(name: str) -> str:
    """The name of a pool as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", name)[:_LONGEST] or "_"


def open_private(directory: Path) -> int:
    """Open a directory in which nobody else can write, made if it is missing.

    Raises: OSError if it is a symbolic link, belongs to another user or is open to others.
    """
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
    descriptor = os.open(directory, _FOLDER)
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE:
        return descriptor
    os.close(descriptor)
    owned = f"belongs to user {found.st_uid}" if found.st_uid != os.geteuid() else ""
    raise OSError(errno.EPERM, owned or "others can write in it", str(directory))


def obstacle(directory: Path) -> str:
    """Why segments in it are not looked at, as the rest of a sentence; "" if they are."""
    try:
        found = directory.lstat()
    except OSError as error:
        return "does not exist" if isinstance(error, FileNotFoundError) else "is out of reach"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a directory"
    # What another user put in the place of ours could show anything.
    return f"belongs to user {found.st_uid}" if os.geteuid() not in (0, found.st_uid) else ""


@contextmanager
def appearing(folder: int, name: FileName, nbytes: int) -> Iterator[mmap.mmap]:
    """Memory of a new file, which gets its name after the block, or is gone if that fails.

    Its blocks are allocated: to write where there is no room for them would end the process.

    Raises: OSError.
    """
    unfinished = str(name._replace(is_new=True))
    with suppress(FileNotFoundError):
        os.unlink(unfinished, dir_fd=folder)
    descriptor = os.open(unfinished, _NEW, 0o600, dir_fd=folder)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
        yield mmap.mmap(descriptor, nbytes)
        os.rename(unfinished, str(name), src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(unfinished, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)


class SegmentFile:
    """A file that is read piece by piece.

    Raises: NoPoolError if it cannot be opened, FormatError if it is no file or gets too short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, _READ)
        except (OSError, ValueError) as error:
            raise NoPoolError(_refused(path, error)) from error
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self.close()
            raise FormatError(f"{path}: not a file")

    @property
    def nbytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, nbytes: int) -> bytes:
        data = os.pread(self._descriptor, nbytes, offset)
        if len(data) < nbytes:
            raise FormatError("the file has been cut short")
        return data

    def column(self, column: Column) -> bytes:
        return self.read(column.offset, column.end - column.offset)

    def word(self, column: Column) -> int:
        """The one word of a column."""
        return int.from_bytes(self.column(column), "little")

    def close(self) -> None:
        """Close it; more than once does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _refused(path: Path, error: OSError | ValueError) -> str:
    """One sentence about why a file cannot be opened."""
    match getattr(error, "errno", None):
        case errno.ENOENT | errno.ENOTDIR:
            return f"no pool at {path}"
        case errno.EACCES | errno.EPERM:
            return f"no permission to read {path}{_owner(path)}; run this as the user of the server"
        case errno.ELOOP:
            return f"{path} is a symbolic link, and segments are not"
    return f"cannot read {path}: {error}"


def _owner(path: Path) -> str:
    """Whose it is, or whose the directory is that we may not look into."""
    for place in (path, *path.absolute().parents):
        with suppress(OSError):
            return f", which belongs to user {place.lstat().st_uid}"
    return ""
