# SPDX-License-Identifier: Apache-2.0
"""Leaves the terminal as it was, whatever ends the program.

Covers what a toolkit that crashed may have left behind: raw mode, the alternate screen, a hidden
cursor, mouse reports.
"""

import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tiercache.cli import diagnostics

HINT = "if the terminal looks wrong now, type: reset"
#: No mouse reports, no bracketed paste, no focus reports, plain keys, a cursor, the main screen.
RESTORE = (
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[?1004l"
    b"\x1b[<u\x1b[?25h\x1b[0m\x1b[?1049l"
)


@contextmanager
def restored(program: str) -> Iterator[None]:
    """Put the terminal's settings back at the end; after an exception, its modes, too."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.write(sys.stdout.fileno(), RESTORE)
        diagnostics.error(program, HINT)
        raise
    finally:
        # The terminal may be gone: that is what SIGHUP says.
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
