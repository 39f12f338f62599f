# SPDX-License-Identifier: Apache-2.0
"""What the cache remembers of one request until its last store is over."""

from collections.abc import Collection
from itertools import filterfalse

from tiercache.blocks import BlockHash, Key, Lineage, key_hash


class Request:
    """One request: its lineage, what it used, and how much of it is in flight."""

    __slots__ = (
        "barred",
        "finished",
        "lineage",
        "promoted",
        "remark",
        "request_id",
        "states",
        "storing",
        "used",
    )

    def __init__(self, request_id: str, lineage: Lineage) -> None:
        self.request_id = request_id
        self.lineage = lineage
        self.used: dict[int, dict[Key, bool]] = {}
        """Per group, in prefix order: key -> whether it was there before this request."""
        self.states: list[BlockHash] = []
        """Boundaries at which it stored a state."""
        self.storing = 0
        """How many keys it reserved that are neither committed nor failed yet."""
        self.finished = False
        self.promoted: dict[Key, str] = {}
        """What was brought from other tiers for it, and the name of the tier."""
        self.barred: frozenset[str] = frozenset()
        """Names of the tiers that nothing is to be brought from for it."""
        self.remark = ""
        """Why it was not brought more, if that was a decision."""

    def use(self, group_id: int, keys: Collection[Key]) -> None:
        """Note keys of a group, given in prefix order, as used; known ones keep their note.

        vLLM loads what lies behind the device's own prefix before it offers that prefix, so keys
        may belong before those that are noted.
        """
        used = self.used.setdefault(group_id, {})
        first = next(iter(keys), None)
        if not used:
            used.update(dict.fromkeys(keys, True))
        elif first and first not in used and self._is_before(first, next(iter(used))):
            self.used[group_id] = dict.fromkeys(keys, True) | used
        else:
            used.update(dict.fromkeys(filterfalse(used.__contains__, keys), True))

    def _is_before(self, key: Key, other: Key) -> bool:
        at, other_at = self.lineage.index(key_hash(key)), self.lineage.index(key_hash(other))
        return at is not None and other_at is not None and at < other_at

    def insert(self, group_id: int, keys: Collection[Key]) -> None:
        """Note of keys that it used that it inserted them itself."""
        self.used[group_id].update(dict.fromkeys(keys, False))

    def forget(self) -> None:
        """Drop everything but the lineage."""
        self.used.clear()
        self.states.clear()
        self.storing = 0
