# SPDX-License-Identifier: Apache-2.0
"""``kv_load_tiers`` of a request: what it may be brought, and from where."""

import random
from itertools import count
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the filter is vLLM's")

from vllm.v1.kv_offload.base import Locality, Medium, TierFilter, TierMatcher

from tests.vllm.conftest import Start
from tests.vllm.fake_engine import FakeEngine
from tests.vllm.setups import Setup, attention, group
from tests.vllm.tag_tier import TagTier
from tests.vllm.test_scheduler import again, tokens
from tiercache.vllm.filters import barred

SMALL = Setup([group(attention())], [20])
CASES: list[tuple[tuple[TierMatcher, ...], set[str]]] = [
    ((), {"memory", "nvme", "mooncake", "tags"}),
    ((TierMatcher(),), set()),
    ((TierMatcher(medium=Medium.STORAGE),), {"memory", "mooncake"}),
    ((TierMatcher(locality=Locality.LOCAL),), {"mooncake"}),
    ((TierMatcher(Medium.CPU, Locality.REMOTE),), {"memory", "nvme"}),
    ((TierMatcher(Medium.STORAGE, Locality.REMOTE),), {"memory", "nvme", "mooncake"}),
]


class Named:
    def __init__(self, kind: str) -> None:
        self.kind = self.name = kind


@pytest.mark.parametrize(("matchers", "left_out"), CASES)
def test_a_filter_names_tiers_by_where_they_keep_it(
    matchers: tuple[TierMatcher, ...], left_out: set[str]
) -> None:
    tiers: Any = [Named(kind) for kind in ("memory", "nvme", "mooncake", "tags")]
    assert barred(tiers, TierFilter(matchers)) == left_out
    assert barred(tiers, TierFilter.ALL) == frozenset()


def stocked(engine: FakeEngine, kind: str) -> list[int]:
    """A prompt that only a second tier still has."""
    tier = TagTier(engine.worker, random.Random(2), entries=300, spill="on_store")
    tier.kind = kind  # type: ignore[misc]
    clock = count(0, 0.01).__next__
    engine.manager.cache.attach([tier], patience_s=10.0, restore="always", clock=clock)
    prompt = tokens(200)
    engine.ask("a", prompt)
    for number in range(12):
        engine.ask(f"other {number}", tokens(40, str(number)))
    engine.reset_device()
    return prompt


@pytest.mark.parametrize(
    ("allowed", "restored"),
    [
        (None, True),
        ([{"medium": "STORAGE"}], True),
        ([{"medium": "CPU"}, {"locality": "local"}], True),
        ([{"medium": "CPU"}], False),
        ([{"locality": "REMOTE"}], False),
        ([], False),
    ],
)
def test_a_request_is_brought_nothing_from_where_it_may_not_load(
    start: Start, allowed: list[dict[str, str]] | None, restored: bool
) -> None:
    engine = start(SMALL)
    prompt = stocked(engine, "nvme")
    extra: dict[str, Any] = {} if allowed is None else {"kv_load_tiers": allowed}
    engine.add("b", prompt, **extra)
    engine.run()
    assert (engine.answers["b"].restored > 100) is restored


def test_what_another_request_had_brought_is_for_all(start: Start) -> None:
    """Host memory is not filtered, as in vLLM."""
    engine = start(SMALL)
    prompt = stocked(engine, "nvme")
    brought = again(engine, "b", prompt)
    engine.reset_device()
    engine.add("c", prompt, kv_load_tiers=[])
    engine.run()
    assert engine.answers["c"].restored == brought > 100
