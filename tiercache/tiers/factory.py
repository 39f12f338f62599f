# SPDX-License-Identifier: Apache-2.0
"""Secondary tiers from their settings: the one place that knows every kind."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tiercache.blocks import GroupSpec
from tiercache.tierconfig import MemoryConfig, MooncakeConfig, TierConfig
from tiercache.tiers.base import SecondaryTier, SlotMemory
from tiercache.tiers.memory import MemoryTier


def open_tiers(
    configs: Sequence[TierConfig],
    memory: SlotMemory,
    groups: Sequence[GroupSpec],
    slots: Mapping[int, int],
    fingerprint: Mapping[str, object],
) -> list[SecondaryTier]:
    """Open a tier for each of ``configs``, named after its kind and place: nvme0, nvme1.

    ``fingerprint`` is all that changes what the bytes of a block mean. Raises ConfigError and
    TierCacheError; then none is left open.
    """
    opened: list[SecondaryTier] = []
    kinds: Counter[str] = Counter()
    try:
        for config in configs:
            name = f"{config.type}{kinds[config.type]}"
            kinds[config.type] += 1
            opened.append(_open(name, config, memory, groups, slots, fingerprint=fingerprint))
    except BaseException:
        for tier in opened:
            tier.close()
        raise
    return opened


def _open(
    name: str,
    config: TierConfig,
    memory: SlotMemory,
    groups: Sequence[GroupSpec],
    slots: Mapping[int, int],
    *,
    fingerprint: Mapping[str, object],
) -> SecondaryTier:
    if isinstance(config, MemoryConfig):
        return MemoryTier(name, memory, capacity=config.capacity)
    if isinstance(config, MooncakeConfig):
        # As below; and its package is an extra.
        from tiercache.tiers.mooncake.tier import MooncakeTier

        return MooncakeTier(name, memory, config=config, fingerprint=fingerprint)
    # Loads LMDB and starts threads: not before there is a tier that needs them.
    from tiercache.tiers.nvme.tier import NvmeTier

    return NvmeTier(name, memory, groups, slots, config=config, fingerprint=fingerprint)
