# SPDX-License-Identifier: Apache-2.0
"""Which pools there are, and which one is meant.

Covers the directory of segments: looking through it, choosing, and clearing away what ended.
"""

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from tiercache.errors import FormatError, NoPoolError
from tiercache.stats import files, process
from tiercache.stats.files import FileName, SegmentFile
from tiercache.stats.format import HEADER_BYTES, Identity
from tiercache.stats.model import Phase
from tiercache.stats.reader import SegmentReader

DIRECTORY = "TIERCACHE_DIR"
POOL = "TIERCACHE_POOL"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # made private, and checked to be
_PREFIX = "tiercache-"


class Found(NamedTuple):
    """A segment in the directory."""

    path: Path
    name: str
    pid: int
    rank: int
    alive: bool
    phase: Phase | None
    """None: it cannot be read; a reader says why."""

    @property
    def runs(self) -> bool:
        return self.alive and self.phase is not Phase.CLOSED

    def __str__(self) -> str:
        rank = f" rank {self.rank}" if self.rank else ""
        return f"{self.name} (pid {self.pid}{rank}{'' if self.runs else ', ended'})"


def directory() -> Path:
    """Where this user's segments are."""
    if chosen := os.environ.get(DIRECTORY):
        return Path(chosen)
    return _SHARED_MEMORY / f"{_PREFIX}{os.geteuid()}"


def found(directory: Path) -> list[Found]:
    """All segments, the newest first; none where ``files.obstacle`` has a reason against it."""
    return [_look(path, name) for path, name in _files(directory) if not name.is_new]


def sweep(directory: Path, keep: int = 4) -> None:
    """Remove the segments of processes that have ended, all but the newest ``keep`` of them.

    Raises: OSError for a directory that others could write in.
    """
    descriptor = files.open_private(directory)
    try:
        ended = [(path, name) for path, name in _files(directory) if not _look(path, name).alive]
        unfinished = [path for path, name in ended if name.is_new]
        finished = [path for path, name in ended if not name.is_new]
        for path in (*unfinished, *finished[keep:]):
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def resolve(which: str | None) -> Path:
    """The segment that is meant by a name, a pid or a path.

    None: the one that $TIERCACHE_POOL says, or else the only one that runs. Of several with one
    name, the one that runs is meant, or else the newest.

    Raises: NoPoolError if that is none or more than one; the message lists what there is.
    """
    which = which or os.environ.get(POOL) or None
    if which is not None and _is_file(which):
        return Path(which)
    pools = found(directory())
    meant = [pool for pool in pools if which is None or _is_meant(pool, which)]
    running = [pool for pool in meant if pool.runs]
    if len(running) > 1:
        raise NoPoolError(f"several pools run: {_listed(running)}; name one by its pid or path")
    if running:
        return running[0].path
    if which is not None and meant:
        return meant[0].path
    if which is not None and _is_path(which):
        return Path(which)
    raise NoPoolError(_nothing(which, pools))


def _files(directory: Path) -> list[tuple[Path, FileName]]:
    """Files that are called like segments, the newest first."""
    dated: list[tuple[int, Path, FileName]] = []
    if files.obstacle(directory):
        return []
    with suppress(OSError):
        for path in directory.iterdir():
            if name := FileName.parse(path.name):
                with suppress(FileNotFoundError):
                    dated.append((path.lstat().st_mtime_ns, path, name))
    return [(path, name) for _, path, name in sorted(dated, reverse=True)]


def _look(path: Path, name: FileName) -> Found:
    try:
        with closing(SegmentReader(path)) as reader:
            return Found(path, reader.pool.name, name.pid, name.rank, reader.alive, reader.phase)
    except (FormatError, NoPoolError):
        return Found(path, name.pool, name.pid, name.rank, _may_live(path, name.pid), None)


def _may_live(path: Path, pid: int) -> bool:
    """Whether the writer of a segment that we cannot read may still run."""
    try:
        with closing(SegmentFile(path)) as file:
            writer = Identity.unpack(file.read(0, HEADER_BYTES)).process
    except (FormatError, NoPoolError):
        return process.exists(pid)
    return writer.is_alive or not writer.is_near


def _is_file(which: str) -> bool:
    try:
        return Path(which).is_file()
    except OSError:
        return False


def _is_path(which: str) -> bool:
    return os.sep in which or which.endswith(files.SUFFIX)


def _is_meant(pool: Found, which: str) -> bool:
    return which in (pool.name, files.plain(pool.name), str(pool.pid))


def _nothing(which: str | None, pools: Sequence[Found]) -> str:
    what = "no pool runs" if which is None else f"no pool is called {which!r}"
    if pools:
        return f"{what}; there is {_listed(pools)}"
    return f"{what}: {directory()} {files.obstacle(directory()) or 'has none'}{_elsewhere()}"


def _listed(pools: Sequence[Found]) -> str:
    return ", ".join(map(str, pools))


def _elsewhere() -> str:
    """A hint for who runs this as another user than the server's."""
    others = sorted(set(_SHARED_MEMORY.glob(f"{_PREFIX}*")) - {directory()})
    return f"; of other users there is {', '.join(map(str, others))}" if others else ""
