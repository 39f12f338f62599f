# SPDX-License-Identifier: Apache-2.0
"""What the cache remembers of one request until its last store is over."""

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from itertools import filterfalse

from tiercache.blocks import BlockHash, Key, Lineage, key_hash
from tiercache.slots import Located


class Request:
    """One request: its lineage, what it used, and how much of it is in flight."""

    __slots__ = (
        "barred",
        "finished",
        "lineage",
        "loads",
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
        self.loads: list[Sequence[Located]] = []
        """What is pinned for it, load by load."""
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
        elif (
            first
            and first not in used
            and self.lineage.is_before(key_hash(first), key_hash(next(iter(used))))
        ):
            self.used[group_id] = dict.fromkeys(keys, True) | used
        else:
            used.update(dict.fromkeys(filterfalse(used.__contains__, keys), True))

    def insert(self, group_id: int, keys: Collection[Key]) -> None:
        """Note of keys that it used that it inserted them itself."""
        self.used[group_id].update(dict.fromkeys(keys, False))

    def loaded(self, keys: Collection[Key]) -> Sequence[Located] | None:
        """The load of just these keys, which is over; None if there is none.

        vLLM ends a load with the set of its keys. To find 30,000 slots in the order of a set
        takes ten times as long as this.
        """
        for load in self.loads if isinstance(keys, AbstractSet) else ():
            if sum(len(group.keys) for group in load) == len(keys) and all(
                all(map(keys.__contains__, group.keys)) for group in load
            ):
                self.loads.remove(load)
                return load
        return None

    def forget(self) -> None:
        """Drop everything but the lineage."""
        self.loads.clear()
        self.used.clear()
        self.states.clear()
        self.storing = 0
