# SPDX-License-Identifier: Apache-2.0
"""What the monitor costs per tick: processor time, and bytes sent to the terminal.

Covers ``tiercache-top`` as it is installed, in a terminal of a given size, for each view and each
of these pools: the demo at several ages, and a segment in which every row is in use. Each view
gets a pool of its own, so that all of them see the same. The first picture and the start of Python
are not part of a tick.

A processor that slept, or that others used meanwhile, is slow at first: after half a second of
sleep, a virtual machine takes several times as long for the same. To tell, each row has a unit
beside it: what a fixed loop of Python took in the same seconds, once per tick. It is slower by so
much than at its fastest, over and over at the start; in proportion, the tick would take ``awake``
ms. What a process takes that does nothing but wake up once per tick is listed; it is not
subtracted. Figures depend on the machine; they are reported, and no test asserts them.
"""

import argparse
import json
import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass

SCHEMA = "tiercache.bench/1"
VIEWS = ("overview", "sequences", "eviction", "tiers", "events")
PROGRAM = "from tiercache.tui.app import main; main()"
IDLE = """
import os, sys, time
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(float(sys.argv[1]))
"""
#: A demo of so many seconds, or every row of a segment.
POOLS = ("10", "300", "full")
#: What it may cost: the targets of the design.
TARGET_MS, TARGET_BYTES = 10.0, 5_000
FIRST_S, WARM_UP_S = 30.0, 3.0
LOOPS = 100
#: Objects that are apart in memory, as those of a program are.
WORDS = [f"word {i}" for i in range(20_000)]


@dataclass(frozen=True)
class Window:
    """Means per tick of so many ticks; the unit is their median."""

    cpu_ms: float
    idle_ms: float
    unit_ms: float
    sent_bytes: float


@dataclass(frozen=True)
class Cost:
    """Of one view of one pool, per tick: the median of the windows, and the range of ``cpu_ms``."""

    pool: str
    view: str
    windows: int
    ticks: int
    cpu_ms: float
    least_ms: float
    most_ms: float
    unit_ms: float
    idle_ms: float
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

    def close(self) -> None:
        self.process.terminate()
        self.read(1.0)
        self.process.wait()
        os.close(self._controller)


def cpu_s(process: "subprocess.Popen[bytes]") -> float:
    """Processor time of a process so far, of all its threads, for itself and in the kernel."""
    # The clock of a process is numbered after its pid: Linux; see clock_getcpuclockid(3).
    return time.clock_gettime((~process.pid << 3) | 2)


def unit_ms() -> float:
    """Processor time of a loop that is always the same."""
    before = time.process_time()
    sum(len(word) for word in WORDS)
    return 1e3 * (time.process_time() - before)


@contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Another Python, ended after the block."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def pool_of(kind: str) -> Iterator[None]:
    """A pool of this kind, which is the only one that the monitor finds."""
    age = [] if kind == "full" else ["--age", kind]
    with tempfile.TemporaryDirectory(prefix="tiercache-bench-") as folder:
        os.environ["TIERCACHE_DIR"] = folder
        with running("-m", "lab.bench_top_pool", *age) as process:
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise SystemExit(f"the pool has not started: {kind}")
            yield


def measure(pool: str, view: str, options: argparse.Namespace) -> Cost:
    """Start a pool and the monitor in this view, and watch it for all windows."""
    width, height = map(int, options.size.split("x"))
    with ExitStack() as stack:
        stack.enter_context(pool_of(pool))
        idle = stack.enter_context(running("-c", IDLE, str(options.interval)))
        began = time.monotonic()
        arguments = ["--view", view, "-d", str(options.interval)]
        terminal = stack.enter_context(closing(Terminal(width, height, arguments)))
        terminal.read(FIRST_S, b"pid")
        first = time.monotonic() - began
        terminal.read(WARM_UP_S)
        found = [
            window(terminal, idle, options.ticks, options.interval) for _ in range(options.windows)
        ]
    return summary(pool, view, options.ticks, found, 1e3 * first)


def window(
    terminal: Terminal, idle: "subprocess.Popen[bytes]", ticks: int, interval: float
) -> Window:
    """What the next ``ticks`` cost."""
    cpu, rest, sent, units = cpu_s(terminal.process), cpu_s(idle), terminal.sent, []
    for _ in range(ticks):
        terminal.read(interval)
        units.append(unit_ms())
    return Window(
        1e3 * (cpu_s(terminal.process) - cpu) / ticks,
        1e3 * (cpu_s(idle) - rest) / ticks,
        statistics.median(units),
        (terminal.sent - sent) / ticks,
    )


def summary(pool: str, view: str, ticks: int, found: Sequence[Window], first_ms: float) -> Cost:
    """One row of several windows."""
    cpu = [each.cpu_ms for each in found]
    return Cost(
        pool=pool,
        view=view,
        windows=len(found),
        ticks=ticks,
        cpu_ms=round(statistics.median(cpu), 2),
        least_ms=round(min(cpu), 2),
        most_ms=round(max(cpu), 2),
        unit_ms=round(statistics.median(each.unit_ms for each in found), 3),
        idle_ms=round(statistics.median(each.idle_ms for each in found), 3),
        sent_bytes=round(statistics.median(each.sent_bytes for each in found), 1),
        first_ms=round(first_ms),
    )


def main() -> None:
    """Parse arguments, measure, print."""
    options = _options()
    fastest = min(unit_ms() for _ in range(LOOPS))
    costs = [measure(pool, view, options) for pool in options.pools for view in options.views]
    if options.json:
        targets = {"cpu_ms": TARGET_MS, "sent_bytes": TARGET_BYTES}
        settings = {"size": options.size, "interval": options.interval, "targets": targets}
        data = [asdict(cost) for cost in costs]
        document = {"schema": SCHEMA, "bench": "top", **settings, "unit_ms": fastest, "data": data}
        print(json.dumps(document, indent=2))
        return
    heads = (
        "ms/tick",
        "least",
        "most",
        "unit ms",
        "slower",
        "awake ms",
        "idle ms",
        "bytes/tick",
        "first ms",
    )
    print(f"{'pool':<6}{'view':<11}" + "".join(f"{head:>11}" for head in heads))
    for cost in costs:
        print(_line(cost, fastest))
    print(f"{'target':<17}{TARGET_MS:>11.1f}{'':>66}{TARGET_BYTES:>11}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_top", description=__doc__)
    parser.add_argument("--size", default="80x24", help="columns x lines [%(default)s]")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds [%(default)s]")
    parser.add_argument("--ticks", type=int, default=20, help="of each window [%(default)s]")
    parser.add_argument("--windows", type=int, default=3, help="of each view [%(default)s]")
    parser.add_argument(
        *("--pools", "-p"),
        nargs="+",
        default=POOLS,
        help="seconds of a demo, or full [10 300 full]",
    )
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=VIEWS, help="[all]")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


def _line(cost: Cost, fastest_ms: float) -> str:
    slower = cost.unit_ms / fastest_ms
    numbers = (
        *(f"{number:.1f}" for number in (cost.cpu_ms, cost.least_ms, cost.most_ms)),
        f"{cost.unit_ms:.2f}",
        f"x {slower:.1f}",
        f"{cost.cpu_ms / slower:.1f}",
        f"{cost.idle_ms:.2f}",
        *(f"{cost.sent_bytes:.0f}", f"{cost.first_ms:.0f}"),
    )
    return f"{cost.pool:<6}{cost.view:<11}" + "".join(f"{number:>11}" for number in numbers)


if __name__ == "__main__":
    main()
