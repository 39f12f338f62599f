# SPDX-License-Identifier: Apache-2.0
"""The secondary tiers as the cache sees them: spilling, promotion and their common life cycle."""

from collections.abc import Callable, Sequence

from tiercache.jobs import Jobs
from tiercache.primary import PrimaryTier
from tiercache.promotion import Promoter, Restore
from tiercache.spilling import Spiller
from tiercache.tiers.base import SecondaryTier


class Tiering:
    """Everything below the primary tier. Locking: none, as for the primary tier."""

    def __init__(
        self,
        primary: PrimaryTier,
        tiers: Sequence[SecondaryTier],
        clock: Callable[[], float],
        *,
        patience_s: float,
        restore: Restore,
    ) -> None:
        self.tiers = tiers
        self.jobs = Jobs(tiers)
        self.spiller = Spiller(primary, self.jobs, clock)
        self.promoter = Promoter(primary, self.jobs, clock, patience_s=patience_s, restore=restore)
        self._primary = primary
        primary.keep_what(self.jobs.has)

    @property
    def pending(self) -> bool:
        """Whether a request waits, or a healthy tier has something to do."""
        healthy = (tier for tier in self.tiers if tier.stats().healthy)
        return self.promoter.pending or any(
            self.jobs.running(tier) or self.spiller.has_work(tier) for tier in healthy
        )

    def poll(self) -> None:
        """Take in what has ended and start what can be started. Once per step of the engine."""
        self.jobs.poll()
        self.promoter.pump()
        self.spiller.pump()

    def reset(self) -> None:
        """Drop everything in every tier, the primary one included."""
        self._primary.reset(self.promoter.reset())
        self.spiller.reset()
        for tier in self.tiers:
            tier.clear()

    def close(self) -> None:
        """Write what waits, as far as a tier takes it at once, and close the tiers."""
        self.spiller.pump(hurry=True)
        for tier in self.tiers:
            tier.close()
