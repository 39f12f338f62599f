# SPDX-License-Identifier: Apache-2.0
"""Two workers, each with an arena of its own; a slot is the same number in both."""

from dataclasses import replace

import pytest
from lab import transfers
from lab.conversation import random_tokens
from lab.engine import engine as start
from lab.recipes import QWEN3_NEXT

# Every worker needs a key head.
TWO_HEADS = replace(
    QWEN3_NEXT,
    name="qwen3_next_tp2",
    settings={**QWEN3_NEXT.settings, "linear_num_key_heads": 2},
)


def test_restores_on_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise each worker wants a NUMA node.
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    prompt = random_tokens(1_500, "two workers")
    with start(TWO_HEADS, transfers.tiercache("64MiB"), tensor_parallel_size=2) as engine:
        cold = engine.ask(prompt)
        engine.reset_device()
        restored = engine.ask(prompt)
        engine.manager.cache.validate()
    assert (cold.cached_tokens, restored.cached_tokens) == (0, 1_472)
    assert restored.tokens == cold.tokens
