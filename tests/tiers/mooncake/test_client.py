# SPDX-License-Identifier: Apache-2.0
"""A store that is closed while other threads call it: nobody calls it afterwards."""

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import pytest

from lab.store import Master
from tests.mooncake_helpers import MIB, raw_store
from tiercache.errors import TierCacheError
from tiercache.tiers.mooncake.client import Client

CALLERS = 4
#: The package opens files when it is imported, and keeps them.
pytestmark = pytest.mark.usefixtures("raw")


class Watched:
    """A package that notes what is called when it is closed."""

    def __init__(self) -> None:
        self.inside = self.closed = self.late = 0
        self.entered, self.go_on = Event(), Event()

    def batch_is_exist(self, names: list[str]) -> list[int]:
        self.late += self.closed
        self.inside += 1
        self.entered.set()
        self.go_on.wait()
        self.inside -= 1
        return [0] * len(names)

    def register_buffer(self, address: int, size: int) -> int:
        return 0

    def unregister_buffer(self, address: int) -> int:
        self.late += self.inside + self.closed
        return 0

    def close(self) -> None:
        self.late += self.inside + self.closed
        self.closed += 1


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CALLERS) as threads:
        yield threads


def test_the_last_call_closes_it(executor: ThreadPoolExecutor) -> None:
    raw = Watched()
    client = Client(raw)
    client.register(memoryview(bytearray(4096)))
    call = executor.submit(client.exist, ["a"])
    raw.entered.wait()
    client.close()
    client.close()
    assert not raw.closed
    with pytest.raises(TierCacheError, match="the store is closed"):
        client.exist(["b"])
    raw.go_on.set()
    assert call.result() == [0]
    assert (raw.closed, raw.late) == (1, 0)


def test_one_that_nobody_calls_is_closed_at_once() -> None:
    raw = Watched()
    client = Client(raw)
    client.register(memoryview(bytearray(4096)))
    client.close()
    client.close()
    assert (raw.closed, raw.late) == (1, 0)
    for call in (lambda: client.put([], []), lambda: client.get([], []), lambda: client.remove([])):
        with pytest.raises(TierCacheError, match="the store is closed"):
            call()


def test_a_real_one_is_closed_while_others_call(
    raw: Any, master: Master, executor: ThreadPoolExecutor
) -> None:
    """A call on a closed store ends the process."""
    client = Client(raw_store(master.address))
    region = memoryview(mmap.mmap(-1, CALLERS * MIB))
    client.register(region)
    start = Barrier(CALLERS + 1)

    def call(number: int) -> int:
        record = [[region[number * MIB : (number + 1) * MIB]]]
        start.wait()
        for turn in range(1_000_000):
            name = [f"closing {number} {turn}"]
            try:
                client.put(name, record)
                client.get(name, record)
                client.exist(name)
                client.remove(name)
            except TierCacheError:
                return turn
        return -1

    calls = [executor.submit(call, number) for number in range(CALLERS)]
    start.wait()
    while not any(client.exist([f"closing {number} 0" for number in range(CALLERS)])):
        pass
    client.close()
    assert all(each.result() >= 0 for each in calls)
    assert not client._registered
