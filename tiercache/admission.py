# SPDX-License-Identifier: Apache-2.0
"""Which offered keys are worth a slot: those that were offered often enough."""

from collections import OrderedDict
from collections.abc import Callable, Collection

from tiercache.blocks import Key


class OfferCounter:
    """Admits a key from its ``threshold``-th offer on.

    Remembers the ``capacity`` most recently offered keys. A threshold below 2 admits everything
    and remembers nothing.
    """

    def __init__(self, threshold: int, capacity: int) -> None:
        self.threshold = threshold
        self.capacity = capacity
        self.skipped = 0
        self._offers: OrderedDict[Key, int] = OrderedDict()

    def admit(self, keys: Collection[Key], is_known: Callable[[Key], bool]) -> Collection[Key]:
        """Count one offer of each key; returns the admitted and the known ones, in their order."""
        if self.threshold < 2:
            return keys
        return [key for key in keys if self._offer(key, known=is_known(key))]

    def _offer(self, key: Key, *, known: bool) -> bool:
        count = self._offers.pop(key, 0) + 1
        self._offers[key] = count
        if len(self._offers) > self.capacity:
            self._offers.popitem(last=False)
        admitted = known or count >= self.threshold
        self.skipped += not admitted
        return admitted

    def clear(self) -> None:
        self._offers.clear()
