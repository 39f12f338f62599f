# SPDX-License-Identifier: Apache-2.0
"""What an eviction policy is: the order of one group's ready, unpinned slots.

A policy sees slots and the time that it is told: no bytes, no clock, and keys only to know one
again that was evicted. It does not decide *when* to demote or evict, only who goes next.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from tiercache.blocks import Key
from tiercache.slotqueue import Slots

SomeSlots: TypeAlias = Sequence[int] | Slots
"""Distinct slots of a pool, in an order."""


class Victims(NamedTuple):
    """Slots in the order of their eviction; the first ``demoted`` of them were demoted."""

    slots: list[int]
    demoted: int


class Policy(ABC):
    """Eviction order of one group's slots, numbered from 0 to ``capacity - 1``.

    Every slot is in the order, or pinned, or unknown. Locking: none; the owner of the pool holds
    one lock across all calls. Complexity: each method is O(1) or O(log n) per slot given, if it
    does not say otherwise.
    """

    name: ClassVar[str]
    appraises: ClassVar[bool] = False
    """Whether the order depends on what keys are worth."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def insert(self, slots: SomeSlots, keys: Sequence[Key]) -> None:
        """Add new slots as the most recent ones, the last one the most recent.

        ``keys[i]`` is what ``slots[i]`` holds from now on.
        """

    @abstractmethod
    def touch(self, slots: SomeSlots) -> None:
        """Make slots the most recent ones and undo their demotion; unknown ones are ignored."""

    def tell(self, now: float) -> None:  # noqa: B027  (most go by the order of calls)
        """Take note of the time, in seconds of any clock; one that goes back is ignored."""

    def appraise(self, slot: int, worth: float) -> None:  # noqa: B027  (most take no note)
        """Take note of what would be lost with ``slot``, in tokens. This is no use of it.

        To be told whenever that changes. Unknown slots are ignored.
        """

    def settle(self, slots: SomeSlots, reused: Iterable[bool], *, tail_first: bool) -> None:
        """Commit the recency of a finished request.

        ``slots`` are those that it used, in prefix order, and ``reused`` whether each was there
        before it or was inserted by it. With ``tail_first`` the end of the prefix is evicted
        before its head, otherwise the head before the end.
        """
        self.touch(slots[::-1] if tail_first else slots)

    @abstractmethod
    def demote(self, slots: SomeSlots, *, first: bool = False) -> Sequence[int]:
        """Move slots to the front of the order; returns those that were not demoted before.

        ``slots[0]`` goes first among them. They line up behind what was demoted before, or with
        ``first`` ahead of it. A pinned slot can be demoted, too. Unknown slots are ignored.
        """

    @abstractmethod
    def pin(self, slots: SomeSlots, *, hit: bool) -> None:
        """Take known slots out of the order; they cannot be evicted until unpinned.

        A ``hit`` (the pin is for a load, not for a copy to another tier) undoes a demotion. Slots
        may be pinned already; pins are not counted here, and one hit among them makes it a hit.
        """

    @abstractmethod
    def unpin(self, slots: SomeSlots) -> None:
        """Put pinned slots back into the order. Slots that are not pinned are ignored.

        After a hit they are the most recent ones, unless they have been demoted since. Otherwise
        they keep their place, where the policy has places for what is not in the order.
        """

    @abstractmethod
    def remove(self, slots: SomeSlots) -> None:
        """Forget slots, pinned or not; unknown ones are ignored."""

    @abstractmethod
    def peek(self, n: int, protected: Container[int] = ()) -> Victims:
        """Return the next ``n`` victims, or fewer, without changing anything."""

    @abstractmethod
    def evict(self, n: int, protected: Container[int] = ()) -> Victims | None:
        """Remove and return the next ``n`` victims that are not ``protected``.

        Atomic: None, and nothing changed, if there are not that many.
        """

    @property
    @abstractmethod
    def has_demoted(self) -> bool:
        """Whether some slot is demoted, pinned or not; O(1)."""

    @property
    @abstractmethod
    def demoted(self) -> int:
        """Number of demoted slots in the order (pinned ones not counted); O(slots) at worst."""

    @abstractmethod
    def demoted_of(self, slots: SomeSlots) -> Sequence[int]:
        """Those of ``slots`` that are demoted, pinned or not, in their order."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of slots in the order."""

    @abstractmethod
    def __contains__(self, slot: int) -> bool:
        """Whether ``slot`` is in the order."""


def numbers(slots: SomeSlots) -> Sequence[int]:
    """Slots as Python's own numbers, for tables."""
    return slots.tolist() if isinstance(slots, np.ndarray) else slots
