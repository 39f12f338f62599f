# SPDX-License-Identifier: Apache-2.0
"""What a cache tells whoever watches it.

Covers the calls; they are made in the thread and under the lock of the caller of the cache, so an
observer is quick, and never raises. What happens to entries comes through the journal.
"""

from collections.abc import Collection

from tiercache.blocks import Key
from tiercache.requests import Request
from tiercache.restore import RestorePlan
from tiercache.tiers.base import Batch, Done, SecondaryTier


class Observer:
    """Hears everything and does nothing; to be overridden."""

    def opened(self, request: Request) -> None:
        """A request began."""

    def asked(self, request: Request, *, start: int, limit: int) -> None:
        """A request asks what it can restore beyond ``start`` tokens, at most to ``limit``."""

    def planned(self, request: Request, plan: RestorePlan | None) -> None:
        """A request was told what it can restore, or None: to ask again. The last time counts."""

    def loading(self, request: Request, keys: Collection[Key]) -> None:
        """The slots of ``keys`` are pinned and being copied to the device."""

    def served(self, request: Request, tokens: int) -> None:
        """The engine goes on with ``tokens`` of the prompt restored."""

    def loaded(self, request: Request | None) -> None:
        """The copies of a load are done; None: the caller does not say whose."""

    def finished(self, request: Request) -> None:
        """A request has ended; its last stores may still be in flight."""

    def changed(self) -> None:
        """Stores were committed or dropped, and the books are in order again."""

    def job(self, tier: SecondaryTier, batch: Batch, done: Done, *, loads: bool) -> None:
        """A job of a tier ended, and nobody has been told yet: its slots are still pinned."""

    def tick(self) -> None:
        """A step of the engine."""

    def close(self) -> None:
        """The cache closes; its tiers are still open."""
