# SPDX-License-Identifier: Apache-2.0
"""When to leave a failing device alone, and when to try it again. Pure: no clock of its own."""

from math import inf

#: Failures in a row after which it is left alone.
FAILURES = 3
#: Seconds until it is tried again; each failure from then on doubles them.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Breaker:
    """Counts failures in a row. Times are seconds of a monotonic clock. Locking: none."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._open_since = self._open_until = -inf

    def allows(self, now: float) -> bool:
        """Whether to try. After a pause one failure is enough for the next, longer one.

        A clock that was set back ends the pause.
        """
        return not self._open_since <= now < self._open_until

    def succeeded(self) -> None:
        self._failures, self._pause_s, self._open_until = 0, FIRST_PAUSE_S, -inf

    def failed(self, now: float) -> bool:
        """Note a failure; whether a pause begins with it."""
        self._failures += 1
        return self._failures >= FAILURES and self.trip(now)

    def trip(self, now: float) -> bool:
        """Begin a pause, if there is none; whether there was none."""
        if not self.allows(now):
            return False
        self._failures = FAILURES
        self._open_since, self._open_until = now, now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True
