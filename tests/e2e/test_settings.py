# SPDX-License-Identifier: Apache-2.0
"""Settings that change what is stored or how it is cut, each in an engine of its own."""

from dataclasses import replace

import pytest

from lab import transfers
from lab.conversation import random_tokens
from lab.engine import Answer, Engine
from lab.engine import engine as start
from lab.recipes import GEMMA3, QWEN3, QWEN3_NEXT, Recipe
from tiercache.errors import ConfigError

PROMPT_TOKENS = 1_000
ANSWER_TOKENS = 200


def restored_after(engine: Engine, prompt: list[int]) -> int:
    """Tokens restored after a device reset; they must give the answer of a cold run."""
    engine.reset_device()
    restored = engine.ask(prompt)
    engine.manager.cache.validate()
    engine.reset_all()
    assert engine.ask(prompt).agrees(restored)
    return restored.cached_tokens


@pytest.mark.parametrize(
    "setting",
    [{"blocks_per_chunk": 2}, {"block_size": 64}],
    ids=["blocks_per_chunk", "block_size"],
)
def test_chunks_of_two_blocks(setting: dict[str, int]) -> None:
    prompt = random_tokens(PROMPT_TOKENS, "chunks")
    with start(QWEN3, transfers.tiercache("64MiB", **setting)) as engine:
        engine.ask(prompt)
        assert restored_after(engine, prompt) == (PROMPT_TOKENS - 1) // 64 * 64


@pytest.mark.parametrize(
    ("recipe", "key", "reason"),
    [
        pytest.param(QWEN3_NEXT, "blocks_per_chunk", "recurrent", id="states"),
        pytest.param(QWEN3_NEXT, "block_size", "recurrent", id="states-block_size"),
        pytest.param(GEMMA3, "blocks_per_chunk", "sliding windows", id="windows"),
    ],
)
def test_chunks_of_two_blocks_are_refused(recipe: Recipe, key: str, reason: str) -> None:
    value = 2 if key == "blocks_per_chunk" else 2 * recipe.block_size
    with (
        pytest.raises(ConfigError, match=f"{key}.*{reason}"),
        start(recipe, transfers.tiercache("64MiB", **{key: value})),
    ):
        pass


def next_turn(engine: Engine, *, from_host: bool) -> Answer:
    """A turn whose answer spans several blocks, and the turn after it."""
    prompt = random_tokens(PROMPT_TOKENS, "answers")
    answer = engine.ask(prompt, max_tokens=ANSWER_TOKENS)
    if from_host:
        engine.reset_device()
    return engine.ask([*prompt, *answer.tokens, *random_tokens(100, "next turn")])


# With states, blocks of an answer help only where the engine keeps a state at every block.
@pytest.mark.parametrize(
    ("recipe", "retention"),
    [pytest.param(QWEN3, 0, id="qwen3"), pytest.param(QWEN3_NEXT, None, id="qwen3_next-dense")],
)
@pytest.mark.parametrize("prompt_only", [True, False])
def test_offload_prompt_only(recipe: Recipe, retention: int | None, prompt_only: bool) -> None:
    transfer = transfers.tiercache("64MiB", offload_prompt_only=prompt_only)
    with start(recipe, transfer, prefix_cache_retention_interval=retention) as engine:
        on_device = next_turn(engine, from_host=False)
        engine.reset_all()
        restored = next_turn(engine, from_host=True)
    kept = PROMPT_TOKENS if prompt_only else PROMPT_TOKENS + ANSWER_TOKENS - 1
    assert restored.cached_tokens == kept // recipe.tokens_per_block * recipe.tokens_per_block
    if not prompt_only:
        # Not compared with a cold run: decoding and prefilling the same tokens round differently.
        assert restored == replace(on_device, ttft_ms=restored.ttft_ms)


@pytest.mark.parametrize("share", [True, False])
def test_third_conversation_with_a_head_seen_by_the_host_only(share: bool) -> None:
    head = random_tokens(10 * QWEN3_NEXT.tokens_per_block, "head")
    prompts = [[*head, *random_tokens(200, name)] for name in ("first", "second", "third")]
    cached = []
    with start(QWEN3_NEXT, transfers.tiercache("64MiB", share_junctions=share)) as engine:
        for prompt in prompts:
            engine.reset_device()
            cached.append(engine.ask(prompt).cached_tokens)
    assert cached == [0, 0, len(head) if share else 0]
