# SPDX-License-Identifier: Apache-2.0
"""A prefix comes back from the host with the tokens of a cold run, for every kind of model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab import transfers
from lab.conversation import random_tokens
from lab.engine import Engine
from lab.engine import engine as start
from lab.recipes import RECIPES, Recipe
from lab.witness import Witness

pytestmark = pytest.mark.usefixtures("sound")

RESTORED = "vllm:tiercache_restored_tokens"


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return RECIPES[request.param]


@pytest.fixture(scope="module")
def engine(recipe: Recipe) -> Iterator[Engine]:
    with start(recipe, transfers.tiercache("64MiB")) as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(engine: Engine) -> None:
    engine.reset_all()


def last_boundary(engine: Engine, tokens: int) -> int:
    """Where a restore of so many tokens ends.

    A hybrid model has to compute the last token from a boundary before it. With full attention
    only, vLLM restores all blocks and computes the last token again.
    """
    block = engine.recipe.tokens_per_block
    return (tokens - engine.manager.cache.is_hybrid) // block * block


@contextmanager
def zeroed(region: Any) -> Iterator[None]:
    """A region of the arena without its content."""
    kept = region.clone()
    region.zero_()
    yield
    region.copy_(kept)


def test_after_a_device_reset(engine: Engine) -> None:
    prompt = random_tokens(1_500, "reset")
    cold = engine.ask(prompt)
    engine.reset_device()
    restored = engine.ask(prompt)
    assert (cold.cached_tokens, restored.cached_tokens) == (0, last_boundary(engine, 1_500))
    assert restored.agrees(cold)


def test_after_pressure_on_the_device(engine: Engine) -> None:
    prompt = random_tokens(1_500, "pressure")
    cold = engine.ask(prompt)
    for number in range(5):
        engine.ask(random_tokens(1_500, f"other {number}"), max_tokens=1)
    before = engine.metrics().get(RESTORED, 0)
    restored = engine.ask(prompt)
    assert restored.cached_tokens == last_boundary(engine, 1_500)
    assert engine.metrics()[RESTORED] - before == restored.cached_tokens
    assert restored.agrees(cold)


def test_zeroed_bytes_of_any_group_show(engine: Engine, witness: Witness) -> None:
    # Two tokens beyond a boundary: a short convolution remembers no more than that.
    tokens = 20 * engine.recipe.tokens_per_block + 2
    prompt = random_tokens(tokens, "zeroed")
    cold = engine.ask(prompt)
    unnoticed = []
    for group_id in engine.manager.cache.groups:
        engine.reset_device()
        with zeroed(engine.arena.region(group_id)):
            broken = engine.ask(prompt)
        assert broken.cached_tokens == last_boundary(engine, tokens)
        assert witness.take_wrong()
        if broken.tokens == cold.tokens:
            unnoticed.append(group_id)
    assert unnoticed == []


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_prompt_ends_around_a_block(engine: Engine, beyond: int) -> None:
    tokens = 5 * engine.recipe.tokens_per_block + beyond
    prompt = random_tokens(tokens, beyond)
    cold = engine.ask(prompt)
    engine.reset_device()
    restored = engine.ask(prompt)
    assert restored.cached_tokens == last_boundary(engine, tokens)
    assert restored.agrees(cold)
