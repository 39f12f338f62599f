# SPDX-License-Identifier: Apache-2.0
"""Whatever lies in the place of our files, the answer is a miss or a sentence: never a crash."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.security import attacks
from tests.stats_helpers import create, event
from tiercache.stats.model import Phase


@pytest.mark.parametrize("kind", attacks.HARMS)
def test_a_pool_of_hostile_bytes(kind: str, tmp_path: Path) -> None:
    attacks.run(attacks.pools, tmp_path, kind, 0, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("kind", attacks.HARMS)
def test_many_pools_of_hostile_bytes(kind: str, seed: int, tmp_path: Path) -> None:
    attacks.run(attacks.pools, tmp_path, kind, seed, 80)


@pytest.mark.parametrize("what", attacks.STRANGE)
def test_something_else_in_the_place_of_each_file(what: str, tmp_path: Path) -> None:
    attacks.run(attacks.strange, tmp_path, what)


def test_a_segment_of_hostile_bytes(tmp_path: Path) -> None:
    with closing(create(tmp_path / "valid")) as writer:
        writer.put_state(1.0, phase=Phase.RUN, running=1, totals={"late": 1})
        for _ in range(5):
            event(writer)
        valid = writer.path
    attacks.run(attacks.stats, tmp_path, valid, 0, 60)
