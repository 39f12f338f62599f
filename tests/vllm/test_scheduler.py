# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler over our manager: what is stored and restored, and when."""

import random
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

from vllm.v1.request import RequestStatus

from tests.vllm.conftest import Start
from tests.vllm.fake_engine import FakeEngine
from tests.vllm.setups import BLOCK, Setup, attention, group, qwen3_next, window
from tiercache.events import EventKind
from tiercache.slots import SlotPool
from tiercache.vllm.compat import mistakes_blocks_of_sessions
from tiercache.vllm.metrics import LOST_TOKENS, RESTORED_TOKENS

HYBRID = Setup(qwen3_next(), [60, 10, 10, 10])
FULL = Setup([group(attention())], [60])
WINDOW = Setup([group(attention(), "full"), group(window(40), "window")], [60, 40])


def tokens(count: int, seed: str = "") -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(512) for _ in range(count)]


def again(engine: FakeEngine, name: str, prompt: list[int]) -> int:
    """Tokens restored of a prompt once the device has forgotten it."""
    engine.reset_device()
    return engine.ask(name, prompt).restored


def nothing(running: int) -> int:
    """A pace at which nothing is ever done."""
    return 0


def counter(engine: FakeEngine, name: str) -> float:
    """Sum of a metric over all reports."""
    return sum(sum(report["data"].get(name, {}).values()) for report in engine.stats)


# --- what comes back


@pytest.mark.parametrize(
    ("setup", "restored"),
    [
        pytest.param(HYBRID, [176, 176, 192], id="hybrid"),
        # vLLM takes what does not end on a state up to the token before the last, ...
        pytest.param(WINDOW, [176, 191, 192], id="window"),
        # ... and with full attention only as a whole, computing the last token once more.
        pytest.param(FULL, [176, 192, 192], id="full"),
    ],
)
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_a_prompt_that_ends_near_the_end_of_a_block(
    start: Start, setup: Setup, restored: list[int], off: int
) -> None:
    engine, prompt = start(setup), tokens(192 + off)
    cold = engine.ask("a", prompt).tokens
    assert again(engine, "b", prompt) == restored[off + 1]
    assert engine.answers["b"].tokens == cold


def test_the_next_turn_resumes_from_the_last_state_of_the_turn_before(start: Start) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    answer = engine.ask("a", prompt, 20)
    assert again(engine, "b", [*prompt, *answer.tokens, *tokens(30, "b")]) == 192


def test_a_turn_after_a_long_answer_resumes_from_the_state_before_it(start: Start) -> None:
    engine, prompt = start(HYBRID), tokens(100)
    answer = engine.ask("a", prompt, 100)
    assert again(engine, "b", [*prompt, *answer.tokens, 1]) == 96


def test_answers_are_restored_if_they_are_offloaded(start: Start) -> None:
    engine = start(replace(HYBRID, retention=None, settings={"offload_prompt_only": False}))
    prompt = tokens(100)
    answer = engine.ask("a", prompt, 50)
    assert again(engine, "b", [*prompt, *answer.tokens, 1]) == 144


@pytest.mark.parametrize(("length", "restored"), [(200, 192), (215, 208)])
def test_hits_inside_a_block(start: Start, length: int, restored: int) -> None:
    """With --prefix-match-unit; blocks have 32 tokens."""
    engine = start(Setup(qwen3_next(32), [30, 9, 9, 9], block=32, match_unit=8))
    prompt = tokens(length)
    engine.ask("a", prompt)
    assert again(engine, "b", prompt) == restored


def test_only_whole_equal_blocks_are_restored(start: Start) -> None:
    engine, prompt = start(FULL), tokens(100)
    engine.ask("a", prompt)
    assert again(engine, "b", [*prompt[: 5 * BLOCK - 1], 0, *prompt[5 * BLOCK :]]) == 4 * BLOCK


def test_an_edited_prompt_resumes_from_the_last_state_before_the_edit(start: Start) -> None:
    engine, prompt = start(replace(HYBRID, retention=64)), tokens(300)
    engine.ask("a", prompt)
    assert again(engine, "b", [*prompt[:210], 0, *prompt[211:]]) == 192


def test_what_is_restored_is_what_would_have_been_computed(start: Start) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    cold = engine.ask("a", prompt, 30)
    engine.reset_device()
    warm = engine.ask("b", prompt, 30)
    assert warm.restored
    assert warm.tokens == cold.tokens


def test_bytes_that_got_lost_would_be_noticed(start: Start) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    engine.ask("a", prompt)
    engine.worker.host.clear()
    assert again(engine, "b", prompt) == 192
    assert engine.wrong != []
    engine.wrong.clear()


def test_a_window_is_restored_without_what_it_has_left_behind(start: Start) -> None:
    engine, prompt = start(WINDOW), tokens(200)
    engine.ask("a", prompt)
    again(engine, "b", prompt)
    restored = engine.manager.cache.journal.counters
    assert [restored[g][EventKind.RESTORED] for g in (0, 1)] == [12, 3]


