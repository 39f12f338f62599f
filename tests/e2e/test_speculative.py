# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding with a draft model whose KV blocks are offloaded too.

Attention models only: with recurrent layers, vLLM's speculative decoding calls a kernel that the
CPU build lacks.
"""

from collections.abc import Iterator

import pytest

from lab import transfers
from lab.conversation import random_tokens
from lab.drafts import save_eagle
from lab.engine import Engine
from lab.engine import engine as start
from lab.recipes import GEMMA3, QWEN3

pytestmark = pytest.mark.usefixtures("sound")

DRAFTED = "vllm:spec_decode_num_draft_tokens"
BOUNDARY = 1_472


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((QWEN3, 1), id="qwen3-1"),
        pytest.param((QWEN3, 2), id="qwen3-2"),
        pytest.param((GEMMA3, 1), id="gemma3-1"),
        pytest.param((GEMMA3, 2), id="gemma3-2"),
    ],
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """The draft's layer has pages as large as the target's, or twice as large."""
    recipe, kv_heads = request.param
    draft = save_eagle(tmp_path_factory.mktemp("eagle"), kv_heads=kv_heads)
    speculation = {"method": "eagle", "model": str(draft), "num_speculative_tokens": 3}
    with start(
        recipe,
        transfers.tiercache("64MiB"),
        num_gpu_blocks_override=500,
        speculative_config=speculation,
    ) as running:
        yield running


@pytest.mark.parametrize("tokens", [BOUNDARY + 1, BOUNDARY + 28])
def test_two_turns(engine: Engine, tokens: int) -> None:
    engine.reset_all()
    prompt = random_tokens(tokens, tokens)
    cold = engine.ask(prompt)
    engine.reset_device()
    restored = engine.ask(prompt)
    assert restored.cached_tokens == BOUNDARY
    assert restored.agrees(cold)

    more = [*prompt, *cold.tokens, *random_tokens(100, "more")]
    engine.reset_device()
    continued = engine.ask(more)
    engine.reset_all()
    assert continued.cached_tokens == BOUNDARY
    assert continued.agrees(engine.ask(more))
    assert engine.metrics()[DRAFTED] > 0
