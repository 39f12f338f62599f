# SPDX-License-Identifier: Apache-2.0
"""Segment files: where on disk the slots of one group lie, and that their space is there.

Covers opening, allocating, trimming and removing the files, and turning slots into runs that one
system call can transfer. Does not know what a slot holds, and transfers nothing.
"""

import errno
import fcntl
import logging
import mmap
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from tiercache.blocks import SLOT_ALIGNMENT
from tiercache.errors import ConfigError
from tiercache.tiers.nvme.io import IOV_MAX

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 1 << 30
#: Long enough that a busy Python thread, which delays every call by a few milliseconds, costs
#: little; short enough that a queue of them does not keep an urgent job waiting.
RUN_BYTES = 64 << 20

_NAME = re.compile(r"(\d{6,})\.seg")
#: A segment that is being allocated. What a killed process left of one is removed at start.
UNFINISHED = ".new"
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
#: How a file system says that it does not take direct I/O, or not in units of a slot's alignment.
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)
#: Devices whose file systems refused, as far as the log knows.
_buffered: set[int] = set()


@dataclass(frozen=True, slots=True)
class Run:
    """``slots[start : start + count]`` of a sequence lie at ``offset`` bytes of ``fd``."""

    fd: int
    offset: int
    start: int
    count: int


class Segments:
    """The segment files of one group: ``slots`` records of ``record_bytes`` bytes.

    Files that no slot needs any more are removed, and what is too long is cut, before this
    returns: whatever was there, afterwards the group occupies no more than its slots do. Direct
    I/O where the file system takes it; otherwise buffered, with one warning per file system.

    One descriptor per segment stays open until ``close``. A segment that somebody deletes can be
    used through it; after a restart it is missing.

    Locking: ``prepare`` is serialised, as it may undo what it began; the rest takes no lock. Any
    thread may call any method, but ``close`` only when no other runs and no run is in transfer.
    Raises: ConfigError for sizes that cannot be, and for a segment that is no regular file;
    OSError from the file system.
    """

    allocated: int
    """Bytes that the segments occupy."""

    def __init__(
        self,
        directory: Path,
        record_bytes: int,
        slots: int,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        direct: bool = True,
    ) -> None:
        _check_sizes(record_bytes, slots)
        self.allocated = 0
        self._path = directory
        self._record_bytes = record_bytes
        self._slots = slots
        self._direct = direct
        self._slots_per_segment = max(1, min(slots, segment_bytes // record_bytes))
        self._run_slots = max(1, min(IOV_MAX, RUN_BYTES // record_bytes))
        self._files: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._preparing = Lock()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = os.open(directory, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._open_all()
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """Segments that hold all slots; each of them needs a descriptor."""
        return -(-self._slots // self._slots_per_segment)

    def absent(self, slots: Iterable[int]) -> list[int]:
        """Those of ``slots`` that no file holds: never allocated, or cut off.

        Finer than ``lacking``: a segment that only has to grow keeps the slots it has.
        """
        size = self._slots_per_segment
        # Not the last one: a number beyond the last slot may seem to lie in it.
        whole = {number for number in range(self.count - 1) if self._is_whole(number)}
        return [slot for slot in slots if slot // size not in whole and not self._holds(slot)]

    def lacking(self) -> list[range]:
        """Slots of the segments that are not there in full, as runs."""
        runs: list[range] = []
        for number in range(self.count):
            if not self._is_whole(number):
                start = number * self._slots_per_segment
                if runs and runs[-1].stop == start:
                    start = runs.pop().start
                runs.append(range(start, min((number + 1) * self._slots_per_segment, self._slots)))
        return runs

    def missing(self, slots: Iterable[int]) -> int:
        """Bytes that ``prepare`` would allocate."""
        return sum(
            self._full_size(number) - self._sizes.get(number, 0) for number in self._lacking(slots)
        )

    def prepare(self, slots: Iterable[int]) -> None:
        """Allocate the segments of ``slots`` that are not there in full. Blocks.

        All or nothing: an OSError (ENOSPC) leaves every file and ``allocated`` as they were.
        """
        if not self._lacking(slots := list(slots)):
            return
        with self._preparing, ExitStack() as undo:
            grown = {number: self._grow(number, undo) for number in self._lacking(slots)}
            os.fsync(self._directory)
            undo.pop_all()
            self._files.update(grown)
            self._sizes.update((number, self._full_size(number)) for number in grown)
            self.allocated = sum(self._sizes.values())

    def runs(self, slots: Sequence[int]) -> list[Run]:
        """Divide ``slots`` into runs of neighbours, in the order given.

        A run lies in one segment and has at most RUN_BYTES (or one slot) and IOV_MAX slots. Raises
        FileNotFoundError for a slot whose segment was never allocated.
        """
        self._check(slots)
        found = []
        start = 0
        while start < len(slots):
            count = 1
            while start + count < len(slots) and self._joins(slots, start, count):
                count += 1
            found.append(self._run(slots[start], start, count))
            start += count
        return found

    def close(self) -> None:
        """Close the files. Does nothing the second time."""
        while self._files:
            os.close(self._files.popitem()[1])
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _joins(self, slots: Sequence[int], start: int, count: int) -> bool:
        slot = slots[start + count]
        return (
            slot == slots[start] + count
            and count < self._run_slots
            and slot % self._slots_per_segment != 0
        )

    def _run(self, slot: int, start: int, count: int) -> Run:
        number, index = divmod(slot, self._slots_per_segment)
        try:
            fd = self._files[number]
        except KeyError:
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), str(self._path / segment_name(number))
            ) from None
        return Run(fd, index * self._record_bytes, start, count)

    def _check(self, slots: Sequence[int]) -> None:
        if slots and not 0 <= min(slots) <= max(slots) < self._slots:
            raise IndexError(f"slots are 0 to {self._slots - 1}")

    def _lacking(self, slots: Iterable[int]) -> list[int]:
        """Segments of ``slots`` that are not there in full."""
        self._check(slots := list(slots))
        numbers = {slot // self._slots_per_segment for slot in slots}
        return sorted(number for number in numbers if not self._is_whole(number))

    def _holds(self, slot: int) -> bool:
        number, index = divmod(slot, self._slots_per_segment)
        return 0 <= slot < self._slots and (index + 1) * self._record_bytes <= self._sizes.get(
            number, 0
        )

    def _is_whole(self, number: int) -> bool:
        return self._sizes.get(number, 0) >= self._full_size(number)

    def _full_size(self, number: int) -> int:
        first = number * self._slots_per_segment
        return min(self._slots_per_segment, self._slots - first) * self._record_bytes

    def _open_all(self) -> None:
        with os.scandir(self._directory) as entries:
            found = [
                (entry, number) for entry in entries if (number := segment_number(entry.name)) >= 0
            ]
        for entry, number in found:
            if not entry.is_file(follow_symlinks=False):
                allowed = "a regular file under this name, no link"
                raise ConfigError("path", str(self._path / entry.name), allowed)
            if entry.name.endswith(UNFINISHED) or number >= self.count:
                os.unlink(entry.name, dir_fd=self._directory)
            else:
                self._open(number)
        self.allocated = sum(self._sizes.values())

    def _open(self, number: int) -> None:
        fd = os.open(segment_name(number), _FLAGS, dir_fd=self._directory)
        self._files[number] = fd
        full = self._full_size(number)
        size = os.fstat(fd).st_size
        if size > full:
            os.ftruncate(fd, full)
        self._sizes[number] = min(size, full)
        if size >= full:
            self._set_direct(fd)

    def _grow(self, number: int, undo: ExitStack) -> int:
        """Allocate what a segment lacks; its descriptor. ``undo`` brings back what was before."""
        size, full = self._sizes.get(number, 0), self._full_size(number)
        fd = self._files.get(number)
        if fd is not None:
            undo.callback(os.ftruncate, fd, size)
            os.posix_fallocate(fd, size, full - size)
        else:
            fd = self._create(segment_name(number), full, undo)
        # Not before: where fallocate is emulated, it writes single bytes.
        self._set_direct(fd)
        return fd

    def _create(self, name: str, size: int, undo: ExitStack) -> int:
        temporary = name + UNFINISHED
        flags = _FLAGS | os.O_CREAT | os.O_TRUNC
        fd = os.open(temporary, flags, 0o600, dir_fd=self._directory)
        undo.callback(self._remove, name, temporary)
        undo.callback(os.close, fd)
        os.posix_fallocate(fd, 0, size)
        os.rename(temporary, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        return fd

    def _remove(self, *names: str) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory)

    def _set_direct(self, fd: int) -> None:
        if not self._direct or _takes_direct(fd):
            return
        self._direct = False
        device = os.fstat(fd).st_dev
        if device not in _buffered:
            _buffered.add(device)
            logger.warning("%s: no direct I/O on this file system, using its cache", self._path)


def _check_sizes(record_bytes: int, slots: int) -> None:
    if record_bytes < 1 or record_bytes % SLOT_ALIGNMENT:
        allowed = f"a positive multiple of {SLOT_ALIGNMENT}"
        raise ConfigError("record_bytes", record_bytes, allowed)
    if slots < 1:
        raise ConfigError("slots", slots, "at least one")


def _takes_direct(fd: int) -> bool:
    """Switch ``fd`` to direct I/O, if a page can be read that way."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        with closing(mmap.mmap(-1, SLOT_ALIGNMENT)) as page:
            os.preadv(fd, [page], 0)
    except OSError as error:
        if error.errno in _REFUSALS:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            return False
    return True


def segment_name(number: int) -> str:
    return f"{number:06d}.seg"


def segment_number(name: str) -> int:
    """The segment that a file is, or was to become; -1 for a file that is not ours."""
    name = name.removesuffix(UNFINISHED)
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and segment_name(int(match[1])) == name else -1
