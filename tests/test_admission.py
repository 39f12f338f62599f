# SPDX-License-Identifier: Apache-2.0
"""Which keys are admitted, and at which of their offers."""

from hypothesis import given
from hypothesis import strategies as st

from tests.core_helpers import key, names
from tiercache.admission import OfferCounter
from tiercache.blocks import Key


def offer(counter: OfferCounter, which: str, known: str = "") -> str:
    admitted = counter.admit([key(name) for name in which], lambda k: names([k]) in set(known))
    assert len(counter._offers) <= counter.capacity
    return names(admitted)


def test_a_key_is_admitted_from_the_offer_that_reaches_the_threshold() -> None:
    counter = OfferCounter(3, 10)
    assert [offer(counter, "ab"), offer(counter, "bc"), offer(counter, "cb")] == ["", "", "b"]
    assert offer(counter, "bca") == "bc"
    assert counter.skipped == 2 + 2 + 1 + 1


def test_what_is_known_is_passed_on() -> None:
    counter = OfferCounter(2, 10)
    assert offer(counter, "abc", known="b") == "b"
    assert counter.skipped == 2


def test_the_longest_unoffered_is_forgotten() -> None:
    counter = OfferCounter(2, 3)
    assert [offer(counter, "abc"), offer(counter, "d"), offer(counter, "a")] == ["", "", ""]
    assert offer(counter, "dab") == "da"


def test_of_an_offer_that_is_longer_than_the_memory_the_beginning_is_admitted() -> None:
    counter = OfferCounter(2, 3)
    assert [offer(counter, "abcde"), offer(counter, "abcde")] == ["", "abc"]


@given(st.integers(2, 4), st.integers(1, 5), st.integers(1, 12))
def test_an_offer_that_is_repeated_is_taken_in_the_end(
    threshold: int, capacity: int, length: int
) -> None:
    counter = OfferCounter(threshold, capacity)
    left = [key(chr(ord("a") + i)) for i in range(length)]
    for _ in range(threshold * length):
        taken: set[Key] = set(counter.admit(left, lambda _: False))
        left = [k for k in left if k not in taken]
    assert left == []


def test_below_two_everything_is_admitted_and_nothing_remembered() -> None:
    counter = OfferCounter(1, 3)
    assert offer(counter, "abcde") == "abcde"
    assert not counter._offers
