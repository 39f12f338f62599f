# SPDX-License-Identifier: Apache-2.0
"""A heap of slots that finds each of them, so that none stays behind when it is removed.

Covers the order alone; what a place stands for is known to who queues.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Place(NamedTuple):
    """A place in a queue: since when, in turn among those of equal time, and whose it is."""

    since: float
    turn: int
    slot: int


class Queue:
    """Places of slots, the lowest at index 0 and none above those ``below`` it.

    Adding and removing are O(log n) at worst: nothing is left to be cleared away later.
    """

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._at: dict[int, int] = {}
        """At which index each slot is."""

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Place:
        return self._places[index]

    def below(self, index: int) -> Iterator[int]:
        """Indexes whose places come after that at ``index``; together all but 0, each once."""
        return iter(range(2 * index + 1, min(2 * index + 3, len(self._places))))

    def add(self, place: Place) -> None:
        self._places.append(place)
        self._rise(len(self._places) - 1, place)

    def put_off(self, place: Place) -> None:
        """Give a queued slot another place, behind the one that it has; raises KeyError if not."""
        self._sink(self._at[place.slot], place)

    def remove(self, slot: int) -> None:
        """Take a queued slot out; raises KeyError if there is none such."""
        index = self._at.pop(slot)
        last = self._places.pop()
        if index < len(self._places):
            # The last place takes the free one, or goes where it has to from there.
            if index and last < self._places[(index - 1) // 2]:
                self._rise(index, last)
            else:
                self._sink(index, last)

    def _rise(self, index: int, place: Place) -> None:
        places, at = self._places, self._at
        while index:
            above = (index - 1) // 2
            if places[above] < place:
                break
            places[index] = places[above]
            at[places[index].slot] = index
            index = above
        places[index] = place
        at[place.slot] = index

    def _sink(self, index: int, place: Place) -> None:
        places, at = self._places, self._at
        while (low := 2 * index + 1) < len(places):
            if low + 1 < len(places) and places[low + 1] < places[low]:
                low += 1
            if place < places[low]:
                break
            places[index] = places[low]
            at[places[index].slot] = index
            index = low
        places[index] = place
        at[place.slot] = index
