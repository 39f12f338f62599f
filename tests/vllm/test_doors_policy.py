# SPDX-License-Identifier: Apache-2.0
"""Our LRU with demotion below vLLM's own manager of host memory.

Covers what it does with what that manager tells it. Group 0 is attention, 1 and 2 are recurrent
unless a test says otherwise. How the order itself behaves is tested in ``tests/policies``.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="the door is vLLM's")

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from tests.vllm.stock import chain, context, keys
from tiercache.blocks import Key
from tiercache.vllm.policy import KEEP_BLOCKS, DemotingLRU

GROUPS = 3
STATES = (1, 2)


class Host:
    """vLLM's manager of ``chunks`` slots; requests store as its scheduler does."""

    def __init__(self, chunks: int, policy: str = "DemotingLRU") -> None:
        module = "tiercache.vllm.policy" if policy == "DemotingLRU" else None
        self.manager = CPUOffloadingManager(chunks, policy, module)
        self._ids = count()

    @property
    def policy(self) -> DemotingLRU:
        policy: DemotingLRU = self.manager._policy
        return policy

    def begin(self, hashes: Sequence[bytes]) -> ReqContext:
        ctx = context(f"request {next(self._ids)}", hashes, GROUPS)
        self.manager.on_new_request(ctx)
        return ctx

    def store(self, wanted: Sequence[OffloadKey], ctx: ReqContext) -> list[OffloadKey]:
        """Returns whom that evicted."""
        output = self.manager.prepare_store(wanted, ctx)
        assert output is not None
        self.manager.complete_store(output.keys_to_store, ctx)
        return list(output.evicted_keys)

    def turn(
        self, hashes: Sequence[bytes], states: Collection[int] = (-1,), groups: Any = STATES
    ) -> list[OffloadKey]:
        """A whole request: its attention blocks together, each of its states alone."""
        ctx = self.begin(hashes)
        evicted = self.store(keys(hashes), ctx)
        for at in states:
            for group_id in groups:
                evicted += self.store(keys([hashes[at]], group_id), ctx)
        self.manager.on_request_finished(ctx)
        return evicted

    def has(self, wanted: Collection[OffloadKey]) -> bool:
        ctx = ReqContext("question")
        return all(self.manager.lookup(key, ctx) is LookupResult.HIT for key in wanted)

    def superseded(self, some: Iterable[OffloadKey]) -> list[OffloadKey]:
        """Those of ``some`` that go before whatever is not superseded."""
        numbers = self.policy._numbers
        demoted = self.policy._order.demoted_of(numbers.find(map(Key, some)))
        return list(map(OffloadKey, numbers.keys_in(demoted)))

    def push_out(self, n: int) -> list[OffloadKey]:
        """Whom other blocks, stored one after the other, evict."""
        evicted: list[OffloadKey] = []
        while len(evicted) < n:
            name = f"other {next(self._ids)}"
            ctx = self.begin(chain(name, 1))
            evicted += self.store(keys(chain(name, 1)), ctx)
        return evicted


def states(hashes: Sequence[bytes]) -> list[OffloadKey]:
    return [key for group_id in STATES for key in keys(hashes, group_id)]


def test_superseded_states_go_first_the_oldest_of_them_ahead() -> None:
    host, talk = Host(20), chain("talk", 14)
    for end in (2, 6, 14):
        assert host.turn(talk[:end]) == []
    assert host.push_out(4) == states([talk[1]]) + states([talk[5]])
    assert host.has(keys(talk) + states(talk[-1:]))


def test_states_near_the_newest_one_stay() -> None:
    host, talk = Host(40), chain("talk", 8)
    near, far = 8 - KEEP_BLOCKS, 7 - KEEP_BLOCKS
    for end in (far, near, 8):
        host.turn(talk[:end])
    demoted = [h for h in talk if host.superseded(keys([h], 1))]
    assert demoted == [talk[far - 1]]


def test_an_idle_conversation_survives_busy_ones() -> None:
    """What all this is for: vLLM's order loses the states of who says nothing for a while."""

    def idle_returns(policy: str) -> bool:
        host = Host(60, policy)
        idle = chain("idle", 10)
        host.turn(idle)
        for number in range(1, 6):
            for name in ("B", "C"):
                host.turn(chain(name, 4 * number))
        return host.has(keys(idle) + states(idle[-1:]))

    assert idle_returns("DemotingLRU")
    assert not idle_returns("lru")


def test_states_of_one_long_prompt_supersede_each_other() -> None:
    host, talk = Host(60), chain("talk", 20)
    host.turn(talk, states=range(1, 20, 2))
    left = [n for n in range(20) if not host.superseded(keys(talk[n : n + 1], 1))]
    assert left == [0, 2, 4, 6, 8, 10, 12, 14, 16, 17, 18, 19]  # the even ones never were


def test_where_conversations_part_the_state_stays() -> None:
    host, shared = Host(80), chain("shared", 4)
    one, two = shared + chain("one", 6), shared + chain("two", 6)
    host.turn(shared)
    host.turn(one)
    assert host.superseded(keys([shared[-1]], 1))
    host.turn(two)
    for _ in range(2):
        host.turn(one + chain("more", 4))
        host.turn(two)
    assert not host.superseded(states([shared[-1]]))
    assert host.superseded(states([one[-1]]))


