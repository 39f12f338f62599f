# SPDX-License-Identifier: Apache-2.0
"""Any two kinds of damage at once: both are put right, though one remedy may undo the other."""

import shutil
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from tests.tiers.nvme.damage_helpers import DAMAGES, STORED
from tests.tiers.nvme.server_helpers import fill, reopened
from tests.tiers.nvme.test_audit import fix, look

#: To open a tier takes longer than all the rest: after every so many pairs.
OPENED = 20


def damaged_twice(directory: Path, whole: Path) -> Iterator[tuple[str, str]]:
    """A whole pool again and again, with each two damages that can be done one after the other."""
    root = whole.parent / directory.parent.parent.name
    for first, second in permutations(DAMAGES, 2):
        shutil.rmtree(root)
        shutil.copytree(whole, root, symlinks=True)
        try:
            DAMAGES[first].make(directory)
            DAMAGES[second].make(directory)
        except Exception:  # noqa: BLE001 - whatever cannot be done
            continue  # when the first has removed what the second would damage
        yield first, second


@pytest.mark.timeout(300)
def test_two_kinds_at_once_are_put_right(tmp_path: Path) -> None:
    directory = fill(tmp_path / "root" / "nvme")
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "root", whole, symlinks=True)
    pairs = 0
    for pair in damaged_twice(directory, whole):
        left = fix(directory, look(directory))
        assert left.findings == look(directory).findings == (), pair
        pairs += 1
        if pairs % OPENED == 0:
            with reopened(directory.parent) as served:
                assert set(served) <= set(STORED), pair
    assert pairs > 1_500
