# SPDX-License-Identifier: Apache-2.0
"""Prefixes come back from the disk: host memory holds a few states, the rest goes through it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import transfers
from lab.conversation import random_tokens
from lab.engine import Answer, Engine
from lab.engine import engine as start
from lab.recipes import GEMMA3, QWEN3, QWEN3_NEXT, Recipe

pytestmark = pytest.mark.usefixtures("sound")

TOKENS = 1_500
ENTRIES = 'vllm:tiercache_tier_entries{tier="nvme0"}'
LOADED = 'vllm:tiercache_tier_loaded_bytes{tier="nvme0"}'
CORRUPT = 'vllm:tiercache_tier_corrupt{tier="nvme0"}'
FROM_DISK = 'vllm:prompt_tokens_cached_by_source{source="disk"}'


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvme")


@pytest.fixture(scope="module", params=[QWEN3_NEXT, GEMMA3, QWEN3], ids=lambda r: r.name)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    found: Recipe = request.param
    return found


@pytest.fixture(scope="module")
def engine(recipe: Recipe, disk: Path) -> Iterator[Engine]:
    with start(recipe, transfers.with_disk("8MiB", disk / recipe.name)) as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(engine: Engine) -> None:
    engine.reset_all()
    (tier,) = engine.manager.cache.tiering.tiers
    while not tier._ledger.is_current:  # until the index is empty, nothing is stored
        engine.settle()


def boundary(engine: Engine) -> int:
    block = engine.recipe.tokens_per_block
    return (TOKENS - engine.manager.cache.is_hybrid) // block * block


def push_out(engine: Engine, name: str) -> None:
    """Other prompts, until neither the device nor host memory has anything of the ones before."""
    for number in range(8):
        engine.ask(random_tokens(TOKENS, f"{name} {number}"), max_tokens=1)
    engine.rest()
    engine.reset_device()


def flip_first_bytes(segments: Path, record_bytes: int) -> None:
    """Damage every record of a group by one bit."""
    for file in segments.glob("*.seg"):
        with file.open("r+b") as records:
            for start_of_record in range(0, file.stat().st_size, record_bytes):
                records.seek(start_of_record)
                byte = records.read(1)
                records.seek(start_of_record)
                records.write(bytes([byte[0] ^ 1]))


def test_what_host_memory_lost_is_read_from_the_disk(engine: Engine) -> None:
    prompt = random_tokens(TOKENS, "disk")
    cold = engine.ask(prompt)
    push_out(engine, "others")
    before = engine.metrics()
    restored = engine.ask(prompt)
    after = engine.metrics()
    assert (cold.cached_tokens, restored.cached_tokens) == (0, boundary(engine))
    assert restored.agrees(cold)
    assert after[LOADED] > before.get(LOADED, 0)
    assert after[FROM_DISK] - before[FROM_DISK] == restored.cached_tokens


def test_several_requests_at_once(engine: Engine) -> None:
    prompts = [random_tokens(TOKENS, f"at once {number}") for number in range(3)]
    cold = [engine.ask(prompt) for prompt in prompts]
    push_out(engine, "between")
    restored = engine.ask_all(prompts)
    assert all(map(Answer.agrees, restored, cold))


def test_a_flipped_bit_is_a_miss(engine: Engine, disk: Path) -> None:
    prompt = random_tokens(TOKENS, "flipped")
    cold = engine.ask(prompt)
    push_out(engine, "before the flip")
    for group in engine.manager.cache.groups.values():
        for segments in (disk / engine.recipe.name).glob(f"*/g{group.group_id}"):
            flip_first_bytes(segments, group.slot_bytes)
    before = engine.metrics().get(CORRUPT, 0)
    again = engine.ask(prompt)
    assert again.cached_tokens == 0
    assert again.agrees(cold)
    engine.settle()
    assert engine.metrics()[CORRUPT] > before


def test_the_tier_keeps_what_it_was_given(engine: Engine) -> None:
    engine.ask(random_tokens(TOKENS, "kept"))
    engine.rest()
    tier = engine.manager.cache.tiering.tiers[0]
    entries = sum(len(pool.ready) for pool in engine.manager.cache.primary.pools.values())
    assert tier.stats().entries >= entries > 0
    assert engine.metrics()[ENTRIES] == tier.stats().entries
