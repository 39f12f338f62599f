# SPDX-License-Identifier: Apache-2.0
"""Random conversations over vLLM's scheduler: nothing wrong is ever restored.

Few device blocks, so that requests are preempted; small pools, so that much is evicted; copies
that take their time; aborts, resets, and heads that conversations share. The runner looks at
everything that a model would read.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

import torch
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec
from vllm.v1.request import Request, RequestStatus

from tests.vllm.conftest import Start
from tests.vllm.fake_engine import FakeEngine
from tests.vllm.setups import BLOCK, Setup, attention, group, qwen3_next, recurrent, window
from tests.vllm.tag_tier import TagTier
from tiercache.events import EventKind
from tiercache.tiers.base import Spill
from tiercache.vllm.compat import stores_torn_chunks

REQUESTS = 200
MOST_TOKENS = 260
AT_ONCE = 12
KEPT = 12
STOPPED = {RequestStatus.WAITING, RequestStatus.PREEMPTED}


@dataclass
class Play:
    """One random game with an engine."""

    engine: FakeEngine
    luck: random.Random
    said: list[list[int]] = field(default_factory=list)
    running: dict[str, list[int]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    def play(self) -> None:
        head = self.tokens(70)
        while self.more() or self.running:
            if self.luck.random() < 0.35 and self.more() and len(self.running) < AT_ONCE:
                self.send(head)
            elif self.luck.random() < 0.03 and self.running:
                self.engine.abort(self.luck.choice(list(self.running)))
            elif self.luck.random() < 0.01:
                self.reset()
            if self.engine.scheduler.has_requests():
                self.engine.step()
            self.collect()

    def more(self) -> bool:
        return len(self.requests) < REQUESTS

    def tokens(self, count: int) -> list[int]:
        return [self.luck.randrange(512) for _ in range(count)]

    def send(self, head: list[int]) -> None:
        if self.said and self.luck.random() < 0.75:
            before = self.luck.choice(self.said)
            kept = len(before) if self.luck.random() < 0.7 else self.luck.randrange(len(before))
            prompt = before[:kept] + self.tokens(self.luck.choice((1, 2, 15, 16, 17, 33, 50)))
        else:
            shared = self.luck.choice((0, 32, 48, 64, 70))
            prompt = head[:shared] + self.tokens(self.luck.randrange(1, 120))
        name, prompt = f"r{len(self.requests)}", prompt[:MOST_TOKENS]
        self.running[name] = prompt
        caps: dict[str, Any] = {}
        if self.luck.random() < 0.05:
            caps = {"max_load_tokens": self.luck.randrange(150)}
        request = self.engine.add(name, prompt, self.luck.choice((1, 2, 5, 20, 40)), **caps)
        self.requests.append(request)

    def reset(self) -> None:
        scheduler = self.engine.scheduler
        settled = all(map(is_settled, scheduler.requests.values()))
        match self.luck.randrange(3):
            case 0:
                scheduler.reset_prefix_cache()
            case 1:
                scheduler.reset_connector_cache()
            case 2 if settled and not self.engine.setup.asynchronous:
                scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)

    def collect(self) -> None:
        requests = self.engine.scheduler.requests
        for name in [name for name in self.running if name not in requests]:
            prompt = self.running.pop(name)
            if answer := self.engine.answers.get(name):
                self.said = [*self.said, prompt + answer.tokens][-KEPT:]


def is_settled(request: Request) -> bool:
    """Whether all blocks of a request are its own: vLLM cannot take others away from it."""
    if request.status is RequestStatus.RUNNING:
        return True
    return request.status in STOPPED and not request.num_computed_tokens


def local(tokens: int) -> Any:
    return ChunkedLocalAttentionSpec(
        block_size=BLOCK,
        num_kv_heads=1,
        head_size=16,
        dtype=torch.bfloat16,
        attention_chunk_size=tokens,
    )


HYBRID = Setup(qwen3_next(), [30, 8, 8, 8], device_blocks=60)
FULL = Setup([group(attention())], [30], device_blocks=50)
WINDOW = Setup(
    [group(attention(), "full"), group(window(40), "window")], [30, 20], device_blocks=70
)
UNITS = Setup(qwen3_next(32), [20, 8, 8, 8], device_blocks=60, block=32, match_unit=8)
EVERYTHING = {"offload_prompt_only": False}

SETUPS: dict[str, Callable[[], Setup]] = {
    "hybrid": lambda: HYBRID,
    "hybrid, a state at every block": lambda: replace(
        HYBRID, slots=[30, 12, 12, 12], retention=None, settings=EVERYTHING
    ),
    "hybrid, a state every four blocks": lambda: replace(HYBRID, retention=64),
    "hybrid, one step ahead": lambda: replace(HYBRID, asynchronous=True),
    "hybrid, second runner": lambda: replace(HYBRID, asynchronous=True, second_runner=True),
    "hybrid, arc": lambda: replace(HYBRID, settings={"eviction_policy": "arc"}),
    "hybrid, cost": lambda: replace(HYBRID, settings={"eviction_policy": "cost"}),
    "hybrid, threshold": lambda: replace(HYBRID, settings={"store_threshold": 2}),
    "hybrid, hits inside a block": lambda: UNITS,
    "hybrid, hits inside a block, dense": lambda: replace(UNITS, retention=None),
    "hybrid, drafts": lambda: Setup(
        qwen3_next(drafts=2, draft_group=True), [30, 8, 8, 8, 30], device_blocks=90, drafts=2
    ),
    "hybrid, drafts of the model": lambda: Setup(
        qwen3_next(drafts=2), [30, 8, 8, 8], device_blocks=90, drafts=2
    ),
    "hybrid, drafts, everything": lambda: Setup(
        qwen3_next(drafts=3, draft_group=True),
        [30, 8, 8, 8, 30],
        device_blocks=100,
        drafts=3,
        retention=None,
        settings=EVERYTHING,
    ),
    "hybrid with a window": lambda: Setup(
        [group(attention(), "full"), group(recurrent(), "gdn"), group(window(40), "window")],
        [30, 8, 20],
        device_blocks=80,
    ),
    "window": lambda: WINDOW,
    "window, drafts": lambda: Setup(
        [
            group(attention(), "full"),
            group(window(40, extra_retained_tokens=3), "window"),
            group(attention(), "draft", layers=1, draft=True),
        ],
        [30, 20, 30],
        device_blocks=90,
        drafts=2,
    ),
    "window, larger blocks": lambda: replace(
        WINDOW, groups=[group(attention(), "full"), group(window(40, 32), "window")]
    ),
    "chunked local": lambda: replace(
        WINDOW, groups=[group(attention(), "full"), group(local(64), "local")]
    ),
    "full": lambda: replace(FULL, settings=EVERYTHING),
    "full, one step ahead": lambda: replace(FULL, asynchronous=True, settings=EVERYTHING),
    "full, chunks": lambda: replace(FULL, slots=[10], settings={"blocks_per_chunk": 4}),
    "full, within the step": lambda: replace(FULL, settings={"sync_load_budget_bytes": 100_000}),
    "full, arc": lambda: replace(FULL, settings={"eviction_policy": "arc"}),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", SETUPS)
def test_nothing_wrong_is_restored(start: Start, name: str, seed: int) -> None:
    play(start(SETUPS[name]()), seed)


@pytest.mark.skipif(stores_torn_chunks(), reason="refused with this vLLM")
@pytest.mark.parametrize("seed", range(4))
def test_nothing_wrong_is_restored_of_a_window_in_chunks(start: Start, seed: int) -> None:
    play(start(replace(WINDOW, slots=[15, 10], settings={"blocks_per_chunk": 2})), seed)


@pytest.mark.parametrize("spill", ["on_store", "on_evict"])
@pytest.mark.parametrize("name", [name for name in SETUPS if "threshold" not in name])
def test_nothing_wrong_is_restored_from_a_second_tier(
    start: Start, name: str, spill: Spill
) -> None:
    engine = start(SETUPS[name]())
    tier = TagTier(engine.worker, random.Random(name + spill), entries=300, spill=spill)
    clock = count(0, 0.01).__next__
    engine.manager.cache.attach([tier], patience_s=2.0, restore="always", clock=clock)
    play(engine, 0)
    engine.manager.cache.validate()
    assert tier.loaded > 0


def test_the_games_are_hard(start: Start) -> None:
    engine = start(HYBRID)
    game = play(engine, seed=0)
    happened = engine.manager.cache.journal.total
    assert sum(request.num_preemptions for request in game.requests) > 10
    assert all(happened(kind) > 100 for kind in (EventKind.RESTORED, EventKind.EVICTED_LIVE))


def play(engine: FakeEngine, seed: int) -> Play:
    luck = random.Random(seed)
    engine.worker.pace = lambda running: luck.randrange(running + 1)
    game = Play(engine, random.Random(seed))
    game.play()
    engine.worker.pace = lambda running: running
    engine.run()
    assert engine.wrong == []
    return game
