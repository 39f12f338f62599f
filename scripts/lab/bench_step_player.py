# SPDX-License-Identifier: Apache-2.0
"""Who plays requests in scripts/bench_step, and the watch that times each call.

Covers the calls of vLLM's scheduler, to vLLM's own manager and to ours. Which requests, and
against what, is decided in ``bench_step``.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadKey,
    ReqContext,
    make_offload_key,
)

from lab.bench_primary import BLOCK
from tiercache.blocks import BlockHash
from tiercache.vllm.manager import TierCacheManager

#: Groups of the keys.
ATTENTION, RECURRENT = 0, 1
#: Blocks whose copies one step of the engine begins: 8,192 tokens of a prompt.
STEP_BLOCKS: Final = 512
#: What the engine leaves to other threads in a step, while the device computes.
STEP_S: Final = 0.002
#: Turns of the loop that does nothing: about half a millisecond.
NOTHING: Final = 15_000
#: How long a request may take to come back from the disk.
PATIENCE_S: Final = 120.0

Answer = TypeVar("Answer")


class Time(NamedTuple):
    """Milliseconds that a call took, and that its thread computed meanwhile."""

    wall: float
    cpu: float


class Stopwatch:
    """Times of calls, by name."""

    def __init__(self) -> None:
        self.times: defaultdict[str, list[Time]] = defaultdict(list)

    def __call__(self, name: str, call: Callable[[], Answer]) -> Answer:
        cpu, wall = time.thread_time(), time.perf_counter()
        answer = call()
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        self.times[name].append(Time(wall * 1e3, cpu * 1e3))
        return answer


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's blocks and, if it has any, the state at the end of each step."""

    name: str
    hashes: list[BlockHash]
    hybrid: bool

    @property
    def tokens(self) -> int:
        return len(self.hashes) * BLOCK

    @property
    def blocks(self) -> list[OffloadKey]:
        return [make_offload_key(block_hash, ATTENTION) for block_hash in self.hashes]

    @property
    def parts(self) -> Iterator[list[OffloadKey]]:
        """What is stored in each step."""
        blocks = self.blocks
        for start in range(0, len(blocks), STEP_BLOCKS):
            part = blocks[start : start + STEP_BLOCKS]
            yield [*part, *self._state(start + len(part))]

    @property
    def needed(self) -> list[OffloadKey]:
        """What is loaded to restore all of it."""
        return [*self.blocks, *self._state(len(self.hashes))]

    def _state(self, end: int) -> list[OffloadKey]:
        return [make_offload_key(self.hashes[end - 1], RECURRENT)] if self.hybrid else []

    @property
    def other(self) -> "Prompt":
        """A prompt as long, with blocks of its own."""
        hashes = [block_hash[::-1] for block_hash in self.hashes]
        return Prompt(self.name + "-other", hashes, self.hybrid)

    def context(self, suffix: str = "") -> ReqContext:
        ctx = ReqContext(self.name + suffix)
        for i, block_hash in enumerate(self.hashes):
            for group_id in (ATTENTION, RECURRENT) if self.hybrid else (ATTENTION,):
                ctx.set_offload_key_position(
                    make_offload_key(block_hash, group_id), (i + 1) * BLOCK
                )
        return ctx


class Player:
    """Requests to one manager, as vLLM's scheduler makes them."""

    def __init__(self, manager: OffloadingManager) -> None:
        self.manager = manager
        self.watch = Stopwatch()

    def open(self, prompt: Prompt, suffix: str = "") -> ReqContext:
        ctx = prompt.context(suffix)
        self.expect(ctx.req_id, prompt)
        self.watch("open", lambda: self.manager.on_new_request(ctx))
        return ctx

    def expect(self, name: str, prompt: Prompt) -> None:
        """Say what only our connector says."""

    def look_up(self, prompt: Prompt, keys: list[OffloadKey], ctx: ReqContext) -> bool | None:
        """Whether all of ``keys`` are there; None while the request should ask again."""
        lookup, hit = self.manager.lookup, LookupResult.HIT
        return all(lookup(key, ctx) is hit for key in keys)

    def step(self) -> None:
        """End a step of the engine."""
        self.watch("nothing", do_nothing)

    def store(self, prompt: Prompt, ctx: ReqContext) -> None:
        for part in prompt.parts:
            output = self.watch("store", partial(self.manager.prepare_store, part, ctx))
            if output is None or len(output.keys_to_store) < len(part):
                raise RuntimeError("a full pool did not make room")
            self.watch("stored", partial(self.manager.complete_store, set(part), ctx))
            self.step()

    def play(self, prompt: Prompt) -> None:
        """One request that stores the prompt, and one that loads it."""
        first, keys = self.open(prompt), prompt.needed
        self.watch("lookup, miss", lambda: self.look_up(prompt, keys, first))
        self.store(prompt, first)
        self.watch("finish", lambda: self.manager.on_request_finished(first))
        self.load(prompt, "-again")
        self.store_at_once(prompt.other)

    def store_at_once(self, prompt: Prompt) -> None:
        """Blocks that the device had all along, and the cache no more: vLLM offers them at once."""
        ctx, keys = self.open(prompt), prompt.blocks
        done = set(keys)
        self.watch("store at once", lambda: self.manager.prepare_store(keys, ctx))
        self.watch("stored at once", lambda: self.manager.complete_store(done, ctx))
        self.watch("finish", lambda: self.manager.on_request_finished(ctx))

    def load(self, prompt: Prompt, suffix: str = "") -> None:
        ctx, keys = self.open(prompt, suffix), prompt.needed
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.watch("lookup", lambda: self.look_up(prompt, keys, ctx))) is None:
            self.step()
            if time.monotonic() > deadline:
                raise RuntimeError("the request did not come back from the disk")
        if not found:
            raise RuntimeError("what was stored is not there")
        done = set(keys)
        self.watch("load", lambda: self.manager.prepare_load(keys, ctx))
        self.watch("loaded", lambda: self.manager.complete_load(done, ctx))
        self.watch("offer again", lambda: self.manager.prepare_store(keys, ctx))
        self.watch("finish", lambda: self.manager.on_request_finished(ctx))


class Ours(Player):
    """Our manager, told what our connector tells it."""

    manager: TierCacheManager

    def expect(self, name: str, prompt: Prompt) -> None:
        self.manager.expect(name, prompt.hashes)

    def look_up(self, prompt: Prompt, keys: list[OffloadKey], ctx: ReqContext) -> bool | None:
        self.manager.begin_lookup(ctx.req_id, start=0, limit=prompt.tokens)
        try:
            if self.manager.is_waiting:
                return None
            return super().look_up(prompt, keys, ctx)
        finally:
            self.manager.end_lookup()

    def step(self) -> None:
        super().step()
        if self.manager.cache.tiering is not None:
            self.watch("step", lambda: self.manager.step(1))
            time.sleep(STEP_S)


def do_nothing() -> None:
    for _ in range(NOTHING):
        pass
