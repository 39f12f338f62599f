# SPDX-License-Identifier: Apache-2.0
"""Keys that left not long ago, a few bytes of each: for millions, without a long call.

Covers which are remembered. Who becomes a ghost, and what it gains, is up to the policy.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiercache.blocks import Key
from tiercache.keytable import KeyTable
from tiercache.slotqueue import Mask, SlotQueue

Names: TypeAlias = NDArray[np.void]
NAME: Final = np.dtype("V8")


def short_names(keys: Iterable[Key]) -> Names:
    """The first 8 bytes of each key: of its hash, which is longer; else zeros fill it up."""
    return np.array([key[: NAME.itemsize] for key in keys], NAME)


class Ghosts:
    """The last ``n`` names that were to be remembered, or fewer.

    Complexity: O(1) per name given, amortised. Locking: none.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._place_of = KeyTable(n)
        # All places from 0 to n - 1: first those without a name, then from the oldest name on.
        self._order = SlotQueue(n)
        self._order.put_last(np.arange(n))

    def __len__(self) -> int:
        """Number of names that are remembered."""
        return len(self._place_of)

    def remember(self, names: Names) -> None:
        """Add names as the youngest, the last one the youngest; the oldest are forgotten."""
        new = list(dict.fromkeys(names.tolist()[::-1]))[: self._n][::-1]
        self._forget(new)
        places = self._order.first(len(new))
        self._place_of.take(self._place_of.keys_in(places))
        self._place_of.put(new, places)
        self._order.put_last(np.array(places, np.int64))

    def recall(self, names: Names) -> Mask:
        """Which of ``names`` are remembered, and forget them."""
        known = self._forget(names.tolist())
        return np.array([name in known for name in names.tolist()], np.bool_)

    def _forget(self, names: list[Key]) -> set[Key]:
        """Free the places of those names that have one, and return these names."""
        known = set(self._place_of.known(names))
        if known:
            self._order.put_first(np.array(self._place_of.take(known), np.int64))
        return known
