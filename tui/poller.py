# SPDX-License-Identifier: Apache-2.0
"""Asks a source again and again, away from the thread that draws."""

import threading
from collections.abc import Callable

from tiercache.tui.snapshot import Snapshot
from tiercache.tui.sources import Source
from tiercache.tui.trouble import SourceError

Report = Snapshot | Exception
"""A snapshot, a SourceError that says why there is none, or a fault of ours."""


class Poller(threading.Thread):
    """Fetches once per interval and hands over what came of it; it touches nothing else.

    A daemon: a fetch that hangs must not keep the program from ending.
    """

    def __init__(
        self, source: Source, interval: float, deliver: Callable[[Report], object]
    ) -> None:
        super().__init__(name="tiercache-poller", daemon=True)
        self._source = source
        self._interval = interval
        self._deliver = deliver
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            report = self._ask()
            # The receiver may be closing. Without the lock, stop() could return between this
            # check and the delivery, and the report would reach an event loop that is closed.
            with self._lock:
                if not self._stopped.is_set():
                    self._deliver(report)
            self._stopped.wait(self._interval)

    def stop(self) -> None:
        """After this returns nothing more is delivered; a fetch under way is not waited for."""
        with self._lock:
            self._stopped.set()

    def _ask(self) -> Report:
        try:
            return self._source.fetch()
        except SourceError as failure:
            return failure
        except Exception as fault:  # noqa: BLE001 - the receiver raises it where it is seen
            return fault
