# SPDX-License-Identifier: Apache-2.0
"""A prefix comes back from the host with the tokens of a cold run, for every kind of model."""

from collections.abc import Iterator

import pytest
from lab import transfers
from lab.conversation import random_tokens
from lab.engine import Engine
from lab.engine import engine as start
from lab.recipes import RECIPES, Recipe

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


def last_boundary(recipe: Recipe, tokens: int) -> int:
    """The last block boundary that leaves a token to compute."""
    return (tokens - 1) // recipe.tokens_per_block * recipe.tokens_per_block


def test_after_a_device_reset(engine: Engine, recipe: Recipe) -> None:
    prompt = random_tokens(1_500, "reset")
    cold = engine.ask(prompt)
    engine.reset_device()
    restored = engine.ask(prompt)
    assert (cold.cached_tokens, restored.cached_tokens) == (0, last_boundary(recipe, 1_500))
    assert restored.tokens == cold.tokens


def test_after_pressure_on_the_device(engine: Engine, recipe: Recipe) -> None:
    prompt = random_tokens(1_500, "pressure")
    cold = engine.ask(prompt)
    for number in range(5):
        engine.ask(random_tokens(1_500, f"other {number}"), max_tokens=1)
    before = engine.metrics().get(RESTORED, 0)
    restored = engine.ask(prompt)
    assert restored.cached_tokens == last_boundary(recipe, 1_500)
    assert engine.metrics()[RESTORED] - before == restored.cached_tokens
    assert restored.tokens == cold.tokens


def test_zeroed_bytes_of_any_group_show(engine: Engine, recipe: Recipe) -> None:
    prompt = random_tokens(1_500, "zeroed")
    cold = engine.ask(prompt)
    unnoticed = []
    for group_id in engine.manager.cache.groups:
        engine.reset_device()
        kept = engine.arena.region(group_id).clone()
        engine.arena.region(group_id).zero_()
        broken = engine.ask(prompt)
        engine.arena.region(group_id).copy_(kept)
        assert broken.cached_tokens == last_boundary(recipe, 1_500)
        if broken.tokens == cold.tokens:
            unnoticed.append(group_id)
    assert unnoticed == []


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_prompt_ends_around_a_block(engine: Engine, recipe: Recipe, beyond: int) -> None:
    tokens = 5 * recipe.tokens_per_block + beyond
    prompt = random_tokens(tokens, beyond)
    cold = engine.ask(prompt)
    engine.reset_device()
    restored = engine.ask(prompt)
    assert restored.cached_tokens == last_boundary(recipe, tokens)
    assert restored.tokens == cold.tokens
