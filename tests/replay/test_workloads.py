# SPDX-License-Identifier: Apache-2.0
from itertools import islice, pairwise

import pytest

from tiercache.errors import ConfigError
from tiercache.replay.conversations import Selection
from tiercache.replay.habits import HABITS
from tiercache.replay.turns import Stream, Turn
from tiercache.replay.workloads import SCENARIOS, scenario

MADE = sorted(HABITS)


def few(name: str, *, seed: int = 0, conversations: int = 12, block_tokens: int = 512) -> Stream:
    selection = Selection(conversations=conversations)
    return scenario(name, block_tokens=block_tokens, selection=selection, seed=seed)


def by_conversation(turns: list[Turn]) -> dict[str, list[Turn]]:
    found: dict[str, list[Turn]] = {}
    for turn in turns:
        found.setdefault(turn.conversation, []).append(turn)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_turns_are_in_order_and_have_a_hash_per_block(name: str) -> None:
    turns = list(islice(scenario(name, block_tokens=512), 500))
    assert [t.time for t in turns] == sorted(t.time for t in turns)
    assert all(len(t.hashes) == t.input_tokens // 512 for t in turns)
    assert all(t.input_tokens > 0 and t.output_tokens > 0 for t in turns)
    assert all(len(set(t.hashes)) == len(t.hashes) for t in turns)


@pytest.mark.parametrize("name", MADE)
def test_a_seed_makes_the_same_requests_again(name: str) -> None:
    assert list(few(name)) == list(few(name))
    assert list(few(name)) != list(few(name, seed=1))
    hashes = [{hash_ for turn in few(name, seed=seed) for hash_ in turn.hashes} for seed in (0, 1)]
    assert not hashes[0] & hashes[1]


def test_a_conversation_does_not_depend_on_how_many_there_are() -> None:
    some = by_conversation(list(few("coding", conversations=5)))
    more = by_conversation(list(few("coding", conversations=9)))
    assert all(more[name] == turns for name, turns in some.items())
    assert len(more) == 9


@pytest.mark.parametrize("name", MADE)
def test_most_requests_go_on_from_the_one_before(name: str) -> None:
    selection = Selection(conversations=60, span=36_000.0)
    played = list(scenario(name, block_tokens=512, selection=selection))
    following = [
        (before, after)
        for turns in by_conversation(played).values()
        for before, after in pairwise(turns)
    ]
    going_on = [after.hashes[: len(before.hashes)] == before.hashes for before, after in following]
    assert 0.7 < sum(going_on) / len(going_on) < 1


def test_blocks_of_another_size_are_blocks_of_the_same_requests() -> None:
    small, big = list(few("coding", block_tokens=64)), list(few("coding", block_tokens=1_600))
    assert [(t.time, t.input_tokens) for t in small] == [(t.time, t.input_tokens) for t in big]


def test_a_span_and_a_number_of_requests() -> None:
    selection = Selection(conversations=4, span=40.0, max_requests=2)
    turns = by_conversation(list(scenario("coding", block_tokens=512, selection=selection)))
    assert [turns[str(i)][0].time for i in range(4)] == [0, 10, 20, 30]
    assert max(map(len, turns.values())) == 2


def test_a_chat_is_recorded_for_its_span_only() -> None:
    selection = Selection(conversations=50, span=100.0)
    times = [t.time for t in scenario("chat", block_tokens=512, selection=selection)]
    assert 90 < max(times) < 100


def test_the_published_scenario() -> None:
    turns = list(scenario("idle-conversation", block_tokens=1_632))
    assert [(t.conversation, t.input_tokens) for t in turns[:5]] == [
        ("A", 501_201),
        ("A", 505_001),
        ("B", 100_000),
        ("C", 136_000),
        ("D", 172_000),
    ]
    assert (turns[-1].conversation, turns[-1].input_tokens) == ("A", 508_801)
    assert turns[-2].input_tokens == 172_000 + 39 * 3_800


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="scenario"):
        scenario("idle", block_tokens=16)
    with pytest.raises(ConfigError, match="scenario"):
        scenario("idle-conversation", block_tokens=16, selection=Selection(max_requests=3))
