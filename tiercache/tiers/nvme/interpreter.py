# SPDX-License-Identifier: Apache-2.0
"""How long a busy Python thread keeps the others waiting, while somebody needs less.

Covers ``sys.setswitchinterval``, which holds for a whole process. A thread that comes back from
the disk, or from a checksum, waits that long for a scheduler that computes: with 7 MiB per record,
twice as long as the disk takes.
"""

import logging
import sys
from threading import Lock

logger = logging.getLogger(__name__)

_LOCK = Lock()
_WANTED: list[float] = []
_before = 0.0
"""The interval that nobody of us had asked for."""


def ask(seconds: float) -> None:
    """Have the interval at most so long until ``withdraw``; the shortest that is asked for holds.

    Locking: from any thread.
    """
    global _before  # noqa: PLW0603 - as is what it restores
    with _LOCK:
        if not _WANTED:
            _before = sys.getswitchinterval()
        _WANTED.append(seconds)
        _set()


def withdraw(seconds: float) -> None:
    """Undo one ``ask``; after the last one the interval is what it was before the first."""
    with _LOCK:
        _WANTED.remove(seconds)
        _set()


def _set() -> None:
    wanted, now = min([_before, *_WANTED]), sys.getswitchinterval()
    # The interpreter counts in whole microseconds.
    if abs(wanted - now) >= 1e-6:
        logger.info("tiercache: switch interval %g s instead of %g s", wanted, now)
        sys.setswitchinterval(wanted)
