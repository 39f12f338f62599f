# SPDX-License-Identifier: Apache-2.0
"""kv-cache-tester traces: whole conversations of coding assistants, one record each.

Covers the published form, its compact one and playing many conversations at once. What separate
conversations share is not recorded; two whose tool and system prompts have the same lengths are
taken to begin alike.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Self

from tiercache.errors import ConfigError
from tiercache.replay.fields import (
    Record,
    UnreadableError,
    count,
    covers,
    ids,
    number,
    records,
    text,
)
from tiercache.replay.turns import Chainer, Head, Turn, interleave

#: Tokens of a block, where the trace does not say.
BLOCK_TOKENS = 64
#: Seconds between the starts of two conversations, where nobody says.
GAP_S = 120.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which conversations are played, and when; None means all.

    Conversation ``i`` begins at ``i * span / conversations`` seconds, or without a ``span``
    ``GAP_S`` after the one before. Of each, the first ``max_requests`` requests are played, with
    ``agents`` those of the agents that it called among them.
    """

    conversations: int | None = None
    span: float | None = None
    max_requests: int | None = None
    agents: bool = True

    def __post_init__(self) -> None:
        for name in ("conversations", "max_requests", "span"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(name, value, "a number above 0, or none for all")
        if self.span is not None and self.conversations is None:
            raise ConfigError("span", self.span, "none without a number of conversations")

    @property
    def gap(self) -> float:
        """Seconds between the starts of two conversations."""
        if self.span is None or self.conversations is None:
            return GAP_S
        return self.span / self.conversations


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class _Request:
    time: float
    input_tokens: int
    output_tokens: int
    kept: int
    """How many ids it has in common with the beginning of the request before it."""
    rest: "array[int]"
    """Its other ids."""


@dataclass(frozen=True, slots=True)
class _Agent:
    """Requests of which each goes on from the one before."""

    head_name: bytes
    head_tokens: int
    requests: list[_Request]

    def turns(self, name: str, scope: bytes, start: float, chainer: Chainer) -> Iterator[Turn]:
        prompt: array[int] = array("q")
        head = None
        for request in self.requests:
            del prompt[request.kept :]
            prompt.extend(request.rest)
            if head is None:
                head = Head(self.head_name, self.head_tokens, prompt[:])
            yield Turn(
                start + request.time,
                name,
                chainer.hashes(prompt, request.input_tokens, scope=scope, head=head),
                request.input_tokens,
                request.output_tokens,
            )


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation and the agents that it called."""

    name: str
    chainer: Chainer
    agents: list[_Agent]
    """Its own requests, then those of each agent that it called."""
    shares_ids: bool
    """Whether its ids mean the same in all conversations."""

    @classmethod
    def read(cls, record: Record, *, block_tokens: int, id_tokens: int | None) -> Self:
        """Read one conversation. Raises UnreadableError."""
        tokens = id_tokens or count(record, "block_size", least=1, default=BLOCK_TOKENS)
        shares_ids = text(record, "hash_id_scope", default="local") == "global"
        entries = records(record, "requests")
        agents = _agents(record, entries, 0.0, tokens, shares_ids=shares_ids)
        name = text(record, "id", default="")
        return cls(name, Chainer(tokens, block_tokens), agents, shares_ids)

    def turns(self, index: int, start: float, *, agents: bool) -> Iterator[Turn]:
        """Turns in order of time, ``start`` being the time at which the conversation begins.

        ``index`` tells it from others, whose names may be the same. ``agents`` are left out
        unless asked for.
        """
        scope = b"" if self.shares_ids else b"%d" % index
        name = self.name or str(index)
        played = self.agents if agents else self.agents[:1]
        turns = (agent.turns(name, scope, start, self.chainer) for agent in played)
        return heapq.merge(*turns, key=attrgetter("time"))


def is_conversation(record: Record) -> bool:
    """Whether a record is a conversation, in whichever form."""
    return isinstance(record.get("requests"), list)


def spread(conversations: Iterable[Conversation], selection: Selection) -> Iterator[Turn]:
    """Turns of the selected conversations in order of time, then of conversation."""
    chosen = enumerate(islice(conversations, selection.conversations))
    return interleave(
        (start, islice(turns, selection.max_requests))
        for index, conversation in chosen
        for start in (index * selection.gap,)
        for turns in (conversation.turns(index, start, agents=selection.agents),)
    )


def _agents(
    about: Record, entries: list[Record], begin: float, id_tokens: int, *, shares_ids: bool
) -> list[_Agent]:
    """The agent that made ``entries``, and after it those that it called."""
    reader = _Reader(begin, id_tokens)
    called: list[_Agent] = []
    for index, entry in enumerate(entries):
        try:
            if _is_call(entry):
                marker, inner, at = _called(entry)
                called += _agents(marker, inner, at, id_tokens, shares_ids=shares_ids)
            else:
                reader.add(entry)
        except UnreadableError as error:
            raise UnreadableError(f"requests[{index}]: {error}") from None
    tools = count(about, "tool_tokens", default=0)
    system = count(about, "system_tokens", default=0)
    # Ids that mean the same everywhere show by themselves what is shared.
    head_tokens = 0 if shares_ids else tools + system
    return [_Agent(b"%d+%d" % (tools, system), head_tokens, reader.requests), *called]


def _is_call(entry: Record) -> bool:
    return "other" in entry or entry.get("type") == "subagent"


def _called(entry: Record) -> tuple[Record, list[Record], float]:
    """What is said about an agent, its requests, and when it began.

    ``t`` is when it was done: agents that were called together have the same ``t`` less their
    duration. Times of its requests count from its own beginning in some traces, from that of the
    conversation in others.
    """
    compact = "other" in entry
    marker = entry["other"] if compact else entry
    if not isinstance(marker, dict):
        raise UnreadableError("other is not an object")
    inner = records(entry, "sub" if compact else "requests")
    begin = number(marker, "t") - number(marker, "duration_ms", default=0.0) / 1000
    first = next((number(request, "t") for request in inner if "t" in request), 0.0)
    # They were rounded to seconds.
    return marker, inner, 0.0 if first >= max(begin - 1, 1) else max(begin, 0.0)


class _Reader:
    """Reads the requests of one agent, keeping of each what it adds to the one before."""

    def __init__(self, begin: float, id_tokens: int) -> None:
        self.requests: list[_Request] = []
        self._begin = begin
        self._id_tokens = id_tokens
        self._last: array[int] = array("q")

    def add(self, entry: Record) -> None:
        tokens = count(entry, "in", least=1)
        if "lcp" in entry:
            kept, rest = self._compact(entry, tokens)
            self._last = self._last[:kept] + rest
        else:
            prompt = ids(entry, "hash_ids")
            kept = _common(prompt, self._last)
            self._last, rest = prompt, prompt[kept:]
        covers(len(self._last), tokens, self._id_tokens)
        time = self._begin + number(entry, "t")
        self.requests.append(_Request(time, tokens, count(entry, "out", default=0), kept, rest))

    def _compact(self, entry: Record, tokens: int) -> tuple[int, "array[int]"]:
        kept = count(entry, "lcp")
        if kept > len(self._last):
            raise UnreadableError(f"lcp is {kept}, but there were {len(self._last)} ids before")
        rest: array[int] = array("q")
        runs = entry.get("rest", [])
        try:
            for first, length in runs:
                # A broken length must not fill the memory.
                if not 0 <= length <= tokens // self._id_tokens + 1 - kept - len(rest):
                    raise UnreadableError(f"rest has a run of {length} ids for {tokens} tokens")
                rest.extend(range(first, first + length))
        except (TypeError, ValueError, OverflowError):
            raise UnreadableError("rest is not a list of [first id, count]") from None
        return kept, rest


def _common(prompt: "array[int]", last: "array[int]") -> int:
    """How many ids two prompts have in common at their beginning."""
    end = min(len(prompt), len(last))
    if prompt[:end] == last[:end]:
        return end
    return bisect_left(range(end), 1, key=lambda i: prompt[: i + 1] != last[: i + 1])
