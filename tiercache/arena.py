# SPDX-License-Identifier: Apache-2.0
"""The arena: host memory for the slots, one region per group, in huge pages where possible.

Covers allocating, populating, pinning and releasing the memory, and issuing the ticket with which
other processes attach to it. Does not know which slot holds what, and copies nothing. The memory
is private to the process or shared, and leaves no file behind.
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
from tiercache.hostmem import available_bytes, huge_page_bytes, reserved_bytes
from tiercache.pinning import Span, registered
from tiercache.sharing import (
    ALIGNMENT,
    ArenaTicket,
    Memfd,
    Memory,
    Region,
    published,
    unique_name,
)

__all__ = ["HostArena", "available_bytes"]

logger = logging.getLogger(__name__)

_NO_MEMORY = {errno.ENOMEM}
#: Shared memory that is refused where private memory would not be is a bus error to who touches it.
_NO_SHARED_MEMORY = {errno.ENOMEM, errno.ENOSPC, errno.EFAULT}


class HostArena:
    """Slots of every group in host memory, all of it resident from the start.

    ``regions`` maps a group id to (slots, slot bytes). With ``pin`` the memory is registered
    with CUDA. With ``shared`` other processes of the same user can attach to it.

    Locking: none; build it and close it from one thread. Views may be used from any.

    Raises: ConfigError for an empty region; OutOfMemoryError before anything is allocated if the
    memory is not there; TierCacheError if it should be pinned and cannot be.
    """

    nbytes: int
    """What it occupies: the regions, each rounded up to 2 MiB."""
    pages: str
    """Where the memory lay once populated: "2M", "4K", both with their shares, or "unknown"."""
    backing: str
    """Whose memory it is: "private", "shared", or "shared, reserved" by the administrator."""

    def __init__(
        self, regions: Mapping[int, tuple[int, int]], *, pin: bool = False, shared: bool = False
    ) -> None:
        for group_id, shape in regions.items():
            if min(shape) < 1:
                allowed = "at least one slot of at least one byte"
                raise ConfigError(f"region of group {group_id}", shape, allowed)
        self._regions, self.nbytes = _layout(regions)
        self._views: dict[int, torch.Tensor] = {}
        try:
            self._allocate(pin=pin, shared=shared)
        except OSError as error:
            if error.errno not in (_NO_SHARED_MEMORY if shared else _NO_MEMORY):
                raise
            raise OutOfMemoryError(self.nbytes, available_bytes()) from error
        state = "pinned" if pin else "not pinned"
        if shared:
            state += f", {self.backing}"
        logger.info("tiercache arena: %d bytes, pages %s, %s", self.nbytes, self.pages, state)

    def region(self, group_id: int) -> torch.Tensor:
        """The slots of a group: int8, (slots, slot_bytes), contiguous, not a copy.

        A view that outlives ``close`` keeps the whole arena's memory. Raises KeyError for a group
        without a region and after ``close``.
        """
        return self._views[group_id]

    def ticket(self) -> ArenaTicket:
        """What ``attach`` needs, here or, if the arena is shared, in another process.

        It is good until ``close``; whoever has attached by then keeps the memory.
        """
        return self._ticket

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

    def _allocate(self, *, pin: bool, shared: bool) -> None:
        with ExitStack() as undo:
            name = unique_name()
            memfd = self._choose(name, shared=shared)
            if memfd:
                undo.callback(memfd.close)
            memory = Memory(self.nbytes, memfd.descriptor if memfd else None)
            undo.callback(_unmap, memory)
            undo.callback(self._views.clear)
            self._views.update(_views(memory, self._regions))
            if memfd:
                memory.collapse()
            _populate(memory)
            self.pages = _pages(memory)
            if pin:
                undo.enter_context(registered(self._spans()))
            self._ticket = undo.enter_context(published(name, memory, memfd, self._regions))
            self._release = undo.pop_all()

    def _choose(self, name: str, *, shared: bool) -> Memfd | None:
        """Reserved pages if there are enough; None stands for private memory."""
        if shared and self.nbytes <= reserved_bytes():
            with suppress(OSError):
                memfd = Memfd(name, self.nbytes, reserved=True)
                self.backing = "shared, reserved"
                return memfd
        available = available_bytes()
        if self.nbytes > available:
            raise OutOfMemoryError(self.nbytes, available)
        self.backing = "shared" if shared else "private"
        return Memfd(name, self.nbytes) if shared else None

    def _spans(self) -> list[Span]:
        return [
            Span(group_id, view.data_ptr(), view.nbytes, view.shape[1])
            for group_id, view in self._views.items()
        ]


def _layout(shapes: Mapping[int, tuple[int, int]]) -> tuple[dict[int, Region], int]:
    """Where each region starts, and where the last one's huge pages end."""
    regions = {}
    offset = 0
    for group_id, shape in shapes.items():
        region = regions[group_id] = Region(offset, *shape)
        offset += -(-region.nbytes // ALIGNMENT) * ALIGNMENT
    return regions, offset


def _views(memory: Memory, regions: Mapping[int, Region]) -> Iterator[tuple[int, torch.Tensor]]:
    for group_id, region in regions.items():
        # A tensor made from the mapping itself would not keep it from being unmapped: torch
        # holds the object but gives its buffer back. A memoryview keeps the buffer exported.
        view = torch.frombuffer(memory.view(region.offset, region.nbytes), dtype=torch.int8)
        yield group_id, view.view(region.slots, region.slot_bytes)


def _populate(memory: Memory) -> None:
    """Make every page resident, so that no copy ever waits for one, or finds none left."""
    try:
        memory.populate()
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        touched = torch.frombuffer(memory.view(0, memory.nbytes), dtype=torch.int8)
        touched[:: mmap.PAGESIZE].zero_()


def _pages(memory: Memory) -> str:
    huge = huge_page_bytes(memory.address, memory.address + memory.nbytes)
    if huge is None:
        return "unknown"
    if huge in (0, memory.nbytes):
        return "2M" if huge else "4K"
    return f"{huge / memory.nbytes:.1%} 2M, {1 - huge / memory.nbytes:.1%} 4K"


def _unmap(memory: Memory) -> None:
    if not memory.close() and not memory.attached:
        logger.warning("tiercache arena: a view is still held; %d bytes stay mapped", memory.nbytes)
