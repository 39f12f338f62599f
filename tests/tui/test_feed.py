# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from tests.tui.servers import POOL, START, event, qwen
from tiercache.stats.model import Phase
from tiercache.tui.feed import HISTORY_STEPS, LOG_EVENTS, Feed, State, Status
from tiercache.tui.trouble import SourceError, Trouble


@pytest.fixture
def feed() -> Feed:
    return Feed(START - 5, interval=1.0)


def failure(trouble: Trouble, message: str = "why") -> SourceError:
    return SourceError(trouble, message)


def heard(feed: Feed, step: int, **changes: object) -> State:
    """The state right after a snapshot."""
    feed.accept(qwen(step, **changes), START + step)
    return feed.status(START + step).state


def test_waiting_until_the_first_answer(feed: Feed) -> None:
    assert feed.status(START) == Status(State.WAITING, START - 5, "not asked yet")
    feed.fail(failure(Trouble.NO_POOL, "no pool runs"), START)
    assert feed.status(START) == Status(State.WAITING, START - 5, "no pool runs")


def test_waiting_until_the_server_has_reported(feed: Feed) -> None:
    feed.accept(qwen(0, phase=Phase.INIT, heartbeat=0.0, running=0), START)
    status = feed.status(START)
    assert (status.state, status.since) == (State.WAITING, START - 5)
    assert status.reason == "the server starts, and has not reported"
    assert heard(feed, 1) is State.LIVE


def test_live_while_answers_come(feed: Feed) -> None:
    feed.accept(qwen(0), START)
    assert feed.status(START + 2.5) == Status(State.LIVE, START)


def test_one_lost_answer_is_no_alarm(feed: Feed) -> None:
    feed.accept(qwen(0), START)
    feed.fail(failure(Trouble.NO_ANSWER), START + 2)
    assert feed.status(START + 2).state is State.LIVE


@pytest.mark.parametrize("trouble", [Trouble.NO_ANSWER, Trouble.BAD_ANSWER, Trouble.FORMAT])
def test_stale_when_nothing_newer_comes(feed: Feed, trouble: Trouble) -> None:
    feed.accept(qwen(0), START)
    assert feed.status(START + 3.1) == Status(State.STALE, START, "no answer yet")
    feed.fail(failure(trouble, "HTTP 503"), START + 4)
    assert feed.status(START + 9) == Status(State.STALE, START, "HTTP 503")


def test_stale_when_requests_are_open_and_the_engine_makes_no_step(feed: Feed) -> None:
    stands = START - 0.2
    states = [heard(feed, step, heartbeat=stands, running=1) for step in range(5)]
    assert states == [*[State.LIVE] * 3, *[State.STALE] * 2]
    status = feed.status(START + 4)
    assert status == Status(State.STALE, stands, "1 request is open, but no step")
    assert heard(feed, 5, running=2) is State.LIVE


def test_patience_follows_the_interval(feed: Feed) -> None:
    feed.interval = 5.0
    feed.accept(qwen(0), START)
    assert feed.status(START + 14).state is State.LIVE
    assert feed.status(START + 16).state is State.STALE
    feed.interval = 0.25
    assert feed.status(START + 1.5).state is State.LIVE


def test_a_heartbeat_of_another_clock_counts_by_its_changes(feed: Feed) -> None:
    assert heard(feed, 0, heartbeat=17.0) is State.STALE
    assert heard(feed, 1, heartbeat=18.0) is State.LIVE
    assert heard(feed, 5, heartbeat=18.0) is State.STALE
    future = Feed(START, interval=1.0)
    assert [heard(future, step, heartbeat=2 * START) for step in (0, 2, 4)] == [
        *(State.LIVE, State.LIVE, State.STALE)
    ]


def test_idle_without_requests_however_old_the_heartbeat(feed: Feed) -> None:
    for step in range(10, 60, 10):
        assert heard(feed, step, heartbeat=START, running=0) is State.IDLE
    assert feed.status(START + 50).since == START


def test_a_moment_without_requests_is_not_idle(feed: Feed) -> None:
    for step in range(6):
        assert heard(feed, step, running=step % 2) is State.LIVE


def test_an_idle_metrics_page_tells_since_when(feed: Feed) -> None:
    for step in range(6):
        page = {"running": 2 if step == 0 else 0, "heartbeat": START + step}
        heard(feed, step, source="metrics", **page)
    assert feed.status(START + 5) == Status(State.IDLE, START + 1)


def test_gone_when_nothing_listens_any_more(feed: Feed) -> None:
    feed.accept(qwen(0), START)
    feed.fail(failure(Trouble.UNREACHABLE, "connection refused"), START + 1)
    feed.fail(failure(Trouble.UNREACHABLE, "connection refused"), START + 2)
    assert feed.status(START + 2) == Status(State.GONE, START + 1, "connection refused")
    assert feed.history == (qwen(0),)


