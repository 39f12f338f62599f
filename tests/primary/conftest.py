# SPDX-License-Identifier: Apache-2.0
"""Tiers whose invariants are checked after every test."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.core_helpers import BLOCK, FULL, STATES, MakeTier, full, state
from tiercache.primary import PrimaryTier


@pytest.fixture
def make_tier() -> Iterator[MakeTier]:
    """Makes tiers for a hybrid model: one full group and two state groups."""
    made: list[PrimaryTier] = []

    def make(full_slots: int = 32, state_slots: int = 8, **options: Any) -> PrimaryTier:
        slots = {FULL: full_slots} | dict.fromkeys(STATES, state_slots)
        groups = [full(FULL), *map(state, STATES)]
        made.append(PrimaryTier(groups, slots, tokens_per_hash=BLOCK, **options))
        return made[-1]

    yield make
    for tier in made:
        tier.validate()


@pytest.fixture
def tier(make_tier: MakeTier) -> PrimaryTier:
    return make_tier()
