# SPDX-License-Identifier: Apache-2.0
"""What every test of the tier starts from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers.nvme.tier_helpers import Clock, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Slots in memory and a path for tiers, which are closed at the end."""
    with Rig(tmp_path / "nvme") as rig:
        yield rig


@pytest.fixture
def clock() -> Clock:
    return Clock()
