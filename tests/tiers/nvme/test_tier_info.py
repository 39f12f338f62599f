# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.tiers.nvme.tier_helpers import Rig
from tiercache.errors import TierCacheError
from tiercache.stats.rows import TIER_INDEX


def test_the_index_of_a_tier_has_the_gauges_that_a_segment_shows(rig: Rig) -> None:
    tier = rig.open()
    info = tier.index_info()
    assert tuple(info) == TIER_INDEX
    assert 0 < info["file_bytes"] <= info["map_bytes"]
    tier.close()
    with pytest.raises(TierCacheError):
        tier.index_info()
