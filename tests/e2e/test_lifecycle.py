# SPDX-License-Identifier: Apache-2.0
"""Requests that end early, run side by side, or meet an emptied cache."""

from collections.abc import Iterator

import pytest

from lab import transfers
from lab.conversation import random_tokens
from lab.engine import Answer, Engine
from lab.engine import engine as start
from lab.recipes import QWEN3_NEXT

pytestmark = pytest.mark.usefixtures("sound")

BLOCK = QWEN3_NEXT.tokens_per_block
#: Longer than one step's budget of 2,048 tokens.
LONG = random_tokens(2_500, "long")
SHORT = random_tokens(1_500, "short")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with start(QWEN3_NEXT, transfers.tiercache("64MiB")) as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(engine: Engine) -> None:
    engine.reset_all()


def boundary(prompt: list[int]) -> int:
    return (len(prompt) - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6])
def test_abort_of_a_request_that_stores(engine: Engine, steps: int) -> None:
    engine.begin("aborted", LONG, max_tokens=50)
    for _ in range(steps):
        engine.step()
    engine.abort("aborted")
    engine.reset_device()
    found = engine.ask(LONG)
    assert found.cached_tokens in (0, boundary(LONG))
    engine.reset_all()
    assert engine.ask(LONG).agrees(found)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_abort_of_a_request_that_loads(engine: Engine, steps: int) -> None:
    cold = engine.ask(LONG)
    engine.reset_device()
    engine.begin("aborted", LONG, max_tokens=50)
    for _ in range(steps):
        engine.step()
    engine.abort("aborted")
    engine.reset_device()
    restored = engine.ask(LONG)
    assert restored.cached_tokens == boundary(LONG)
    assert restored.agrees(cold)


def test_two_turns_at_once(engine: Engine, witness: object) -> None:
    prompts = [LONG, SHORT]
    for prompt in prompts:
        engine.ask(prompt)
    longer = [prompt + random_tokens(100, "more") for prompt in prompts]
    cold = [engine.ask(prompt) for prompt in longer]
    engine.reset_all()
    for prompt in prompts:
        engine.ask(prompt)
    engine.reset_device()
    restored = engine.ask_all(longer)
    assert [answer.cached_tokens for answer in restored] == [boundary(p) for p in prompts]
    assert all(map(Answer.agrees, restored, cold))


def test_one_turn_twice_at_once(engine: Engine) -> None:
    cold = engine.ask(SHORT)
    engine.reset_device()
    first, second = engine.ask_all([SHORT, SHORT])
    assert first.cached_tokens == second.cached_tokens == boundary(SHORT)
    assert first.agrees(cold)
    assert second.agrees(cold)


def test_one_cold_turn_twice_at_once(engine: Engine) -> None:
    first, second = engine.ask_all([SHORT, SHORT])
    engine.reset_device()
    restored = engine.ask(SHORT)
    assert restored.cached_tokens == boundary(SHORT)
    assert first.agrees(restored)
    assert second.agrees(restored)


def test_reset_of_the_connector_forgets(engine: Engine) -> None:
    engine.ask(SHORT)
    engine.reset_all()
    assert all(c.live + c.demoted == 0 for c in engine.manager.cache.counts().values())
    assert engine.ask(SHORT).cached_tokens == 0
    engine.reset_device()
    assert engine.ask(SHORT).cached_tokens == boundary(SHORT)


def test_edit_in_the_middle_keeps_what_came_before(engine: Engine) -> None:
    """The newest state before the edit serves, though a later turn demoted it."""
    engine.ask(SHORT)
    engine.ask(SHORT + random_tokens(600, "answer and more"))
    engine.reset_device()
    edited = SHORT + random_tokens(600, "another answer")
    restored = engine.ask(edited)
    assert restored.cached_tokens == boundary(SHORT)
    engine.reset_all()
    assert engine.ask(edited).agrees(restored)