def test_a_superseded_state_that_is_used_again_is_the_newest() -> None:
    host, talk = Host(60), chain("talk", 10)
    for end in (3, 10):
        host.turn(talk[:end])
    assert host.superseded(keys([talk[2]], 1))
    host.turn(talk[:3])
    assert not host.superseded(states([talk[2]]))


@pytest.mark.parametrize("groups", [(), (1,)], ids=["one group", "two"])
def test_attention_is_never_superseded(groups: tuple[int, ...]) -> None:
    """All groups of such a model are stored together."""
    host, talk = Host(100), chain("talk", 12)
    for end in (4, 8, 12):
        ctx = host.begin(talk[:end])
        host.store([key for g in (0, *groups) for key in keys(talk[:end], g)], ctx)
        host.manager.on_request_finished(ctx)
    assert host.policy._order.demoted == 0


def test_nothing_is_superseded_before_attention_is_known() -> None:
    host, talk = Host(100), chain("talk", 12)
    ctx = host.begin(talk)
    for block_hash in talk:
        host.store(keys([block_hash]), ctx)
        host.store(keys([block_hash], 1), ctx)
    host.manager.on_request_finished(ctx)
    assert host.policy._order.demoted == 0
    host.turn(chain("other", 2))
    host.turn(talk)
    assert host.policy._order.demoted == 12 - 1 - KEEP_BLOCKS


def test_a_window_of_several_blocks_is_no_state() -> None:
    """What a window leaves out is stored by its group, too, at some time; its end never goes."""
    host, talk = Host(100), chain("talk", 12)
    for end in (6, 12):
        ctx = host.begin(talk[:end])
        host.store(keys(talk[:end]) + keys(talk[end - 5 : end], 1), ctx)
        host.manager.on_request_finished(ctx)
    assert host.policy._order.demoted == 0


def test_who_is_read_is_not_evicted() -> None:
    host, talk = Host(14), chain("talk", 10)
    host.turn(talk[:2], groups=(1,))
    host.turn(talk, groups=(1,))
    old = keys([talk[1]], 1)
    ctx = host.begin(talk)
    host.manager.prepare_load(old, ctx)
    assert not set(host.push_out(6)) & set(old)
    host.manager.complete_load(old, ctx)
    assert host.push_out(1) == old


def test_too_many_wanted_evicts_nobody() -> None:
    host, talk = Host(6), chain("talk", 6)
    host.turn(talk[:4], groups=(1,))
    ctx = host.begin(talk)
    assert host.manager.prepare_store(keys(talk[:3]) + keys(chain("more", 4)), ctx) is None
    assert host.has(keys(talk[:4]) + keys([talk[3]], 1))


def test_a_failed_store_and_a_reset_leave_nothing() -> None:
    host, talk = Host(20), chain("talk", 8)
    ctx = host.begin(talk)
    output = host.manager.prepare_store(keys(talk), ctx)
    assert output is not None
    host.manager.complete_store(keys(talk[4:]), ctx, success=False)
    host.manager.complete_store(keys(talk[:4]), ctx)
    assert host.has(keys(talk[:4]))
    host.manager.reset_cache()
    assert (len(host.policy._order), host.policy._chunks, host.policy._next) == (0, {}, {})
    host.turn(talk)
    assert host.has(keys(talk))


requests = st.tuples(st.sampled_from("ABC"), st.integers(1, 12), st.integers(0, 3))


@given(st.integers(4, 40), st.lists(requests, max_size=30))
def test_books_agree_whatever_happens(chunks: int, asked: list[tuple[str, int, int]]) -> None:
    """vLLM asserts its part; here, that order, chunks and marks are of the same keys."""
    host = Host(chunks)
    for name, blocks, what in asked:
        talk = chain(name, blocks)
        ctx = host.begin(talk)
        wanted = keys(talk), *[keys(talk[-1:], group_id) for group_id in STATES]
        for batch in wanted:
            output = host.manager.prepare_store(batch, ctx)
            if output is not None:
                host.manager.complete_store(output.keys_to_store, ctx, success=what != 1)
        if what == 2:
            held = [key for batch in wanted for key in batch if host.has([key])]
            host.manager.prepare_load(held, ctx)
            host.manager.on_request_finished(ctx)
            host.manager.complete_load(held, ctx)
        host.manager.on_request_finished(ctx)
        if what == 3 and blocks == 12:
            host.manager.reset_cache()
        check(host)


def check(host: Host) -> None:
    policy, manager = host.policy, host.manager
    order = policy._numbers.keys_in(policy._order.peek(len(policy._chunks)).slots)
    assert sorted(order) == sorted(policy._chunks)  # nothing is pinned between requests
    assert manager._num_evictable_cache_chunks == len(order)
    slots = [chunk.chunk_id for chunk in policy._chunks.values()]
    assert sorted(slots + manager._free_list) == list(range(manager._num_allocated_chunks))
    assert policy._next.keys() <= policy._chunks.keys()
