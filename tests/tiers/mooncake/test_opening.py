# SPDX-License-Identifier: Apache-2.0
"""What is refused when the tier is opened, and how it says so."""

import sys

import pytest

from lab.store import LOCAL
from tests import mooncake_helpers
from tests.core_helpers import key
from tests.mooncake_helpers import GROUPS, config
from tests.tier_helpers import Slots, wait
from tiercache.errors import TierCacheError
from tiercache.tierconfig import MooncakeConfig
from tiercache.tiers.base import Batch, SecondaryTier
from tiercache.tiers.factory import open_tiers
from tiercache.tiers.mooncake import client


def opened(settings: MooncakeConfig) -> SecondaryTier:
    slots = {group.group_id: 4 for group in GROUPS}
    (tier,) = open_tiers([settings], Slots(GROUPS, slots).memory, GROUPS, slots, {})
    return tier


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(TierCacheError, match=r"pip install 'tiercache-kv\[mooncake\]'"):
        opened(config())


def test_a_master_that_is_not_there_is_named(raw: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REACH_S", 1.0)
    with pytest.raises(TierCacheError, match=r"no master at 127\.0\.0\.1:1"):
        opened(config(f"{LOCAL}:1"))


def test_memory_that_cannot_be_registered_is_refused() -> None:
    class Refusing:
        def register_buffer(self, address: int, size: int) -> int:
            return -600

    with pytest.raises(TierCacheError, match="4096 bytes were not registered: -600"):
        client.Client(Refusing()).register(memoryview(bytearray(4096)))


def test_a_tier_finds_its_own_address_and_brings_its_own_memory(raw: object) -> None:
    with mooncake_helpers.master() as running:
        settings = MooncakeConfig(master=running.address, capacity=1 << 20, segment=16 << 20)
        tier = opened(settings)
        assert tier.store(Batch(1, 0, [key("a")], [0]))
        assert not wait(tier)[1].failed
        assert tier.has(key("a"))
        tier.close()
