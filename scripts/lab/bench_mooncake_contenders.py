# SPDX-License-Identifier: Apache-2.0
"""Who stores and loads blocks in scripts/bench_mooncake: our tier, and the store's own client."""

import mmap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from lab.bench_nvme_contenders import POLL_S, PROBE_BYTES, REQUEST_BYTES, Workload, block_key
from lab.store import LOCAL
from tiercache.blocks import GroupKind, GroupSpec, make_key
from tiercache.spilling import BATCH_BYTES
from tiercache.tierconfig import MooncakeConfig
from tiercache.tiers.base import Batch, SlotMemory
from tiercache.tiers.mooncake.client import _address
from tiercache.tiers.mooncake.tier import MooncakeTier

#: Blocks and bytes of one call of the bare client.
CALL_BLOCKS = 512
CALL_BYTES = 64 << 20


class Contender(ABC):
    """Stores and loads the blocks of a workload. Raises RuntimeError if a call fails."""

    name: ClassVar[str]

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.region = memoryview(mmap.mmap(-1, work.nbytes))
        self._blocks = np.frombuffer(self.region, np.uint8).reshape(work.blocks, work.block_bytes)
        noise = np.random.default_rng(1)
        for block in self._blocks:
            block[:] = np.frombuffer(noise.bytes(work.block_bytes), np.uint8)
        self._probes = self._blocks[:, :PROBE_BYTES].copy()

    @abstractmethod
    def store(self) -> None: ...

    def load(self) -> None:
        """Load what was stored; ``check`` tells whether it came."""
        self._blocks[:, :PROBE_BYTES] = 0
        self._load()

    @abstractmethod
    def _load(self) -> None: ...

    def check(self) -> None:
        if not np.array_equal(self._blocks[:, :PROBE_BYTES], self._probes):
            raise RuntimeError(f"{self.name} did not load what it stored")

    @abstractmethod
    def forget(self) -> None:
        """Make room for the next round."""

    @abstractmethod
    def seek(self, count: int, number: int) -> float:
        """Longest that the caller is held up by asking for keys that nobody has; seconds."""

    @abstractmethod
    def close(self) -> None: ...


class Ours(Contender):
    """The tier, in jobs as a server has them."""

    name = "ours"

    def __init__(self, address: str, work: Workload, depth: int | None) -> None:
        super().__init__(work)
        config = MooncakeConfig(master=address, host=LOCAL, capacity=1 << 40, lookup_timeout_s=20.0)
        self._tier = MooncakeTier(
            "bench",
            SlotMemory([GroupSpec(0, GroupKind.FULL, 16, work.block_bytes)], {0: [self.region]}),
            config=replace(config, queue_depth=depth or config.queue_depth),
            fingerprint={"block_bytes": work.block_bytes},
        )

    def store(self) -> None:
        self._run(BATCH_BYTES, self._tier.store)

    def _load(self) -> None:
        self._run(REQUEST_BYTES, self._tier.load)

    def _run(self, nbytes: int, submit: Callable[[Batch], object]) -> None:
        batches = [
            Batch(job_id, 0, [block_key(0, n) for n in numbers], numbers)
            for job_id, numbers in enumerate(self.work.batches(nbytes))
        ]
        if any(submit(batch) is False for batch in batches):
            raise RuntimeError("the tier declined to store")
        ended = 0
        while ended < len(batches):
            time.sleep(POLL_S)
            for done in self._tier.poll():
                ended += 1
                if done.failed:
                    raise RuntimeError(f"{len(done.failed)} blocks failed")

    def forget(self) -> None:
        self._tier._client.remove(self._names())  # noqa: SLF001 - the tier removes nothing good
        self._tier.clear()

    def _names(self) -> list[str]:
        space = self._tier._space  # noqa: SLF001 - likewise
        return [f"{space}/{block_key(0, n).hex()}" for n in range(self.work.blocks)]

    def seek(self, count: int, number: int) -> float:
        keys = [make_key(f"{number:8}{n:024}".encode(), 0) for n in range(count)]
        waits = self._tier.seek
        start = time.perf_counter()
        more = waits(keys)
        longest = time.perf_counter() - start
        while more is not None:
            start = time.perf_counter()
            more = more if more() else None
            longest = max(longest, time.perf_counter() - start)
            time.sleep(POLL_S)
        return longest

    def close(self) -> None:
        self._tier.close()


class Bare(Contender):
    """The store's own client: whole blocks, one call after the other, no checksums."""

    name = "raw"

    def __init__(self, address: str, work: Workload) -> None:
        from mooncake.store import MooncakeDistributedStore

        super().__init__(work)
        self._store: Any = MooncakeDistributedStore()
        if code := self._store.setup(LOCAL, "P2PHANDSHAKE", 0, 0, "tcp", "", address):
            raise RuntimeError(f"the client was not set up: {code}")
        self._address, self._owner = _address(self.region)
        if code := self._store.register_buffer(self._address, self.region.nbytes):
            raise RuntimeError(f"memory was not registered: {code}")
        size = work.block_bytes
        self._calls = [
            (
                [f"bare/{size}/{n}" for n in numbers],
                [self._address + n * size for n in numbers],
                [size] * len(numbers),
            )
            for numbers in work.batches(min(CALL_BYTES, CALL_BLOCKS * size))
        ]

    def store(self) -> None:
        for names, addresses, sizes in self._calls:
            if any(self._store.batch_put_from(names, addresses, sizes)):
                raise RuntimeError("blocks were not stored")

    def _load(self) -> None:
        for names, addresses, sizes in self._calls:
            if self._store.batch_get_into(names, addresses, sizes) != sizes:
                raise RuntimeError("blocks were not loaded")

    def forget(self) -> None:
        for names, _, _ in self._calls:
            self._store.batch_remove(names, True)

    def seek(self, count: int, number: int) -> float:
        names = [f"bare/{number:8}{n:024}" for n in range(count)]
        start = time.perf_counter()
        self._store.batch_is_exist(names)
        return time.perf_counter() - start

    def close(self) -> None:
        self._store.unregister_buffer(self._address)
        self._store.close()
        del self._owner
