# SPDX-License-Identifier: Apache-2.0
"""What is measured in a soak: times of calls, and whether a process stays as it is.

Covers the arithmetic and one look at a process. Nothing here grows with the length of a soak.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

#: Buckets per factor e: each is 5 % wide.
_PER_E: Final = 20
_BUCKETS: Final = 500
#: By how much the second half of a soak may exceed the first one. RSS: the allocator's and LMDB's
#: pages come and go. Descriptors: one for each segment that is begun once a full disk has room.
BOUNDS: Final = {"rss_mb": 16.0, "fds": 8, "threads": 0, "shm": 0}
#: Blocks after which all is full; with fewer samples from then on nothing is said.
WARM_BLOCKS: Final = 60_000
ENOUGH: Final = 20


class Stopwatch:
    """Times of calls by name, as counts per bucket."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._worst: dict[str, float] = {}
        self._worst_cpu: dict[str, float] = {}

    def add(self, name: str, seconds: float, cpu: float) -> None:
        """A call took ``seconds``, in ``cpu`` of which this thread was on a processor."""
        counts = self._counts.setdefault(name, [0] * _BUCKETS)
        counts[min(int(math.log1p(seconds * 1e6) * _PER_E), _BUCKETS - 1)] += 1
        self._worst[name] = max(seconds, self._worst.get(name, 0.0))
        self._worst_cpu[name] = max(cpu, self._worst_cpu.get(name, 0.0))

    def document(self) -> dict[str, Any]:
        return {
            name: {
                "counts": _packed(counts),
                "worst_ms": self._worst[name] * 1e3,
                "worst_cpu_ms": self._worst_cpu[name] * 1e3,
            }
            for name, counts in self._counts.items()
        }


def _packed(counts: Sequence[int]) -> dict[str, int]:
    return {str(bucket): count for bucket, count in enumerate(counts) if count}


class Times(NamedTuple):
    """Of one call or several: how many, the time that 99 % stayed below, the longest; ms.

    ``worst_cpu_ms`` leaves out when others had the processor, or the interpreter.
    """

    calls: int
    p99_ms: float
    worst_ms: float
    worst_cpu_ms: float


def times(found: Iterable[Mapping[str, Any]]) -> Times:
    """Sum up what stopwatches say."""
    total = [0] * _BUCKETS
    worst = worst_cpu = 0.0
    for each in found:
        worst = max(worst, each["worst_ms"])
        worst_cpu = max(worst_cpu, each["worst_cpu_ms"])
        for bucket, count in each["counts"].items():
            total[int(bucket)] += count
    p99 = min(_p99_ms(total), worst)
    return Times(sum(total), round(p99, 4), round(worst, 3), round(worst_cpu, 3))


def _p99_ms(counts: Sequence[int]) -> float:
    """The upper bound of a bucket."""
    wanted, seen = sum(counts) * 0.99, 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen and seen >= wanted:
            return math.expm1((bucket + 1) / _PER_E) / 1e3
    return 0.0


def occupied(path: Path) -> int:
    """Bytes that a folder takes on its disk; files may vanish meanwhile."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in (".", *files):
            try:
                total += os.lstat(Path(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def sample(shared: Path) -> dict[str, float]:
    """One look at this process; ``shared`` is where its files in shared memory lie."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 2),
        "fds": _entries(Path("/proc/self/fd")),
        "threads": _entries(Path("/proc/self/task")),
        "shm": _entries(shared),
    }


def _entries(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def course(samples: Sequence[Mapping[str, float]], name: str) -> dict[str, float | None]:
    """How one figure went: first, last, most, and what the second half has beyond the first."""
    values = [each[name] for each in samples]
    if not values:
        return {"first": None, "last": None, "max": None, "growth": None}
    warm = [each[name] for each in samples if each["stored"] >= WARM_BLOCKS]
    half = len(warm) // 2
    growth = max(warm[half:]) - max(warm[:half]) if len(warm) >= ENOUGH else None
    return {
        "first": values[0],
        "last": values[-1],
        "max": max(values),
        "growth": None if growth is None else round(growth, 2),
    }
