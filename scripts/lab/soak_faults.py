# SPDX-License-Identifier: Apache-2.0
"""Faults of the disk under a soak: for a while each, and now and then.

EIO and delays come from the system calls of the tier's threads, which are replaced, as there is
no device mapper everywhere. ENOSPC is real: a ballast file takes all that the file system has
left, and half of the time statvfs does not tell, as on a volume that promises more than it has.
"""

import errno
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from lab.soak_journal import patched
from tiercache.tiers.nvme.index import Index, NotIndexedError
from tiercache.tiers.nvme.records import DiskFullError, Records

KINDS: Final = ("eio", "enospc", "slow")
#: Seconds between two faults, and of one.
CALM_S: Final = (1.0, 6.0)
FAULT_S: Final = (0.2, 2.0)
#: Which share of the calls fails, and how long one takes at most, in seconds. Three failures in a
#: row have the tier rest: with smaller shares it goes on.
SHARES: Final = (0.01, 0.1, 1.0)
DELAYS_S: Final = (0.01, 0.1, 3.0)
CALLS: Final = (("preadv",), ("pwritev", "fdatasync"), ("preadv", "pwritev", "fdatasync"))
_PIECE: Final = 1 << 20


class Faults:
    """Those of ``kinds``. ``ballast`` is a file on a file system of its own, which may get full.

    Locking: ``tick`` from one thread; the calls it changes come from any.
    """

    def __init__(self, kinds: list[str], dice: random.Random, ballast: Path | None) -> None:
        self.injected: Counter[str] = Counter()
        self._kinds, self._dice, self._ballast = kinds, dice, ballast
        self._now = ""
        self._calls: tuple[str, ...] = ()
        self._strength = 0.0
        self._lies = False
        self._next = time.monotonic() + dice.uniform(*CALM_S)

    def tick(self) -> None:
        """Begin or end a fault, if it is time."""
        if not self._kinds or time.monotonic() < self._next:
            return
        if self._now:
            self.calm()
        else:
            self._begin(self._dice.choice(self._kinds))
        self._next = time.monotonic() + self._dice.uniform(*(FAULT_S if self._now else CALM_S))

    def calm(self) -> None:
        """End what goes on."""
        self._now = ""
        self._lies = False
        if self._ballast is not None:
            with suppress(OSError):
                os.truncate(self._ballast, 0)

    def _begin(self, kind: str) -> None:
        self._calls = self._dice.choice(CALLS)
        self._strength = self._dice.choice(SHARES if kind == "eio" else DELAYS_S)
        self._now = kind
        if kind == "enospc":
            self._lies = self._dice.random() < 0.5
            self._fill()

    def _fill(self) -> None:
        if self._ballast is None or not self._ballast.parent.is_mount():
            return  # never one that others write to
        size, piece = 0, 64 * _PIECE
        with self._ballast.open("ab") as file:
            while piece >= 4096:
                try:
                    _fallocate(file.fileno(), size, piece)
                    size += piece
                except OSError:
                    piece //= 4

    # --- what the tier's threads meet

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have the tier's calls meet these faults."""
        calls = {name: self._faulty(name) for name in ("preadv", "pwritev", "fdatasync")}
        with (
            patched(os, {**calls, "statvfs": self._statvfs}),
            patched(Records, {"write": self._counted(Records.write)}),
            patched(Index, {"update": self._counted(Index.update)}),
        ):
            try:
                yield
            finally:
                self.calm()

    def _faulty(self, name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def faulty(*args: Any) -> Any:
            kind = self._now
            if kind in {"eio", "slow"} and name in self._calls:
                self._meet(kind)
            return call(*args)

        return faulty

    def _meet(self, kind: str) -> None:
        if kind == "slow":
            self.injected[kind] += 1
            time.sleep(random.uniform(0, self._strength))
        elif random.random() < self._strength:
            self.injected[kind] += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _statvfs(self, path: Any) -> Any:
        found = _statvfs(path)
        if not self._lies:
            return found
        fields = list(found)
        fields[3] = fields[4] = found.f_blocks
        return os.statvfs_result(fields)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Counts what could not be stored as the disk is full."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except (DiskFullError, NotIndexedError):
                self.injected["enospc"] += 1
                raise

        return counted


_statvfs, _fallocate = os.statvfs, os.posix_fallocate
