# SPDX-License-Identifier: Apache-2.0
"""The conversations of a soak: which blocks each of them has, the same in every process.

Covers names only. A conversation that a killed process began goes on in the next one.
"""

import hashlib
import random
from functools import lru_cache

from tiercache.blocks import BlockHash

#: Blocks of a conversation at most.
LONGEST = 256
#: How many conversations begin like an earlier one, and how much earlier that one began.
FORKS = 0.3
FORKED_FROM = 30
#: Conversations whose hashes are kept.
_KEPT = 256


class Talks:
    """Conversations by number. Locking: none."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.hashes = lru_cache(maxsize=_KEPT)(self._hashes)
        """Hashes of all blocks that conversation ``number`` can ever have."""

    def _hashes(self, number: int) -> tuple[BlockHash, ...]:
        dice = random.Random(f"{self._seed}/{number}")
        head: tuple[BlockHash, ...] = ()
        if number and dice.random() < FORKS:
            other = number - dice.randint(1, min(number, FORKED_FROM))
            head = self.hashes(other)[: dice.randrange(1, LONGEST)]
        return (*head, *(self._hash(number, at) for at in range(len(head), LONGEST)))

    def _hash(self, number: int, at: int) -> BlockHash:
        name = f"{self._seed}/{number}/{at}".encode()
        return hashlib.blake2b(name, digest_size=32).digest()
