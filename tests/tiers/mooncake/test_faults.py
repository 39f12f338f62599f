# SPDX-License-Identifier: Apache-2.0
"""A master that hangs, dies and comes back, a machine that goes, a package that answers late."""

from collections.abc import Iterator
from functools import partial
from threading import Event
from typing import Any

import pytest

from lab.store import Master, machine
from tests import mooncake_helpers
from tests.core_helpers import key
from tests.mooncake_helpers import Server, config, raw_store, until
from tests.tier_helpers import Clock, wait
from tests.tiers.mooncake.conftest import Serve
from tiercache.blocks import Key
from tiercache.tiers.mooncake import tier as tier_module
from tiercache.tiers.nvme.breaker import FAILURES

A, B, C, D = map(key, "abcd")


@pytest.fixture
def fragile(raw: Any) -> Iterator[Master]:
    """A master that the test may kill."""
    with mooncake_helpers.master() as running:
        yield running


@pytest.fixture
def wire(fragile: Master) -> Iterator[Any]:
    """A connection to it, with the memory of a machine.

    The test's own, as it connects anew after a fault; what the package keeps open for ever it has
    opened for ``raw``.
    """
    with machine(fragile):
        store = raw_store(fragile.address)
        yield store
        store.close()


class Waiting:
    """A package of which calls wait until the test lets them go on."""

    def __init__(self, raw: Any, *names: str) -> None:
        self.go_on = Event()
        self.called = Event()
        self.calls = 0
        self._raw = raw
        self._names = names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._raw, name)
        if name not in self._names:
            return found

        def call(*arguments: Any) -> Any:
            self.calls += 1
            self.called.set()
            self.go_on.wait()
            return found(*arguments)

        return call


def store_all(server: Server, keys: list[Key]) -> bool:
    return server.store(*server.tier.missing(keys)) and not server.tier.missing(keys)


def again(server: Server) -> bool:
    """Whether the tier does not rest any more."""
    server.tier.poll()
    return server.tier.stats().healthy


def test_a_master_that_is_killed_and_started_again(
    fragile: Master, wire: Any, serve: Serve
) -> None:
    server = serve(wire, name="killed")
    assert server.store(A)
    fragile.kill()
    assert server.begin_store(B)
    wait(server.tier)
    assert not server.tier.stats().healthy
    assert not server.tier.has(A)
    assert server.tier.seek([A, B]) is None
    assert not server.begin_store(C)
    assert server.load(A) == []
    fragile.start()
    until(lambda: again(server))
    until(lambda: server.store(*server.tier.missing([A])))  # the memory is added again
    assert server.load(A) == [A]


def test_blocks_that_a_new_master_does_not_know_are_a_miss(
    fragile: Master, wire: Any, serve: Serve
) -> None:
    """It was killed and is back before anybody noticed."""
    server = serve(wire, name="forgotten")
    until(lambda: server.store(*server.tier.missing([A])))
    fragile.kill()
    fragile.start()
    assert server.load(A) == []
    assert not server.tier.has(A)
    until(lambda: again(server))
    until(lambda: server.store(*server.tier.missing([A])))
    assert server.load(A) == [A]


def test_a_master_that_hangs_costs_one_request_the_timeout(
    fragile: Master, wire: Any, serve: Serve
) -> None:
    clock = Clock()
    server = serve(wire, config(lookup_timeout_s=0.05), name="hangs", clock=clock)
    fragile.stop()
    try:
        waits = server.tier.seek([A])
        assert waits is not None
        assert waits()
        clock.now += 0.06
        assert not waits()
        assert not server.tier.stats().healthy
        assert server.tier.seek([A]) is None
        assert not server.begin_store(B)
    finally:
        fragile.go_on()
    clock.now += 2.0
    until(lambda: again(server))
    assert server.seek(A) == []


def test_a_machine_that_is_gone_takes_its_blocks_along(
    fragile: Master, wire: Any, serve: Serve
) -> None:
    server = serve(wire, name="gone")
    with machine(fragile):
        for first in range(0, 64, 8):
            keys = [key(f"{number}") for number in range(first, first + 8)]
            until(partial(store_all, server, keys))
    keys = [key(f"{number}") for number in range(64)]
    loaded = [each for first in range(0, 64, 8) for each in server.load(*keys[first : first + 8])]
    assert 0 < len(loaded) < 64
    assert server.tier.stats().counters["corrupt"] == 0
    until(lambda: again(server))


def test_an_answer_that_is_late_is_taken_when_it_comes(serve: Serve, raw: Any) -> None:
    other = serve(raw, name="slow")
    assert other.store(A)
    clock, slow = Clock(), Waiting(raw, "batch_is_exist")
    server = serve(slow, config(lookup_timeout_s=0.05), name="slow", clock=clock)
    waits = server.tier.seek([A])
    assert waits is not None
    clock.now += 1.0
    assert not waits()
    assert server.tier.seek([A]) is None
    slow.go_on.set()
    clock.now += 2.0
    until(lambda: again(server))
    assert server.seek(A) == [A]


