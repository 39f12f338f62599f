# SPDX-License-Identifier: Apache-2.0
"""The arena: host memory for the slots, one region per group, in huge pages where possible.

Covers allocating, populating, pinning and releasing the memory. Does not know which slot holds
what, and copies nothing. The memory is private to the process and leaves no file behind.
"""

import errno
import logging
import mmap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import torch

from tiercache.errors import ConfigError, OutOfMemoryError
from tiercache.hostmem import available_bytes, huge_page_bytes
from tiercache.pinning import Span, registered

__all__ = ["HostArena", "available_bytes"]

logger = logging.getLogger(__name__)

#: The size of a huge page: a region that starts on its boundary can lie in huge pages only.
REGION_ALIGNMENT = 2 << 20
#: Linux 5.14 and later; the mmap module has no name for it.
MADV_POPULATE_WRITE = 23
#: Bytes populated by one call, which holds the interpreter lock for about 0.2 s.
POPULATE_STEP = 1 << 30
#: Huge pages are the point. A forked child never reads the arena, and copying its page tables
#: (or, once pinned, the memory itself) would stall the fork; a core dump has no use for it.
_ADVICE = (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK, mmap.MADV_DONTDUMP)


class HostArena:
    """Slots of every group in host memory, all of it resident from the start.

    ``regions`` maps a group id to (slots, slot bytes). With ``pin`` the memory is registered
    with CUDA.

    Locking: none; build it and close it from one thread. Views may be used from any.

    Raises: ConfigError for an empty region; OutOfMemoryError before anything is allocated if the
    memory is not there; TierCacheError if it should be pinned and cannot be.
    """

    nbytes: int
    """What it occupies: the regions, each rounded up to 2 MiB."""
    pages: str
    """Where the memory lay once populated: "2M", "4K", both with their shares, or "unknown"."""

    def __init__(self, regions: Mapping[int, tuple[int, int]], *, pin: bool = False) -> None:
        self._shapes = dict(regions)
        for group_id, shape in self._shapes.items():
            if min(shape) < 1:
                allowed = "at least one slot of at least one byte"
                raise ConfigError(f"region of group {group_id}", shape, allowed)
        self.nbytes = sum(_occupied(*shape) for shape in self._shapes.values())
        available = available_bytes()
        if self.nbytes > available:
            raise OutOfMemoryError(self.nbytes, available)
        self._views: dict[int, torch.Tensor] = {}
        try:
            self._allocate(pin=pin)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise OutOfMemoryError(self.nbytes, available_bytes()) from error
        state = "pinned" if pin else "not pinned"
        logger.info("tiercache arena: %d bytes, pages %s, %s", self.nbytes, self.pages, state)

    def region(self, group_id: int) -> torch.Tensor:
        """The slots of a group: int8, (slots, slot_bytes), contiguous, not a copy.

        A view that outlives ``close`` keeps the whole arena's memory. Raises KeyError for a group
        without a region and after ``close``.
        """
        return self._views[group_id]

    def close(self) -> None:
        """Unregister and unmap the memory. Does nothing the second time.

        No copy from or to the arena may still be running. While somebody holds a view, the memory
        stays mapped, though no longer registered, until that view is gone.
        """
        self._release.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _allocate(self, *, pin: bool) -> None:
        with ExitStack() as undo:
            mapping = mmap.mmap(
                -1, self.nbytes + REGION_ALIGNMENT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
            undo.callback(_unmap, mapping)
            start = _aligned_start(mapping)
            for advice in _ADVICE:
                # A kernel built without one of these refuses it; all of them are optional.
                with suppress(OSError):
                    mapping.madvise(advice, start, self.nbytes)
            undo.callback(self._views.clear)
            self._views.update(_views(mapping, start, self._shapes))
            _populate(mapping, start, self.nbytes)
            self.pages = _pages(mapping, start, self.nbytes)
            if pin:
                undo.enter_context(registered(self._spans()))
            self._release = undo.pop_all()

    def _spans(self) -> list[Span]:
        return [
            Span(group_id, view.data_ptr(), view.nbytes, view.shape[1])
            for group_id, view in self._views.items()
        ]


def _occupied(slots: int, slot_bytes: int) -> int:
    return -(-slots * slot_bytes // REGION_ALIGNMENT) * REGION_ALIGNMENT


def _address(mapping: mmap.mmap) -> int:
    return torch.frombuffer(mapping, dtype=torch.int8, count=1).data_ptr()


def _aligned_start(mapping: mmap.mmap) -> int:
    return -_address(mapping) % REGION_ALIGNMENT


def _views(
    mapping: mmap.mmap, start: int, shapes: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, torch.Tensor]]:
    for group_id, shape in shapes.items():
        # A tensor made from the mapping itself would not keep it from being unmapped: torch
        # holds the object but gives its buffer back. A memoryview keeps the buffer exported.
        view = torch.frombuffer(
            memoryview(mapping), dtype=torch.int8, count=shape[0] * shape[1], offset=start
        )
        yield group_id, view.view(shape)
        start += _occupied(*shape)


def _populate(mapping: mmap.mmap, start: int, nbytes: int) -> None:
    """Make every page resident, so that no copy ever waits for one, or finds none left."""
    end = start + nbytes
    try:
        for at in range(start, end, POPULATE_STEP):
            mapping.madvise(MADV_POPULATE_WRITE, at, min(POPULATE_STEP, end - at))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        touched = torch.frombuffer(mapping, dtype=torch.int8, count=nbytes, offset=start)
        touched[:: mmap.PAGESIZE].zero_()


def _pages(mapping: mmap.mmap, start: int, nbytes: int) -> str:
    address = _address(mapping) + start
    huge = huge_page_bytes(address, address + nbytes)
    if huge is None:
        return "unknown"
    if huge in (0, nbytes):
        return "2M" if huge else "4K"
    return f"{huge / nbytes:.1%} 2M, {1 - huge / nbytes:.1%} 4K"


def _unmap(mapping: mmap.mmap) -> None:
    try:
        mapping.close()
    except BufferError:
        logger.warning("tiercache arena: a view is still held; %d bytes stay mapped", len(mapping))
