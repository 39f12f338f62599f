# SPDX-License-Identifier: Apache-2.0
"""The laboratory itself, under vLLM's own manager: what a restore and a lost byte look like."""

from collections.abc import Iterator

import pytest

from lab import transfers
from lab.conversation import random_tokens
from lab.engine import Engine
from lab.engine import engine as start
from lab.recipes import QWEN3_NEXT

PROMPT = random_tokens(1_500, "baseline")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with start(QWEN3_NEXT, transfers.baseline(64 << 20)) as running:
        yield running


def test_restores_the_tokens_of_a_cold_run(engine: Engine) -> None:
    engine.reset_all()
    cold = engine.ask(PROMPT)
    engine.reset_device()
    restored = engine.ask(PROMPT)
    assert (cold.cached_tokens, restored.cached_tokens) == (0, 1_472)
    assert restored.agrees(cold)


def test_lost_bytes_show_in_the_tokens(engine: Engine) -> None:
    engine.reset_all()
    cold = engine.ask(PROMPT)
    engine.reset_device()
    engine.worker.clear_bytes()
    broken = engine.ask(PROMPT)
    assert broken.cached_tokens == 1_472
    assert broken.tokens != cold.tokens


def test_reset_of_the_connector_forgets(engine: Engine) -> None:
    engine.ask(PROMPT)
    engine.reset_all()
    assert engine.ask(PROMPT).cached_tokens == 0
