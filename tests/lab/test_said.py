# SPDX-License-Identifier: Apache-2.0
"""When two answers say the same."""

from math import log

import pytest

from lab.said import Said
from lab.server import said

FIRM = {7: log(0.9), 8: log(0.05)}
TIED = {7: log(0.40), 8: log(0.39)}


def answer(*tokens: int, choices: dict[int, float] = FIRM) -> Said:
    return Said(tokens, (choices,) * len(tokens))


def test_the_same_tokens_agree() -> None:
    assert answer(7, 8).agrees(answer(7, 8))
    assert not answer(7, 8).agrees(answer(7))


def test_another_token_does_not_agree() -> None:
    assert not answer(7, 7).agrees(answer(7, 8))


def test_of_two_tokens_that_are_as_likely_either_may_win() -> None:
    one, two = answer(7, 7, 1, choices=TIED), answer(7, 8, 2, choices=TIED)
    assert one.agrees(two)
    assert two.agrees(one)


@pytest.mark.parametrize("choices", [FIRM, {}, {7: log(0.4)}, {8: log(0.4)}])
def test_both_have_to_be_undecided(choices: dict[int, float]) -> None:
    one, two = answer(7, choices=TIED), answer(8, choices=choices)
    assert not one.agrees(two)
    assert not two.agrees(one)


def test_a_completion_of_a_server() -> None:
    top = [{"token_id:7": -0.5, "token_id:9": -1.0}]
    choice = {"token_ids": [7], "logprobs": {"top_logprobs": top}}
    assert said({"choices": [choice]}) == Said((7,), ({7: -0.5, 9: -1.0},))
