# SPDX-License-Identifier: Apache-2.0
"""Asks a source again and again, away from the thread that draws."""

import threading
from collections.abc import Callable

from tiercache.stats.model import Snapshot
from tiercache.tui.sources import Source
from tiercache.tui.trouble import SourceError, Trouble

Report = Snapshot | Exception
"""A snapshot, a SourceError that says why there is none, or a fault of ours."""


class Poller(threading.Thread):
    """Fetches once per interval and hands over what came of it; it touches nothing else.

    It closes the source when it ends. A daemon: a fetch that hangs must not keep the program
    from ending.
    """

    def __init__(
        self, source: Source, interval: float, deliver: Callable[[Report], object]
    ) -> None:
        super().__init__(name="tiercache-poller", daemon=True)
        self._source = source
        self._interval = interval
        self._deliver = deliver
        self._changed = threading.Condition()
        self._held = False
        self._stopped = False
        self._ended = False

    def run(self) -> None:
        while not self._stopped:
            report = self._ask()
            # The receiver may be closing. Without the lock, stop() could return between this
            # check and the delivery, and the report would reach an event loop that is closed.
            with self._changed:
                if not self._stopped:
                    self._deliver(report)
                self._ended = isinstance(report, SourceError) and report.trouble is Trouble.ENDED
                self._rest()
        self._source.close()

    def every(self, interval: float) -> None:
        """Fetch at this interval, from now on."""
        with self._changed:
            self._interval = interval
            self._changed.notify()

    def hold(self, *, held: bool) -> None:
        """Fetch no more until told to go on."""
        with self._changed:
            self._held = held
            self._changed.notify()

    def stop(self) -> None:
        """After this returns nothing more is delivered; a fetch under way is not waited for."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _rest(self) -> None:
        """Until the next fetch is due; a new interval counts from when it was told."""
        while not self._stopped:
            interval = None if self._held or self._ended else self._interval
            if not self._changed.wait(interval):
                return

    def _ask(self) -> Report:
        try:
            return self._source.fetch()
        except SourceError as failure:
            return failure
        except Exception as fault:  # noqa: BLE001 - the receiver raises it where it is seen
            return fault
