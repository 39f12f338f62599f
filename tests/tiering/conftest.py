# SPDX-License-Identifier: Apache-2.0
"""Caches over tiers, whose invariants are checked after every test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.tiering.rig import Rig

MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig() -> Iterator[MakeRig]:
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(Rig(**options))
        return made[-1]

    yield make
    for rig in made:
        rig.check()


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    """A hybrid model: 32 attention slots, 8 of each of two state groups, and one tier."""
    return make_rig()
