# SPDX-License-Identifier: Apache-2.0
"""Who stores and loads blocks in scripts/bench_nvme, and our NVMe tier as the first of them.

Covers the work they are given, and the busy thread beside them. The others are in
``bench_nvme_rivals`` and ``bench_nvme_fio``; what is measured when, in ``bench_nvme``.
"""

import hashlib
import shutil
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tiercache.arena import HostArena
from tiercache.blocks import GroupKind, GroupSpec, Key, make_key
from tiercache.sharing import attach
from tiercache.spilling import BATCH_BYTES
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import Batch, SlotMemory
from tiercache.tiers.nvme.index import index_bytes
from tiercache.tiers.nvme.space import slack_bytes
from tiercache.tiers.nvme.tier import NvmeTier

#: What a request brings back at once: one job of ours, and one of vLLM's.
REQUEST_BYTES = 256 << 20
#: Operations at the disk at once: the tier's default.
DEPTH = NvmeConfig(path=Path("/"), capacity=1).queue_depth
#: How often whoever waits looks: an engine's step is longer.
POLL_S = 0.0005
#: Bytes at the start of each block that tell whether it was loaded.
PROBE_BYTES = 64

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Workload:
    """``blocks`` blocks of ``block_bytes`` bytes: stored, loaded, replaced by as many others."""

    block_bytes: int
    blocks: int

    @classmethod
    def of(cls, block_bytes: int, total: int) -> Self:
        return cls(block_bytes, max(1, total // block_bytes))

    @property
    def nbytes(self) -> int:
        return self.blocks * self.block_bytes

    def batches(self, nbytes: int) -> list[list[int]]:
        """The numbers of the blocks in jobs of at most ``nbytes`` bytes, or of one block."""
        step = max(1, nbytes // self.block_bytes)
        numbers = list(range(self.blocks))
        return [numbers[first : first + step] for first in range(0, self.blocks, step)]


def block_key(generation: int, number: int) -> Key:
    return make_key(hashlib.sha256(f"{generation}/{number}".encode()).digest(), 0)


def capacity_of(slots: int, record_bytes: int) -> int:
    """Bytes of a tier of one group with exactly so many slots."""
    return slots * record_bytes + index_bytes({0: slots}) + slack_bytes({0: slots})


class Contender(ABC):
    """Stores and loads the blocks of a workload. Times are seconds; errors are raised."""

    name: ClassVar[str]
    memory: str
    """Where its blocks lie."""
    switch_interval: float = 0.005
    """What the interpreter has while it alone is used: Python's, if it asks for nothing else."""

    def __init__(self, work: Workload) -> None:
        self.work = work

    @abstractmethod
    def open(self, directory: Path) -> None:
        """Begin anew in an empty directory."""

    @abstractmethod
    def store(self, generation: int) -> float: ...

    def recycle(self) -> None:  # noqa: B027 - most have nothing to do
        """Make room for the next generation, where that does not happen by itself."""

    @abstractmethod
    def load(self) -> float:
        """Load what was stored first."""

    @abstractmethod
    def close(self) -> None:
        """End what ``open`` began."""

    def release(self) -> None:  # noqa: B027 - fio's memory is its own
        """Give the memory back."""


class InMemory(Contender):
    """A contender whose blocks lie in this process: what it loads is looked at."""

    blocks: Bytes

    def fill(self, blocks: Bytes) -> None:
        self.blocks = blocks
        noise = np.random.default_rng(1)
        for block in blocks:
            block[:] = np.frombuffer(noise.bytes(len(block)), np.uint8)
        self._probes = blocks[:, :PROBE_BYTES].copy()

    def load(self) -> float:
        self.blocks[:, :PROBE_BYTES] = 0
        seconds = self.timed_load()
        if not np.array_equal(self.blocks[:, :PROBE_BYTES], self._probes):
            raise RuntimeError(f"{self.name} did not load what it stored")
        return seconds

    @abstractmethod
    def timed_load(self) -> float: ...


class Ours(InMemory):
    """The NVMe tier over an arena, as full as it can be: each new block takes an old one's slot."""

    name = "ours"
    switch_interval = 0.001

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self._spec = GroupSpec(0, GroupKind.FULL, 16, work.block_bytes)
        self._arena = HostArena({0: (work.blocks, work.block_bytes)})
        self.memory = f"arena, pages {self._arena.pages}"
        self._attached = attach(self._arena.ticket())
        region = self._attached.region(0)
        self._slots = SlotMemory([self._spec], {0: [region]})
        self.fill(np.frombuffer(region, np.uint8).reshape(work.blocks, work.block_bytes))

    def open(self, directory: Path) -> None:
        slots = {0: self.work.blocks}
        config = NvmeConfig(
            path=directory,
            capacity=capacity_of(slots[0], self.work.block_bytes),
            high_water=1.0,
            low_water=1.0,
            min_free=0,
            switch_interval=self.switch_interval,
        )
        self._tier = NvmeTier(
            "bench", self._slots, [self._spec], slots, config=config, fingerprint={}
        )

    def store(self, generation: int) -> float:
        return self._run(generation, BATCH_BYTES, self._store)

    def timed_load(self) -> float:
        return self._run(0, REQUEST_BYTES, self._tier.load)

    def _store(self, batch: Batch) -> None:
        if not self._tier.store(batch):
            raise RuntimeError("the tier declined to store")

    def _run(self, generation: int, nbytes: int, submit: Callable[[Batch], None]) -> float:
        batches = [
            Batch(job_id, 0, [block_key(generation, n) for n in numbers], numbers)
            for job_id, numbers in enumerate(self.work.batches(nbytes))
        ]
        start = time.perf_counter()
        for batch in batches:
            submit(batch)
        ended = 0
        while ended < len(batches):
            time.sleep(POLL_S)
            for done in self._tier.poll():
                ended += 1
                if done.failed:
                    raise RuntimeError(f"{len(done.failed)} blocks failed; see the log")
        return time.perf_counter() - start

    def close(self) -> None:
        self._tier.close()

    def release(self) -> None:
        del self.blocks, self._slots
        self._attached.close()
        self._arena.close()


@contextmanager
def opened(contenders: Sequence[Contender], directory: Path) -> Iterator[None]:
    """All contenders with an empty directory each, which are removed in the end."""
    begun: list[Contender] = []
    try:
        for contender in contenders:
            place = directory / contender.name
            place.mkdir(mode=0o700)
            contender.open(place)
            begun.append(contender)
        yield
    finally:
        for contender in begun:
            contender.close()
        for contender in contenders:
            shutil.rmtree(directory / contender.name, ignore_errors=True)


@contextmanager
def switching(seconds: float) -> Iterator[None]:
    """With this switch interval, which our tier sets for the whole process, rivals included."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def busy(*, spins: bool) -> Iterator[None]:
    """With ``spins``, a Python thread that never rests, as an engine's scheduler."""
    ended = False

    def spin() -> None:
        while not ended:
            pass

    thread = threading.Thread(target=spin, name="busy", daemon=True)
    if spins:
        thread.start()
    try:
        yield
    finally:
        ended = True
        if spins:
            thread.join()
