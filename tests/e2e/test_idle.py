# SPDX-License-Identifier: Apache-2.0
"""What demotion is for: conversations that rest while others talk, with it and without."""

from collections.abc import Iterator

import pytest

from lab import demo, idle
from lab.conversation import Conversation, random_tokens
from lab.engine import Engine
from lab.engine import engine as start
from lab.recipes import QWEN3_NEXT

pytestmark = pytest.mark.usefixtures("sound")

BLOCK = QWEN3_NEXT.tokens_per_block
SCENARIO = idle.Scenario()


@pytest.fixture(scope="module", params=["tiercache-demote", "tiercache-lru"])
def run(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def engine(run: str) -> Iterator[Engine]:
    with start(QWEN3_NEXT, demo.RUNS[run]) as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(engine: Engine) -> None:
    engine.reset_all()


@pytest.fixture
def demotes(run: str) -> bool:
    return run == "tiercache-demote"


def talk(engine: Engine, turns: int = 8) -> None:
    """Others talk until every state slot has been needed more than once."""
    others = [Conversation(name) for name in "BCD"]
    for _ in range(turns + 1):
        for other in others:
            other.say(engine, 200)


def test_idle_conversation(engine: Engine, demotes: bool) -> None:
    played = idle.play(engine, SCENARIO)
    assert played.returned.prompt_tokens == 2_240
    assert played.returned.cached_tokens == (2_112 if demotes else 0)
    assert played.returned.agrees(played.cold)
    assert played.others_cached > 0.8


def test_conversation_whose_answer_was_long(engine: Engine, demotes: bool) -> None:
    resting = Conversation("long answer")
    resting.say(engine, 1_000, answer_tokens=5 * BLOCK)
    talk(engine)
    engine.reset_device()
    resting.add(100)
    returned = engine.ask(resting.tokens)
    assert returned.cached_tokens == (999 // BLOCK * BLOCK if demotes else 0)
    engine.reset_all()
    assert engine.ask(resting.tokens).agrees(returned)


def test_shared_head_outlives_its_conversations(engine: Engine, demotes: bool) -> None:
    head = random_tokens(10 * BLOCK, "head")
    sharing = [Conversation(name, list(head)) for name in ("one", "two", "three")]
    for _ in range(4):
        for conversation in sharing:
            conversation.say(engine, 100)
    talk(engine)
    engine.reset_device()
    newcomer = Conversation("newcomer", list(head))
    newcomer.add(100)
    greeted = engine.ask(newcomer.tokens)
    assert greeted.cached_tokens == (len(head) if demotes else 0)
    engine.reset_all()
    assert engine.ask(newcomer.tokens).agrees(greeted)
