# SPDX-License-Identifier: Apache-2.0
"""Settings that change what is stored or how it is cut, each in an engine of its own."""

import pytest
from lab import transfers
from lab.conversation import random_tokens
from lab.engine import Engine
from lab.engine import engine as start
from lab.recipes import GEMMA3, QWEN3, QWEN3_NEXT, Recipe

from tiercache.errors import ConfigError

PROMPT_TOKENS = 1_000


def restored_after(engine: Engine, prompt: list[int]) -> int:
    """Tokens restored after a device reset; they must give the answer of a cold run."""
    engine.reset_device()
    restored = engine.ask(prompt)
    engine.manager.cache.validate()
    engine.reset_all()
    assert engine.ask(prompt).tokens == restored.tokens
    return restored.cached_tokens


@pytest.mark.parametrize(
    "setting", [{"blocks_per_chunk": 2}, {"block_size": 64}], ids=["blocks_per_chunk", "block_size"]
)
@pytest.mark.parametrize("recipe", [QWEN3, GEMMA3], ids=lambda recipe: recipe.name)
def test_chunks_of_two_blocks(recipe: Recipe, setting: dict[str, int]) -> None:
    prompt = random_tokens(PROMPT_TOKENS, "chunks")
    with start(recipe, transfers.tiercache("64MiB", **setting)) as engine:
        engine.ask(prompt)
        assert restored_after(engine, prompt) == (PROMPT_TOKENS - 1) // 64 * 64


@pytest.mark.parametrize(
    "setting", [{"blocks_per_chunk": 2}, {"block_size": 128}], ids=["blocks_per_chunk", "block_size"]
)
def test_chunks_of_two_blocks_are_refused_with_states(setting: dict[str, int]) -> None:
    (key,) = setting
    with (
        pytest.raises(ConfigError, match=f"{key}.*recurrent"),
        start(QWEN3_NEXT, transfers.tiercache("64MiB", **setting)),
    ):
        pass


@pytest.mark.parametrize("recipe", [QWEN3, QWEN3_NEXT], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("prompt_only", [True, False])
def test_answers_are_offloaded_on_request(recipe: Recipe, prompt_only: bool) -> None:
    prompt = random_tokens(PROMPT_TOKENS, "answers")
    settings = {"offload_prompt_only": prompt_only}
    with start(recipe, transfers.tiercache("64MiB", **settings)) as engine:
        answer = engine.ask(prompt, max_tokens=300)
        said = [*prompt, *answer.tokens, *random_tokens(100, "next turn")]
        restored = restored_after(engine, said)
    block = recipe.tokens_per_block
    kept = PROMPT_TOKENS if prompt_only else PROMPT_TOKENS + 299
    assert restored == kept // block * block
