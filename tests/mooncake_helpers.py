# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Mooncake tier share: a real master, clients, servers in small."""

import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

from lab import store
from lab.store import LOCAL, Master, program
from tests.core_helpers import full, state
from tests.tier_helpers import PATIENCE_S, Slots, wait
from tiercache.blocks import GroupSpec, Key
from tiercache.tierconfig import MooncakeConfig
from tiercache.tiers.base import Batch
from tiercache.tiers.mooncake.client import POOL, Client
from tiercache.tiers.mooncake.tier import MooncakeTier

ABSENT = "the extra tiercache-kv[mooncake] is not installed"
MIB = 1 << 20
GROUPS = (full(0), state(5))
SLOTS = 16
WORKERS = 2
#: Long enough for a busy machine; what is tested does not depend on it.
LOOKUP_S = 20.0


def skip_without_package() -> None:
    """Skip the test, with the reason, where the package or a library that it needs is missing."""
    if program() is None:
        pytest.skip(ABSENT)
    try:
        import_module("mooncake.store")
    except ImportError as error:
        pytest.skip(f"{ABSENT}, or not what it needs: {error}")


@contextmanager
def master() -> Iterator[Master]:
    """A real master, killed at the end; skips the test where there is none."""
    skip_without_package()
    with store.master() as running:
        yield running


class Lent(Client):
    """A client over a connection that outlives it: closing one takes a second."""

    def _hang_up(self) -> None:
        pass


def raw_store(address: str) -> Any:
    """A connection of its own to the store."""
    from mooncake.store import MooncakeDistributedStore

    os.environ.setdefault(POOL, "1")
    made = MooncakeDistributedStore()
    assert made.setup(LOCAL, "P2PHANDSHAKE", 0, 0, "tcp", "", address) == 0
    return made


def connect_all(raw: Any) -> None:
    """Open all the connections that a test may need."""
    client = Lent(raw)
    region = memoryview(mmap.mmap(-1, MIB))
    client.register(region)

    def copy(number: int) -> None:
        names = [f"connect {number} {place}" for place in range(16)]
        places = range(number % 8 * 65536, (number % 8 + 1) * 65536, 4096)
        records = [[region[at : at + 2048], region[at + 2048 : at + 4096]] for at in places]
        assert not any(client.put(names, records))
        assert client.get(names, records) == [4096] * 16
        client.remove(names)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(copy, range(64)))
    client.close()


def lend(raw: Any) -> Callable[[str, MooncakeConfig], Client]:
    return lambda _name, config: Lent(raw, config.replicas)


def config(master: str = "127.0.0.1:1", **values: Any) -> MooncakeConfig:
    values = {"capacity": 64 * MIB, "lookup_timeout_s": LOOKUP_S} | values
    return MooncakeConfig(master=master, host=LOCAL, **values)


class Server:
    """A tier over slots of its own, as a server has it."""

    def __init__(
        self,
        raw: Any,
        settings: MooncakeConfig | None = None,
        *,
        groups: Sequence[GroupSpec] = GROUPS,
        name: str = "",
        **arguments: Any,
    ) -> None:
        self.slots = Slots(groups, {group.group_id: SLOTS for group in groups}, workers=WORKERS)
        self.tier = MooncakeTier(
            "mooncake0",
            self.slots.memory,
            config=settings or config(),
            fingerprint={"model": name},
            connect=lend(raw),
            **arguments,
        )
        self._jobs = 0

    def batch(self, keys: Sequence[Key], first: int) -> Batch:
        self._jobs += 1
        slots = list(range(first, first + len(keys)))
        return Batch(self._jobs, int.from_bytes(keys[0][-4:], "big"), list(keys), slots)

    def begin_store(self, *keys: Key, version: int = 0) -> bool:
        batch = self.batch(keys, 0)
        for key, slot in zip(batch.keys, batch.slots, strict=True):
            self.slots.write(key, slot, version)
        return self.tier.store(batch)

    def store(self, *keys: Key, version: int = 0) -> bool:
        taken = self.begin_store(*keys, version=version)
        wait(self.tier)
        return taken and all(map(self.tier.has, keys))

    def begin_load(self, *keys: Key) -> Batch:
        batch = self.batch(keys, SLOTS // 2)
        for key, slot in zip(batch.keys, batch.slots, strict=True):
            self.slots.scribble(key, slot)
        self.tier.load(batch)
        return batch

    def load(self, *keys: Key, version: int = 0) -> list[Key]:
        """What could be loaded, and is what was stored."""
        batch = self.begin_load(*keys)
        failed = wait(self.tier)[batch.job_id].failed
        pairs = zip(batch.keys, batch.slots, strict=True)
        good = [(key, slot) for key, slot in pairs if key not in failed]
        assert all(self.slots.holds(key, slot, version) for key, slot in good)
        return [key for key, _ in good]

    def seek(self, *keys: Key) -> list[Key]:
        """What is there, once that is known."""
        waits = self.tier.seek(keys)
        if waits is not None:
            until(lambda: not waits())
        return list(filter(self.tier.has, keys))


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.002)
