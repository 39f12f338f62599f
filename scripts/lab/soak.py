# SPDX-License-Identifier: Apache-2.0
"""Random conversations for a given time in a real vLLM; the books are checked after every round.

What a round does is drawn from a seed: several turns in flight together, answers of any length,
conversations that share a head, go back a turn or are forgotten, and resets of either cache.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lab.conversation import Conversation, random_tokens
from lab.engine import Engine
from lab.witness import Witness

CONVERSATIONS = 12
HEADS = 3
MOST_IN_FLIGHT = 4
LONGEST = 3_400
"""Tokens of a prompt, within the lab's ``max_model_len`` of 4,096 with its answer."""


@dataclass(slots=True)
class Report:
    """What was played, and what came of it."""

    rounds: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    resets: int = 0
    wrong: list[bytes] = field(default_factory=list)
    """Keys whose restored bytes were not those that were stored."""


class Soak:
    """Random conversations on one engine, with all of its transfers witnessed."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.report = Report()
        self._engine = engine
        self._witness = Witness(engine)
        self._random = random.Random(seed)
        self._born = 0
        self._talks = [self._begin() for _ in range(CONVERSATIONS)]

    def play(self, seconds: float, tell: Callable[[str], object]) -> Report:
        """Play until ``seconds`` are over; raises InvariantError at the first broken invariant."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._round()
            if self.report.rounds % 20 == 0:
                tell(f"{end - time.monotonic():.0f} s left, {self.report.requests} requests")
        self._engine.settle()
        self._check()
        return self.report

    def _round(self) -> None:
        chosen = self._random.sample(range(CONVERSATIONS), self._random.randint(1, MOST_IN_FLIGHT))
        for index in chosen:
            self._talks[index] = self._prepare(self._talks[index])
        talks = [self._talks[index] for index in chosen]
        answers = self._engine.ask_all(
            [talk.tokens for talk in talks], self._random.choice((1, 20, 60, 300))
        )
        for talk, answer in zip(talks, answers, strict=True):
            talk.tokens += answer.tokens
            self.report.prompt_tokens += answer.prompt_tokens
            self.report.cached_tokens += answer.cached_tokens
        self.report.requests += len(talks)
        self.report.rounds += 1
        self._maybe_reset()
        self._check()

    def _prepare(self, talk: Conversation) -> Conversation:
        """The next prompt: mostly a turn more, now and then an edited or a new conversation."""
        if len(talk.tokens) > LONGEST - 800 or self._random.random() < 0.05:
            talk = self._begin()
        elif self._random.random() < 0.1:
            del talk.tokens[self._random.randrange(1, len(talk.tokens)) :]
        talk.add(self._random.choice((1, 40, 100, 400)))
        return talk

    def _begin(self) -> Conversation:
        self._born += 1
        head = random_tokens(500, f"head/{self._random.randrange(HEADS)}")
        return Conversation(f"soak/{self._born}", head)

    def _maybe_reset(self) -> None:
        draw = self._random.random()
        if draw < 0.2:
            self._engine.reset_device()
        elif draw < 0.22:
            self._engine.reset_all()
        self.report.resets += draw < 0.22

    def _check(self) -> None:
        manager = self._engine.manager
        manager.cache.validate()
        self.report.wrong += self._witness.take_wrong()
        if manager.sick or self.report.wrong:
            raise AssertionError(f"sick: {manager.sick}, wrong bytes: {self.report.wrong}")
