# SPDX-License-Identifier: Apache-2.0
"""``TierCacheConnector`` in the place of vLLM's connector, between its scheduler and its stubs.

Covers what vLLM's runner of requests is built from: the connector of the scheduler and of the
worker, a model that needs no download, and a manager that does what a test tells it to do. What
is tested is that our connector changes nothing of what vLLM's does.
"""

import copy
import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from vllm.config import ModelConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import LookupResult, RequestOffloadingContext
from vllm.v1.kv_offload.cpu import manager as host_memory
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tiercache.blocks import GroupKind, GroupSpec
from tiercache.cache import TieredCache
from tiercache.vllm import connector
from tiercache.vllm.connector import TierCacheConnector
from tiercache.vllm.geometry import Blueprint
from tiercache.vllm.manager import TierCacheManager

OURS = (TierCacheConnector, TieredCache)
UTILITIES = "tests.v1.kv_connector.unit.utils"
RUNNER = "tests.v1.kv_connector.unit.offloading_connector.utils"
#: The parts of a model that vLLM's configuration reads; the tests bring their own layers.
MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "ffn_dim": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 50272,
    "max_position_embeddings": 10_000,
}


class HostConnector(TierCacheConnector):
    """Is given the one setting that ours cannot do without."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None
        settings = transfer.kv_connector_extra_config
        settings.setdefault("cpu_bytes_to_use", "64MiB")
        for name in connector.SPEC:  # it names its spec itself
            settings.pop(name, None)
        super().__init__(vllm_config, role, kv_cache_config)
        HostManager.blueprint = self._blueprint


class HostManager(TierCacheManager):
    """In the place of vLLM's manager, for tests that make one themselves.

    It has the groups of the connector that was made last, with ``num_chunks`` slots each; without
    a connector, three groups of full attention.
    """

    blueprint: Blueprint | None = None

    def __init__(self, num_chunks: int) -> None:
        groups: Sequence[GroupSpec] = [GroupSpec(i, GroupKind.FULL, 4, 4096) for i in range(3)]
        if self.blueprint is not None:
            groups = self.blueprint.geometry.groups
        slots = {group.group_id: num_chunks for group in groups}
        super().__init__(TieredCache(groups, slots, tokens_per_hash=4))
        HostManager.blueprint = None


def install() -> None:
    install_with(obedient)


def install_with(equip: Any) -> None:
    """Put our connector in place, and specs whose manager was equipped by ``equip``."""
    utils, runner = map(import_module, (UTILITIES, RUNNER))
    vars(utils)["ModelConfig"] = Models()
    host_memory.CPUOffloadingManager = HostManager
    vars(connector)["join_vllm_log"] = lambda: None
    connector.SPEC.update(spec_name="MockOffloadingSpec", spec_module_path=RUNNER)
    KVConnectorFactory._registry["OffloadingConnector"] = lambda: HostConnector
    theirs: Any = vars(runner)["MockOffloadingSpec"]

    class HostSpec(theirs):  # type: ignore[misc] # vLLM's, loaded by name
        """A spec whose manager is, for who asks, one of ours."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            stubbed = vars(self)["manager"]
            self.manager = MagicMock(spec=TierCacheManager)
            equip(self, stubbed)

    vars(runner).update(OffloadingConnector=HostConnector, MockOffloadingSpec=HostSpec)


def obedient(spec: Any, stubbed: MagicMock) -> None:
    """A manager that answers what the test says; what only our connector asks for is nothing."""
    ours = spec.manager
    ours.lookup.return_value = LookupResult.MISS
    ours.get_load_source.return_value = CacheHitSource.EXTERNAL_UNSPECIFIED
    ours.get_stats.return_value = None
    ours.on_new_request.return_value = RequestOffloadingContext()
    ours.prepare_load = stubbed.prepare_load
    ours.begin_lookup.return_value = None
    ours.is_waiting = False


class Models:
    """Makes the configuration of a model: one for all that ask alike, and each gets a copy."""

    def __init__(self) -> None:
        self._made: dict[str, ModelConfig] = {}
        self._folder = Path(os.environ["HOST_SCRATCH"], "model")

    def __call__(self, **settings: Any) -> ModelConfig:
        wanted = repr(sorted(settings.items()))
        if wanted not in self._made:
            self._folder.mkdir(exist_ok=True)
            self._folder.joinpath("config.json").write_text(json.dumps(MODEL))
            place = {"model": str(self._folder), "tokenizer": str(self._folder)}
            self._made[wanted] = ModelConfig(**settings | place, skip_tokenizer_init=True)
        return copy.copy(self._made[wanted])
