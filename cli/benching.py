# SPDX-License-Identifier: Apache-2.0
"""What ``tiercache bench`` measures: copies in memory, and an NVMe tier's loads and stores.

Covers the work and its timing. The tier is the one that serves, in a directory of its own that is
removed afterwards. Times are those of a monotonic clock.
"""

import ctypes
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tiercache.cli import cuda
from tiercache.cli.table import size
from tiercache.errors import TierCacheError

if TYPE_CHECKING:
    from tiercache.blocks import Key
    from tiercache.tiers.base import Batch

#: How often whoever waits for a tier looks, as an engine's steps would.
POLL_S: Final = 0.0005
#: A job of a tier that takes longer than this has failed.
PATIENCE_S: Final = 60.0
#: What a job brings at most, as in a server.
BATCH_BYTES: Final = 64 << 20
#: What a tier takes beside its blocks, and what others may write meanwhile.
SPARE_BYTES: Final = 16 << 20

Progress = Callable[[int, int], None]
#: Prepares an operation, and gives what does it once.
Making = Callable[[], AbstractContextManager[Callable[[], None]]]


class Result(NamedTuple):
    """Rates of one operation, a number for each round; bytes per second."""

    operation: str
    unit_bytes: int
    """Bytes that are moved at once."""
    nbytes: int
    """Bytes of a round."""
    rates: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


