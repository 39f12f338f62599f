# SPDX-License-Identifier: Apache-2.0
"""The idle conversation, in small: what is left of A after others have talked for a while.

A sends two prompts and goes idle. Others take turns until their states, one more per turn, need
more slots than there are. Then A sends one more turn, with the device cache emptied first, so that
whatever is restored comes from the host. Whether the state of A is still there is the whole
question: without it, the attention blocks of A are worth nothing.
"""

from dataclasses import dataclass
from statistics import median

from lab.conversation import Conversation
from lab.engine import Answer, Engine


@dataclass(frozen=True, slots=True)
class Scenario:
    """How long the conversations are and how often the others talk."""

    idle_tokens: int = 2_000
    others: int = 3
    other_tokens: int = 600
    turns: int = 8
    turn_tokens: int = 100
    answer_tokens: int = 20


@dataclass(frozen=True, slots=True)
class Play:
    """One play: A's return, the same prompt computed from nothing, and the others' turns."""

    returned: Answer
    cold: Answer
    others: tuple[Answer, ...]

    @property
    def others_cached(self) -> float:
        """Share of the others' prompts that was not computed, first prompts left out."""
        prompts = sum(answer.prompt_tokens for answer in self.others)
        return sum(answer.cached_tokens for answer in self.others) / prompts


@dataclass(frozen=True, slots=True)
class Run:
    """What the demo reports of one configuration."""

    name: str
    prompt_tokens: int
    restored_tokens: int
    ttft_ms: float
    others_cached: float
    tokens_equal: bool

    @classmethod
    def of(cls, name: str, plays: list[Play]) -> "Run":
        """The median time of several plays; of everything else the worst."""
        return cls(
            name=name,
            prompt_tokens=plays[0].returned.prompt_tokens,
            restored_tokens=min(play.returned.cached_tokens for play in plays),
            ttft_ms=round(median(play.returned.ttft_ms for play in plays), 1),
            others_cached=round(min(play.others_cached for play in plays), 4),
            tokens_equal=all(play.returned.agrees(play.cold) for play in plays),
        )


def play(engine: Engine, scenario: Scenario) -> Play:
    """Play the scenario once, from empty caches, and leave them empty."""
    engine.reset_all()
    idle = _start_idle(engine, scenario)
    others = _talk(engine, scenario)
    idle.add(scenario.turn_tokens)
    engine.reset_device()
    returned = engine.ask(idle.tokens, scenario.answer_tokens)
    engine.reset_all()
    cold = engine.ask(idle.tokens, scenario.answer_tokens)
    engine.reset_all()
    return Play(returned, cold, tuple(others))


def warm_up(engine: Engine, scenario: Scenario) -> None:
    """Ask once for what the measured prompt needs, so that first-use costs are not in it."""
    stranger = Conversation("warm-up")
    stranger.say(engine, scenario.idle_tokens, scenario.answer_tokens)
    engine.reset_device()
    stranger.say(engine, scenario.turn_tokens, scenario.answer_tokens)


def _start_idle(engine: Engine, scenario: Scenario) -> Conversation:
    idle = Conversation("A")
    idle.say(engine, scenario.idle_tokens, scenario.answer_tokens)
    idle.say(engine, scenario.turn_tokens, scenario.answer_tokens)
    return idle


def _talk(engine: Engine, scenario: Scenario) -> list[Answer]:
    """The others' turns, in rotation; their first prompts are not among the answers."""
    others = [Conversation(chr(ord("B") + number)) for number in range(scenario.others)]
    for other in others:
        other.say(engine, scenario.other_tokens, scenario.answer_tokens)
    return [
        other.say(engine, scenario.turn_tokens, scenario.answer_tokens)
        for _ in range(scenario.turns)
        for other in others
    ]