def test_a_request_may_cap_what_it_loads(start: Start) -> None:
    engine, prompt = start(FULL), tokens(200)
    engine.ask("a", prompt)
    engine.reset_device()
    engine.add("b", prompt, max_load_tokens=70)
    engine.run()
    assert engine.answers["b"].restored == 64


# --- when


def test_nothing_is_readable_before_it_is_copied(start: Start) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    engine.worker.pace = nothing
    engine.add("a", prompt, 1)
    while "a" in engine.scheduler.requests:
        engine.step()
    engine.reset_device()
    second = engine.add("b", prompt)
    for _ in range(10):
        engine.step()
    assert second.num_computed_tokens == 0
    engine.worker.pace = lambda running: running
    engine.run()
    assert engine.answers["b"].restored == 192


def test_states_that_are_stored_after_their_attention_are_restored(start: Start) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    engine.ask("a", prompt[:190])
    for group_id in (1, 2, 3):
        pool = engine.manager.cache.primary.pools[group_id]
        assert len(pool.ready) == 1
    engine.ask("b", prompt)
    assert again(engine, "c", prompt) == 192


def test_two_turns_of_one_conversation_in_flight_are_both_restored(start: Start) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    engine.ask("a", prompt)
    engine.reset_device()
    engine.add("b", [*prompt, 1])
    engine.add("c", [*prompt, 2, 3])
    engine.run()
    reused = [sum(engine.answers[name][1:]) for name in "bc"]
    assert reused == [192, 192]


@pytest.mark.parametrize("setup", [HYBRID, FULL], ids=["hybrid", "full"])
def test_one_step_ahead_of_the_output(start: Start, setup: Setup) -> None:
    engine, prompt = start(replace(setup, asynchronous=True)), tokens(200)
    answer = engine.ask("a", prompt, 20)
    assert again(engine, "b", [*prompt, *answer.tokens]) == 192


@pytest.mark.parametrize("setup", [HYBRID, FULL, WINDOW], ids=["hybrid", "full", "window"])
def test_input_that_streams_in(start: Start, setup: Setup) -> None:
    """vLLM 0.32 loses track of the blocks of such requests: what it offers is not taken."""
    engine = start(setup)
    session = engine.add("session", tokens(50), 11, resumable=True)
    for part in range(3):
        while session.status is not RequestStatus.WAITING_FOR_STREAMING_REQ:
            engine.step()
        engine.add("session", tokens(40, str(part)), 9, resumable=True)
    said = list(session.all_token_ids)
    while session.status is not RequestStatus.WAITING_FOR_STREAMING_REQ:
        engine.step()
    engine.add("session", [1])
    engine.run()
    restored = again(engine, "next", [*said, *tokens(20, "next")])
    assert (restored > 0) is not mistakes_blocks_of_sessions()


# --- trouble


def test_a_preempted_request_resumes_from_host_memory(start: Start) -> None:
    engine = start(replace(HYBRID, device_blocks=40, sequences=2))
    requests = [engine.add(name, tokens(200, name), 60) for name in "ab"]
    engine.run()
    assert sum(request.num_preemptions for request in requests) > 0
    alone = start(HYBRID)
    for name in "ab":
        assert engine.answers[name].tokens == alone.ask(name, tokens(200, name), 60).tokens
    assert counter(engine, RESTORED_TOKENS) > 0


def test_a_request_aborted_while_it_loads_leaves_no_pin(start: Start) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    engine.ask("a", prompt)
    engine.reset_device()
    engine.worker.pace = nothing
    engine.add("b", prompt)
    engine.step()
    assert sum(counts.pinned for counts in engine.manager.cache.counts().values()) == 15
    engine.abort("b")
    engine.worker.pace = lambda running: running
    engine.run()
    assert sum(counts.pinned for counts in engine.manager.cache.counts().values()) == 0
    assert again(engine, "c", prompt) == 192


def test_a_request_aborted_while_it_stores_keeps_what_it_stored(start: Start) -> None:
    engine, prompt = start(FULL), tokens(200)
    engine.worker.pace = nothing
    engine.add("a", prompt)
    for _ in range(3):
        engine.step()
    engine.abort("a")
    engine.step()
    engine.worker.pace = lambda running: running
    engine.run()
    assert again(engine, "b", prompt) > 0


@pytest.mark.parametrize("loading", [False, True], ids=["storing", "loading"])
def test_a_reset_while_blocks_are_on_their_way(start: Start, loading: bool) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    if loading:
        engine.ask("a", prompt)
        engine.reset_device()
    engine.worker.pace = nothing
    engine.add("b", prompt)
    for _ in range(3):
        engine.step()
    assert engine.scheduler.reset_connector_cache()
    assert all(pool.capacity == pool.counts().free for pool in pools(engine))
    engine.worker.pace = lambda running: running
    engine.run()
    other = tokens(200, "other")
    engine.ask("c", other)
    assert again(engine, "d", other) == 192


