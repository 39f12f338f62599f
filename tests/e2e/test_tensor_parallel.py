# SPDX-License-Identifier: Apache-2.0
"""Two workers, each with an arena of its own; a slot is the same number in both."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab import transfers
from lab.conversation import random_tokens
from lab.engine import engine as start
from lab.recipes import QWEN3_NEXT
from lab.store import machine
from tests import mooncake_helpers
from tests.e2e.conftest import removing

# Every worker needs a key head.
TWO_HEADS = replace(
    QWEN3_NEXT,
    name="qwen3_next_tp2",
    settings={**QWEN3_NEXT.settings, "linear_num_key_heads": 2},
)


@pytest.fixture(autouse=True)
def _workers_without_a_numa_node_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")


@pytest.fixture(autouse=True)
def _without_the_files_of_vllm() -> Iterator[None]:
    """vLLM's workers talk through shared memory, which this build does not unlink."""
    with removing(lambda name: name.endswith(("cpushm_0", "cpushm_1"))):
        yield


def test_restores_on_two_workers() -> None:
    prompt = random_tokens(1_500, "two workers")
    with start(TWO_HEADS, transfers.tiercache("64MiB"), tensor_parallel_size=2) as engine:
        cold = engine.ask(prompt)
        engine.reset_device()
        restored = engine.ask(prompt)
        engine.manager.cache.validate()
    assert (cold.cached_tokens, restored.cached_tokens) == (0, 1_472)
    assert restored.agrees(cold)


@pytest.mark.timeout(300)  # two engines of two workers start
def test_the_disk_has_the_blocks_of_both_workers(tmp_path: Path) -> None:
    prompt = random_tokens(1_500, "two workers, one disk")
    transfer = transfers.with_disk("64MiB", tmp_path)
    with start(TWO_HEADS, transfer, tensor_parallel_size=2) as engine:
        cold = engine.ask(prompt)
        engine.rest()
    with start(TWO_HEADS, transfer, tensor_parallel_size=2) as engine:
        restored = engine.ask(prompt)
        engine.rest()
        engine.manager.cache.validate()
    assert (cold.cached_tokens, restored.cached_tokens) == (0, 1_472)
    assert restored.agrees(cold)


@pytest.mark.timeout(300)  # two engines of two workers start
def test_a_store_has_the_blocks_of_both_workers() -> None:
    """One engine fills it and is gone; another one restores."""
    prompt = random_tokens(1_500, "two workers, one store")
    with mooncake_helpers.master() as running, machine(running):
        transfer = transfers.with_store("64MiB", running.address)
        with start(TWO_HEADS, transfer, tensor_parallel_size=2) as engine:
            cold = engine.ask(prompt)
            engine.rest()
        with start(TWO_HEADS, transfer, tensor_parallel_size=2) as engine:
            restored = engine.ask(prompt)
            engine.rest()
            engine.manager.cache.validate()
    assert (cold.cached_tokens, restored.cached_tokens) == (0, 1_472)
    assert restored.agrees(cold)
