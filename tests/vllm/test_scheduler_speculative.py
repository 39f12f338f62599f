# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding with EAGLE or MTP, over vLLM's scheduler.

Two boundaries a turn keep a state, the drafter's group is looked up one chunk further than it
serves, and drafts that were rejected leave nothing behind.
"""

import random
from dataclasses import replace

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

from tests.vllm.conftest import Start
from tests.vllm.fake_engine import FakeEngine
from tests.vllm.setups import BLOCK, Setup, attention, group, qwen3_next, window

SLOTS = [60, 10, 10, 10]


def plain() -> Setup:
    return Setup(qwen3_next(), SLOTS)


def speculative(drafts: int = 2, *, own_group: bool = True) -> Setup:
    """``own_group``: the drafter's layers are a group of their own, not part of the model's."""
    groups = qwen3_next(drafts=drafts, draft_group=own_group)
    return Setup(groups, [*SLOTS, 60][: len(groups)], drafts=drafts)


def tokens(count: int, seed: str = "") -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(512) for _ in range(count)]


def again(engine: FakeEngine, name: str, prompt: list[int]) -> int:
    """Tokens restored of a prompt once the device has forgotten it."""
    engine.reset_device()
    return engine.ask(name, prompt).restored


def boundaries(engine: FakeEngine, prompt: list[int]) -> list[int]:
    """Where on a prompt there is a checkpoint, in tokens."""
    primary = engine.manager.cache.primary
    request = engine.add("probe", prompt)
    found = [
        (index + 1) * BLOCK
        for index, block_hash in enumerate(request.block_hashes)
        if primary.tree.get(block_hash) is not None
    ]
    engine.abort("probe")
    engine.run()
    return found


@pytest.mark.parametrize("drafts", range(1, 6))
def test_both_replay_boundaries_of_a_prompt_keep_their_states(start: Start, drafts: int) -> None:
    """Where the prompt is sent again, and where it is continued; both end a chunk here."""
    engine, prompt = start(replace(speculative(drafts), batched_tokens=32)), tokens(192)
    engine.ask("a", prompt, 20)
    assert boundaries(engine, prompt) == [160, 176]


def test_one_replay_boundary_keeps_its_state_without_drafts(start: Start) -> None:
    engine, prompt = start(replace(plain(), batched_tokens=32)), tokens(192)
    engine.ask("a", prompt, 20)
    assert boundaries(engine, prompt) == [176]


@pytest.mark.parametrize("own_group", [True, False], ids=["own group", "shared group"])
@pytest.mark.parametrize(("length", "less"), [(200, BLOCK), (207, BLOCK), (208, 0), (209, BLOCK)])
def test_a_hit_is_that_without_drafts_less_one_block(
    start: Start, length: int, less: int, own_group: bool
) -> None:
    """A prompt of whole blocks loses nothing: its last block is there to be looked up."""
    prompt = tokens(length)
    restored = []
    for setup in plain(), speculative(own_group=own_group):
        engine = start(setup)
        engine.ask("a", prompt)
        restored.append(again(engine, "b", prompt))
    assert restored[1] == restored[0] - less


@pytest.mark.parametrize("demote", [True, False])
def test_turns_resume_where_the_turn_before_ended(start: Start, demote: bool) -> None:
    setup = replace(speculative(), settings={"demote_superseded_states": demote})
    engine, prompt = start(setup), tokens(100)
    for turn in range(5):
        answer = engine.ask(f"a{turn}", prompt, 10)
        grown = [*prompt, *answer.tokens, *tokens(30, str(turn))]
        assert again(engine, f"b{turn}", grown) == len(prompt) // BLOCK * BLOCK - BLOCK
        prompt = grown


@pytest.mark.parametrize(("demote", "restored"), [(True, 80), (False, 0)])
def test_an_idle_conversation_outlives_the_turns_of_another_with_demotion(
    start: Start, demote: bool, restored: int
) -> None:
    settings = {"demote_superseded_states": demote}
    slots = [150, 10, 10, 10, 150]
    engine = start(replace(speculative(), slots=slots, settings=settings))
    idle = tokens(100, "idle")
    engine.ask("idle", idle)
    prompt = tokens(100, "busy")
    for turn in range(12):
        engine.reset_device()
        answer = engine.ask(f"busy{turn}", prompt, 10)
        prompt = [*prompt, *answer.tokens, *tokens(30, str(turn))]
    assert again(engine, "back", idle) == restored


def test_a_drafter_without_its_trailing_chunk_serves_one_chunk_less(start: Start) -> None:
    engine, prompt = start(speculative()), tokens(200)
    engine.ask("a", prompt)
    engine.reset_device()
    drafter = engine.manager.cache.primary.pools[4]
    engine.add("probe", prompt)
    plan = engine.manager.begin_lookup("probe", start=0, limit=199)
    engine.manager.end_lookup()
    assert plan is not None
    assert (plan.boundary, len(drafter.ready)) == (176, 12)


@pytest.mark.parametrize("retention", [0, 64, None])
def test_answers_of_accepted_and_rejected_drafts_are_restored_right(
    start: Start, retention: int | None
) -> None:
    settings = {"offload_prompt_only": False}
    engine = start(replace(speculative(3), retention=retention, settings=settings))
    prompt = tokens(100)
    for turn in range(4):
        answer = engine.ask(f"a{turn}", prompt, 70)
        prompt = [*prompt, *answer.tokens, 1]
        engine.reset_device()
    assert engine.ask("b", prompt).restored > 100
    assert engine.wrong == []


def test_drafts_with_a_sliding_window(start: Start) -> None:
    groups = [
        group(attention(), "full"),
        group(window(40, extra_retained_tokens=3), "window"),
        group(attention(), "draft", layers=1, draft=True),
    ]
    engine, prompt = start(Setup(groups, [60, 40, 60], drafts=2)), tokens(200)
    engine.ask("a", prompt)
    assert again(engine, "b", prompt) == 176


def test_drafts_with_hits_inside_a_block(start: Start) -> None:
    setup = Setup(
        qwen3_next(32, drafts=2, draft_group=True),
        [30, 9, 9, 9, 30],
        drafts=2,
        block=32,
        match_unit=8,
    )
    engine, prompt = start(setup), tokens(200)
    engine.ask("a", prompt)
    assert again(engine, "b", prompt) == 160
