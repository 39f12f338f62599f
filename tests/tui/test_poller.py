# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from threading import Event

from tests.tui.servers import qwen
from tiercache.stats.model import Snapshot
from tiercache.tui.poller import Poller, Report
from tiercache.tui.trouble import SourceError, Trouble


class Steps:
    """A source that waits to be told what the next fetch yields."""

    target = "somewhere"
    span = None
    notice = ""

    def __init__(self) -> None:
        self.reports: Queue[Report] = Queue()
        self.asked = Event()
        self.closed = Event()

    def fetch(self) -> Snapshot:
        self.asked.set()
        report = self.reports.get()
        if isinstance(report, Exception):
            raise report
        return report

    def close(self) -> None:
        self.closed.set()


@contextmanager
def polling(
    source: Steps, deliver: Callable[[Report], object], interval: float = 0.0
) -> Iterator[Poller]:
    poller = Poller(source, interval, deliver)
    poller.start()
    yield poller
    poller.stop()
    source.reports.put(qwen(0))
    poller.join()


def test_whatever_comes_of_a_fetch_is_handed_over() -> None:
    source, delivered = Steps(), Queue[Report]()
    reports: list[Report] = [
        qwen(1),
        SourceError(Trouble.UNREACHABLE, "connection refused"),
        ZeroDivisionError(),
        qwen(2),
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
        source.reports.put(qwen(1))
        poller.join()
    assert delivered.empty()


def test_stop_waits_for_a_delivery_under_way() -> None:
    source, delivering, go_on = Steps(), Event(), Event()

    def deliver(report: Report) -> None:
        delivering.set()
        go_on.wait()

    with polling(source, deliver) as poller:
        source.reports.put(qwen(1))
        delivering.wait()
        assert not poller._changed.acquire(blocking=False)
        go_on.set()


def test_stop_ends_a_long_rest_and_the_source_is_closed_in_its_thread() -> None:
    source, delivered = Steps(), Queue[Report]()
    with polling(source, delivered.put, interval=3600.0) as poller:
        source.reports.put(qwen(1))
        delivered.get()
        assert not source.closed.is_set()
        poller.stop()
        poller.join()
    assert source.closed.is_set()


def test_a_new_interval_counts_at_once() -> None:
    source, delivered = Steps(), Queue[Report]()
    with polling(source, delivered.put, interval=3600.0) as poller:
        source.reports.put(qwen(1))
        delivered.get()
        poller.every(0.0)
        source.reports.put(qwen(2))
        assert delivered.get() == qwen(2)


def is_quiet(delivered: "Queue[Report]") -> bool:
    """Whether nothing comes for a moment: on a slow machine it may miss what comes later."""
    try:
        delivered.get(timeout=0.2)
    except Empty:
        return True
    return False


def test_while_it_is_held_nothing_is_fetched() -> None:
    source, delivered = Steps(), Queue[Report]()
    with polling(source, delivered.put) as poller:
        poller.hold(held=True)
        source.reports.put(qwen(1))  # the fetch under way when it was told
        assert delivered.get() == qwen(1)
        source.reports.put(qwen(2))
        assert is_quiet(delivered)
        poller.hold(held=False)
        assert delivered.get() == qwen(2)


def test_after_the_end_of_a_recording_nothing_is_fetched() -> None:
    source, delivered = Steps(), Queue[Report]()
    with polling(source, delivered.put) as poller:
        source.reports.put(SourceError(Trouble.ENDED, "the end"))
        delivered.get()
        source.reports.put(qwen(2))
        poller.every(0.0)
        assert is_quiet(delivered)


def test_a_fetch_that_hangs_does_not_keep_the_program() -> None:
    assert Poller(Steps(), 1.0, print).daemon
