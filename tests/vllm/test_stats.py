# SPDX-License-Identifier: Apache-2.0
"""The stats segment of a server: when there is one, and that it tells what the engine did."""

import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the segment is that of vLLM's scheduler")

from vllm.config import ModelConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

from tests.vllm.conftest import Start
from tests.vllm.fake_engine import FakeEngine
from tests.vllm.tag_tier import TagTier
from tests.vllm.test_connector import connect
from tests.vllm.test_scheduler import FULL, HYBRID, WINDOW, again, tokens
from tests.vllm.test_scheduler_random import SETUPS, play
from tiercache.events import EventKind
from tiercache.stats.model import Kind, Phase, Slots, Snapshot
from tiercache.stats.pools import found
from tiercache.stats.reader import SegmentReader
from tiercache.vllm.geometry import model_name


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path / "segments"))
    return tmp_path / "segments"


@contextmanager
def published(engine: FakeEngine, folder: Path) -> Iterator[SegmentReader]:
    """As the connector begins it once the workers are there."""
    engine.manager.publish("model", workers=2, rank=0)
    [pool] = found(folder)
    reader = SegmentReader(pool.path)
    try:
        yield reader
    finally:
        reader.close()


def look(reader: SegmentReader) -> Snapshot:
    return reader.snapshot(now=0.0)


# --- whether there is one


def begin(model: ModelConfig, settings: Mapping[str, Any]) -> Any:
    setup = replace(HYBRID, settings=settings)
    worker = connect(model, setup, KVConnectorRole.WORKER)
    scheduler = connect(model, setup, KVConnectorRole.SCHEDULER)
    sent = pickle.loads(pickle.dumps(worker.get_handshake_metadata()))
    scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): sent})
    return scheduler


def test_a_server_has_a_segment_from_its_start_to_its_end(model: ModelConfig, folder: Path) -> None:
    scheduler = begin(model, {})
    [pool] = found(folder)
    assert (pool.name, pool.rank, pool.phase) == (Path(model.model).name, 0, Phase.RUN)
    scheduler.shutdown()
    [pool] = found(folder)
    assert pool.phase is Phase.CLOSED


def test_it_says_what_is_served(model: ModelConfig, folder: Path) -> None:
    scheduler = begin(model, {"eviction_policy": "cost"})
    reader = SegmentReader(found(folder)[0].path)
    snapshot = look(reader)
    assert [(group.name, group.kind) for group in snapshot.groups] == [
        ("g0", "full"),
        *[(f"g{i}", "state") for i in (1, 2, 3)],
    ]
    assert [group.slots.capacity for group in snapshot.groups] == [60, 10, 10, 10]
    assert snapshot.pool is not None
    assert (snapshot.pool.policy, snapshot.pool.writer) == ("cost", "serve")
    reader.close()
    scheduler.shutdown()


def test_a_setting_turns_it_off(model: ModelConfig, folder: Path) -> None:
    scheduler = begin(model, {"stats": False})
    assert found(folder) == []
    scheduler.shutdown()


