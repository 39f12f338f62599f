# SPDX-License-Identifier: Apache-2.0
"""Real traces: their shares, and whether the workloads made here are like them."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from statistics import median

import pytest

from tiercache.replay.conversations import Selection
from tiercache.replay.simulate import Setup, simulate
from tiercache.replay.traces import Malformed, open_trace
from tiercache.replay.turns import Stream, Turn
from tiercache.replay.workloads import scenario

#: Room for all attention blocks, so that states decide alone.
TOKEN_SLOTS = 1 << 18
BLOCKS = {"coding": 1_600, "chat": 512}
#: Coding: 40 conversations begin within two hours, 80 requests of each are played.
CODING = Selection(conversations=40, span=7_200.0, max_requests=80)
#: Demotion may cost this much where it does not help.
TOLERATED = 0.002


def share(stream: Stream, state_slots: int, policy: str) -> float:
    setup = Setup.uniform(
        block_tokens=stream.block_tokens,
        token_slots=TOKEN_SLOTS,
        state_slots=state_slots,
        policy=policy,
    )
    return simulate(stream, setup).restored_share


def coding(path: Path, *, agents: bool = True) -> Stream:
    selection = Selection(CODING.conversations, CODING.span, CODING.max_requests, agents=agents)
    return open_trace(path, block_tokens=BLOCKS["coding"], selection=selection, strict=True)


def chat(path: Path) -> Stream:
    return open_trace(path, block_tokens=BLOCKS["chat"], strict=True)


def test_every_line_can_be_read(coding_trace: Path, chat_trace: Path) -> None:
    skipped: list[Malformed] = []
    for path, requests in ((coding_trace, 24_889 + 461), (chat_trace, 12_031)):
        stream = open_trace(path, block_tokens=1_600, report=skipped.append)
        assert sum(1 for _ in stream) == requests
    assert skipped == []


#: With plain LRU and with demotion, as an independent simulation found them. It also stored states
#: that a restore passes over, which an engine never computes: that costs it up to two points.
@pytest.mark.parametrize(
    ("state_slots", "plain", "demoting"),
    [(16, 0.821, 0.858), (30, 0.881, 0.920), (64, 0.916, 0.930)],
)
def test_coding(coding_trace: Path, state_slots: int, plain: float, demoting: float) -> None:
    stream = coding(coding_trace, agents=False)
    found = share(stream, state_slots, "lru-plain"), share(stream, state_slots, "lru")
    assert found == pytest.approx((plain, demoting), abs=0.025)
    assert found[1] > found[0] + 0.01


#: What a simulation that came before found for `cost`. With 120 conversations and 64 states it had
#: .937, which its own formula does not reach here either: see docs/decisions/0009.
COST = [
    (40, 7_200.0, 16, 0.920),
    (40, 7_200.0, 30, 0.932),
    (40, 7_200.0, 64, 0.935),
    (120, 14_400.0, 16, 0.886),
    (120, 14_400.0, 30, 0.918),
    (120, 14_400.0, 64, 0.934),
]


@pytest.mark.slow
@pytest.mark.parametrize(("conversations", "span", "state_slots", "least"), COST)
def test_cost_on_coding(
    coding_trace: Path, conversations: int, span: float, state_slots: int, least: float
) -> None:
    selection = Selection(conversations, span, 80, agents=False)
    stream = open_trace(coding_trace, block_tokens=BLOCKS["coding"], selection=selection)
    assert least <= share(stream, state_slots, "cost") <= seen_before(stream)


@pytest.mark.parametrize(
    ("conversations", "span", "seen"), [(40, 7_200.0, 0.9376), (120, 14_400.0, 0.9411)]
)
def test_what_was_seen_before(
    coding_trace: Path, conversations: int, span: float, seen: float
) -> None:
    selection = Selection(conversations, span, 80, agents=False)
    stream = open_trace(coding_trace, block_tokens=BLOCKS["coding"], selection=selection)
    assert seen_before(stream) == pytest.approx(seen, abs=0.00005)


def seen_before(stream: Stream) -> float:
    """Share of prompt tokens in blocks that were computed before: no cache restores more."""
    known: set[bytes] = set()
    seen = total = 0
    for each in stream:
        whole = (each.input_tokens - 1) // stream.block_tokens
        seen += sum(block in known for block in each.hashes[:whole]) * stream.block_tokens
        total += each.input_tokens
        known.update(each.hashes)
    return seen / total


@pytest.mark.slow
@pytest.mark.parametrize(("state_slots", "least"), [(50, 0.070), (200, 0.172), (1_000, 0.310)])
def test_cost_on_chat(chat_trace: Path, state_slots: int, least: float) -> None:
    assert share(chat(chat_trace), state_slots, "cost") >= least


@pytest.mark.slow
def test_chat(chat_trace: Path) -> None:
    stream = chat(chat_trace)
    plain, demoting = (share(stream, 200, policy) for policy in ("lru-plain", "lru"))
    assert (plain, demoting) == pytest.approx((0.059, 0.060), abs=0.0015)
    assert demoting > plain - TOLERATED


def medians(turns: Iterable[Turn]) -> dict[str, float]:
    """Of prompts and answers in tokens, of times between requests in seconds."""
    prompts, answers, pauses, growth = [], [], [], []
    last: dict[str, Turn] = {}
    for turn in turns:
        prompts.append(turn.input_tokens)
        answers.append(turn.output_tokens)
        before = last.get(turn.conversation)
        if before is not None:
            pauses.append(turn.time - before.time)
            growth.append(turn.input_tokens - before.input_tokens)
        last[turn.conversation] = turn
    return {
        "prompt": median(prompts),
        "answer": median(answers),
        "pause": median(pauses),
        "growth": median(growth),
    }


def test_made_coding_is_like_real_coding(coding_trace: Path) -> None:
    selection = Selection(conversations=300, max_requests=80)
    real = open_trace(coding_trace, block_tokens=1_600, selection=selection)
    made = scenario("coding", block_tokens=1_600, selection=selection)
    assert medians(made) == pytest.approx(medians(real), rel=0.25)


def test_made_coding_is_restored_like_real_coding(coding_trace: Path) -> None:
    made = scenario("coding", block_tokens=BLOCKS["coding"], selection=CODING)
    for policy in ("lru-plain", "lru"):
        assert share(made, 30, policy) == pytest.approx(
            share(coding(coding_trace), 30, policy), abs=0.03
        )


def test_made_chat_is_like_real_chat(chat_trace: Path) -> None:
    real, made = chat(chat_trace), scenario("chat", block_tokens=BLOCKS["chat"])
    found = [sorted(turn.input_tokens for turn in stream) for stream in (real, made)]
    deciles = [[prompts[len(prompts) * tenth // 10] for tenth in range(1, 10)] for prompts in found]
    assert deciles[1] == pytest.approx(deciles[0], rel=0.25)
    assert len(found[1]) == pytest.approx(len(found[0]), rel=0.05)


def test_made_chat_is_restored_like_real_chat(chat_trace: Path) -> None:
    real = list(islice(chat(chat_trace), 5_000))
    made = list(islice(scenario("chat", block_tokens=BLOCKS["chat"]), 5_000))
    shares = [
        share(Stream("5,000", BLOCKS["chat"], turns.__iter__), 1_000, "lru")
        for turns in (real, made)
    ]
    assert shares[1] == pytest.approx(shares[0], abs=0.03)
