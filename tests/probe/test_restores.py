# SPDX-License-Identifier: Apache-2.0
import pytest

from tiercache.probe.restores import MISS, RAM, Outcome, Restorations, Visit, bucket
from tiercache.restore import RestorePlan
from tiercache.stats.model import LATENCY_US


def plan(
    boundary: int, *, start: int = 0, attention: int = 96, ended_by: int | None = 0
) -> RestorePlan:
    return RestorePlan(start, boundary, attention, pending=False, ended_by=ended_by)


@pytest.fixture
def books() -> Restorations:
    return Restorations(["nvme0", "nvme1"])


@pytest.fixture
def visit(books: Restorations) -> Visit:
    """A request that asked for all of 96 tokens."""
    made = Visit()
    books.ask(made, start=0, limit=96)
    return made


@pytest.mark.parametrize("us", [0, 0.4, 1, 1.5, 2, 7, 8, 999, 1000, 5e6, 1e12])
def test_a_duration_is_below_the_bound_of_its_bucket(us: float) -> None:
    found = bucket(us / 1e6)
    assert us < LATENCY_US[found] or found == len(LATENCY_US) - 1
    assert found == 0 or us >= LATENCY_US[found - 1]


def test_a_restore_from_ram(books: Restorations, visit: Visit) -> None:
    books.answer(visit, plan(64), now=10.0)
    books.load(visit, {RAM: 4096}, now=11.0)
    assert books.serve(visit, 64) is None
    # As vLLM says once more when the load is done.
    assert books.loaded(visit, now=11.5) == Outcome(RAM, 64, 4096, 0.5, lost=32)
    assert books.serve(visit, 0) is None
    total = books.tallies[RAM].total()
    assert (total.requests, total.tokens, total.nbytes) == (1, 64, 4096)
    assert sum(total.histogram) == total.histogram[bucket(0.5)] == 1
    assert (books.restored_tokens, books.lost_tokens) == (64, 32)
    assert books.tallies[MISS].total().requests == 0


def test_the_engine_may_take_less_than_planned(books: Restorations, visit: Visit) -> None:
    books.answer(visit, plan(64), now=0.0)
    books.load(visit, {RAM: 4096}, now=0.0)
    books.serve(visit, 48)
    outcome = books.loaded(visit, now=1.0)
    assert outcome is not None
    assert outcome.tokens == books.restored_tokens == 48


def test_waiting_for_a_tier_is_part_of_it(books: Restorations, visit: Visit) -> None:
    for now in (1.0, 1.5, 2.0):
        books.answer(visit, None, now)
    books.answer(visit, plan(96, ended_by=None), now=3.0)
    books.load(visit, {RAM: 100, "nvme0": 40}, now=7.0)
    books.serve(visit, 96)
    # Not the four seconds that the engine had no room for it.
    assert books.loaded(visit, now=7.25) == Outcome("nvme0", 96, 140, 2.25, lost=0)
    assert books.tallies["nvme0"].total().nbytes == 40
    assert books.tallies[RAM].total().nbytes == 100
    assert books.tallies[RAM].total().requests == 0


def test_the_slowest_tier_is_the_source(books: Restorations, visit: Visit) -> None:
    books.answer(visit, plan(96), now=0.0)
    books.load(visit, {"nvme0": 1, "nvme1": 1}, now=0.0)
    outcome = books.loaded(visit, now=0.0)
    assert outcome is not None
    assert outcome.source == "nvme1"


def test_a_miss(books: Restorations, visit: Visit) -> None:
    books.answer(visit, plan(0), now=0.0)
    assert books.serve(visit, 0) == Outcome(MISS, 96, 0, None, lost=96)
    assert books.serve(visit, 0) is None
    assert books.tallies[MISS].total().tokens == books.lost_tokens == 96


def test_a_miss_after_waiting_in_vain(books: Restorations, visit: Visit) -> None:
    books.answer(visit, None, now=1.0)
    books.answer(visit, plan(0, attention=0), now=6.0)
    assert books.serve(visit, 0) == Outcome(MISS, 96, 0, 5.0, lost=0)


@pytest.mark.parametrize(
    ("known", "start", "lost", "missed"),
    [
        (0, 0, 0, 96),  # the first prompt of all
        (0, 16, 0, None),  # a beginning that it shares with others, and what is new
        (64, 64, 0, None),  # the prompt before, and what is new
        (64, 48, 0, None),  # where the last state of that was
        (64, 32, 0, 64),  # not all that was there
        (64, 64, 32, 32),  # attention without a state
        (64, 64, 16, None),
    ],
)
def test_what_is_new_is_not_missed_if_the_device_has_the_rest(
    known: int, start: int, lost: int, missed: int | None
) -> None:
    books = Restorations(step=16)
    visit = Visit(known=known)
    books.ask(visit, start=start, limit=96)
    books.answer(visit, plan(start, start=start, attention=start + lost), now=0.0)
    outcome = books.serve(visit, 0)
    assert (None if outcome is None else outcome.tokens) == missed
    assert books.lost_tokens == lost


def test_what_the_device_has_is_not_missed(books: Restorations) -> None:
    visit = Visit(known=96)
    books.ask(visit, start=64, limit=96)
    books.answer(visit, plan(64, start=64), now=0.0)
    outcome = books.serve(visit, 0)
    assert outcome is not None
    assert outcome.tokens == 32
    books.ask(visit, start=96, limit=96)
    assert books.serve(visit, 0) is None
    books.ask(visit, start=64, limit=96)
    books.answer(visit, plan(64, start=64, ended_by=None), now=0.0)
    assert books.serve(visit, 0) is None


def test_who_does_not_ask_misses_nothing(books: Restorations) -> None:
    assert books.serve(Visit(), 0) is None


def test_who_asks_without_a_plan_misses_all_of_it(books: Restorations, visit: Visit) -> None:
    outcome = books.serve(visit, 0)
    assert outcome is not None
    assert (outcome.tokens, outcome.lost) == (96, 0)


def test_a_request_that_begins_anew_restores_again(books: Restorations, visit: Visit) -> None:
    for number in (1, 2):
        books.ask(visit, start=0, limit=96)
        books.answer(visit, plan(64), now=0.0)
        books.load(visit, {RAM: 1}, now=0.0)
        books.serve(visit, 64)
        books.loaded(visit, now=1.0)
        books.serve(visit, 0)
        assert books.tallies[RAM].total().requests == number
    assert books.tallies[MISS].total().requests == 0


def test_the_end_of_no_load_is_nothing(books: Restorations, visit: Visit) -> None:
    assert books.loaded(visit, now=0.0) is None
