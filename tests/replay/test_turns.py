# SPDX-License-Identifier: Apache-2.0
from array import array
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tests.replay.samples import turn
from tiercache.replay.turns import Chainer, Head, Turn, interleave

ID_LISTS = st.lists(st.integers(0, 2), max_size=12)


def ids(*values: int) -> "array[int]":
    return array("q", values)


def common(a: list[bytes], b: list[bytes]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(map(len, (a, b)))
    )


def test_blocks_of_several_ids() -> None:
    chainer = Chainer(id_tokens=64, block_tokens=128)
    hashes = chainer.hashes(ids(1, 2, 3, 4, 5), 320)
    assert len(hashes) == 2
    assert chainer.hashes(ids(1, 2, 3, 9, 5), 320)[0] == hashes[0]
    assert chainer.hashes(ids(1, 2, 3, 9, 5), 320)[1] != hashes[1]


def test_a_hash_stands_for_all_that_is_before_it() -> None:
    chainer = Chainer(64, 64)
    assert chainer.hashes(ids(1, 7), 128)[1] != chainer.hashes(ids(2, 7), 128)[1]


def test_blocks_beyond_the_prompt_or_without_ids_are_left_out() -> None:
    chainer = Chainer(64, 64)
    assert len(chainer.hashes(ids(1, 2, 3), 190)) == 2
    assert len(chainer.hashes(ids(1, 2), 640)) == 2
    assert chainer.hashes(ids(), 640) == []


@given(ID_LISTS, ID_LISTS, st.integers(1, 5), st.integers(1, 12))
def test_a_shared_prefix_is_never_overestimated(
    a: list[int], b: list[int], id_tokens: int, block_tokens: int
) -> None:
    chainer = Chainer(id_tokens, block_tokens)
    first = chainer.hashes(ids(*a), len(a) * id_tokens)
    second = chainer.hashes(ids(*b), len(b) * id_tokens)
    same = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    assert common(first, second) == same * id_tokens // block_tokens
    assert len(set(first)) == len(first)


def test_ids_mean_the_same_within_a_scope_only() -> None:
    chainer = Chainer(64, 64)
    one, other = (chainer.hashes(ids(1, 2), 128, scope=scope) for scope in (b"0", b"1"))
    assert common(one, other) == 0


def test_a_head_is_shared_across_scopes() -> None:
    chainer = Chainer(64, 64)

    def prompt(scope: bytes, name: bytes, *values: int) -> list[bytes]:
        return chainer.hashes(
            ids(*values), 64 * len(values), scope=scope, head=Head(name, 150, ids(1, 2, 3))
        )

    assert common(prompt(b"0", b"h", 1, 2, 3), prompt(b"1", b"h", 1, 2, 3)) == 2
    assert common(prompt(b"0", b"h", 1, 2, 3), prompt(b"1", b"g", 1, 2, 3)) == 0
    # The second block is not the head's any more.
    assert common(prompt(b"0", b"h", 1, 5, 3), prompt(b"1", b"h", 1, 5, 3)) == 1
    assert common(prompt(b"0", b"h", 1, 5, 3), prompt(b"0", b"h", 1, 2, 3)) == 1


def test_conversations_are_interleaved_by_time_then_by_their_order() -> None:
    def at(name: str, *times: float) -> Iterator[Turn]:
        return (turn([], 1, time=time, of=name) for time in times)

    played = interleave([(0, at("a", 0, 5, 9)), (2, at("b", 2, 5)), (4, at("c")), (9, at("d", 9))])
    assert [(t.conversation, t.time) for t in played] == [
        ("a", 0),
        ("b", 2),
        ("a", 5),
        ("b", 5),
        ("a", 9),
        ("d", 9),
    ]


def test_a_conversation_is_not_taken_before_it_begins() -> None:
    taken = []

    def conversations() -> Iterator[tuple[float, Iterator[Turn]]]:
        for index in range(3):
            taken.append(index)
            yield index * 10, iter([turn([], 1, time=index * 10), turn([], 1, time=index * 10 + 5)])

    played = interleave(conversations())
    next(played)
    # One ahead, to know when it begins.
    assert taken == [0, 1]
    assert len(list(played)) == 5
