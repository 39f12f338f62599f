# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from threading import Event

from tiercache.tui.poller import Poller, Report
from tiercache.tui.snapshot import Snapshot
from tiercache.tui.trouble import SourceError, Trouble


class Steps:
    """A source that waits to be told what the next fetch yields."""

    url = "http://127.0.0.1:8000/metrics"

    def __init__(self) -> None:
        self.reports: Queue[Report] = Queue()
        self.asked = Event()

    def fetch(self) -> Snapshot:
        self.asked.set()
        report = self.reports.get()
        if isinstance(report, Exception):
            raise report
        return report


@contextmanager
def polling(source: Steps, deliver: Callable[[Report], object]) -> Iterator[Poller]:
    poller = Poller(source, interval=0.0, deliver=deliver)
    poller.start()
    yield poller
    poller.stop()
    source.reports.put(Snapshot(0.0))
    poller.join()


def test_whatever_comes_of_a_fetch_is_handed_over() -> None:
    source, delivered = Steps(), Queue[Report]()
    reports: list[Report] = [
        Snapshot(1.0),
        SourceError(Trouble.UNREACHABLE, "connection refused"),
        ZeroDivisionError(),
        Snapshot(2.0),
    ]
    with polling(source, delivered.put):
        for report in reports:
            source.reports.put(report)
            assert delivered.get() is report


def test_nothing_is_delivered_after_stop_even_of_a_fetch_under_way() -> None:
    source, delivered = Steps(), Queue[Report]()
    with polling(source, delivered.put) as poller:
        source.asked.wait()
        poller.stop()
        source.reports.put(Snapshot(1.0))
        poller.join()
    assert delivered.empty()


def test_stop_waits_for_a_delivery_under_way() -> None:
    source, delivering, go_on = Steps(), Event(), Event()

    def deliver(report: Report) -> None:
        delivering.set()
        go_on.wait()

    with polling(source, deliver) as poller:
        source.reports.put(Snapshot(1.0))
        delivering.wait()
        assert not poller._lock.acquire(blocking=False)
        go_on.set()


def test_a_fetch_that_hangs_does_not_keep_the_program() -> None:
    assert Poller(Steps(), 1.0, print).daemon
