# SPDX-License-Identifier: Apache-2.0
"""Beside a simulator that others wrote: plain LRU and `optimal` against those of libCacheSim.

libCacheSim plays references to objects: each is a hit, or a miss that brings the object in. A
replay plays prompts, and a cache that restores prefixes answers otherwise in general: it stores
states where others branch off, keeps two at the end of a prompt, and offers blocks step by step.
The two meet, hit by hit, in three cases:

*Blocks.* With attention alone, each block is an object. A prompt refers to its blocks in order,
and a request leaves its tail as less recent than its head, so the references are made once more,
backwards: those are hits by then, and only say what is recent. It takes room for the longest
prompt, as no request evicts a block of its own. The last token of a prompt is computed, so a
block that ends with it may be there and is not restored.

*States of prompts that are sent again.* With room for all attention blocks and one state per
prompt, the prompts are the objects, and any sequence of references can be played.

*States of conversations.* Of those that only go on, each request refers to the state that the one
before it left, then to its own. If the former is lost, the engine comes by its boundary again and
keeps it as that of a junction, which is what a miss does. No older state can take its place: each
is less recent, and not needed again.

`optimal` may drop a state at once, while Belady's rule is for caches that admit what they miss.
So libCacheSim is given room for one object more, and after each reference it evicts the one that
it chooses, which may be the new one. Both are then the same problem. Without that, Belady's hits
with as much room are a lower bound, and those with room for one more an upper one.

Not covered: what the replay has and libCacheSim has not, which is demotion, forks and disks.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.samples import named, stream, turn
from tiercache.replay import optimal
from tiercache.replay.conversations import Selection
from tiercache.replay.simulate import Player, Setup
from tiercache.replay.traces import open_trace
from tiercache.replay.turns import Turn
from tiercache.replay.workloads import scenario

libcachesim = pytest.importorskip(
    "libcachesim", reason="libCacheSim has wheels for x86-64 and Python 3.13 at most"
)

BLOCK = 16
#: Room for every attention block, so that states decide alone.
TOKEN_SLOTS = 1 << 15
#: Its tables have 2**12 buckets at first, and grow. Its default takes 128 MiB for each cache.
HASH_POWER = 12
#: What it takes for "never".
NEVER = 2**63 - 1
CODING, CHAT = 1_600, 512


class Reference(NamedTuple):
    """An object that a turn refers to, and the tokens that a hit restores."""

    name: Hashable
    tokens: int


Played = Sequence[tuple[Turn, Sequence[Reference]]]
"""Turns, and what each of them is for a simulator of objects."""


def independent(cache: Any, played: Played, *, bypass_at: int | None = None) -> list[int]:
    """Tokens that each turn restores with a cache of libCacheSim's.

    With ``bypass_at``, one object leaves when there are more than that, by the cache's choice.
    """
    names = [reference.name for _, references in played for reference in references]
    following = iter(_next_uses(names))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names), 1)}
    request = libcachesim.Request()
    request.obj_size = 1
    restored = []
    for _, references in played:
        tokens = 0
        for reference in references:
            request.obj_id = numbers[reference.name]
            request.next_access_vtime = next(following)
            tokens += reference.tokens if cache.get(request) else 0
            if bypass_at is not None and cache.get_n_obj() > bypass_at:
                cache.evict(request)
        restored.append(tokens)
    return restored


def _next_uses(names: Sequence[Hashable]) -> list[int]:
    """Of each reference, when the next one to the same object comes."""
    upcoming: dict[Hashable, int] = {}
    uses = []
    for now in range(len(names) - 1, -1, -1):
        uses.append(upcoming.get(names[now], NEVER))
        upcoming[names[now]] = now
    return uses[::-1]


def its_lru(played: Played, slots: int) -> list[int]:
    return independent(libcachesim.LRU(slots, hashpower=HASH_POWER), played)


def its_belady(played: Played, slots: int) -> int:
    """With Belady's rule, where what is missed has to be admitted."""
    return sum(independent(libcachesim.Belady(slots, hashpower=HASH_POWER), played))


def its_belady_with_bypass(played: Played, slots: int) -> int:
    cache = libcachesim.Belady(slots + 1, hashpower=HASH_POWER)
    return sum(independent(cache, played, bypass_at=slots))


def our_lru(played: Played, setup: Setup) -> list[int]:
    player = Player(setup)
    restored = [player.play(turn) for turn, _ in played]
    player.cache.validate()
    return restored


def our_optimal(played: Played, slots: int) -> int:
    turns = stream([turn for turn, _ in played], BLOCK)
    return optimal.simulate(turns, states_only(slots, "optimal")).tally.restored_tokens


def blocks_only(block_tokens: int, slots: int) -> Setup:
    return Setup.uniform(
        block_tokens=block_tokens, token_slots=slots, state_groups=0, policy="lru-plain"
    )


def states_only(slots: int, policy: str = "lru-plain") -> Setup:
    setup = Setup.uniform(
        block_tokens=BLOCK, token_slots=TOKEN_SLOTS, state_slots=slots, policy=policy
    )
    return replace(setup, replay_boundaries=1)


# --- what is played


