# SPDX-License-Identifier: Apache-2.0
"""Workloads made here, for when no trace is at hand: idle conversation, coding and chat.

Covers made-up requests: the published scenario, and conversations like those of real traces. The
same seed makes the same requests.
"""

import math
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from itertools import islice, takewhile
from random import Random

from tiercache.blocks import BlockHash
from tiercache.errors import ConfigError
from tiercache.replay.conversations import EVERYTHING, Selection
from tiercache.replay.habits import HABITS, Habits, Head
from tiercache.replay.turns import HASH_BYTES, Stream, Turn, interleave

IDLE_CONVERSATION = "idle-conversation"
SCENARIOS = (IDLE_CONVERSATION, *HABITS)

#: The published scenario: A speaks twice and goes idle, B, C and D take turns, A comes back.
IDLE = "A"
FIRST_PROMPTS = {IDLE: 501_201, "B": 100_000, "C": 136_000, "D": 172_000}
ORDER = (IDLE, IDLE, *"BCD" * 40, IDLE)
#: What a turn adds: 3,200 tokens of prompt and 600 of answer.
TURN, ANSWER = 3_800, 600
SECONDS_BETWEEN_TURNS = 60.0


def scenario(
    name: str, *, block_tokens: int, selection: Selection = EVERYTHING, seed: int = 0
) -> Stream:
    """A workload by name.

    Args:
        name: one of `SCENARIOS`.
        block_tokens: tokens of a block of the cache.
        selection: how many conversations, over which time, and how many requests of each; what is
            left open is as in the traces that they are modelled on.
        seed: another one makes other requests of the same kind.

    Raises:
        ConfigError: there is no such workload, or it does not come in other sizes.
    """
    if name in HABITS:
        make = partial(_conversations, HABITS[name], block_tokens, selection, seed)
        return Stream(name, block_tokens, make)
    if name != IDLE_CONVERSATION:
        raise ConfigError("scenario", name, ", ".join(SCENARIOS))
    if selection != EVERYTHING:
        raise ConfigError("scenario", name, "coding and chat, to choose how many conversations")
    return Stream(name, block_tokens, partial(_published, block_tokens), len(ORDER), IDLE)


class History:
    """What was said so far in one conversation, as block hashes."""

    def __init__(self, name: str, block_tokens: int, head: Head | None = None) -> None:
        self.tokens = 0
        self.name = name
        self._block_tokens = block_tokens
        self._hashes: list[BlockHash] = []
        self._made = 0
        if head is not None:
            self.tokens = head.tokens
            blocks = range(head.tokens // block_tokens)
            self._hashes = [_hash(f"head {head.name}: {block}") for block in blocks]

    def add(self, tokens: float) -> None:
        self.tokens += max(round(tokens), 1)

    def cut(self, tokens: int) -> None:
        """Forget what comes after the first ``tokens``."""
        self.tokens = min(tokens, self.tokens)
        del self._hashes[self.tokens // self._block_tokens :]

    def prompt(self) -> list[BlockHash]:
        """Hashes of the whole blocks."""
        while len(self._hashes) < self.tokens // self._block_tokens:
            # Never the same twice: what is said instead of something else is something else.
            self._hashes.append(_hash(f"{self.name}: {self._made}"))
            self._made += 1
        return self._hashes[:]


def _published(block_tokens: int) -> Iterator[Turn]:
    histories = {name: History(name, block_tokens) for name in FIRST_PROMPTS}
    for index, name in enumerate(ORDER):
        history = histories[name]
        history.add(TURN if history.tokens else FIRST_PROMPTS[name])
        time = index * SECONDS_BETWEEN_TURNS
        yield Turn(time, name, history.prompt(), history.tokens, ANSWER)


def _conversations(
    habits: Habits, block_tokens: int, selection: Selection, seed: int
) -> Iterator[Turn]:
    conversations = selection.conversations or habits.conversations
    gap = habits.gap if selection.span is None else selection.span / conversations
    max_requests = selection.max_requests or habits.max_requests
    turns = interleave(
        (index * gap, islice(_talk(habits, block_tokens, seed, index, index * gap), max_requests))
        for index in range(conversations)
    )
    end = conversations * gap if habits.ends_with_last_start else math.inf
    return takewhile(lambda turn: turn.time < end, turns)


def _talk(habits: Habits, block_tokens: int, seed: int, index: int, time: float) -> Iterator[Turn]:
    """The requests of one conversation, the first one at ``time``."""
    name = str(index)
    random = Random(f"{seed} {name}")  # noqa: S311
    head = habits.head(seed, index)
    history = History(f"{seed} {name}", block_tokens, head)
    history.add(habits.first.draw(random))
    context = max(habits.context, round(1.1 * history.tokens))
    for _ in range(habits.requests(random)):
        answer = max(round(habits.answer.draw(random)), 1)
        yield Turn(time, name, history.prompt(), history.tokens, answer)
        history.add(answer)
        if random.random() < habits.rewrites:
            said = history.tokens
            history.cut(round(said * min(habits.kept.draw(random), 1.0)))
            history.add(said - history.tokens)
        history.add(habits.message.draw(random))
        if history.tokens > context:
            history.cut(head.tokens)
            history.add(habits.summary.draw(random))
        time += habits.pause.draw(random)


def _hash(text: str) -> BlockHash:
    return blake2b(text.encode(), digest_size=HASH_BYTES).digest()
