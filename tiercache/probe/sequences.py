# SPDX-License-Identifier: Apache-2.0
"""Sequences: which requests continue each other, told from their prompts.

Covers the recognition only, and how many are remembered. What is restorable of a sequence is
``outlook``. Sequences have numbers; what was said stays here.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import count

from tiercache.blocks import BlockHash, Lineage
from tiercache.stats import model

#: Rows of the table.
LIMIT = 4096
#: Block hashes that all sequences together keep alive: about 70 MB.
MAX_HASHES = 1 << 20


class Followed:
    """A sequence, and what its requests came to."""

    __slots__ = (
        "before",
        "boundaries",
        "last_used",
        "lineage",
        "number",
        "prompt",
        "restored",
        "row",
        "running",
        "seconds",
        "shown",
        "size",
        "source",
        "tips",
        "turns",
    )

    def __init__(self, number: int, row: int, lineage: Lineage) -> None:
        self.number = number
        self.row = row
        self.lineage = lineage
        """Of its latest request."""
        self.prompt = self.before = 0
        """Hashes of its latest prompt, and of the one before that; 0 if that was the first."""
        self.turns = 0
        self.running = 0
        """Requests of it that are open."""
        self.last_used = 0.0
        self.tips: tuple[BlockHash, ...] = ()
        """Where the latest prompt ended, and its answer: a prompt that has one of them goes on."""
        self.size = 0
        """Hashes that it was counted with."""
        self.source: str | None = None
        self.restored = 0
        self.seconds: float | None = None
        self.shown: model.Sequence | None = None
        """What was found last."""
        self.boundaries: list[int] = []
        """Of its live checkpoints in RAM when that was found, in tokens, the deepest first."""


class Sequences:
    """The sequences of one cache.

    A request continues the one whose tip lies deepest in its prompt; without any it begins a new
    one. Of a prompt that forks, the first continuation gets the sequence. The least recently used
    ones are forgotten: beyond ``limit``, or ``max_hashes`` of all of them together.

    Locking: none, as for the cache. ``open`` walks the hashes from the end to the tip: O(hashes).
    """

    def __init__(
        self, tokens_per_hash: int, *, limit: int = LIMIT, max_hashes: int = MAX_HASHES
    ) -> None:
        self.dropped = 0
        """Sequences that were forgotten."""
        self.vacated: set[int] = set()
        """Rows of those, as long as no other has them. To be cleared by whoever drops the rows."""
        self._tokens_per_hash = tokens_per_hash
        self._limit = limit
        self._max_hashes = max_hashes
        self._size = 0
        self._known: OrderedDict[int, Followed] = OrderedDict()
        """By number, the least recently used first."""
        self._tips: dict[BlockHash, Followed] = {}
        self._numbers = count(1)
        self._free = list(range(limit - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Followed]:
        return iter(self._known.values())

    def get(self, number: int) -> Followed | None:
        """The sequence of this number, unless it is forgotten."""
        return self._known.get(number)

    def open(self, hashes: Sequence[BlockHash], now: float) -> Followed | None:
        """The sequence that a prompt belongs to; None without a whole block to tell it by."""
        if not hashes:
            return None
        tip = next(filter(self._tips.__contains__, reversed(hashes)), None)
        followed = self._begin(hashes) if tip is None else self._tips[tip]
        followed.lineage = Lineage(hashes, self._tokens_per_hash)
        followed.before, followed.prompt = followed.prompt, len(hashes)
        followed.turns += 1
        followed.running += 1
        self._move(followed, (hashes[-1],), now)
        self._forget_some()
        return followed

    def close(self, followed: Followed, hashes: Sequence[BlockHash], now: float) -> None:
        """A request of a sequence ended with ``hashes``, those of its answer among them."""
        followed.running -= 1
        if self._known.get(followed.number) is not followed:
            return
        if followed.lineage.hashes is hashes:
            self._move(followed, (*followed.tips[:1], hashes[-1]), now)
        self._forget_some()

    def _begin(self, hashes: Sequence[BlockHash]) -> Followed:
        if not self._free:
            self._forget()
        row = self._free.pop()
        self.vacated.discard(row)
        followed = Followed(next(self._numbers), row, Lineage(hashes, self._tokens_per_hash))
        self._known[followed.number] = followed
        return followed

    def _move(self, followed: Followed, tips: tuple[BlockHash, ...], now: float) -> None:
        self._leave(followed)
        followed.tips = tips
        self._tips.update(dict.fromkeys(tips, followed))
        size = len(followed.lineage.hashes)
        self._size += size - followed.size
        followed.size = size
        followed.last_used = now
        self._known.move_to_end(followed.number)

    def _leave(self, followed: Followed) -> None:
        for tip in followed.tips:
            if self._tips.get(tip) is followed:
                del self._tips[tip]

    def _forget_some(self) -> None:
        while self._size > self._max_hashes and len(self._known) > 1:
            self._forget()

    def _forget(self) -> None:
        """Forget the least recently used one, of those that rest if there are any."""
        followed = next(
            (each for each in self._known.values() if not each.running),
            next(iter(self._known.values())),
        )
        self._leave(followed)
        del self._known[followed.number]
        self._size -= followed.size
        self._free.append(followed.row)
        self.vacated.add(followed.row)
        self.dropped += 1
