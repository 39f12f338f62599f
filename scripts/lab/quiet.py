# SPDX-License-Identifier: Apache-2.0
"""Keep a talkative library off the terminal: its output goes to a log file.

Works on file descriptors, because native code writes there directly.
"""

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class Terminal:
    """The caller's own standard streams, while descriptors 1 and 2 lead to the log."""

    out: TextIO
    err: TextIO

    def say(self, text: str) -> None:
        """Write a line of progress, at once."""
        print(text, file=self.err, flush=True)


@contextmanager
def logged(log: Path) -> Iterator[Terminal]:
    """Send everything written to descriptors 1 and 2 to ``log``, until the block ends."""
    _flush()
    saved_out, saved_err = os.dup(STDOUT), os.dup(STDERR)
    with log.open("ab") as sink:
        os.dup2(sink.fileno(), STDOUT)
        os.dup2(sink.fileno(), STDERR)
    try:
        with os.fdopen(os.dup(saved_out), "w") as out, os.fdopen(os.dup(saved_err), "w") as err:
            yield Terminal(out, err)
    finally:
        _flush()
        os.dup2(saved_out, STDOUT)
        os.dup2(saved_err, STDERR)
        os.close(saved_out)
        os.close(saved_err)


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log."""
    with log.open(errors="replace") as source:
        return "".join(deque(source, maxlen=lines))


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
