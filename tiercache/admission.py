# SPDX-License-Identifier: Apache-2.0
"""Which offered keys are worth a slot: those that were offered often enough."""

from collections import OrderedDict
from collections.abc import Callable, Collection
from itertools import islice

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
        admitted = self._count(keys)
        taken = [key for key in keys if key in admitted or is_known(key)]
        self.skipped += len(keys) - len(taken)
        return taken

    def _count(self, keys: Collection[Key]) -> set[Key]:
        """Count the offers of as many keys as are remembered; returns those offered often enough.

        Nothing that is offered now makes room for the rest of the offer: of one that is longer
        than the memory, nothing would ever be offered twice.
        """
        admitted = set()
        for key in islice(keys, self.capacity):
            count = self._offers.pop(key, 0) + 1
            self._offers[key] = count
            if count >= self.threshold:
                admitted.add(key)
        while len(self._offers) > self.capacity:
            self._offers.popitem(last=False)
        return admitted

    def clear(self) -> None:
        self._offers.clear()
