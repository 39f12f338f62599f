# SPDX-License-Identifier: Apache-2.0
"""Traces with one request a line: Mooncake's and Qwen-Bailian's."""

from abc import ABC, abstractmethod
from typing import ClassVar

from tiercache.replay.fields import Record, count, covers, ids, number
from tiercache.replay.turns import Chainer, Turn

#: Conversations whose beginning is remembered, to name the turns that follow: 100 bytes each.
REMEMBERED_CHATS = 1 << 20


class FlatReader(ABC):
    """Reads the requests of one trace, the first one first.

    Args:
        block_tokens: tokens of a block of the cache.
        id_tokens: tokens that an id of the trace stands for, None for what is usual.
    """

    fields: ClassVar[frozenset[str]]
    """By which a record is known."""
    usual_id_tokens: ClassVar[int]

    def __init__(self, block_tokens: int, id_tokens: int | None) -> None:
        self._chainer = Chainer(id_tokens or self.usual_id_tokens, block_tokens)

    @abstractmethod
    def read(self, record: Record) -> Turn:
        """Read one request. Raises UnreadableError."""

    def _turn(self, record: Record, time: float, conversation: str) -> Turn:
        tokens = count(record, "input_length", least=1)
        prompt = ids(record, "hash_ids")
        covers(len(prompt), tokens, self._chainer.id_tokens)
        hashes = self._chainer.hashes(prompt, tokens)
        return Turn(time, conversation, hashes, tokens, count(record, "output_length", default=0))


class Mooncake(FlatReader):
    """``timestamp`` in ms, ``input_length``, ``output_length`` and ``hash_ids``."""

    fields = frozenset({"timestamp", "input_length", "hash_ids"})
    usual_id_tokens = 512

    def read(self, record: Record) -> Turn:
        return self._turn(record, number(record, "timestamp") / 1000, "")


class Bailian(FlatReader):
    """The same with ``timestamp`` in seconds, and ``chat_id`` and ``parent_chat_id``."""

    fields = Mooncake.fields | {"chat_id"}
    usual_id_tokens = 16

    def __init__(self, block_tokens: int, id_tokens: int | None) -> None:
        super().__init__(block_tokens, id_tokens)
        self._first: dict[int, int] = {}

    def read(self, record: Record) -> Turn:
        chat = count(record, "chat_id")
        parent = count(record, "parent_chat_id", least=-1, default=-1)
        first = chat if parent < 0 else self._first.get(parent, parent)
        turn = self._turn(record, number(record, "timestamp"), str(first))
        if len(self._first) >= REMEMBERED_CHATS:
            self._first.clear()
        self._first[chat] = first
        return turn


#: The most particular first: its records have all fields of the next one's.
FLAT_FORMATS: tuple[type[FlatReader], ...] = (Bailian, Mooncake)
