# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from tests.replay.samples import compact, going_on, published
from tiercache.errors import ConfigError
from tiercache.replay.conversations import GAP_S, Conversation, Selection, spread
from tiercache.replay.fields import UnreadableError
from tiercache.replay.turns import Turn


def conversation(record: dict[str, Any], block_tokens: int = 64) -> Conversation:
    return Conversation.read(record, block_tokens=block_tokens, id_tokens=None)


def turns(*records: dict[str, Any], **selection: Any) -> list[Turn]:
    return list(spread(map(conversation, records), Selection(**selection)))


def shared(a: Turn, b: Turn) -> int:
    same = [x == y for x, y in zip(a.hashes, b.hashes, strict=False)]
    return [*same, False].index(False)


def agent(t: float, *requests: Any, duration_ms: int | None = None, tokens: int = 0) -> Any:
    about = {"t": t, "duration_ms": duration_ms, "tool_tokens": tokens, "system_tokens": 0}
    return {"other": about, "sub": list(requests)}


CALLING = compact(
    [
        going_on(0, 0, (1, 4)),
        agent(70, going_on(0, 0, (50, 2)), going_on(12, 2, (60, 2)), duration_ms=60_000),
        going_on(75, 4, (5, 4)),
    ]
)


def test_both_forms_are_the_same_conversation() -> None:
    assert turns(CALLING) == turns(published(CALLING)) != []


def test_an_agent_began_its_duration_before_it_was_done() -> None:
    played = [(t.time, t.input_tokens) for t in turns(CALLING)]
    assert played == [(0.0, 256), (10.0, 128), (22.0, 256), (75.0, 512)]


def test_an_agent_of_unknown_duration_begins_where_it_is_noted() -> None:
    record = compact([going_on(0, 0, (1, 4)), agent(70, going_on(0, 0, (50, 2)))])
    assert [t.time for t in turns(record)] == [0.0, 70.0]


def test_an_agent_with_times_of_the_conversation() -> None:
    record = compact(
        [going_on(0, 0, (1, 4)), agent(90, going_on(71.5, 0, (50, 2)), duration_ms=20_000)]
    )
    assert [t.time for t in turns(record)] == [0.0, 71.5]


def test_agents_can_be_left_out() -> None:
    assert [t.time for t in turns(CALLING, agents=False)] == [0.0, 75.0]


def test_conversations_with_equal_heads_share_them() -> None:
    records = [
        compact([going_on(0, 0, (1, 6))], tools=100, system=92),
        compact([going_on(0, 0, (1, 6))], tools=100, system=92),
        compact([going_on(0, 0, (1, 6))], tools=92, system=100),
    ]
    first, second, third = turns(*records)
    assert shared(first, second) == 3
    assert shared(first, third) == 0


def test_a_request_that_leaves_the_head_shares_it_no_longer() -> None:
    record = compact([going_on(0, 0, (1, 6)), going_on(1, 1, (20, 5))], tools=192)
    alike = compact([going_on(0.5, 0, (1, 6)), going_on(1.5, 1, (20, 5))], tools=192)
    one, two = (
        list(conversation(r).turns(i, 0.0, agents=True)) for i, r in enumerate((record, alike))
    )
    assert shared(one[0], two[0]) == 3
    assert shared(one[1], two[1]) == 1
    assert shared(one[0], one[1]) == 1


def test_ids_of_global_scope_are_shared_as_they_are() -> None:
    records = [compact([going_on(0, 0, (1, 6))], hash_id_scope="global", tools=64) for _ in "ab"]
    first, second = turns(*records)
    assert shared(first, second) == 6


def test_heads_end_at_a_whole_block_of_ours() -> None:
    records = [compact([going_on(0, 0, (1, 10))], tools=300) for _ in "ab"]
    first, second = (
        next(conversation(r, block_tokens=128).turns(i, 0.0, agents=True))
        for i, r in enumerate(records)
    )
    assert len(first.hashes) == 5
    assert shared(first, second) == 2


def test_conversations_begin_one_after_the_other() -> None:
    records = [compact([going_on(0, 0, (1, 1)), going_on(100, 1, (2, 1))]) for _ in range(5)]
    played = turns(*records, conversations=4, span=200.0)
    assert [t.time for t in played] == [0, 50, 100, 100, 150, 150, 200, 250]
    assert [t.conversation for t in played][2:6] == ["trace"] * 4
    unspread = turns(*records[:2])
    assert [t.time for t in unspread] == [0, 100, GAP_S, GAP_S + 100]


def test_max_requests_counts_those_of_agents() -> None:
    assert [t.time for t in turns(CALLING, max_requests=2)] == [0.0, 10.0]
    assert [t.time for t in turns(CALLING, max_requests=2, agents=False)] == [0.0, 75.0]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (compact([going_on(0, 1, (1, 4))]), "requests[0]: lcp is 1, but there were 0 ids before"),
        (compact([going_on(0, 0, (1, 4), tokens=640)]), "requests[0]: there are 4 ids, but 640"),
        (compact([going_on(0, 0, (1, 1 << 60), tokens=64)]), "requests[0]: rest has"),
        (compact([going_on(0, 0, (1, -5), tokens=64)]), "requests[0]: rest has"),
        (compact([{**going_on(0, 0, (1, 1)), "rest": [1, 2]}]), "requests[0]: rest is not a list"),
        (compact([{**going_on(0, 0, (1, 1)), "rest": None}]), "requests[0]: rest is not a list"),
        (compact([{**going_on(0, 0, (1, 1)), "t": "0"}]), "requests[0]: t is '0', not a number"),
        (compact([{"other": 1, "sub": []}]), "requests[0]: other is not an object"),
        (compact([agent(3, {"t": 0, "in": 5})]), "requests[0]: requests[0]: hash_ids is missing"),
        (compact([], block_size=0), "block_size is 0, not an integer of at least 1"),
        (compact([], tools=-1), "tool_tokens is -1"),
        ({"requests": [1]}, "requests is not a list of objects"),
    ],
)
def test_a_broken_conversation_says_where(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnreadableError) as error:
        conversation(record)
    assert str(error.value).startswith(reason)


@pytest.mark.parametrize(
    "selection",
    [{"span": 5.0}, {"conversations": 0}, {"max_requests": -1}, {"conversations": 2, "span": 0.0}],
)
def test_a_selection_that_means_nothing_is_refused(selection: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Selection(**selection)
