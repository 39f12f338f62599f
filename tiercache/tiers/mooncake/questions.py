# SPDX-License-Identifier: Apache-2.0
"""What the store is asked: which keys it has, and whether it is there.

Covers asking in parts, in threads of its own, and handing the answers over in parts. What they
mean is the tier's business.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tiercache.blocks import Key
from tiercache.tiers.mooncake.client import is_unreached
from tiercache.tiers.nvme.io import IOEngine, in_thread

#: Keys of one call: the package turns them into its own strings with the interpreter lock held.
CALL_KEYS = 1024
#: Calls of which the scheduler hears in one go: 1.2 ms.
HEARD_CALLS = 2
#: Threads for questions, which do not wait behind copies: one may hang while the other pings.
ASKERS = 2


@dataclass(eq=False, slots=True)
class Question:
    """Which of ``keys`` are there; a ping if there are none."""

    keys: Sequence[Key]
    space: str
    asked: float
    """When it was asked, or its last answer heard."""
    room: int
    """Bytes that what is found may take."""
    done: bool = field(default=False)
    """Whether the last answer was heard."""


class Answer(NamedTuple):
    """What one call came to."""

    question: Question
    found: Sequence[Key]
    lost: bool
    """Whether it is an error; then it is the last."""
    last: bool


class Questions:
    """Asks ``exist`` of a store. Locking: none; one thread calls, others answer. Raises nothing."""

    def __init__(
        self, name: str, exist: Callable[[str, Sequence[Key]], tuple[list[Key], int]]
    ) -> None:
        self._exist = exist
        self._answers: deque[Answer] = deque()
        self._engine = IOEngine(ASKERS, name)

    @property
    def pending(self) -> int:
        """Questions that wait or are being asked."""
        return self._engine.pending

    @property
    def answered(self) -> bool:
        """Whether there is something to hear."""
        return bool(self._answers)

    def ask(self, question: Question) -> bool:
        """Begin to ask; whether there will be an answer."""
        return self._engine.submit(partial(self._ask, question), urgent=True)

    async def _ask(self, question: Question) -> None:
        keys = question.keys or [Key(b"ping")]
        for first in range(0, len(keys), CALL_KEYS):
            try:
                part = keys[first : first + CALL_KEYS]
                found, code = await in_thread(self._exist, question.space, part)
                lost = is_unreached(code)
            except Exception:  # noqa: BLE001 - whatever it is, there is no answer
                found, lost = [], True
            last = lost or first + CALL_KEYS >= len(keys)
            self._answers.append(Answer(question, found, lost, last))
            if last:
                return

    def hear(self) -> list[Answer]:
        """What was answered, as much as one step has time for."""
        return [self._answers.popleft() for _ in range(min(HEARD_CALLS, len(self._answers)))]

    def close(self, timeout: float) -> bool:
        """As for `IOEngine`."""
        return self._engine.close(timeout)
