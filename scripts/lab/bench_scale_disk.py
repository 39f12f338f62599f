# SPDX-License-Identifier: Apache-2.0
"""What a disk tier of so many entries costs, for scripts/bench_scale: memory, restart, turnover.

Covers an index that was filled through its own interface, without payload (``bench_nvme_index``);
then the tier that opens it, and the tables while entries are replaced. Each function is
called in a process of its own. Reads and writes no records.
"""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from lab.bench_nvme_contenders import block_key, capacity_of
from lab.bench_nvme_index import RECORDS_PER_SEGMENT, Large, forget
from lab.bench_scale_report import Figures
from tiercache.blocks import SLOT_ALIGNMENT, GroupKind, GroupSpec, key_hash
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import SlotMemory
from tiercache.tiers.nvme.disk import Disk
from tiercache.tiers.nvme.index import Entry, Location
from tiercache.tiers.nvme.space import SlotTable
from tiercache.tiers.nvme.tier import NvmeTier

#: Keys of one job: 64 MiB of blocks of 1 MiB.
BATCH = 64
#: Entries that are replaced at most: enough for a table of any size up to 10,000,000 to be moved
#: to a larger one by Python, which is the longest step there is.
TURNED = 3_000_000
#: Neighbours in a list of slots scattered over the disk lie so many entries apart: no two share a
#: page of the index as long as there are enough.
STRIDE = 7919
#: Seconds between two signs of life of the thread that waits for the interpreter.
TICK_S = 0.001


def rss_bytes() -> tuple[int, int]:
    """Bytes of memory that this process has, and had at most."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[0] in ("VmRSS:", "VmHWM:")}
    return kib["VmRSS:"] << 10, kib["VmHWM:"] << 10


def make(path: Path, entries: int) -> Figures:
    """Make the tier's index and empty segments in ``path``."""
    path.mkdir(mode=0o700)
    Large(path, entries).make()
    return {"index_bytes": float(index_file(path).stat().st_size)}


def index_file(path: Path) -> Path:
    return next(path.rglob("data.mdb"))


def restart(path: Path, entries: int, prefix: int, rounds: int) -> Figures:
    """Open the tier with its index read from the disk, and look up prefixes of ``prefix`` keys."""
    large = Large(path, entries)
    forget(path)
    gc.collect()
    before, _ = rss_bytes()
    pauses = Pauses()
    start, cpu = time.perf_counter(), time.thread_time()
    with pauses.measured(), large.open() as tier:
        figures = {
            "restart_s": time.perf_counter() - start,
            "restart_cpu_s": time.thread_time() - cpu,
            "restart_hold_s": pauses.longest,
        }
        now, peak = rss_bytes()
        figures |= {"rss_bytes": float(now - before), "peak_bytes": float(peak - before)}
        asked = [_lookup(tier, entries, prefix, number) for number in range(rounds)]
    return figures | {"lookup_ms": median(asked)}


def _lookup(tier: NvmeTier, entries: int, prefix: int, number: int) -> float:
    """CPU milliseconds to find out that a prefix of keys is there, with keys nobody has hashed."""
    first = number * prefix % max(1, entries - prefix)
    keys = [block_key(0, n) for n in range(first, min(first + prefix, entries))]
    start = time.thread_time()
    found = sum(map(tier.has, keys))
    seconds = time.thread_time() - start
    if found < len(keys):
        raise RuntimeError("the tier did not find what the index holds")
    return seconds * 1e3


@dataclass(slots=True)
class Pauses:
    """How long a thread had to wait for the interpreter at most.

    In seconds of CPU that the process used meanwhile: what others do on this machine is not in it.
    """

    longest: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def measured(self) -> Iterator[None]:
        thread = threading.Thread(target=self._tick)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _tick(self) -> None:
        last = time.process_time()
        while not self._stop.wait(TICK_S):
            now = time.process_time()
            self.longest = max(self.longest, now - last)
            last = now


def turnover(path: Path, entries: int, rounds: int) -> Figures:
    """Replace the entries of the tables, up to ``TURNED``, and publish some in the index."""
    before, _ = rss_bytes()
    disk = _open(path, entries)
    try:
        table = disk.groups[0].table
        steps = [
            _replace(table, range(n, n + BATCH)) for n in range(0, min(entries, TURNED), BATCH)
        ]
        figures = summed("turn", steps, len(steps) * BATCH)
        figures["turned_rss_bytes"] = float(rss_bytes()[0] - before)
        return figures | _publish(disk, entries, rounds)
    finally:
        disk.close()


def _replace(table: SlotTable, numbers: range) -> float:
    """CPU seconds to give new keys the slots of old ones."""
    keys = [block_key(1, number) for number in numbers]
    start = time.thread_time()
    allocation = table.allocate(keys)
    assert allocation is not None
    table.publish(keys)
    return time.thread_time() - start


def _publish(disk: Disk, entries: int, rounds: int) -> Figures:
    """CPU microseconds per entry to publish a job in the index, in neighbouring slots and not."""
    costs: dict[int, list[float]] = {1: [], STRIDE: []}
    for number in range(rounds):
        for stride, found in costs.items():
            slots = {(number * BATCH + i) * stride % entries for i in range(BATCH)}
            changes = {Location(0, slot): _entry(slot) for slot in slots}
            start = time.thread_time()
            disk.index.update(changes)
            found.append((time.thread_time() - start) / len(changes) * 1e6)
    near, far = (median(found) for found in costs.values())
    return {"publish_near_us": near, "publish_far_us": far}


def _entry(slot: int) -> Entry:
    return Entry(key_hash(block_key(1, slot)), 0, 1 << 40)


def summed(name: str, steps: list[float], keys: int) -> Figures:
    """Of steps in seconds: microseconds per key; milliseconds of all but a thousandth, and all."""
    ordered = sorted(steps)
    return {
        f"{name}_us": sum(steps) / keys * 1e6,
        f"{name}_p999_ms": ordered[len(ordered) * 999 // 1000] * 1e3,
        f"{name}_worst_ms": ordered[-1] * 1e3,
    }


def _open(path: Path, entries: int) -> Disk:
    """What the tier has open, without its threads."""
    spec = GroupSpec(0, GroupKind.FULL, 16, SLOT_ALIGNMENT)
    memory = SlotMemory([spec], {0: [memoryview(bytearray(SLOT_ALIGNMENT))]})
    capacity = capacity_of(entries, SLOT_ALIGNMENT)
    config = NvmeConfig(path=path, capacity=capacity, min_free=0)
    segment_bytes = RECORDS_PER_SEGMENT * SLOT_ALIGNMENT
    return Disk(config, {}, memory, [spec], {0: entries}, segment_bytes=segment_bytes)
