# SPDX-License-Identifier: Apache-2.0
"""Whether the store answers, and when to try again. Pure: no clock of its own."""

from tiercache.tiers.nvme.breaker import Breaker


class Link:
    """The connection to a store.

    Once it is lost nobody waits for it. Pings, which nobody waits for either, find out when it is
    back, after pauses that double. Times are seconds of a monotonic clock. Locking: none.
    """

    def __init__(self) -> None:
        self.up = True
        self._pause = Breaker()
        self._pinging = False

    def lose(self, now: float) -> bool:
        """There was no answer, or none in time; whether there had been one before."""
        was_up, self.up = self.up, False
        if was_up:
            self._pause.trip(now)
        return was_up

    def answered(self) -> None:
        """A question was answered in time: the next pause is a short one."""
        if self.up:
            self._pause.succeeded()

    def ping(self, now: float) -> bool:
        """Whether to ping now; then ``pinged`` is to follow."""
        if self.up or self._pinging or not self._pause.allows(now):
            return False
        self._pinging = True
        return True

    def pinged(self, now: float, *, well: bool) -> bool:
        """A ping ended; whether the store is back."""
        self._pinging = False
        if self.up or not well:
            self._pause.trip(now)
            return False
        self.up = True
        return True
