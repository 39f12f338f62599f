# SPDX-License-Identifier: Apache-2.0
"""More conversations than the device has room for: vLLM preempts, no byte may be wrong.

Tokens are not compared: under preemption a hybrid model differs from solo runs by itself.
"""

from collections.abc import Iterator

import pytest

from lab import transfers
from lab.conversation import random_tokens
from lab.engine import Engine
from lab.engine import engine as start
from lab.recipes import QWEN3, QWEN3_NEXT, RECIPES
from lab.witness import Witness

pytestmark = pytest.mark.usefixtures("sound")

PREEMPTIONS = "vllm:num_preemptions"
PROMPT_TOKENS = 500
ANSWER_TOKENS = 250


@pytest.fixture(scope="module", params=[QWEN3_NEXT.name, QWEN3.name])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    recipe = RECIPES[request.param]
    # Room for two of the four at their full length.
    blocks = 2 * (PROMPT_TOKENS + ANSWER_TOKENS) // recipe.tokens_per_block + 8
    with start(
        recipe, transfers.tiercache("64MiB"), max_model_len=1_024, num_gpu_blocks_override=blocks
    ) as running:
        yield running


def test_bytes_are_right(engine: Engine, witness: Witness) -> None:
    prompts = [random_tokens(PROMPT_TOKENS, name) for name in "ABCD"]
    for _ in range(2):
        answers = engine.ask_all(prompts, ANSWER_TOKENS)
        assert [len(answer.tokens) for answer in answers] == [ANSWER_TOKENS] * 4
    assert engine.metrics()[PREEMPTIONS] > 0
    assert witness.loaded > 0
