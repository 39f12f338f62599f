# SPDX-License-Identifier: Apache-2.0
"""Conversations of random tokens: each turn's prompt holds everything said before."""

import random
from dataclasses import dataclass, field

from lab.engine import Answer, Engine
from lab.recipes import VOCABULARY

FIRST_TOKEN = 3  # 0 to 2 are special


def random_tokens(count: int, seed: int | str) -> list[int]:
    """``count`` ordinary tokens, the same for the same seed."""
    generator = random.Random(seed)
    return [generator.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(count)]


@dataclass(slots=True)
class Conversation:
    """What was said so far, by both sides; every conversation of one name says the same."""

    name: str
    tokens: list[int] = field(default_factory=list)
    turns: int = 0

    def add(self, count: int) -> None:
        """The user says ``count`` tokens."""
        self.tokens += random_tokens(count, f"{self.name}/{self.turns}")
        self.turns += 1

    def say(self, engine: Engine, count: int, answer_tokens: int = 20) -> Answer:
        """One turn: ``count`` tokens in, an answer of ``answer_tokens`` out."""
        self.add(count)
        answer = engine.ask(self.tokens, answer_tokens)
        self.tokens += answer.tokens
        return answer