def test_gone_when_the_process_has_died(feed: Feed) -> None:
    feed.accept(qwen(0), START)
    for second in (2, 3, 4):
        feed.accept(qwen(1, alive=False, taken=START + second), START + second)
    assert feed.status(START + 9) == Status(State.GONE, START + 2, "pid 41712 has ended")
    assert feed.history[-1] == qwen(1, alive=False, taken=START)
    assert len(feed.history) == 2


def test_gone_before_it_was_looked_at(feed: Feed) -> None:
    feed.accept(qwen(0, alive=False, heartbeat=START - 900), START)
    assert feed.status(START).since == START - 900
    assert feed.history[-1].taken == START - 900


def test_closed_in_order(feed: Feed) -> None:
    feed.accept(qwen(0), START)
    feed.accept(qwen(1, phase=Phase.CLOSED), START + 1)
    closed = Status(State.CLOSED, START + 1, "the cache was closed in order")
    assert feed.status(START + 1) == closed
    feed.accept(qwen(2, phase=Phase.CLOSED, alive=False), START + 2)
    assert feed.status(START + 2) == closed


def test_a_probe_that_failed_says_so(feed: Feed) -> None:
    feed.accept(qwen(0, phase=Phase.FAILED, running=0), START)
    status = feed.status(START)
    assert status.state is State.STALE
    assert "turned itself off" in status.reason


def test_live_again_after_it_was_gone(feed: Feed) -> None:
    feed.accept(qwen(0), START)
    feed.fail(failure(Trouble.UNREACHABLE), START + 1)
    assert heard(feed, 2) is State.LIVE
    feed.fail(failure(Trouble.UNREACHABLE), START + 3)
    assert feed.status(START + 4).since == START + 3


def test_a_server_without_the_cache(feed: Feed) -> None:
    feed.accept(qwen(0), START)
    feed.fail(failure(Trouble.NO_TIERCACHE, "none"), START + 1)
    assert feed.status(START + 1) == Status(State.NO_TIERCACHE, START + 1, "none")
    assert (feed.history, feed.log) == ((), ())


def test_another_process_starts_a_new_history(feed: Feed) -> None:
    heard(feed, 5, alive=False, events_lost=7)
    assert feed.events_lost == 7
    again = replace(POOL, pid=POOL.pid + 1)
    assert heard(feed, 6, pool=again) is State.LIVE
    assert [snapshot.taken for snapshot in feed.history] == [START + 6]
    assert [each.number for each in feed.log] == [7]
    assert (feed.events_lost, feed.runs) == (0, 1)


def test_a_smaller_counter_starts_a_new_history(feed: Feed) -> None:
    for step in (5, 6):
        heard(feed, step, pool=None)
    feed.accept(qwen(0, pool=None), START + 7)
    assert len(feed.history) == 1


def test_history_is_bounded_and_only_the_newest_is_whole(feed: Feed) -> None:
    for step in range(2 * HISTORY_STEPS):
        heard(feed, step)
    assert len(feed.history) == HISTORY_STEPS + 1
    assert feed.history[-1] == qwen(2 * HISTORY_STEPS - 1)
    assert {len(s.sequences) + len(s.victims) + len(s.events) for s in feed.history[:-1]} == {0}


def test_events_are_kept_in_a_log_with_an_end(feed: Feed) -> None:
    many = tuple(event(number) for number in range(1, LOG_EVENTS + 1))
    heard(feed, 0, events=many)
    assert feed.log == many
    heard(feed, 1, events=(event(LOG_EVENTS + 1),), events_lost=3)
    assert feed.log == (*many[1:], event(LOG_EVENTS + 1))
    assert feed.events_lost == 3


def test_a_recording_says_how_far_it_is() -> None:
    feed = Feed(START - 5, 1.0, span=(START, START + 190))
    assert feed.status(START).state is State.WAITING
    feed.accept(qwen(12, alive=False, running=0), START + 900)
    assert feed.status(START + 999) == Status(State.REPLAY, START - 5, "00:12/03:10")
    feed.fail(failure(Trouble.ENDED), START + 900)
    assert feed.status(START + 999).reason == "00:12/03:10"


def test_a_recording_that_cannot_be_read_further_says_why() -> None:
    feed = Feed(START - 5, 1.0, span=(START, START + 190))
    feed.accept(qwen(12), START)
    feed.fail(failure(Trouble.FORMAT, "x.tcr, line 7: no JSON"), START)
    assert feed.status(START) == Status(State.STALE, START + 12, "x.tcr, line 7: no JSON")