def _rate(nbytes: int, work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return nbytes / max(time.perf_counter() - start, 1e-9)


# --- memory


def memory(nbytes: int, unit: int, rounds: int, progress: Progress) -> list[Result]:
    """Copies between two buffers, in pieces of ``unit`` bytes, and to and from a GPU's memory."""
    operations: dict[str, Making] = {
        "copy, 4 KiB pages": partial(_copies, nbytes, unit, huge=False),
        "copy, huge pages": partial(_copies, nbytes, unit, huge=True),
    }
    results = []
    with cuda.opened() as gpu:
        if gpu is not None:
            for way in ("to", "from"):
                for kind in ("ordinary", "pinned"):
                    make = partial(_gpu, gpu, nbytes, way, pin=kind == "pinned")
                    operations[f"{way} GPU, {kind} memory"] = make
        total = len(operations) * rounds
        for number, (name, making) in enumerate(operations.items()):
            with making() as work:
                work()  # the first one brings the pages
                rates = []
                for turn in range(rounds):
                    rates.append(_rate(nbytes, work))
                    progress(number * rounds + turn + 1, total)
            results.append(Result(name, unit, nbytes, rates))
    return results


@contextmanager
def buffer(nbytes: int, *, huge: bool = True) -> Iterator[mmap.mmap]:
    """Private memory, all of it there; in huge pages if the kernel gives them."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    ctypes.memset(_address(memory), 1, nbytes)
    try:
        yield memory
    finally:
        memory.close()


def _address(memory: mmap.mmap) -> int:
    view = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(view)
    del view
    return address


@contextmanager
def _copies(nbytes: int, unit: int, *, huge: bool) -> Iterator[Callable[[], None]]:
    with buffer(nbytes, huge=huge) as source, buffer(nbytes, huge=huge) as target:
        here, there = _address(source), _address(target)

        def work() -> None:
            for at in range(0, nbytes, unit):
                ctypes.memmove(there + at, here + at, min(unit, nbytes - at))

        yield work


@contextmanager
def _gpu(gpu: "cuda.Gpu", nbytes: int, way: str, *, pin: bool) -> Iterator[Callable[[], None]]:
    with buffer(nbytes) as host, ExitStack() as stack:
        address = _address(host)
        device = stack.enter_context(gpu.allocated(nbytes))
        if pin:
            stack.enter_context(gpu.registered(address, nbytes))
        copy = gpu.to_device if way == "to" else gpu.to_host
        yield lambda: copy(device, address, nbytes)


# --- the tier


class TierBench:
    """A tier over as many slots in memory as on disk; use as a context manager.

    Raises: ConfigError and TierCacheError if a tier cannot be opened in ``directory``.
    """

    def __init__(self, directory: Path, blocks: int, block_bytes: int, queue_depth: int) -> None:
        self.blocks = blocks
        self.block_bytes = block_bytes
        self._queue_depth = queue_depth
        self._directory = directory
        self._undo = ExitStack()
        self._jobs = self._open_jobs = 0

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _open(self) -> None:
        from tiercache.blocks import GroupKind, GroupSpec
        from tiercache.tierconfig import NvmeConfig
        from tiercache.tiers.base import SlotMemory
        from tiercache.tiers.nvme.index import index_bytes
        from tiercache.tiers.nvme.space import slack_bytes
        from tiercache.tiers.nvme.tier import NvmeTier

        made = tempfile.mkdtemp(prefix="tiercache-bench-", dir=self._directory)
        self._undo.callback(shutil.rmtree, made, ignore_errors=True)
        slots = {0: self.blocks}
        host = self._undo.enter_context(buffer(self.blocks * self.block_bytes))
        view = memoryview(host)
        self._undo.callback(view.release)
        self._fill(view)
        groups = [GroupSpec(0, GroupKind.FULL, 16, self.block_bytes)]
        config = NvmeConfig(
            path=Path(made),
            capacity=self.blocks * self.block_bytes + index_bytes(slots) + slack_bytes(slots),
            high_water=1.0,
            low_water=1.0,
            queue_depth=self._queue_depth,
            min_free=0,
        )
        memory = SlotMemory(groups, {0: [view]})
        self._tier: NvmeTier = NvmeTier(
            "bench", memory, groups, slots, config=config, fingerprint={"bench": 1}
        )
        self._undo.callback(self._tier.close)

    def _fill(self, view: memoryview) -> None:
        noise = os.urandom(1 << 20)
        for at in range(0, len(view), len(noise)):
            view[at : at + len(noise)] = noise[: len(view) - at]

    def keys(self, generation: int) -> "list[Key]":
        from tiercache.blocks import make_key

        name = generation.to_bytes(8, "big")
        return [make_key(name + n.to_bytes(24, "big"), 0) for n in range(self.blocks)]

    def store(self, generation: int) -> None:
        """Store all blocks, in the place of what was stored before."""
        for keys, slots in self._batches(generation):
            batch = self._batch(keys, slots)
            # As many as there is room for: what it replaces must be on the disk first.
            while not self._tier.store(batch):
                self._poll()
            self._open_jobs += 1
        self._wait()

    def load(self, generation: int) -> None:
        for keys, slots in self._batches(generation):
            self._tier.load(self._batch(keys, slots))
            self._open_jobs += 1
        self._wait()

    def _batches(self, generation: int) -> "Iterator[tuple[list[Key], list[int]]]":
        keys = self.keys(generation)
        step = max(1, min(BATCH_BYTES // self.block_bytes, self.blocks // 2 or 1))
        for first in range(0, self.blocks, step):
            chosen = keys[first : first + step]
            yield chosen, list(range(first, first + len(chosen)))

    def _batch(self, keys: "list[Key]", slots: list[int]) -> "Batch":
        from tiercache.tiers.base import Batch

        self._jobs += 1
        self._deadline = time.monotonic() + PATIENCE_S
        return Batch(self._jobs, 0, keys, slots)

    def _wait(self) -> None:
        while self._open_jobs:
            self._poll()

    def _poll(self) -> None:
        for done in self._tier.poll():
            self._open_jobs -= 1
            if done.failed:
                raise TierCacheError(f"{len(done.failed)} blocks were not moved: see the warnings")
        if time.monotonic() > self._deadline:
            raise TierCacheError(f"the disk did not answer for {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)


def nvme(
    directory: Path, nbytes: int, unit: int, rounds: int, *, queue_depth: int, progress: Progress
) -> list[Result]:
    """Stores into new segments, loads, and stores over what is there."""
    blocks = max(2, nbytes // unit)
    nbytes = blocks * unit
    _check_room(directory, nbytes)
    rates: dict[str, list[float]] = {"store": [], "load": [], "steady store": []}
    total = rounds * len(rates)
    for turn in range(rounds):
        with TierBench(directory, blocks, unit, queue_depth) as bench:
            works: Sequence[tuple[str, Callable[[], None]]] = (
                ("store", partial(bench.store, 0)),
                ("load", partial(bench.load, 0)),
                ("steady store", partial(bench.store, 1)),
            )
            for number, (name, work) in enumerate(works):
                rates[name].append(_rate(nbytes, work))
                progress(turn * len(rates) + number + 1, total)
    return [Result(name, unit, nbytes, found) for name, found in rates.items()]


def _check_room(directory: Path, nbytes: int) -> None:
    stat = os.statvfs(directory)
    free = stat.f_bavail * stat.f_frsize
    if stat.f_blocks and free < nbytes + SPARE_BYTES:
        text = f"{size(free)} free, {size(nbytes + SPARE_BYTES)} needed: give less with --bytes"
        raise TierCacheError(f"{directory} has no room: {text}")
