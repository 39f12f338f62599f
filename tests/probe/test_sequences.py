# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core_helpers import BLOCK, chain
from tiercache.blocks import BlockHash
from tiercache.probe.sequences import Followed, Sequences

FIRST = chain("a", 4)


@pytest.fixture
def sequences() -> Sequences:
    return Sequences(BLOCK)


def say(sequences: Sequences, hashes: Sequence[BlockHash], now: float = 0.0) -> Followed:
    """A whole request."""
    followed = sequences.open(hashes, now)
    assert followed is not None
    sequences.close(followed, hashes, now)
    return followed


def test_a_prompt_that_goes_on_belongs_to_its_sequence(sequences: Sequences) -> None:
    first = say(sequences, FIRST, now=1.0)
    second = say(sequences, chain("a", 6), now=2.0)
    assert second is first
    assert (first.number, first.turns, first.last_used, first.running) == (1, 2, 2.0, 0)
    assert len(first.lineage.hashes) == 6
    assert (first.before, first.prompt) == (4, 6)


def test_a_prompt_that_contains_the_answer_goes_on(sequences: Sequences) -> None:
    hashes = list(FIRST)
    first = sequences.open(hashes, 0.0)
    assert first is not None
    hashes.extend([b"answer", b"ends"])
    sequences.close(first, hashes, 0.0)
    assert say(sequences, [*hashes, b"more"]) is first


def test_an_answer_that_is_not_sent_back_does_not_break_it(sequences: Sequences) -> None:
    """As what a model thought, which chat templates leave out."""
    hashes = list(FIRST)
    first = sequences.open(hashes, 0.0)
    assert first is not None
    hashes.append(b"thoughts")
    sequences.close(first, hashes, 0.0)
    assert say(sequences, chain("other", 6, after=FIRST)) is first


def test_the_same_prompt_again_is_the_same_sequence(sequences: Sequences) -> None:
    assert say(sequences, FIRST) is say(sequences, FIRST)


def test_another_prompt_begins_another_one(sequences: Sequences) -> None:
    assert say(sequences, FIRST).number == 1
    assert say(sequences, chain("b", 4)).number == 2
    # It shares the beginning, but parts before the tip.
    assert say(sequences, chain("c", 4, after=FIRST[:3])).number == 3


def test_the_deepest_tip_counts(sequences: Sequences) -> None:
    say(sequences, FIRST[:1])
    # It could go on from the first block, and takes that sequence further.
    deep = say(sequences, FIRST)
    shallow = say(sequences, FIRST[:1])
    assert (deep.number, shallow.number) == (1, 2)
    assert say(sequences, chain("a", 6)) is deep
    assert say(sequences, chain("b", 3, after=FIRST[:1])) is shallow


def test_of_a_fork_the_first_one_goes_on(sequences: Sequences) -> None:
    first = say(sequences, FIRST)
    branches = [sequences.open(chain(name, 6, after=FIRST), 0.0) for name in "bc"]
    assert branches[0] is first
    assert branches[1] is not None
    assert branches[1].number == 2
    assert [each.running for each in sequences] == [1, 1]


def test_without_a_whole_block_there_is_nothing_to_tell_it_by(sequences: Sequences) -> None:
    assert sequences.open([], 0.0) is None


def test_the_least_recently_used_one_is_forgotten() -> None:
    sequences = Sequences(BLOCK, limit=2)
    first, second = say(sequences, FIRST), say(sequences, chain("b", 4))
    say(sequences, chain("a", 5))
    third = say(sequences, chain("c", 4))
    assert list(sequences) == [first, third]
    assert third.row == second.row
    assert sequences.dropped == 1
    assert sequences.vacated == set()
    assert say(sequences, chain("b", 5)).number == 4


def test_one_that_runs_is_forgotten_last() -> None:
    sequences = Sequences(BLOCK, limit=2)
    running = sequences.open(FIRST, 0.0)
    say(sequences, chain("b", 4))
    say(sequences, chain("c", 4))
    assert running in list(sequences)
    other = sequences.open(chain("d", 4), 0.0)
    assert other is not None
    say(sequences, chain("e", 4))
    assert running not in list(sequences)
    assert running is not None
    sequences.close(running, FIRST, 0.0)
    assert say(sequences, chain("a", 5)).number == 6


def test_hashes_are_bounded_too() -> None:
    sequences = Sequences(BLOCK, max_hashes=10)
    first = say(sequences, FIRST)
    for name in "bcd":
        say(sequences, chain(name, 4))
    assert len(sequences) == 2
    assert sequences.dropped == 2
    assert first not in list(sequences)
    assert len(sequences.vacated) == 1
    long = say(sequences, chain("e", 50))
    assert list(sequences) == [long]


words = st.text("ab", min_size=1, max_size=6)


@given(st.lists(st.tuples(words, st.booleans()), max_size=40), st.integers(1, 4))
def test_the_books_are_right_whatever_is_said(said: list[tuple[str, bool]], limit: int) -> None:
    sequences = Sequences(BLOCK, limit=limit, max_hashes=12)
    begun = 0
    open_: list[tuple[Followed, list[bytes]]] = []
    for word, ends in said:
        hashes = [word[: i + 1].encode() for i in range(len(word))]
        followed = sequences.open(hashes, 0.0)
        assert followed is not None
        open_.append((followed, hashes))
        if ends:
            sequences.close(*open_.pop(0), 0.0)
        known = list(sequences)
        assert len(known) <= limit
        assert len({each.row for each in known}) == len(known)
        assert not {each.row for each in known} & sequences.vacated
        assert sum(each.size for each in known) == sequences._size
        assert sequences._size <= 12 or len(known) == 1
        assert {*sequences._tips.values()} <= {*known}
        begun = max(begun, followed.number)
        assert len(known) + sequences.dropped == begun