def pools(engine: FakeEngine) -> list[SlotPool]:
    return list(engine.manager.cache.primary.pools.values())


@pytest.mark.parametrize("setup", [HYBRID, WINDOW], ids=["hybrid", "window"])
def test_a_reset_of_everything_while_requests_run(start: Start, setup: Setup) -> None:
    engine = start(setup)
    for name in "abc":
        engine.add(name, tokens(200, name), 40)
    for _ in range(8):
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    engine.run()
    assert again(engine, "d", tokens(200, "a")) == 192


def test_a_reset_does_not_store_the_windows_of_others(start: Start) -> None:
    """vLLM offers a running request's blocks anew, of a window from a table that is out of date."""
    engine = start(replace(WINDOW, device_blocks=60))
    for name in "ab":
        engine.add(name, tokens(300, name), 80)
        for _ in range(8):
            engine.step()
    assert engine.scheduler.reset_connector_cache()
    engine.run()
    for end in range(40, 300, 20):
        again(engine, f"until {end}", tokens(300, "a")[:end])
    assert engine.wrong == []


def test_a_store_that_never_fits_is_not_tried_at_every_step(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(replace(FULL, slots=[4], batched_tokens=256))
    offered: list[int] = []
    prepare_store = engine.manager.prepare_store

    def count(keys: Any, context: Any) -> Any:
        offered.append(1)
        return prepare_store(keys, context)

    monkeypatch.setattr(engine.manager, "prepare_store", count)
    engine.ask("a", tokens(200), 200)
    assert len(offered) < 5


def test_a_pool_that_is_full_of_what_is_in_flight_takes_the_rest_later(start: Start) -> None:
    engine = start(replace(FULL, slots=[6]))
    engine.worker.pace = nothing
    engine.add("a", tokens(64, "a"), 30)
    engine.add("b", tokens(64, "b"), 30)
    for _ in range(8):
        engine.step()
    engine.worker.pace = lambda running: running
    engine.run()
    assert again(engine, "c", tokens(64, "b")) == 64


# --- what is kept


def turns(engine: FakeEngine, name: str, count: int, *, first: int = 100) -> list[int]:
    """A conversation of ``count`` turns, each from a device that has forgotten it."""
    prompt = tokens(first, name)
    for turn in range(count):
        engine.reset_device()
        answer = engine.ask(f"{name}{turn}", prompt)
        prompt = [*prompt, *answer.tokens, *tokens(30, f"{name}{turn}")]
    return prompt


@pytest.mark.parametrize(("demote", "restored"), [(True, 96), (False, 0)])
def test_an_idle_conversation_outlives_the_turns_of_another_with_demotion(
    start: Start, demote: bool, restored: int
) -> None:
    settings = {"demote_superseded_states": demote}
    engine = start(replace(HYBRID, slots=[90, 6, 6, 6], settings=settings))
    idle = turns(engine, "idle", 1)
    turns(engine, "busy", 12)
    assert again(engine, "back", idle) == restored


@pytest.mark.parametrize(("demote", "restored"), [(True, 96), (False, 0)])
def test_the_many_states_of_one_long_prompt_do_not_evict_another_conversation(
    start: Start, demote: bool, restored: int
) -> None:
    settings = {"demote_superseded_states": demote}
    slots = [150, 10, 10, 10]
    engine = start(replace(HYBRID, slots=slots, retention=32, settings=settings, batched_tokens=32))
    idle = turns(engine, "idle", 1)
    engine.ask("long", tokens(1600, "long"))
    assert again(engine, "back", idle) == restored


def test_a_block_is_stored_at_the_offer_that_reaches_the_threshold(start: Start) -> None:
    engine, prompt = start(replace(FULL, settings={"store_threshold": 2})), tokens(100)
    engine.ask("a", prompt)
    assert again(engine, "b", prompt) == 0
    assert again(engine, "c", prompt) == 96


@pytest.mark.parametrize(("share", "restored"), [(True, 96), (False, 0)])
def test_a_third_conversation_starts_where_two_parted(
    start: Start, share: bool, restored: int
) -> None:
    engine = start(replace(HYBRID, settings={"share_junctions": share}))
    head = tokens(100, "head")
    for name in "ab":
        again(engine, name, [*head, *tokens(60, name)])
    assert again(engine, "c", [*head, *tokens(60, "c")]) == restored


# --- what is told


def test_restored_tokens_are_counted_as_vllm_counts_them(start: Start) -> None:
    engine, prompt = start(HYBRID), tokens(200)
    engine.ask("a", prompt)
    again(engine, "b", prompt)
    again(engine, "c", prompt[:150])
    assert counter(engine, RESTORED_TOKENS) == sum(a.restored for a in engine.answers.values())


def test_tokens_that_no_state_could_serve_are_counted(start: Start) -> None:
    engine = start(replace(HYBRID, settings={"share_junctions": False}))
    engine.ask("a", tokens(200))
    assert again(engine, "b", tokens(150)) == 0
    assert counter(engine, LOST_TOKENS) == 144