def test_a_ping_that_is_late_does_not_bring_it_back(serve: Serve, raw: Any) -> None:
    clock, slow = Clock(), Waiting(raw, "batch_is_exist")
    server = serve(slow, config(lookup_timeout_s=0.05), name="late ping", clock=clock)
    assert server.tier.seek([A]) is not None
    server.tier._lose("the test", clock.now)
    clock.now += 2.0
    server.tier.poll()  # pings
    until(lambda: slow.calls == 2)
    clock.now += 1.0
    slow.go_on.set()
    until(lambda: not server.tier._questions.pending)
    server.tier.poll()
    assert not server.tier.stats().healthy
    clock.now += 60.0
    until(lambda: again(server))


def test_a_copy_that_hangs_makes_the_tier_rest(serve: Serve, raw: Any) -> None:
    clock, slow = Clock(), Waiting(raw, "batch_put_from_multi_buffers")
    server = serve(slow, config(timeout_s=5.0), name="hung copy", clock=clock)
    assert server.begin_store(A)
    slow.called.wait()
    clock.now += 5.1
    assert server.tier.poll() == []
    assert not server.tier.stats().healthy
    assert server.tier.missing([A]) == []
    slow.go_on.set()
    (done,) = wait(server.tier).values()
    assert not done.failed
    clock.now += 2.0
    until(lambda: again(server))


def test_close_leaves_a_store_that_hangs_to_its_last_call(
    serve: Serve, raw: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tier_module, "CLOSE_S", 0.01)
    slow = Waiting(raw, "batch_put_from_multi_buffers")
    server = serve(slow, name="hung close")
    assert server.begin_store(A)
    slow.called.wait()
    server.tier.close()
    assert "left to its last call" in caplog.text
    assert server.tier._client._registered
    assert not server.tier.has(A)
    slow.go_on.set()
    until(lambda: not server.tier._client._registered)
    wait(server.tier)


class Broken:
    """A package of which some calls give an error for every key, or raise."""

    def __init__(self, raw: Any, **codes: int | Exception) -> None:
        self.codes = codes
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        code = self.codes.get(name)
        if code is None:
            return getattr(self._raw, name)

        def call(names: list[str], *_: Any) -> list[int]:
            if isinstance(code, Exception):
                raise code
            return [code] * len(names)

        return call


@pytest.mark.parametrize("code", [-200, RuntimeError("of the package")])
def test_a_store_without_room_is_offered_less(
    serve: Serve, raw: Any, code: int | Exception
) -> None:
    clock, full = Clock(), Broken(raw, batch_put_from_multi_buffers=code)
    server = serve(full, name=f"full {code}", clock=clock)
    for _ in range(FAILURES):
        assert server.tier.stats().healthy
        assert not server.store(A)
    assert not server.begin_store(A)
    counters = server.tier.stats().counters
    assert (counters["failed"], counters["declined"], counters["stored"]) == (FAILURES, 1, 0)
    assert server.tier.stats().used == 0
    full.codes.clear()
    clock.now += 2.0
    assert server.store(A)
    assert server.tier.stats().healthy


@pytest.mark.parametrize("code", [-800, RuntimeError("of the package")])
def test_what_cannot_be_loaded_is_not_believed_in(
    serve: Serve, raw: Any, code: int | Exception
) -> None:
    clock, broken = Clock(), Broken(raw, batch_get_into_multi_buffers=code)
    server = serve(broken, name=f"unloadable {code}", clock=clock)
    assert server.store(A)
    assert server.load(A) == []
    assert not server.tier.has(A)
    assert server.tier.seek([A]) is None
    broken.codes.clear()
    clock.now += 61.0
    assert server.seek(A) == [A]
    assert server.load(A) == [A]


@pytest.mark.parametrize("code", [-900, -901, RuntimeError("of the package")])
def test_a_question_without_an_answer_makes_the_tier_rest(
    serve: Serve, raw: Any, code: int | Exception
) -> None:
    clock, broken = Clock(), Broken(raw, batch_is_exist=code)
    server = serve(broken, name=f"unanswered {code}", clock=clock)
    assert server.seek(A) == []
    assert not server.tier.stats().healthy
    assert server.tier.seek([A]) is None
    clock.now += 2.0
    server.tier.poll()  # pings, in vain
    until(lambda: not server.tier._questions.pending)
    server.tier.poll()
    assert not server.tier.stats().healthy
    broken.codes.clear()
    clock.now += 60.0
    until(lambda: again(server))