def test_so_does_the_environment(
    model: ModelConfig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERCACHE_STATS", "0")
    scheduler = begin(model, {})
    assert found(folder) == []
    scheduler.shutdown()


@pytest.mark.parametrize(
    ("served", "name"),
    [
        ("Qwen/Qwen3-Next-80B", "Qwen3-Next-80B"),
        ("/models/qwen/", "qwen"),
        (["first", "second"], "first"),
    ],
)
def test_the_name_of_the_model(model: ModelConfig, served: Any, name: str) -> None:
    config: Any = type("Config", (), {})()
    config.model_config = type("Model", (), {"served_model_name": served, "model": "unused"})()
    assert model_name(config) == name


# --- what it tells


@pytest.mark.parametrize("setup", [HYBRID, WINDOW, FULL], ids=["hybrid", "window", "full"])
def test_what_the_engine_restored(start: Start, folder: Path, setup: Any) -> None:
    engine, prompt = start(setup), tokens(200)
    with published(engine, folder) as reader:
        engine.ask("a", prompt)
        restored = again(engine, "b", prompt)
        assert restored
        snapshot = look(reader)
        [event] = [event for event in snapshot.events if event.kind is Kind.RESTORED]
        assert (event.tokens, event.count) == (restored, 1)
        slots = [group.slots for group in snapshot.groups]
        assert slots == [Slots(*c) for c in engine.manager.cache.counts().values()]
        assert (snapshot.running, snapshot.phase) == (0, Phase.RUN)
        [sequence] = snapshot.sequences
        assert (sequence.turns, sequence.source, sequence.restored) == (2, "ram", restored)
        assert sequence.restorable >= 192
        assert snapshot.ram is not None
        assert (snapshot.ram.requests, snapshot.ram.tokens) == (1, restored)
        assert sum(snapshot.ram.histogram) == 1
        assert snapshot.ram.nbytes == event.nbytes > 0
        assert snapshot.missed is not None
        assert (snapshot.missed.requests, snapshot.missed.tokens) == (1, 192)


@pytest.mark.parametrize("setup", [HYBRID, WINDOW, FULL], ids=["hybrid", "window", "full"])
def test_what_the_device_has_is_not_missed(start: Start, folder: Path, setup: Any) -> None:
    engine, prompt = start(setup), tokens(200)
    with published(engine, folder) as reader:
        engine.ask("a", prompt)
        engine.ask("b", prompt)
        engine.ask("c", [*prompt, *tokens(60, "c")])
        missed = look(reader).missed
        assert missed is not None
        assert missed.requests == 1


def test_a_state_that_is_gone_strands_its_conversation(start: Start, folder: Path) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    with published(engine, folder) as reader:
        engine.ask("a", prompt)
        for number in range(12):
            engine.ask(f"other {number}", tokens(40, str(number)))
        first = look(reader).sequences[0]
        assert (first.restorable, first.stranded) == (0, 192)
        assert first.loss is not None
        assert first.loss.by is not None
        assert again(engine, "b", prompt) == 0
        snapshot = look(reader)
        assert snapshot.totals["lost_tokens"] == 192
        [miss] = [e for e in snapshot.events if e.kind is Kind.MISSED]
        assert (miss.sequence, miss.tokens, miss.group) == (1, 192, "g1")


def test_the_heart_beats_with_every_step(start: Start, folder: Path) -> None:
    engine = start(HYBRID)
    with published(engine, folder) as reader:
        engine.add("a", tokens(200), 30)
        publisher: Any = engine.manager.cache.observer
        publisher._now = count(2e9).__next__
        for _ in range(8):
            before = look(reader).heartbeat
            engine.step()
            assert look(reader).heartbeat > before
        assert look(reader).running == 1
        engine.run()


def test_a_restore_from_a_second_tier(start: Start, folder: Path) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    tier = TagTier(engine.worker, random.Random(2), entries=300, spill="on_store")
    clock = count(0, 0.01).__next__
    engine.manager.cache.attach([tier], patience_s=10.0, restore="always", clock=clock)
    with published(engine, folder) as reader:
        engine.ask("a", prompt)
        for number in range(12):
            engine.ask(f"other {number}", tokens(40, str(number)))
        restored = again(engine, "b", prompt)
        snapshot = look(reader)
        [event] = [e for e in snapshot.events if e.kind is Kind.RESTORED]
        assert (event.tier, event.tokens) == ("tags0", restored)
        assert snapshot.sequences[0].source == "tags0"
        assert snapshot.tiers[0].restores.requests == 1


# --- that it is right and does no harm, whatever happens


@pytest.mark.parametrize("name", SETUPS)
def test_random_conversations(start: Start, folder: Path, name: str) -> None:
    """With preemptions, aborts and resets; at rest the segment says what the books say."""
    engine = start(SETUPS[name]())
    with published(engine, folder) as reader:
        game = play(engine, seed=1)
        cache = engine.manager.cache
        assert cache.observer is not None
        snapshot = look(reader)
        assert (snapshot.phase, snapshot.running) == (Phase.RUN, 0)
        assert [g.slots for g in snapshot.groups] == [Slots(*c) for c in cache.counts().values()]
        assert snapshot.ram is not None
        assert snapshot.missed is not None
        assert snapshot.ram.requests > 5
        assert snapshot.ram.requests + snapshot.missed.requests <= len(game.requests) + sum(
            request.num_preemptions for request in game.requests
        )
        assert cache.journal.total(EventKind.RESTORED) >= snapshot.ram.requests


def test_a_probe_that_fails_does_not_make_the_manager_sick(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    with published(engine, folder) as reader:
        monkeypatch.setattr("tiercache.stats.writer.SegmentWriter.event", None)
        engine.ask("a", prompt)
        assert again(engine, "b", prompt) == 192
        assert not engine.manager.sick
        assert look(reader).phase is Phase.FAILED
