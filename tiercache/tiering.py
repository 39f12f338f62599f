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
        """Whether anything is to be waited for that a healthy tier can bring to an end."""
        healthy = any(tier.stats().healthy for tier in self.tiers)
        return healthy and (len(self.jobs) > 0 or self.spiller.pending or self.promoter.pending)

    def poll(self) -> None:
        """Take in what has ended and start what can be started. Once per step of the engine."""
        self.jobs.poll()
        self.promoter.expire()
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
