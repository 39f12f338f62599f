# SPDX-License-Identifier: Apache-2.0
"""A running pool of this machine as a source: what its stats segment says.

Covers finding the pool, waiting for it, and going on with its successor after a restart. Reading
the bytes is ``tiercache.stats.reader``.
"""

import time
from collections.abc import Callable
from pathlib import Path

from tiercache.errors import FormatError, NoPoolError
from tiercache.stats import pools
from tiercache.stats.model import Phase, Snapshot
from tiercache.stats.reader import SegmentReader
from tiercache.tui.trouble import SourceError, Trouble


class SegmentSource:
    """The pool that ``find`` finds; once it has ended, the newest of its name that runs.

    ``find`` is asked before each look until there is a pool, and raises NoPoolError if there is
    none.
    """

    span = None
    notice = ""

    def __init__(
        self,
        find: Callable[[], Path],
        target: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._find = find
        self._target = target
        self._clock = clock
        self._path: Path | None = None
        self._reader: SegmentReader | None = None

    @property
    def target(self) -> str:
        if self._target is not None:
            return self._target
        return str(self._path or pools.directory())

    def fetch(self) -> Snapshot:
        try:
            return self._look()
        except NoPoolError as failure:
            raise SourceError(Trouble.NO_POOL, str(failure)) from failure
        except FormatError as failure:
            raise SourceError(Trouble.FORMAT, str(failure)) from failure

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _look(self) -> Snapshot:
        reader = self._reader or self._open(self._find())
        snapshot = reader.snapshot(now=self._clock())
        if not _has_ended(snapshot):
            return snapshot
        successor = self._successor(snapshot)
        if successor is None:
            return snapshot
        return self._open(successor).snapshot(now=self._clock())

    def _open(self, path: Path) -> SegmentReader:
        reader = SegmentReader(path)
        self.close()
        self._reader, self._path = reader, path
        return reader

    def _successor(self, ended: Snapshot) -> Path | None:
        """The segment of the same pool and rank that is written now, if there is one."""
        if self._path is None or ended.pool is None:
            return None
        known = pools.found(self._path.parent)
        rank = next((pool.rank for pool in known if pool.path == self._path), 0)
        meant = (ended.pool.name, rank)
        newest_first = (pool for pool in known if (pool.name, pool.rank) == meant and pool.runs)
        return next((pool.path for pool in newest_first), None)


def _has_ended(snapshot: Snapshot) -> bool:
    return not snapshot.alive or snapshot.phase is Phase.CLOSED
