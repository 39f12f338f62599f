# SPDX-License-Identifier: Apache-2.0
"""Servers that share a real store: what one stores, the others find."""

import os
import subprocess
import sys
from typing import Any

import pytest

from lab.store import Master
from tests.core_helpers import key
from tests.mooncake_helpers import Server, until
from tests.tiers.mooncake.conftest import Serve
from tiercache.tiers.mooncake import known, records

A, B, C, D = map(key, "abcd")
STATE = key("a", 5)


def test_a_server_finds_what_another_has_stored(serve: Serve, raw: Any) -> None:
    first, second = serve(raw, name="found"), serve(raw, name="found")
    assert first.store(A, B)
    assert first.store(STATE)
    assert not second.tier.has(A)
    assert second.seek(A, C, B, STATE) == [A, B, STATE]
    assert second.tier.missing([A, C, B]) == [C]
    assert second.load(B, A) == [B, A]
    assert second.load(STATE) == [STATE]
    assert second.tier.stats().counters["found"] == 3


def test_another_fingerprint_finds_nothing(serve: Serve, raw: Any) -> None:
    first, second = serve(raw, name="one model"), serve(raw, name="another")
    assert first.store(A)
    assert second.seek(A) == []


def test_after_a_clear_nothing_is_shared_in_either_direction(serve: Serve, raw: Any) -> None:
    first, second = serve(raw, name="cleared"), serve(raw, name="cleared")
    assert first.store(A)
    second.tier.clear()
    assert second.seek(A) == []
    assert second.store(A, version=2)
    assert second.store(B, version=2)
    assert second.load(A, B, version=2) == [A, B]
    assert first.seek(A, B) == [A]
    assert first.load(A) == [A]


def test_an_answer_from_before_a_clear_is_not_heard(serve: Serve, raw: Any) -> None:
    first, second = serve(raw, name="late"), serve(raw, name="late")
    assert first.store(A)
    waits = second.tier.seek([A])
    assert waits is not None
    second.tier.clear()
    until(lambda: not waits())
    assert not second.tier.has(A)


def test_what_is_there_is_not_sent_again(
    serve: Serve, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = serve(raw, name="again"), serve(raw, name="again")
    assert first.store(A)
    with monkeypatch.context() as patch:
        patch.setattr(records.Records, "_put", None)
        assert second.store(A)
    assert second.load(A) == [A]


def test_what_is_known_is_not_asked_for_until_it_may_be_gone(
    serve: Serve, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(raw, name="fresh")
    assert server.store(A, B)
    assert server.tier.seek([A, B]) is None
    monkeypatch.setattr(known, "FRESH_S", -1.0)
    assert server.seek(A, C) == [A]


def test_what_the_store_has_evicted_is_a_miss(serve: Serve, raw: Any) -> None:
    server = serve(raw, name="evicted")
    assert server.store(A, B)
    remove(raw, server, A)
    assert server.load(A, B) == [B]
    assert not server.tier.has(A)
    assert server.seek(A) == []
    assert server.store(A)
    stats = server.tier.stats()
    assert stats.healthy
    assert stats.counters["failed"] == stats.counters["corrupt"] == 0


@pytest.mark.parametrize("what", ["flipped", "another key's", "short"])
def test_bytes_that_do_not_verify_are_a_miss_and_go(serve: Serve, raw: Any, what: str) -> None:
    first, second = serve(raw, name=f"corrupt, {what}"), serve(raw, name=f"corrupt, {what}")
    assert first.store(A, B)
    damage(raw, first, what)
    assert second.seek(A, B) == [A, B]
    assert second.load(A, B) == [B]
    assert not second.tier.has(A)
    assert second.seek(A) == []
    counters = second.tier.stats().counters
    assert counters["corrupt"] == (what != "short")
    assert counters["failed"] == (what == "short")
    assert second.tier.stats().healthy
    if what != "short":  # it was removed: whoever computes it stores it anew
        assert second.store(A, version=3)
        assert second.load(A, version=3) == [A]


def remove(raw: Any, server: Server, *keys: bytes) -> None:
    assert raw.batch_remove([name(server, each) for each in keys], True) == [0] * len(keys)


def name(server: Server, each: bytes) -> str:
    return f"{server.tier._space}/{each.hex()}"


def damage(raw: Any, server: Server, what: str) -> None:
    """Replace the record of A, in the store."""
    client = server.tier._client
    size = sum(part.nbytes for part in server.slots.memory.buffers(0, [0]))
    scratch = server.slots.memory.regions()[0][: size + records.TRAILER_BYTES]
    source = B if what == "another key's" else A
    assert client.get([name(server, source)], [[scratch]]) == [scratch.nbytes]
    if what == "flipped":
        scratch[100] ^= 1
    remove(raw, server, A)
    assert client.put([name(server, A)], [[scratch[:-1] if what == "short" else scratch]]) == [0]


_WRITER = """
import sys
from tests.core_helpers import key
from tests.mooncake_helpers import Server, raw_store
server = Server(raw_store(sys.argv[1]), name="two processes")
print(server.store(key("a"), key("b")), flush=True)
for number in range(1_000_000):
    server.store(key(f"{number}"))
"""


def test_a_writer_that_is_killed_leaves_nothing_that_is_wrong(
    serve: Serve, raw: Any, master: Master
) -> None:
    command = [sys.executable, "-c", _WRITER, master.address]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"True\n"
        reader = serve(raw, name="two processes")
        until(lambda: bool(reader.seek(key("20"))))
        writer.kill()
    assert reader.seek(A, B) == [A, B]
    assert reader.load(A, B) == [A, B]
    written = [key(f"{number}") for number in range(2000)]
    found = reader.seek(*written)
    for first in range(0, len(found), 8):
        some = found[first : first + 8]
        assert reader.load(*some) == some
    assert len(found) >= 20
    assert reader.tier.stats().counters["corrupt"] == 0
