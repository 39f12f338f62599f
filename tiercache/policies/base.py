# SPDX-License-Identifier: Apache-2.0
"""What an eviction policy is: the order of one group's ready, unpinned keys.

A policy sees keys and the time that it is told: no slots, no bytes, no clock. It does not decide
*when* to demote or evict, only who goes next.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, NamedTuple

from tiercache.blocks import Key


class Evicted(NamedTuple):
    """Victims in the order of their eviction; the first ``demoted`` of them were demoted."""

    keys: list[Key]
    demoted: int


class Policy(ABC):
    """Eviction order of one group.

    Every key is in the order, or pinned, or unknown. Locking: none; the owner of the pool holds
    one lock across all calls. Complexity: each method is O(1) or O(log n) per key given.
    """

    name: ClassVar[str]
    appraises: ClassVar[bool] = False
    """Whether the order depends on what keys are worth."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def insert(self, keys: Iterable[Key]) -> None:
        """Add new keys as the most recent ones, the last key the most recent."""

    @abstractmethod
    def touch(self, keys: Iterable[Key]) -> None:
        """Make keys the most recent ones and undo their demotion; unknown keys are ignored."""

    def tell(self, now: float) -> None:  # noqa: B027  (most go by the order of calls)
        """Take note of the time, in seconds of any clock; one that goes back is ignored."""

    def appraise(self, key: Key, worth: float) -> None:  # noqa: B027  (most take no note)
        """Take note of what would be lost with ``key``, in tokens. This is no use of it.

        To be told whenever that changes. Unknown keys are ignored.
        """

    def settle(self, used: dict[Key, bool], *, tail_first: bool) -> None:
        """Commit the recency of a finished request.

        ``used`` maps its keys, in prefix order, to whether they were there before it (a reuse)
        or were inserted by it. With ``tail_first`` the end of the prefix is evicted before its
        head, otherwise the head before the end.
        """
        self.touch(reversed(used) if tail_first else used)

    @abstractmethod
    def demote(self, keys: Sequence[Key], *, first: bool = False) -> list[Key]:
        """Move keys to the front of the order; returns those that were not demoted before.

        ``keys[0]`` goes first among them. They line up behind what was demoted before, or with
        ``first`` ahead of it. A pinned key can be demoted, too. Unknown keys are ignored.
        """

    @abstractmethod
    def pin(self, keys: Collection[Key], *, hit: bool) -> None:
        """Take known keys out of the order; they cannot be evicted until unpinned.

        A ``hit`` (the pin is for a load, not for a copy to another tier) undoes a demotion. Keys
        may be pinned already; pins are not counted here, and one hit among them makes it a hit.
        """

    @abstractmethod
    def unpin(self, keys: Iterable[Key]) -> None:
        """Put pinned keys back into the order. Keys that are not pinned are ignored.

        After a hit they are the most recent ones, unless they have been demoted since. Otherwise
        they keep their place, where the policy has places for what is not in the order.
        """

    @property
    @abstractmethod
    def pinned(self) -> Collection[Key]:
        """The pinned keys."""

    @abstractmethod
    def remove(self, keys: Iterable[Key]) -> None:
        """Forget keys, pinned or not."""

    @abstractmethod
    def peek(self, n: int, protected: Collection[Key] = ()) -> Evicted:
        """Return the next ``n`` victims, or fewer, without changing anything."""

    @abstractmethod
    def evict(self, n: int, protected: Collection[Key] = ()) -> Evicted | None:
        """Remove and return the next ``n`` victims that are not ``protected``.

        Atomic: None, and nothing changed, if there are not that many.
        """

    @property
    @abstractmethod
    def demoted(self) -> int:
        """Number of demoted keys in the order (pinned ones not counted)."""

    @abstractmethod
    def is_demoted(self, key: Key) -> bool:
        """Whether ``key`` is demoted, pinned or not."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of keys in the order."""

    @abstractmethod
    def __contains__(self, key: Key) -> bool:
        """Whether ``key`` is in the order."""
