# SPDX-License-Identifier: Apache-2.0
"""Order, waiting and completion of a lane, on a stream that is stepped by hand."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tiercache.vllm.lanes import Finished, Lane


class FakeMark:
    """Passed when the test says so, or by waiting for it."""

    def __init__(self, stream: "FakeStream", at: int) -> None:
        self._stream = stream
        self.at = at

    def query(self) -> bool:
        return self._stream.passed >= self.at

    def synchronize(self) -> None:
        self._stream.log.append(f"wait {self.at}")
        self._stream.passed = max(self._stream.passed, self.at)

    def elapsed_time(self, end: "FakeMark", /) -> float:
        assert end.query()
        return 1000.0 * (end.at - self.at)


class FakeStream:
    """Logs what is asked of it; marks are numbered from 1."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.passed = 0
        self._marks = 0

    def wait_for_compute(self) -> None:
        self.log.append("wait for compute")

    def mark(self) -> FakeMark:
        self._marks += 1
        self.log.append(f"mark {self._marks}")
        return FakeMark(self, self._marks)

    @contextmanager
    def use(self) -> Iterator[None]:
        self.log.append("enter")
        yield
        self.log.append("leave")


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


@pytest.fixture
def lane(stream: FakeStream) -> Lane:
    return Lane(stream)


def test_copies_are_queued_behind_compute_and_between_marks(lane: Lane, stream: FakeStream) -> None:
    lane.submit(1, 10, lambda: stream.log.append("copy"))
    assert stream.log == ["wait for compute", "enter", "mark 1", "copy", "mark 2", "leave"]


def test_finished_reports_each_transfer_once_in_order(lane: Lane, stream: FakeStream) -> None:
    for job_id in (5, 3, 4):
        lane.submit(job_id, job_id * 10, lambda: None)
    assert lane.finished() == []
    stream.passed = 4
    assert lane.finished() == [Finished(5, 50, 1.0), Finished(3, 30, 1.0)]
    assert lane.finished() == []
    stream.passed = 6
    assert lane.finished() == [Finished(4, 40, 1.0)]


def test_a_transfer_that_has_only_begun_is_not_finished(lane: Lane, stream: FakeStream) -> None:
    lane.submit(1, 1, lambda: None)
    stream.passed = 1
    assert lane.finished() == []


def test_waiting_blocks_for_the_ones_that_run_and_ignores_others(
    lane: Lane, stream: FakeStream
) -> None:
    lane.submit(1, 1, lambda: None)
    stream.passed = 2
    lane.finished()
    lane.submit(2, 1, lambda: None)
    lane.submit(3, 1, lambda: None)
    stream.log.clear()
    lane.wait({1, 3, 99})
    assert stream.log == ["wait 6"]
    assert [done.job_id for done in lane.finished()] == [2, 3]


def test_what_copies_read_lives_until_they_are_done(lane: Lane, stream: FakeStream) -> None:
    class Descriptors:
        pass

    kept = Descriptors()
    alive = weakref.ref(kept)
    held = [kept]
    del kept
    lane.submit(1, 1, held.pop)
    gc.collect()
    assert alive() is not None
    stream.passed = 2
    lane.finished()
    gc.collect()
    assert alive() is None


def test_drain_waits_for_all_and_forgets_them(lane: Lane, stream: FakeStream) -> None:
    lane.submit(1, 1, lambda: None)
    lane.submit(2, 1, lambda: None)
    lane.drain()
    assert stream.passed == 4
    assert lane.finished() == []
    lane.drain()