def by_blocks(turns: Iterable[Turn], block_tokens: int) -> Played:
    """Of a prompt the whole blocks, once for the hits and once, backwards, for the order."""
    played = []
    for each in turns:
        names = each.hashes[: each.input_tokens // block_tokens]
        limit = (each.input_tokens - 1) // block_tokens
        forward = [Reference(name, block_tokens * (i < limit)) for i, name in enumerate(names)]
        backward = [Reference(name, 0) for name in reversed(names)]
        played.append((each, forward + backward))
    return played


def sent_again(names: Iterable[Hashable]) -> Played:
    """Prompts of one block each."""
    return [(turn(named(repr(name), 1), BLOCK + 1), [Reference(name, BLOCK)]) for name in names]


def conversations(names: Iterable[Hashable]) -> Played:
    """Each name is the next request of that conversation, which adds one block."""
    said: Counter[Hashable] = Counter()
    prompts: defaultdict[Hashable, list[bytes]] = defaultdict(list)
    played = []
    for name in names:
        before = said[name]
        said[name] += 1
        prompts[name] = named(f"{name!r}:", before + 1, after=prompts[name])
        own = [Reference((name, before + 1), 0)]
        last = [Reference((name, before), before * BLOCK)] if before else []
        played.append((turn(prompts[name], (before + 1) * BLOCK + 1), last + own))
    return played


def longest(played: Played) -> int:
    """Blocks of the longest prompt."""
    return max(len(references) // 2 for _, references in played)


# --- generated


PROMPTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 6)), max_size=30)
NAMES = st.lists(st.integers(0, 7), max_size=60)
SLOTS = st.integers(1, 8)


@given(PROMPTS, st.integers(6, 16), st.booleans())
def test_lru_on_blocks(
    prompts: list[tuple[int, int, int]], slots: int, ends_with_a_block: bool
) -> None:
    """Prompts that share more or less of a head."""
    turns = [
        turn(
            named(f"{name}/{common} ", blocks, after=named("head", min(common, blocks))),
            blocks * BLOCK + (not ends_with_a_block),
        )
        for name, common, blocks in prompts
    ]
    played = by_blocks(turns, BLOCK)
    assert our_lru(played, blocks_only(BLOCK, slots)) == its_lru(played, slots)


@pytest.mark.parametrize("workload", [sent_again, conversations])
@given(names=NAMES, slots=SLOTS)
def test_lru_on_states(workload: Any, names: list[int], slots: int) -> None:
    played = workload(names)
    assert our_lru(played, states_only(slots)) == its_lru(played, slots)


@pytest.mark.parametrize("workload", [sent_again, conversations])
@given(names=NAMES, slots=SLOTS)
def test_optimal_on_states(workload: Any, names: list[int], slots: int) -> None:
    played = workload(names)
    assert our_optimal(played, slots) == its_belady_with_bypass(played, slots)


@given(names=NAMES, slots=SLOTS)
def test_a_cache_that_must_admit_is_worse_and_with_room_for_one_more_is_not(
    names: list[int], slots: int
) -> None:
    played = sent_again(names)
    ours = our_optimal(played, slots)
    assert its_belady(played, slots) <= ours <= its_belady(played, slots + 1)


@pytest.mark.parametrize(("name", "block_tokens"), [("coding", CODING), ("chat", CHAT)])
@pytest.mark.parametrize("room", [1, 3])
def test_lru_on_blocks_of_a_made_workload(name: str, block_tokens: int, room: int) -> None:
    made = islice(scenario(name, block_tokens=block_tokens), 1_500)
    lru_on_blocks(by_blocks(made, block_tokens), block_tokens, room)


@pytest.mark.parametrize("slots", [4, 16])
def test_states_of_made_conversations(slots: int) -> None:
    made = scenario("coding", block_tokens=CODING)
    states(conversations(each.conversation for each in islice(made, 1_500)), slots)


# --- real


@pytest.mark.parametrize("room", [1, 3])
def test_lru_on_blocks_of_real_coding(coding_trace: Path, room: int) -> None:
    lru_on_blocks(by_blocks(coding(coding_trace), CODING), CODING, room)


@pytest.mark.parametrize("room", [1, 10])
def test_lru_on_blocks_of_real_chat(chat_trace: Path, room: int) -> None:
    turns = islice(open_trace(chat_trace, block_tokens=CHAT, strict=True), 4_000)
    lru_on_blocks(by_blocks(turns, CHAT), CHAT, room)


@pytest.mark.parametrize("slots", [4, 16])
def test_states_of_real_conversations(coding_trace: Path, slots: int) -> None:
    """In the order in which they took turns, as if each had only gone on."""
    states(conversations(each.conversation for each in coding(coding_trace)), slots)


@pytest.mark.parametrize("slots", [50, 300])
def test_states_of_real_blocks(chat_trace: Path, slots: int) -> None:
    """In the order in which requests refer to them, each as a prompt of its own."""
    turns = open_trace(chat_trace, block_tokens=CHAT, strict=True)
    names = islice(chain.from_iterable(each.hashes for each in turns), 10_000)
    states(sent_again(names), slots)


def coding(trace: Path) -> Iterable[Turn]:
    selection = Selection(40, 7_200.0, 80, agents=False)
    return open_trace(trace, block_tokens=CODING, selection=selection, strict=True)


def lru_on_blocks(played: Played, block_tokens: int, room: int) -> None:
    """With room for so many of the longest prompt."""
    slots = room * longest(played)
    ours = our_lru(played, blocks_only(block_tokens, slots))
    assert ours == its_lru(played, slots)
    assert 0 < sum(ours) < most(played)


def states(played: Played, slots: int) -> None:
    """Both policies, where neither is as good as one without limits."""
    lru = our_lru(played, states_only(slots))
    best = our_optimal(played, slots)
    assert lru == its_lru(played, slots)
    assert best == its_belady_with_bypass(played, slots)
    assert 0 < sum(lru) < best < most(played)


def most(played: Played) -> int:
    """Tokens restored if nothing was ever evicted."""
    objects = {reference.name for _, references in played for reference in references}
    return sum(its_lru(played, len(objects)))
