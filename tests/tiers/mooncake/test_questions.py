# SPDX-License-Identifier: Apache-2.0
"""Asking for many keys: in parts, so that no step is held up by all of them."""

from collections.abc import Sequence
from typing import Any

from tests.core_helpers import key
from tests.mooncake_helpers import GROUPS, WORKERS, config, until
from tests.tier_helpers import Clock
from tests.tiers.mooncake.conftest import Serve
from tests.tiers.mooncake.test_faults import Waiting
from tiercache.blocks import Key
from tiercache.tiers.mooncake.questions import CALL_KEYS, HEARD_CALLS, Question, Questions

MANY = [key(f"{number}") for number in range(5 * CALL_KEYS + 1)]
CALLS = 6


class Everything:
    """A package that has all keys, and notes how many it was asked for at once."""

    def __init__(self, raw: Any) -> None:
        self.asked: list[int] = []
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def batch_is_exist(self, names: Sequence[str]) -> list[int]:
        self.asked.append(len(names))
        return [1] * len(names)


def test_a_step_takes_in_a_part_of_the_answer(serve: Serve, raw: Any) -> None:
    everything = Everything(raw)
    server = serve(everything, config(capacity=1 << 40), name="many")
    waits = server.tier.seek(MANY)
    assert waits is not None
    until(lambda: not server.tier._questions.pending)
    assert everything.asked == [CALL_KEYS] * 5 + [1]
    heard = []
    while waits():
        heard.append(server.tier.stats().entries)
    assert heard == [HEARD_CALLS * CALL_KEYS, 2 * HEARD_CALLS * CALL_KEYS]
    assert all(map(server.tier.has, MANY))
    assert server.tier.seek(MANY) is None


def test_what_was_heard_is_used_by_who_asks_next(serve: Serve, raw: Any) -> None:
    server = serve(Everything(raw), config(capacity=1 << 40), name="next")
    waits = server.tier.seek(MANY)
    assert waits is not None
    until(lambda: not server.tier._questions.pending)
    server.tier.poll()  # a step, in which the request itself did not ask
    known = [each for each in MANY if server.tier.has(each)]
    assert known == MANY[: HEARD_CALLS * CALL_KEYS]
    assert waits()


def test_the_first_of_too_many_keys_are_kept(serve: Serve, raw: Any) -> None:
    room = 3 * CALL_KEYS + 7
    settings = config(capacity=room * WORKERS * GROUPS[0].slot_bytes)
    server = serve(Everything(raw), settings, name="few")
    assert server.seek(*MANY) == MANY[:room]


def test_each_part_has_the_time_of_a_question(serve: Serve, raw: Any) -> None:
    clock, slow = Clock(), Waiting(Everything(raw), "batch_is_exist")
    server = serve(slow, config(lookup_timeout_s=0.05, capacity=1 << 40), name="late", clock=clock)
    slow.go_on.set()
    waits = server.tier.seek(MANY)
    assert waits is not None
    until(lambda: not server.tier._questions.pending)
    clock.now += 1.0  # the engine's step was long; the answers had come
    assert waits()
    assert waits()
    assert not waits()
    assert server.tier.stats().healthy
    assert all(map(server.tier.has, MANY))


def test_after_an_error_the_rest_is_not_asked() -> None:
    asked = []

    def exist(space: str, keys: Sequence[Key]) -> tuple[list[Key], int]:
        asked.append(len(keys))
        return [], -900 if len(asked) == 2 else 0

    questions = Questions("test", exist)
    assert questions.ask(Question(MANY, "space", 0.0, 0))
    until(lambda: not questions.pending)
    assert [(answer.lost, answer.last) for answer in questions.hear()] == [
        (False, False),
        (True, True),
    ]
    assert not questions.answered
    assert asked == [CALL_KEYS] * 2
    assert questions.close(10.0)
    assert not questions.ask(Question(MANY, "space", 0.0, 0))
