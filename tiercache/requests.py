# SPDX-License-Identifier: Apache-2.0
"""What the cache remembers of one request while it runs."""

from tiercache.blocks import BlockHash, Key, Lineage


class Request:
    """One request: its lineage, what it used, and which of its states are in flight."""

    __slots__ = ("finished", "lineage", "request_id", "states", "storing", "used")

    def __init__(self, request_id: str, lineage: Lineage) -> None:
        self.request_id = request_id
        self.lineage = lineage
        self.used: dict[int, dict[Key, bool]] = {}
        """Per group, in prefix order: key -> whether it was there before this request."""
        self.states: list[BlockHash] = []
        """Boundaries at which it stored a state."""
        self.storing: set[Key] = set()
        """State keys that it reserved and that are neither committed nor failed yet."""
        self.finished = False

    def reuse(self, group_id: int, keys: list[Key]) -> None:
        self.used.setdefault(group_id, {}).update(dict.fromkeys(keys, True))

    def insert(self, group_id: int, keys: list[Key]) -> None:
        self.used.setdefault(group_id, {}).update(dict.fromkeys(keys, False))

    def forget(self) -> None:
        """Drop everything but the lineage: the pools were reset under a running request."""
        self.used.clear()
        self.states.clear()
        self.storing.clear()
