# SPDX-License-Identifier: Apache-2.0
"""What conversations of coding assistants and of chats are like: how long, how often, how alike.

Covers sizes and chances only; ``workloads`` makes requests of them. The figures were fitted to two
public traces: coding to 365 conversations (24,889 requests) of kv-cache-tester, chat to the 12,031
requests of Mooncake's conversation trace. Not modelled: agents called by agents, times of day.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

#: Conversations with a beginning of their own, in a Chinese restaurant process: 214 beginnings
#: among 365 conversations.
CODING_HEADS = 225
#: Chance of one more request, over all chats: Beta(2, 3.5), so that who talks on talks on.
CHAT_GOES_ON = (2.0, 3.5)


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning that conversations with equal heads have in common."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Size:
    """A random size, log-normal with this median and spread (of the logarithm).

    A ``share`` of the draws is small instead, with a median and a spread of their own.
    """

    median: float
    spread: float
    share: float = 0.0
    small_median: float = 1.0
    small_spread: float = 0.0

    def draw(self, random: Random) -> float:
        if random.random() < self.share:
            return self.small_median * math.exp(random.gauss(0.0, self.small_spread))
        return self.median * math.exp(random.gauss(0.0, self.spread))


@dataclass(frozen=True, slots=True)
class Habits:
    """Conversations of one kind. Sizes are in tokens, times in seconds."""

    conversations: int
    """How many there are, unless told."""
    gap: float
    """From the start of one to the start of the next, unless told."""
    ends_with_last_start: bool
    """Whether nothing is played once the last conversation has begun, as in a recording of a
    given time; otherwise all come to their end."""
    max_requests: int | None
    """How many requests of each are played, unless told."""
    head: Callable[[int, int], Head]
    """What a conversation begins with, by the seed and its number."""
    requests: Callable[[Random], int]
    """How many requests a conversation has."""
    first: Size
    """The first message."""
    message: Size
    """What follows an answer: the next message, or what a tool returned."""
    answer: Size
    pause: Size
    """From one request to the next."""
    rewrites: float
    """Chance that a request changes what was said before."""
    kept: Size
    """Which share of the prompt such a change leaves as it was."""
    context: int
    """The longest prompt. A conversation that outgrows it goes on from a summary."""
    summary: Size


def _coding_head(seed: int, number: int) -> Head:
    """The head of an earlier conversation, or, the earlier the more likely, a new one."""
    random = Random(f"coding head {seed} {number}")  # noqa: S311
    if number and random.random() * (CODING_HEADS + number) > CODING_HEADS:
        return _coding_head(seed, random.randrange(number))
    tools, system = Size(11_500, 0.14).draw(random), Size(2_700, 0.3).draw(random)
    return Head(f"{seed} {number}", round(tools + system))


def _coding_requests(random: Random) -> int:
    return max(3, round(Size(38, 1.17).draw(random)))


def _chat_head(seed: int, _number: int) -> Head:
    return Head(str(seed), 890)


def _chat_requests(random: Random) -> int:
    goes_on = random.betavariate(*CHAT_GOES_ON)
    requests = 1
    while random.random() < goes_on:
        requests += 1
    return requests


CODING = Habits(
    conversations=40,
    gap=180.0,
    ends_with_last_start=False,
    max_requests=80,
    head=_coding_head,
    requests=_coding_requests,
    first=Size(109_000, 0.83, share=0.57, small_median=3_000, small_spread=0.96),
    message=Size(270, 1.85),
    answer=Size(260, 0.9),
    pause=Size(150, 1.5, share=0.83, small_median=15.8, small_spread=0.55),
    rewrites=0.0125,
    kept=Size(0.12, 0.8),
    context=160_000,
    summary=Size(25_000, 0.8),
)
CHAT = Habits(
    conversations=7_300,
    gap=0.48,
    ends_with_last_start=True,
    max_requests=None,
    head=_chat_head,
    requests=_chat_requests,
    first=Size(7_300, 1.15, share=0.26, small_median=37, small_spread=1.6),
    message=Size(2_000, 1.35, share=0.67, small_median=20, small_spread=1.0),
    answer=Size(386, 0.45, share=0.22, small_median=22, small_spread=1.2),
    pause=Size(130, 1.0),
    rewrites=0.15,
    kept=Size(0.22, 1.1),
    context=128_000,
    summary=Size(2_000, 0.5),
)
HABITS = {"coding": CODING, "chat": CHAT}
