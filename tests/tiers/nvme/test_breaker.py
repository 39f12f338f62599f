# SPDX-License-Identifier: Apache-2.0
"""When a failing device is left alone, and for how long."""

from tiercache.tiers.nvme.breaker import FAILURES, FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker


def tripped(now: float) -> Breaker:
    breaker = Breaker()
    assert [breaker.failed(now) for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    return breaker


def test_single_failures_between_successes_change_nothing() -> None:
    breaker = Breaker()
    for now in range(100):
        assert not breaker.failed(now)
        assert not breaker.failed(now)
        breaker.succeeded()
        assert breaker.allows(now)


def test_failures_in_a_row_begin_a_pause_that_ends() -> None:
    breaker = tripped(5.0)
    assert not breaker.allows(5.0)
    assert not breaker.allows(5.0 + FIRST_PAUSE_S - 0.01)
    assert breaker.allows(5.0 + FIRST_PAUSE_S)


def test_what_fails_during_a_pause_does_not_prolong_it() -> None:
    breaker = tripped(5.0)
    assert not breaker.failed(5.5)
    assert not breaker.trip(5.5)
    assert breaker.allows(5.0 + FIRST_PAUSE_S)


def test_after_a_pause_one_failure_begins_the_next_which_is_twice_as_long_up_to_a_limit() -> None:
    breaker, now, pause = tripped(0.0), 0.0, FIRST_PAUSE_S
    for _ in range(10):
        now += pause
        assert breaker.allows(now)
        assert breaker.failed(now)
        pause = min(2 * pause, LONGEST_PAUSE_S)
        assert not breaker.allows(now + pause - 0.01)
    assert pause == LONGEST_PAUSE_S


def test_a_success_ends_the_pause_and_forgets_all_failures() -> None:
    breaker = tripped(0.0)
    breaker.succeeded()
    assert breaker.allows(0.0)
    assert [breaker.failed(0.0) for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    assert breaker.allows(FIRST_PAUSE_S)


def test_it_can_be_tripped_at_once() -> None:
    breaker = Breaker()
    assert breaker.trip(3.0)
    assert not breaker.allows(3.0)
    assert breaker.allows(3.0 + FIRST_PAUSE_S)


def test_a_clock_that_was_set_back_does_not_prolong_the_pause() -> None:
    breaker = tripped(1e6)
    assert breaker.allows(10.0)
    assert breaker.failed(10.0)
    assert not breaker.allows(10.0)
    assert breaker.allows(10.0 + 2 * FIRST_PAUSE_S)
