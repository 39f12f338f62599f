# SPDX-License-Identifier: Apache-2.0
"""The books of what is in the store, and of whether it answers; no store is needed."""

from tests.core_helpers import key
from tiercache.tiers.mooncake.known import DISTRUST_S, FRESH_S, MAX_DISTRUSTED, Known
from tiercache.tiers.mooncake.link import Link
from tiercache.tiers.nvme.breaker import FIRST_PAUSE_S

A, B, C, D = map(key, "abcd")
SIZE = 4096


def known(room: int = 3) -> Known:
    return Known({0: SIZE}, room * SIZE)


def test_what_is_found_takes_the_room_of_the_least_recent() -> None:
    books = known()
    books.found([A, B, C], 0.0)
    books.found([D], 1.0)
    assert list(books.confirmed) == [B, C, D]
    assert (books.used, books.evicted) == (3 * SIZE, 1)


def test_of_a_prompt_that_is_too_long_its_beginning_is_kept() -> None:
    books = known(2)
    books.found([A, B, C, D], 0.0)
    assert list(books.confirmed) == [A, B]


def test_what_is_being_stored_is_not_forgotten_for_what_is_found() -> None:
    books = known(2)
    assert books.begin(0, [A])
    books.found([A, B, C], 0.0)
    assert list(books.confirmed) == [B]
    books.end([A], (), 0.0)
    assert books.used == 2 * SIZE


def test_keys_are_asked_for_while_they_may_be_somewhere() -> None:
    books = known()
    books.found([A], 0.0)
    books.distrust([B], 0.0)
    assert books.begin(0, [C])
    assert books.doubtful([A, B, C, D], 1.0) == [D]
    assert books.doubtful([A, B, C, D], FRESH_S) == [A, D]
    assert books.doubtful([A, B, C, D], DISTRUST_S) == [A, B, D]


def test_few_keys_are_distrusted() -> None:
    books = known()
    many = [key(f"{number}") for number in range(MAX_DISTRUSTED + 1)]
    books.distrust(many, 0.0)
    assert books.doubtful(many, 1.0) == many[:1]


def test_doubt_leaves_what_is_being_stored() -> None:
    books = known()
    books.found([A], 0.0)
    assert books.begin(0, [B])
    books.doubt()
    assert books.used == SIZE
    books.end([B], (), 0.0)
    assert list(books.confirmed) == [B]


def test_pauses_of_a_link_double_until_it_answers() -> None:
    link = Link()
    assert link.lose(0.0)
    assert not link.lose(0.1)
    assert not link.ping(FIRST_PAUSE_S - 0.01)
    assert link.ping(FIRST_PAUSE_S)
    assert not link.ping(FIRST_PAUSE_S)
    assert not link.pinged(2.0, well=False)
    assert not link.ping(3.9)
    assert link.ping(4.0)
    assert link.pinged(4.0, well=True)
    assert link.up
    link.lose(5.0)  # it was quick to answer a ping, but nobody else
    assert not link.ping(8.9)
    assert link.ping(9.0)
    assert link.pinged(9.0, well=True)
    link.answered()
    link.lose(10.0)
    assert link.ping(10.0 + FIRST_PAUSE_S)
