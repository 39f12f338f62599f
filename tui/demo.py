# SPDX-License-Identifier: Apache-2.0
"""A demo pool: a process that plays made conversations through a real cache, to be looked at.

Covers starting it in a directory of its own, waiting for its segment, and ending it.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiercache.errors import NoPoolError
from tiercache.tui.segments import SegmentSource

MODULE = "tiercache.replay.demo"
TARGET = "demo"
SUFFIX = ".tcs"
#: It imports for a second or two; on a busy machine longer.
START_S = 20.0
POLL_S = 0.05
END_S = 5.0


@contextmanager
def demo() -> Iterator[SegmentSource]:
    """A source that looks at a demo pool, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="tiercache-demo-") as folder, _log() as log:
        environment = os.environ | {"TIERCACHE_DIR": folder, "TIERCACHE_STATS": "1"}
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", MODULE],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C is for the monitor, which then ends the demo.
            start_new_session=True,
        )
        try:
            yield SegmentSource(lambda: _segment(process, Path(folder), Path(log.name)), TARGET)
        finally:
            _end(process)


def _log() -> "tempfile._TemporaryFileWrapper[bytes]":
    return tempfile.NamedTemporaryFile(prefix="tiercache-demo-", suffix=".log")


def _segment(process: "subprocess.Popen[bytes]", folder: Path, log: Path) -> Path:
    """The segment of the demo, waited for."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise NoPoolError(f"the demo pool has ended: {said or 'it did not say why'}")
        if written := sorted(folder.glob(f"*{SUFFIX}")):
            return written[0]
        time.sleep(POLL_S)
    raise NoPoolError(f"the demo pool has not started within {START_S:g}s")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
