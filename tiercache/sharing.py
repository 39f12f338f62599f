# SPDX-License-Identifier: Apache-2.0
"""The memory under an arena, and how another process reaches it: memfds, tickets, attaching.

Covers address space on 2 MiB boundaries, in private or shared pages. Does not check how much
memory is left, and keeps nobody from writing where another reads: who may use which slot when is
decided by the scheduler. Runs without torch.
"""

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tiercache.errors import UnsupportedError

#: The size of a huge page: memory that starts on its boundary can lie in huge pages only.
ALIGNMENT = 2 << 20
#: Linux 5.14 and 6.1; the mmap module has no names for them.
MADV_POPULATE_WRITE = 23
MADV_COLLAPSE = 25
#: Bytes populated by one call, which holds the interpreter lock for about 0.2 s.
POPULATE_STEP = 1 << 30
#: One huge page that the kernel cannot find costs the rest of its step.
COLLAPSE_STEP = 64 << 20
#: Huge pages are the point. A forked child never reads the arena, and copying its page tables
#: (or, once pinned, the memory itself) would stall the fork; a core dump has no use for it.
_ADVICE = (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK, mmap.MADV_DONTDUMP)
_MAP_FIXED = 0x10
_MFD_CLOEXEC = 1
_MFD_ALLOW_SEALING = 2
_MFD_HUGETLB_2MB = 4 | 21 << 26
#: Linux 6.3; some systems refuse a memfd that could be executed.
_MFD_NOEXEC_SEAL = 8
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
#: F_SEAL_SHRINK | F_SEAL_GROW: memory that shrinks under a mapping ends who touches it.
_SEALS = 2 | 4
_PREFIX = "tiercache-arena-"

# Interpreters built for old systems, those of uv and conda among them, lack os.memfd_create and
# the names of the seals, whatever the C library and the kernel offer.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.memfd_create.argtypes = [ctypes.c_char_p, ctypes.c_uint]
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.mmap.restype = ctypes.c_void_p


