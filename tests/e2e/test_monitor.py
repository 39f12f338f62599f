# SPDX-License-Identifier: Apache-2.0
"""``tiercache-top`` beside a real vLLM server, while a conversation rests and others talk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import demo
from lab.conversation import random_tokens
from lab.recipes import QWEN3_NEXT
from lab.server import Server, server
from tests.terminals import TMUX, Screen

pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")

Watch = Callable[[int, int], Screen]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    screens: list[Screen] = []

    def look(width: int, height: int) -> Screen:
        folder = tmp_path / f"{width}x{height}"
        folder.mkdir()
        screens.append(Screen(folder, width, height, "--interval", "0.25"))
        return screens[-1]

    yield look
    for screen in screens:
        screen.kill()


class Talk:
    """A conversation with a server."""

    def __init__(self, running: Server, name: str) -> None:
        self._server = running
        self._name = name
        self._tokens: list[int] = []

    def say(self, tokens: int) -> int:
        """Say so many tokens more; returns how many of the prompt were restored or cached."""
        self._tokens += random_tokens(tokens, f"{self._name} {len(self._tokens)}")
        answer = self._server.complete(self._tokens)
        self._tokens += answer["choices"][0]["token_ids"]
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached


@pytest.mark.parametrize("run", ["tiercache-demote", "tiercache-lru"])
def test_what_a_resting_conversation_goes_through(run: str, watch: Watch, tmp_path: Path) -> None:
    small, wide = watch(80, 24), watch(160, 45)
    for screen in (small, wide):
        screen.until("no pool")
    with server(QWEN3_NEXT, demo.RUNS[run], tmp_path / "log") as running:
        resting = Talk(running, "A")
        resting.say(2_000)
        small.until("IDLE", "stored", "000001")
        others = [Talk(running, name) for name in "BCD"]
        for other in others * 9:
            other.say(200)
        demotes = run == "tiercache-demote"
        for screen in (small, wide):
            screen.until("evicted demoted" if demotes else "evicted live", "IDLE")
        small.press("2")
        small.until("SEQUENCES 4", "stranded 0" if demotes else "stranded 1")
        running.post("/reset_prefix_cache")
        restored = resting.say(100)
        small.press("5")
        if demotes:
            assert restored > 1_900
            small.until("restored        000001")
            wide.until("restored        000001")
        else:
            assert restored == 0
            small.until("missed          000001")
        assert running.stop() == 0
        wide.until("its last numbers")  # vLLM may kill its engine: GONE, or CLOSED
    small.press("q")
    small.until("ended 0")
