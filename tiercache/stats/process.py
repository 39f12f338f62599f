# SPDX-License-Identifier: Apache-2.0
"""Whether the process that wrote a segment still runs.

Covers processes of this machine as /proc tells of them. A pid alone does not do: it is used again
by another process, and means another process in another container.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
#: States of a process that has ended and only waits to be forgotten.
_ENDED = ("Z", "X", "x")
_STATE, _STARTED = 0, 19  # fields 3 and 22 of /proc/<pid>/stat, counted behind the name


class Process(NamedTuple):
    """Which process a pid meant when it was written down."""

    pid: int
    started: int
    """In clock ticks since the machine started."""
    space: int
    """Inode of the pid namespace in which ``pid`` counts."""

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The process that has ``pid`` now; it started at 0 if there is none."""
        return cls(pid, _started(pid) or 0, _space())

    @property
    def is_near(self) -> bool:
        """Whether its pid means something here; if not, nobody can say whether it runs."""
        return self.space == _space()

    @property
    def is_alive(self) -> bool:
        return self.is_near and _started(self.pid) == self.started


def exists(pid: int) -> bool:
    """Whether any process has ``pid``."""
    return _started(pid) is not None


def _started(pid: int) -> int | None:
    """When the process started; None if there is none, or it has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    # The name is in parentheses and may have some of its own, spaces, too.
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in _ENDED else int(fields[_STARTED])


@cache
def _space() -> int:
    """Ours, which no process leaves; to look it up takes half a millisecond."""
    try:
        return (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return 0