class Memory:
    """``nbytes`` of address space on a 2 MiB boundary: private, or a memfd's if one is given.

    Neither forked children nor core dumps get it. It is unmapped by ``close`` or with the last
    reference, but never under a view.

    Locking: none. Raises: OSError.
    """

    attached: bool = False
    """Whether somebody in this process has attached to it, whose views may outlive the arena."""

    def __init__(self, nbytes: int, descriptor: int | None = None) -> None:
        self.nbytes = nbytes
        self._mapping = mmap.mmap(
            -1, nbytes + ALIGNMENT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._start = -base % ALIGNMENT
        self.address = base + self._start
        if descriptor is not None:
            _map_over(self.address, nbytes, descriptor)
        for advice in _ADVICE:
            # A kernel built without one of these refuses it; all of them are optional.
            with suppress(OSError):
                self._advise(advice, 0, nbytes)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Writable bytes, format "B"; keeps the memory mapped."""
        begin = self._start + offset
        return memoryview(self._mapping)[begin : begin + nbytes]

    def populate(self) -> None:
        """Make every page resident. OSError with EINVAL from a kernel that has no call for it."""
        for at, nbytes in self._steps(POPULATE_STEP):
            self._advise(MADV_POPULATE_WRITE, at, nbytes)

    def collapse(self) -> None:
        """Move shared memory into huge pages, also where new pages of its kind would be small.

        Nothing is lost if the kernel cannot or will not. Before ``populate`` it is twice as fast
        as after it, as it then has next to nothing to move.
        """
        for at, nbytes in self._steps(COLLAPSE_STEP):
            try:
                for page in range(at, at + nbytes, ALIGNMENT):
                    # Where no page is mapped, there is nothing to collapse into.
                    self._advise(MADV_POPULATE_WRITE, page, mmap.PAGESIZE)
                self._advise(MADV_COLLAPSE, at, nbytes)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return

    def close(self) -> bool:
        """Unmap it; False if a view is held: then it stays mapped until that view is gone."""
        try:
            self._mapping.close()
        except BufferError:
            return False
        return True

    def _advise(self, advice: int, at: int, nbytes: int) -> None:
        self._mapping.madvise(advice, self._start + at, nbytes)

    def _steps(self, step: int) -> Iterator[tuple[int, int]]:
        for at in range(0, self.nbytes, step):
            yield at, min(step, self.nbytes - at)


class Memfd:
    """Memory with a descriptor and without a file, sealed against resizing.

    ``reserved``: in the 2 MiB pages that an administrator set aside. The memory lives while any
    process holds the descriptor or maps it. The descriptor is closed by ``close``, with the last
    reference, and in every forked child, which could not use it and would keep the memory.

    Raises: OSError, among others when too few pages are reserved.
    """

    def __init__(self, name: str, nbytes: int, *, reserved: bool = False) -> None:
        self.descriptor = _sealed(name, nbytes, reserved=reserved)
        self.close = weakref.finalize(self, os.close, self.descriptor)
        self.close.atexit = False
        _memfds.add(self)


class Region(NamedTuple):
    """Where the slots of a group lie in an arena; ``offset`` and ``slot_bytes`` in bytes."""

    offset: int
    slots: int
    slot_bytes: int

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes


@dataclass(frozen=True, slots=True)
class ArenaTicket:
    """All that another process of the same user needs to attach to an arena. Can be pickled."""

    pid: int
    started: int
    """Of that process, in clock ticks after boot: tells it from a later one with its id."""
    name: str
    """Of the arena, unique within that process; of a shared one, the memfd's, too."""
    descriptor: int | None
    """None if the memory is private to that process."""
    nbytes: int
    regions: Mapping[int, Region]


class Attached:
    """The slots of an arena as plain bytes, in its own process or in another.

    Locking: none; views may be used from any thread.
    """

    def __init__(self, ticket: ArenaTicket, memory: Memory, *, unmap: bool) -> None:
        self.regions = ticket.regions
        self._views = {
            group_id: memory.view(region.offset, region.nbytes)
            for group_id, region in ticket.regions.items()
        }
        self._memory = memory if unmap else None
        memory.attached |= not unmap

    def region(self, group_id: int) -> memoryview:
        """The slots of a group as ``slots * slot_bytes`` writable bytes, format "B", not a copy.

        Raises KeyError for a group without a region and after ``close``.
        """
        return self._views[group_id]

    def close(self) -> None:
        """Let go of the memory: the views must not be used any more, and raise ValueError.

        Slices of them stay valid, and keep the memory mapped until they are gone: a read that is
        under way ends where it should. Does nothing the second time.
        """
        for view in self._views.values():
            with suppress(BufferError):
                view.release()
        self._views.clear()
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def unique_name() -> str:
    """A name for the next arena of this process."""
    return f"{_PREFIX}{os.getpid()}-{next(_numbers)}"


@contextmanager
def published(
    name: str, memory: Memory, memfd: Memfd | None, regions: Mapping[int, Region]
) -> Iterator[ArenaTicket]:
    """The ticket of an arena. Its own process can attach while the context is open."""
    pid = os.getpid()
    descriptor = memfd.descriptor if memfd else None
    _arenas[name] = memory
    try:
        yield ArenaTicket(pid, _start_time(pid), name, descriptor, memory.nbytes, dict(regions))
    finally:
        _arenas.pop(name, None)


def attach(ticket: ArenaTicket) -> Attached:
    """Reach an arena from the process that made it, or from another if it is a shared one.

    Every page is mapped by then, on Linux 5.14 and later: no read or write ever waits for one.

    Raises: UnsupportedError if the ticket is no longer, or never was, good for this process.
    """
    if any(region.offset + region.nbytes > ticket.nbytes for region in ticket.regions.values()):
        raise _refusal(ticket, f"its regions do not fit into {ticket.nbytes} bytes")
    _check_process(ticket)
    if ticket.pid == os.getpid():
        own = _arenas.get(ticket.name)
        if own is None:
            raise _refusal(ticket, "it is closed")
        return Attached(ticket, own, unmap=False)
    try:
        memory = _map(ticket)
    except OSError as error:
        raise _refusal(ticket, f"it cannot be opened: {error.strerror}") from error
    return Attached(ticket, memory, unmap=True)


def _map(ticket: ArenaTicket) -> Memory:
    if ticket.descriptor is None:
        raise _refusal(ticket, "its memory is private to that process")
    path = f"/proc/{ticket.pid}/fd/{ticket.descriptor}"
    # Whatever else has this number by now is better not opened at all.
    _check_name(ticket, path)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # Again: the process may have ended, and its id been given away, before the file was open.
        _check_process(ticket)
        _check_name(ticket, f"/proc/self/fd/{descriptor}")
        _check_size(ticket, descriptor)
        memory = Memory(ticket.nbytes, descriptor)
    finally:
        os.close(descriptor)
    with suppress(OSError):
        memory.populate()
    return memory


def _check_process(ticket: ArenaTicket) -> None:
    try:
        started = _start_time(ticket.pid)
    except OSError as error:
        raise _refusal(ticket, "there is no such process in this PID namespace") from error
    if started != ticket.started:
        raise _refusal(ticket, "the process has ended, another one has its id")


def _check_name(ticket: ArenaTicket, path: str) -> None:
    try:
        found = str(Path(path).readlink())
    except FileNotFoundError:
        found = ""
    if found != f"/memfd:{ticket.name} (deleted)" or not ticket.name.startswith(_PREFIX):
        raise _refusal(ticket, f"its descriptor {ticket.descriptor} is closed or something else")


def _check_size(ticket: ArenaTicket, descriptor: int) -> None:
    nbytes = os.fstat(descriptor).st_size
    if nbytes != ticket.nbytes:
        raise _refusal(ticket, f"it has {nbytes} bytes where {ticket.nbytes} are expected")
    if fcntl.fcntl(descriptor, _F_GET_SEALS) & _SEALS != _SEALS:
        raise _refusal(ticket, "it is not sealed against resizing")


def _refusal(ticket: ArenaTicket, reason: str) -> UnsupportedError:
    return UnsupportedError(f"cannot attach to {ticket.name} of process {ticket.pid}: {reason}")


def _start_time(pid: int) -> int:
    """Field 22; the second, a name in parentheses, may hold blanks and parentheses itself."""
    _, _, fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
    return int(fields.split()[19])


def _sealed(name: str, nbytes: int, *, reserved: bool) -> int:
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING | (_MFD_HUGETLB_2MB if reserved else 0)
    descriptor = _memfd_create(name, flags)
    try:
        os.ftruncate(descriptor, nbytes)
        if reserved:
            # Pages that another limit withholds are an error here, and a SIGBUS once mapped.
            os.posix_fallocate(descriptor, 0, nbytes)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _memfd_create(name: str, flags: int) -> int:
    for attempt in (flags | _MFD_NOEXEC_SEAL, flags):
        descriptor: int = _libc.memfd_create(name.encode(), attempt)
        if descriptor >= 0:
            return descriptor
    raise _last_error()


def _map_over(address: int, nbytes: int, descriptor: int) -> None:
    """Put a file's pages where a mapping already is, which then unmaps them with its own.

    The mmap module would begin on any page, and keep a descriptor that it does not tell.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _libc.mmap(address, nbytes, protection, flags, descriptor, 0) != address:
        raise _last_error()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _close_in_child() -> None:
    for memfd in tuple(_memfds):
        memfd.close()


_numbers = itertools.count()
_arenas: weakref.WeakValueDictionary[str, Memory] = weakref.WeakValueDictionary()
_memfds: weakref.WeakSet[Memfd] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_in_child)
