# SPDX-License-Identifier: Apache-2.0
"""vLLM's own managers in a real vLLM, with our NVMe tier and our eviction order in them.

The managers are vLLM's to the last line; only the worker is the laboratory's, as vLLM has none for
this platform.
"""

from pathlib import Path

import pytest

from lab import transfers
from lab.conversation import Conversation, random_tokens
from lab.engine import Engine
from lab.engine import engine as start
from lab.recipes import GEMMA3, QWEN3_NEXT, Recipe
from lab.transfers import Transfer

TOKENS = 1_500
READ = 'vllm:kv_offload_tiering_read_bytes{tier="1:NvmeTier"}'
FROM_DISK = 'vllm:prompt_tokens_cached_by_source{source="disk"}'
POLICY = {"eviction_policy": "DemotingLRU", "cache_policy_module_path": "tiercache.vllm.policy"}


def with_tier(path: Path, cpu_bytes: int) -> Transfer:
    named = {"type": "NvmeTier", "module_path": "tiercache.vllm.tier", "path": str(path)}
    tier = {**named, "capacity": "512MiB", "min_free": 0}
    return transfers.baseline(
        cpu_bytes, spec_name="TorchTieringSpec", secondary_tiers=[tier], **POLICY
    )


def push_out(engine: Engine) -> None:
    """Other prompts, until neither the device nor host memory has anything of the ones before."""
    for number in range(8):
        engine.ask(random_tokens(TOKENS, f"other {number}"), max_tokens=1)
    engine.rest()
    engine.reset_device()


@pytest.mark.timeout(300)  # two engines start
@pytest.mark.parametrize(
    ("recipe", "cpu_bytes"), [(QWEN3_NEXT, 16 << 20), (GEMMA3, 2 << 20)], ids=["states", "windows"]
)
def test_prefixes_come_back_from_the_disk(recipe: Recipe, cpu_bytes: int, tmp_path: Path) -> None:
    prompt = random_tokens(TOKENS, "disk")
    transfer = with_tier(tmp_path, cpu_bytes)
    boundary = (TOKENS - 1) // recipe.tokens_per_block * recipe.tokens_per_block
    with start(recipe, transfer) as engine:
        cold = engine.ask(prompt)
        push_out(engine)
        evicted = engine.ask(prompt)
        after = engine.metrics()
    with start(recipe, transfer) as engine:
        restarted = engine.ask(prompt)
        engine.rest()
        metrics = engine.metrics()
    assert (cold.cached_tokens, evicted.cached_tokens) == (0, boundary)
    assert evicted.agrees(cold)
    assert after[READ] > 0
    assert restarted.cached_tokens == boundary
    assert restarted.agrees(cold)
    assert metrics[READ] > 0
    assert metrics[FROM_DISK] == boundary


@pytest.mark.parametrize("policy", [POLICY, {}], ids=["ours", "vllm's"])
def test_an_idle_conversation_survives_busy_ones(policy: dict[str, str]) -> None:
    """A speaks once; B and C leave a state for each of their turns, which nobody needs again."""
    with start(QWEN3_NEXT, transfers.baseline(12 << 20, **policy)) as engine:
        idle = Conversation("A")
        idle.say(engine, 600)
        for name in ("B", "C"):
            busy = Conversation(name)
            for _ in range(6):
                busy.say(engine, 250)
        engine.reset_device()
        returned = idle.say(engine, 100)
    assert (returned.cached_tokens > 0) == bool(policy)
