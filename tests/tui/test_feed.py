# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import replace

import pytest

from tiercache.tui.feed import HISTORY_STEPS, Feed, State, Status
from tiercache.tui.snapshot import Snapshot
from tiercache.tui.trouble import SourceError, Trouble

START = 1_800_000_000.0
Qwen = Callable[[int], Snapshot]


@pytest.fixture
def feed() -> Feed:
    return Feed(START - 5, interval=1.0)


def failure(trouble: Trouble, message: str = "why") -> SourceError:
    return SourceError(trouble, message)


def test_waiting_until_the_first_answer(feed: Feed) -> None:
    assert feed.status(START) == Status(State.WAITING, START - 5, "not asked yet")
    feed.fail(failure(Trouble.UNREACHABLE, "connection refused"), START)
    assert feed.status(START) == Status(State.WAITING, START - 5, "connection refused")


def test_live_while_answers_come(feed: Feed, qwen: Qwen) -> None:
    feed.accept(qwen(0))
    assert feed.status(START + 3) == Status(State.LIVE, START)


def test_one_lost_answer_is_no_alarm(feed: Feed, qwen: Qwen) -> None:
    feed.accept(qwen(0))
    feed.fail(failure(Trouble.NO_ANSWER), START + 2)
    assert feed.status(START + 2).state is State.LIVE


@pytest.mark.parametrize("trouble", [Trouble.NO_ANSWER, Trouble.BAD_ANSWER])
def test_stale_when_nothing_newer_comes(feed: Feed, qwen: Qwen, trouble: Trouble) -> None:
    feed.accept(qwen(0))
    assert feed.status(START + 3.1) == Status(State.STALE, START, "no answer yet")
    feed.fail(failure(trouble, "HTTP 503"), START + 4)
    assert feed.status(START + 9) == Status(State.STALE, START, "HTTP 503")


def test_gone_when_nothing_listens_any_more(feed: Feed, qwen: Qwen) -> None:
    feed.accept(qwen(0))
    feed.fail(failure(Trouble.UNREACHABLE, "connection refused"), START + 1)
    feed.fail(failure(Trouble.UNREACHABLE, "connection refused"), START + 2)
    assert feed.status(START + 2) == Status(State.GONE, START + 1, "connection refused")
    assert feed.history == (qwen(0),)


def test_live_again_after_it_was_gone(feed: Feed, qwen: Qwen) -> None:
    feed.accept(qwen(0))
    feed.fail(failure(Trouble.UNREACHABLE), START + 1)
    feed.accept(qwen(2))
    assert feed.status(START + 2) == Status(State.LIVE, START + 2)
    feed.fail(failure(Trouble.UNREACHABLE), START + 3)
    assert feed.status(START + 4).since == START + 3


def test_a_server_without_the_cache(feed: Feed, qwen: Qwen) -> None:
    feed.accept(qwen(0))
    feed.fail(failure(Trouble.NO_TIERCACHE, "none"), START + 1)
    assert feed.status(START + 1) == Status(State.NO_TIERCACHE, START + 1, "none")
    assert feed.history == ()


def test_a_smaller_counter_starts_a_new_history(feed: Feed, qwen: Qwen) -> None:
    for step in (5, 6):
        feed.accept(qwen(step))
    restarted = replace(qwen(0), taken=START + 7)
    feed.accept(restarted)
    assert feed.history == (restarted,)


def test_history_is_bounded(feed: Feed, qwen: Qwen) -> None:
    for step in range(2 * HISTORY_STEPS):
        feed.accept(qwen(step))
    assert len(feed.history) == HISTORY_STEPS + 1
