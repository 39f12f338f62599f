# SPDX-License-Identifier: Apache-2.0
"""Tiers are told which states several conversations are known to go on from."""

from collections.abc import Iterator

import pytest

from tests.core_helpers import FULL, chain, checkpoint, keys
from tests.tiering.rig import Rig
from tiercache.blocks import BlockHash, Key


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.settle()
    made.check()


def branch(trunk: list[BlockHash], name: str) -> list[BlockHash]:
    """A prompt that goes on from ``trunk``."""
    return trunk + chain(name, 8)[len(trunk) :]


def forks(rig: Rig) -> set[Key]:
    """What the tier was told of all that it was offered."""
    told = {key for batch in rig.tier.stores for key in batch.forks}
    assert told <= set(rig.storing)
    return told


def test_a_state_with_two_continuations_is_a_fork(rig: Rig) -> None:
    trunk = chain("a", 4)
    requests = [rig.open(branch(trunk, name), name) for name in "bc"]
    rig.store(requests[0], keys(requests[0].lineage.hashes, FULL))
    rig.store(requests[0], checkpoint(trunk, 4))
    for request in requests:
        rig.store(request, checkpoint(request.lineage.hashes, 8))
    for request in requests:
        rig.cache.finish(request)
    rig.cache.poll()
    assert set(rig.storing) >= set(checkpoint(trunk, 4))
    assert forks(rig) == set(checkpoint(trunk, 4))


def test_one_continuation_is_none(rig: Rig) -> None:
    hashes = chain("a", 8)
    rig.turn(hashes, 4, 8)
    rig.cache.poll()
    assert set(rig.storing) >= set(checkpoint(hashes, 8))
    assert not forks(rig)
