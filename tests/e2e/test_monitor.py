# SPDX-License-Identifier: Apache-2.0
"""``tiercache-top`` beside a real vLLM, while a conversation rests and others talk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import demo
from lab.conversation import Conversation
from lab.engine import Engine
from lab.engine import engine as start
from lab.recipes import QWEN3_NEXT
from tests.terminals import TMUX, Screen

pytestmark = [
    pytest.mark.usefixtures("sound"),
    pytest.mark.skipif(TMUX is None, reason="tmux is not installed"),
]


@pytest.fixture(scope="module", params=["tiercache-demote", "tiercache-lru"])
def run(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def engine(run: str) -> Iterator[Engine]:
    with start(QWEN3_NEXT, demo.RUNS[run]) as running:
        yield running


@pytest.fixture(params=[(80, 24), (160, 45)], ids=str)
def screen(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[Screen]:
    engine.reset_all()
    width, height = request.param
    terminal = Screen(tmp_path, width, height, "--interval", "0.25")
    try:
        yield terminal
    finally:
        terminal.kill()


def rest_and_return(engine: Engine, screen: Screen, idle: Conversation) -> None:
    """The idle conversation of the demo: others talk until every state slot was needed."""
    idle.say(engine, 2_000)
    engine.rest()
    screen.until("stored", "IDLE")
    others = [Conversation(name) for name in "BCD"]
    for _ in range(9):
        for other in others:
            other.say(engine, 200)


def test_what_happens_is_seen(engine: Engine, screen: Screen, run: str) -> None:
    idle = Conversation("A")
    rest_and_return(engine, screen, idle)
    demotes = run == "tiercache-demote"
    if demotes:
        screen.until("demoted")
    else:
        screen.until("evicted live")
    screen.press("2")
    screen.until("SEQUENCES", "000001")
    engine.reset_device()
    answer = idle.say(engine, 100)
    screen.press("5")
    if demotes:
        assert answer.cached_tokens > 1_900
        screen.until("restored", "000001", "2.")
    else:
        assert answer.cached_tokens == 0
        screen.until("missed", "had to be computed")
