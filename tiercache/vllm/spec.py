# SPDX-License-Identifier: Apache-2.0
"""vLLM's ``OffloadingSpec`` of tiercache: builds the manager and the worker."""

import logging
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from tiercache.arena import HostArena
from tiercache.cache import TieredCache
from tiercache.errors import UnsupportedError
from tiercache.vllm.geometry import BLUEPRINT, Blueprint
from tiercache.vllm.manager import TierCacheManager
from tiercache.vllm.metrics import definitions
from tiercache.vllm.worker import TierCacheWorker, group_bytes

logger = logging.getLogger(__name__)


class TierCacheSpec(OffloadingSpec):
    """Made by vLLM's offloading connector, on behalf of ``TierCacheConnector``."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        blueprint = BLUEPRINT.get(None)
        if blueprint is None:
            raise UnsupportedError(
                "TierCacheSpec needs the KV cache's layout: choose kv_connector "
                "'TierCacheConnector' with kv_connector_module_path 'tiercache.vllm.connector'"
            )
        self.blueprint: Blueprint = blueprint

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return definitions()

    def get_manager(self) -> OffloadingManager:
        config, geometry = self.blueprint.config, self.blueprint.geometry
        logger.info("tiercache pools: %s", geometry.describe())
        if not geometry.state_slots:
            logger.info("tiercache: no recurrent layers, plain %s", config.eviction_policy)
        cache = TieredCache(
            geometry.groups,
            geometry.slots,
            tokens_per_hash=self.tokens_per_hash,
            policy=config.eviction_policy,
            demote=config.demote_superseded_states,
            keep_blocks=config.demote_keep_blocks,
            demote_forks=config.demote_forks,
            store_threshold=config.store_threshold,
            max_tracker_size=config.max_tracker_size,
        )
        return TierCacheManager(
            cache,
            workers=self.blueprint.world_size,
            kv_events=self.kv_events_config.enable_kv_cache_events,
        )

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Allocate the arena and build the worker.

        Raises:
            OutOfMemoryError: the arena does not fit into memory.
            UnsupportedError: the blocks on the device do not fit into the slots.
        """
        geometry = self.blueprint.geometry
        for group, found in zip(geometry.groups, group_bytes(kv_caches), strict=True):
            if found * self.blocks_per_chunk > group.slot_bytes:
                raise UnsupportedError(
                    f"group {group.group_id} has blocks of {found} bytes on the device, "
                    f"but its slots hold {group.slot_bytes // self.blocks_per_chunk}"
                )
        regions = {
            group.group_id: (geometry.slots[group.group_id], group.slot_bytes)
            for group in geometry.groups
        }
        shared = self.blueprint.shares_arena
        arena = HostArena(regions, pin=current_platform.is_cuda_alike(), shared=shared)
        group_ids = [group.group_id for group in geometry.groups]
        return TierCacheWorker(kv_caches, arena, group_ids, self.blocks_per_chunk)
