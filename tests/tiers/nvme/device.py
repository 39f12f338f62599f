# SPDX-License-Identifier: Apache-2.0
"""The calls by which a tier reads and changes its disk, which fail or end when a test says so.

Covers what the machine of the tier does to the process that it runs in: errors, a disk without
space, and death. Files that are damaged behind the tier's back are the test's own business.
"""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import inf
from threading import Lock
from typing import Any, Self
from unittest.mock import patch

from tiercache.tiers.nvme.index import Index, NotIndexedError

#: What changes the disk, besides a write and a transaction of the index.
CHANGES = ("rename", "unlink", "ftruncate")
#: What only a power loss shows, and takes most of the time.
SYNCS = ("fsync", "fdatasync")
BLOCK_BYTES = 4096


class Device(ExitStack):
    """The calls of this process, while the context lasts.

    After ``steps_left`` more changes the process is as good as dead: nothing that it does reaches
    the disk any more, and what lies there is what SIGKILL at that moment leaves. With ``torn`` the
    write that it dies at is done in part.

    Locking: its own; a tier calls from several threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self.steps_left = inf
        self.torn = False
        self.reads_to_fail = self.writes_to_fail = 0
        self.is_full = False
        self.faults = 0
        """Calls that failed since the last ``reset``."""

    def __enter__(self) -> Self:
        super().__enter__()
        for name in CHANGES:
            self._replace(os, name, self._change)
        for name in SYNCS:
            self._replace(os, name, lambda _call, _fd: None)
        self._replace(os, "pwritev", self._write)
        self._replace(os, "posix_fallocate", self._allocate)
        self._replace(os, "preadv", self._read)
        self._replace(Index, "_transact", self._index)
        self._replace(Index, "clear", self._index)
        return self

    def _replace(self, owner: object, name: str, by: Callable[..., Any]) -> None:
        call = getattr(owner, name)

        def replaced(*args: object, **kwargs: object) -> object:
            return by(call, *args, **kwargs)

        self.enter_context(patch.object(owner, name, replaced))

    def reset(self) -> None:
        """Everything works again."""
        self.steps_left = inf
        self.reads_to_fail = self.writes_to_fail = self.faults = 0
        self.is_full = False

    @property
    def is_dead(self) -> bool:
        return self.steps_left < 0

    def _dies(self) -> bool:
        """Take a step; whether it is the one at which the process dies."""
        with self._lock:
            if self.is_dead:
                raise OSError(errno.EIO, "the process is dead")
            self.steps_left -= 1
            return self.is_dead

    def _change(self, call: Callable[..., Any], *args: object, **kwargs: object) -> object:
        if self._dies():
            raise OSError(errno.EIO, "the process has died")
        return call(*args, **kwargs)

    def _allocate(self, call: Callable[..., Any], *args: object) -> object:
        if self.is_full:
            self.faults += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._change(call, *args)

    def _write(
        self, call: Callable[..., int], fd: int, buffers: Sequence[memoryview], offset: int
    ) -> int:
        self._fail("writes_to_fail")
        if self._dies():
            if self.torn:
                call(fd, [buffers[0][:BLOCK_BYTES]], offset)
            raise OSError(errno.EIO, "the process has died")
        return call(fd, buffers, offset)

    def _read(self, call: Callable[..., int], *args: object) -> int:
        self._fail("reads_to_fail")
        return call(*args)

    def _fail(self, which: str) -> None:
        with self._lock:
            left: int = getattr(self, which)
            if not left:
                return
            setattr(self, which, left - 1)
            self.faults += 1
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _index(self, call: Callable[..., Any], *args: object) -> object:
        try:
            dies = self._dies()
        except OSError as error:
            raise NotIndexedError(str(error)) from error
        if dies:
            raise NotIndexedError("the process has died")
        return call(*args)
