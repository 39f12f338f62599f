# SPDX-License-Identifier: Apache-2.0
"""A fault in anything of ours that the scheduler calls: hits are lost, the engine goes on.

Each method of each layer below the manager is broken in turn, in an engine that has stored, and
that then restores from host memory and from a second tier, aborts, is reset and shut down. What
the worker does is not covered: vLLM has no way to go on without a copy that it was promised.
"""

import random
from itertools import count
from types import FunctionType
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

from vllm.config import ModelConfig

from tests.vllm.fake_engine import FakeEngine
from tests.vllm.setups import Setup, qwen3_next
from tests.vllm.tag_tier import TagTier
from tests.vllm.test_scheduler import tokens
from tiercache.admission import OfferCounter
from tiercache.blocks import Lineage
from tiercache.cache import TieredCache
from tiercache.checkpoints import CheckpointTree
from tiercache.demotion import Demoter
from tiercache.events import Journal
from tiercache.jobs import Jobs
from tiercache.policies.lru import LRU
from tiercache.primary import PrimaryTier
from tiercache.promotion import Promoter
from tiercache.rates import ComputeRate
from tiercache.requests import Request
from tiercache.restore import Planner
from tiercache.slots import SlotPool
from tiercache.spilling import Spiller
from tiercache.tiering import Tiering
from tiercache.vllm.metrics import Meter

SMALL = Setup(
    qwen3_next(), [24, 4, 4, 4], settings={"store_threshold": 1}, kv_events=True, sequences=2
)
LAYERS: list[type] = [
    TieredCache,
    OfferCounter,
    PrimaryTier,
    SlotPool,
    LRU,
    Planner,
    Lineage,
    Request,
    Demoter,
    CheckpointTree,
    Journal,
    Tiering,
    Promoter,
    Spiller,
    Jobs,
    TagTier,
    Meter,
    ComputeRate,
]


def parts(layer: type) -> list[str]:
    """Methods and properties that can break."""
    return [
        name
        for name, part in vars(layer).items()
        if isinstance(part, FunctionType | property) and not name.startswith("__")
    ]


def broken(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("a fault")


def break_down(monkeypatch: pytest.MonkeyPatch, layer: type, name: str) -> None:
    part = vars(layer)[name]
    monkeypatch.setattr(layer, name, property(broken) if isinstance(part, property) else broken)


def serve(engine: FakeEngine, prompt: list[int]) -> None:
    """All that the scheduler asks of a connector."""
    engine.reset_device()
    engine.ask("again", prompt)
    engine.add("aborted", tokens(100, "aborted"))
    engine.add("beside", prompt[:150])
    engine.step()
    engine.step()
    engine.abort("aborted")
    engine.run()
    engine.connector.reset_cache()
    engine.ask("after a reset", prompt)
    list(engine.connector.take_events())
    engine.connector.get_kv_connector_stats()
    engine.connector.has_pending_push_work()


@pytest.mark.parametrize(
    ("layer", "name"),
    [(layer, name) for layer in LAYERS for name in parts(layer)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_fault_loses_hits_and_nothing_else(
    model: ModelConfig, monkeypatch: pytest.MonkeyPatch, layer: type, name: str
) -> None:
    engine, prompt = FakeEngine(SMALL, model), tokens(200)
    tier = TagTier(engine.worker, random.Random(3), entries=300, spill="on_store")
    clock = count(0, 0.01).__next__
    engine.manager.cache.attach([tier], patience_s=10.0, restore="always", clock=clock)
    try:
        engine.ask("first", prompt)
        for number in range(4):
            engine.ask(f"other {number}", tokens(60, str(number)))
        break_down(monkeypatch, layer, name)
        serve(engine, prompt)
    finally:
        engine.connector.shutdown()
    assert engine.wrong == []
    finished = ("again", "beside", "after a reset")
    assert [len(engine.answers[name].tokens) for name in finished] == [4, 4, 4]
