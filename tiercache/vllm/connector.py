# SPDX-License-Identifier: Apache-2.0
"""``TierCacheConnector``: what ``vllm serve`` loads.

A thin subclass of vLLM's offloading connector: it hands vLLM our spec, and the manager what
vLLM's interface does not carry (the KV cache's layout, block hashes, prompt lengths). vLLM's
scheduler and worker halves of the connector are used as they are.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from tiercache.config import TierCacheConfig
from tiercache.restore import RestorePlan
from tiercache.sharing import ArenaTicket
from tiercache.vllm.compat import check_version, mistakes_blocks_of_sessions
from tiercache.vllm.fingerprint import fingerprint
from tiercache.vllm.geometry import (
    BLUEPRINT,
    extra_config,
    make_blueprint,
    model_name,
    refuse_topology,
)
from tiercache.vllm.logs import join_vllm_log
from tiercache.vllm.manager import TierCacheManager
from tiercache.vllm.worker import TierCacheWorker

logger = logging.getLogger(__name__)

SPEC = {"spec_name": "TierCacheSpec", "spec_module_path": "tiercache.vllm.spec"}


@dataclass
class ArenaMetadata(KVConnectorHandshakeMetadata):
    """Slots per group that a worker made, which the scheduler compares with its own.

    And the way to them, which secondary tiers need.
    """

    slots: Mapping[int, int]
    ticket: ArenaTicket | None


class TierCacheConnector(OffloadingConnector):
    """KV connector of tiercache, for vLLM 0.32 and 0.33.

    Raises (at start-up only):
        ConfigError: a setting is wrong.
        UnsupportedError: the vLLM version, the model or the topology is not supported.
        OutOfMemoryError: the arena does not fit into memory.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        join_vllm_log()
        check_version()
        self._blueprint = make_blueprint(vllm_config, kv_cache_config)
        self._vllm_config = vllm_config
        extra_config(vllm_config).update(SPEC)
        token = BLUEPRINT.set(self._blueprint)
        try:
            super().__init__(vllm_config, role, kv_cache_config)
        finally:
            BLUEPRINT.reset(token)

    # --- start-up

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Called while vLLM builds its configuration: the earliest place to refuse a setting."""
        TierCacheConfig.from_mapping(extra_config)
        return super().requires_piecewise_for_cudagraph(extra_config)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """Called before the model is loaded where the other is not: without CUDA graphs."""
        check_version()
        TierCacheConfig.from_mapping(extra_config(vllm_config))
        refuse_topology(vllm_config)
        return super().get_required_kvcache_layout(vllm_config)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any
    ) -> KVConnectorPromMetrics:
        """Called in the API server, where no connector is built and the spec is still unnamed."""
        extra_config(vllm_config).update(SPEC)
        return super().build_prom_metrics(vllm_config, *args, **kwargs)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        worker = self.connector_worker.worker
        ticket = worker.ticket if isinstance(worker, TierCacheWorker) else None
        return ArenaMetadata(dict(self._blueprint.geometry.slots), ticket)

    def set_xfer_handshake_metadata(
        self, metadata: dict[int, KVConnectorHandshakeMetadata]
    ) -> None:
        """Called once the workers and the scheduler are there.

        The tiers are opened here, and the stats segment begins.
        """
        tickets = []
        for rank, arena in sorted(metadata.items()):
            assert isinstance(arena, ArenaMetadata)
            self._blueprint.check(arena.slots, rank)
            tickets.append(arena.ticket)
        if self._blueprint.config.secondary_tiers:
            tokens_per_hash = self.manager.cache.primary.tokens_per_hash
            fields = fingerprint(self._vllm_config, self._blueprint, tokens_per_hash)
            self.manager.attach(self._blueprint, [t for t in tickets if t is not None], fields)
        if self._blueprint.config.stats:
            parallel = self._vllm_config.parallel_config
            self.manager.publish(
                model_name(self._vllm_config),
                workers=self._blueprint.world_size,
                rank=parallel.data_parallel_rank,
            )

    # --- scheduler

    @property
    def manager(self) -> TierCacheManager:
        manager = self.scheduler.manager
        assert isinstance(manager, TierCacheManager)
        return manager

    def on_new_request(self, request: Request) -> None:
        may_store = not (request.resumable and mistakes_blocks_of_sessions())
        self.manager.expect(request.request_id, request.block_hashes, may_store=may_store)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if request.skip_reading_prefix_cache:
            return super().get_num_new_matched_tokens(request, num_computed_tokens)
        manager, request_id = self.manager, request.request_id
        # The last token has to be computed, so a restore ends before it.
        plan = manager.begin_lookup(
            request_id, start=num_computed_tokens, limit=request.num_tokens - 1
        )
        if manager.is_waiting:
            return None, False
        try:
            found = super().get_num_new_matched_tokens(request, num_computed_tokens)
        finally:
            manager.end_lookup()
        if plan is not None:
            self._share_junction(request, plan)
            if logger.isEnabledFor(logging.DEBUG):
                reason = manager.explain(request_id, plan)
                logger.debug("tiercache: request %s %s", request_id, reason)
        return found

    def _share_junction(self, request: Request, plan: RestorePlan) -> None:
        """Have a state kept where the attention prefix of another conversation branches off."""
        block = self._blueprint.state_tokens
        if block is None or not plan.lost or not self._blueprint.config.share_junctions:
            return
        junction = plan.attention // block * block
        if junction > plan.boundary:
            request.shared_prefix_boundary = max(request.shared_prefix_boundary, junction)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        self.manager.step(scheduler_output.total_num_scheduled_tokens)
        return super().build_connector_meta(scheduler_output)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self.manager.served(request.request_id, num_external_tokens)
