# SPDX-License-Identifier: Apache-2.0
"""A conversation with recognisable tokens: not one of them, nor a hash, leaves the engine."""

import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

from tests.security.test_secrets import found, logged
from tests.vllm.conftest import Start
from tests.vllm.fake_engine import FakeEngine
from tests.vllm.tag_tier import TagTier
from tests.vllm.test_scheduler import HYBRID, again
from tiercache.stats import pools

#: Tokens as no count, size, time or address looks.
SECRET = 1_926_817_000
REQUEST = "request-of-somebody"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path / "segments"))
    return tmp_path / "segments"


def prompt(turns: int) -> list[int]:
    return [SECRET + number for number in range(70 * turns)]


def converse(engine: FakeEngine) -> list[bytes]:
    """Turns, a fork, an abort, a reset and evictions; returns the hashes of all blocks."""
    hashes: list[bytes] = []
    for turn in range(1, 5):
        again(engine, f"{REQUEST} {turn}", prompt(turn))
    request = engine.add(f"{REQUEST} aborted", [*prompt(3)[:-9], *prompt(5)])
    hashes += map(bytes, request.block_hashes)
    engine.step()
    engine.abort(f"{REQUEST} aborted")
    engine.run()
    for number in range(8):
        other = engine.add(f"{REQUEST} other {number}", [SECRET + 500 + number, *prompt(1)])
        hashes += map(bytes, other.block_hashes)
        engine.run()
    again(engine, f"{REQUEST} last", prompt(4))
    engine.scheduler.reset_connector_cache()
    again(engine, f"{REQUEST} new", prompt(4))
    return hashes


def tokens(first: int = SECRET) -> Iterator[bytes]:
    """How a token may be written."""
    yield str(first)[:7].encode()
    yield f"{first:x}"[:5].encode()
    for number in range(first, first + 600):
        yield number.to_bytes(4, "little")
        yield number.to_bytes(4, "big")


def test_nothing_of_a_prompt_is_logged_counted_or_published(
    start: Start, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="tiercache")
    engine = start(replace(HYBRID, slots=[20, 6, 6, 6]))
    tier = TagTier(engine.worker, random.Random(2), entries=60, spill="on_store")
    clock = count(0, 0.01).__next__
    engine.manager.cache.attach([tier], patience_s=10.0, restore="always", clock=clock)
    engine.manager.publish("model", workers=1, rank=0)
    hashes = converse(engine)
    assert len(hashes) > 30
    [pool] = pools.found(folder)
    published = [path.read_bytes() for path in folder.iterdir()]
    ours = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("tiercache"))
    assert pool.path.exists()
    assert "restores 128 tokens" in ours
    metrics = repr(engine.stats).encode()
    assert b"tiercache" in metrics
    for text in (ours.encode(), logged(caplog), metrics, *published):
        assert found(hashes, text) == []
        assert [token for token in tokens() if token in text] == []
    assert not any(REQUEST.encode() in text for text in (metrics, *published))


def test_a_fault_says_nothing_of_a_prompt(
    model: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its traceback is logged, once."""
    engine = FakeEngine(HYBRID, model)
    request = engine.add(f"{REQUEST} 1", prompt(3))
    hashes = [bytes(each) for each in request.block_hashes]
    engine.run()
    pool = engine.manager.cache.primary.pools[0]
    nowhere: dict[str, int] = {}
    monkeypatch.setattr(pool, "reserve", lambda *_: nowhere["gone"])
    engine.ask(f"{REQUEST} 2", prompt(4))
    assert engine.manager.sick
    assert "gone" in (text := logged(caplog)).decode()
    assert found(hashes, text) == []
    assert [token for token in tokens() if token in text] == []
    engine.connector.shutdown()
