# SPDX-License-Identifier: Apache-2.0
"""Random conversations in a real vLLM, with pools that are always full."""

import sys
from pathlib import Path

import pytest

from lab import transfers
from lab.engine import engine
from lab.recipes import GEMMA3, QWEN3_NEXT, Recipe
from lab.soak import Soak

SHORT_SECONDS = 20
LONG_SECONDS = 600
tell = sys.stderr.write


def soak(
    recipe: Recipe, seconds: float, seed: int, disk: Path | None = None, **settings: object
) -> None:
    budget = f"{16 if recipe is QWEN3_NEXT else 8}MiB"
    transfer = transfers.tiercache(budget, **settings)
    if disk is not None:
        transfer = transfers.with_disk(budget, disk, capacity="64MiB", **settings)
    with engine(recipe, transfer) as running:
        report = Soak(running, seed).play(seconds, lambda text: tell(text + "\n"))
    tell(f"{report}\n")
    assert report.wrong == []
    assert report.requests > 0
    assert report.cached_tokens > 0


@pytest.mark.parametrize("policy", ["lru", "arc", "cost"])
def test_states_and_attention(policy: str) -> None:
    soak(QWEN3_NEXT, SHORT_SECONDS, seed=1, eviction_policy=policy)


def test_sliding_window() -> None:
    soak(GEMMA3, SHORT_SECONDS, seed=2)


@pytest.mark.parametrize("spill", ["on_store", "on_evict"])
def test_behind_a_disk_that_is_full(spill: str, tmp_path: Path) -> None:
    soak(QWEN3_NEXT, SHORT_SECONDS, seed=4, disk=tmp_path, spill=spill)


@pytest.mark.soak
@pytest.mark.timeout(LONG_SECONDS + 300)
def test_ten_minutes_behind_a_disk(tmp_path: Path) -> None:
    soak(QWEN3_NEXT, LONG_SECONDS, seed=5, disk=tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(LONG_SECONDS + 300)
def test_ten_minutes() -> None:
    soak(QWEN3_NEXT, LONG_SECONDS, seed=3)
