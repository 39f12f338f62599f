# SPDX-License-Identifier: Apache-2.0
"""What the monitor costs per tick: processor time, and bytes sent to the terminal.

Covers ``tiercache-top`` as it is installed, in a terminal of a given size, looking at the demo
pool, for each view. The first picture and the start of Python are not part of a tick. Figures
depend on the machine; they are reported, and no test asserts them.
"""

import argparse
import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

SCHEMA = "tiercache.bench/1"
VIEWS = ("overview", "sequences", "eviction", "tiers", "events")
PROGRAM = "from tiercache.tui.app import main; main()"
#: What it may cost: the targets of the design.
TARGET_MS, TARGET_BYTES = 10.0, 5_000
WARM_UP_S = 3.0
HERTZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Of one view, per tick."""

    view: str
    ticks: int
    cpu_ms: float
    sent_bytes: float
    first_ms: float
    """From the start of the program to its first numbers."""


class Terminal:
    """A program in a terminal, whose output is counted and thrown away."""

    def __init__(self, width: int, height: int, arguments: Sequence[str]) -> None:
        self.sent = 0
        self._controller, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (height, width))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,  # the toolkit draws there
            env=os.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"},
        )
        os.close(terminal)

    def read(self, seconds: float, until: bytes | None = None) -> None:
        """For so long, or until it sends these words."""
        end = time.monotonic() + seconds
        seen = b""
        while (left := end - time.monotonic()) > 0 and (until is None or until not in seen):
            if not select.select([self._controller], [], [], left)[0]:
                continue
            try:
                data = os.read(self._controller, 1 << 16)
            except OSError:  # it has ended, and nobody has the terminal any more
                return
            self.sent += len(data)
            seen += data if until else b""

    def cpu_s(self) -> float:
        """Processor time of all its threads so far, in steps of a clock tick."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / HERTZ

    def close(self) -> None:
        self.process.terminate()
        self.read(1.0)
        self.process.wait()
        os.close(self._controller)


@contextmanager
def demo_pool() -> Iterator[None]:
    """One demo for all views, so that each sees a pool that has been running."""
    with tempfile.TemporaryDirectory(prefix="tiercache-bench-") as folder:
        os.environ["TIERCACHE_DIR"] = folder
        process = subprocess.Popen([sys.executable, "-m", "tiercache.replay.demo"])
        try:
            while process.poll() is None and not list(Path(folder).glob("*.tcs")):
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()


def measure(view: str, width: int, height: int, interval: float, ticks: int) -> Cost:
    """Start the monitor in this view and watch it for so many ticks."""
    began = time.monotonic()
    terminal = Terminal(width, height, ["--view", view, "-d", str(interval)])
    try:
        terminal.read(30.0, b"pid")
        first = time.monotonic() - began
        terminal.read(WARM_UP_S)
        cpu, sent = terminal.cpu_s(), terminal.sent
        terminal.read(ticks * interval)
        cpu, sent = terminal.cpu_s() - cpu, terminal.sent - sent
    finally:
        terminal.close()
    return Cost(
        view, ticks, round(1e3 * cpu / ticks, 2), round(sent / ticks, 1), round(1e3 * first)
    )


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="scripts/bench_top", description=__doc__)
    parser.add_argument("--size", default="80x24", help="columns x lines [%(default)s]")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds [%(default)s]")
    parser.add_argument("--ticks", type=int, default=60, help="of each view [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    with demo_pool():
        costs = [measure(view, width, height, options.interval, options.ticks) for view in VIEWS]
    if options.json:
        targets = {"cpu_ms": TARGET_MS, "sent_bytes": TARGET_BYTES}
        rows = [asdict(cost) for cost in costs]
        settings = {"size": options.size, "interval": options.interval, "targets": targets}
        print(json.dumps({"schema": SCHEMA, "bench": "top", **settings, "data": rows}, indent=2))
        return
    print(f"{'view':<12}{'ms/tick':>9}{'bytes/tick':>12}{'first ms':>10}")
    for cost in costs:
        print(f"{cost.view:<12}{cost.cpu_ms:>9.1f}{cost.sent_bytes:>12.0f}{cost.first_ms:>10.0f}")
    print(f"{'target':<12}{TARGET_MS:>9.1f}{TARGET_BYTES:>12}")


if __name__ == "__main__":
    main()
