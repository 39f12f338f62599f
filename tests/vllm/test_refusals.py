# SPDX-License-Identifier: Apache-2.0
"""What keeps a server from starting: refused at once, with key, value and what is allowed."""

import time
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the settings are read through vLLM's configuration")

from vllm.config import ModelConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.kv_cache_interface import CrossAttentionSpec

from tests.vllm.setups import (
    Setup,
    attention,
    group,
    kv_cache_config,
    qwen3_next,
    recurrent,
    vllm_config,
    window,
)
from tiercache.blocks import GroupKind
from tiercache.errors import ConfigError, OutOfMemoryError, UnsupportedError
from tiercache.vllm.connector import TierCacheConnector
from tiercache.vllm.geometry import make_blueprint

HYBRID = Setup(qwen3_next())
PLAIN = Setup([group(attention())])
SECOND = 1.0

WRONG: list[tuple[str, Any]] = [
    ("cpu_bytes_to_use", "64 gigs"),
    ("cpu_bytes_to_use", -1),
    ("cpu_bytes_to_use", 4095),
    ("cpu_bytes_to_use", True),
    ("block_size", 24),
    ("block_size", "16"),
    ("blocks_per_chunk", 0),
    ("eviction_policy", "mru"),
    ("demote_superseded_states", "yes"),
    ("demote_keep_blocks", 0),
    ("demote_forks", 1),
    ("mamba_state_slots_reference_tokens", 0),
    ("group_slots", {"0": -1}),
    ("group_slots", {"9": 10}),
    ("offload_prompt_only", None),
    ("store_threshold", -1),
    ("max_tracker_size", 0),
    ("secondary_tiers", {"type": "nvme"}),
    ("restore_patience_s", "5s"),
    ("restore", "never"),
    ("share_junctions", 0),
    ("stats", "on"),
    ("demote_supersede_states", True),
]


def connect(model: ModelConfig, setup: Setup, role: KVConnectorRole) -> TierCacheConnector:
    config = vllm_config(setup, model)
    return TierCacheConnector(config, role, kv_cache_config(setup, config))


@pytest.mark.parametrize(("key", "value"), WRONG, ids=str)
@pytest.mark.parametrize("role", list(KVConnectorRole), ids=lambda role: role.name.lower())
def test_a_wrong_setting_is_refused_in_less_than_a_second(
    model: ModelConfig, role: KVConnectorRole, key: str, value: Any
) -> None:
    setup = replace(PLAIN, settings={key: value})
    config = vllm_config(setup, model)
    found = kv_cache_config(setup, config)
    start = time.monotonic()
    with pytest.raises(ConfigError) as refusal:
        TierCacheConnector(config, role, found)
    assert time.monotonic() - start < SECOND
    assert refusal.value.key == key
    assert key in str(refusal.value)
    assert str(refusal.value.allowed) in str(refusal.value)


@pytest.mark.parametrize(("key", "value"), WRONG[:2] + WRONG[7:9], ids=str)
def test_a_wrong_setting_is_refused_before_the_model_is_loaded(
    model: ModelConfig, key: str, value: Any
) -> None:
    config = vllm_config(replace(PLAIN, settings={key: value}), model)
    with pytest.raises(ConfigError, match=key):
        TierCacheConnector.get_required_kvcache_layout(config)
    assert config.kv_transfer_config is not None
    with pytest.raises(ConfigError, match=key):
        TierCacheConnector.requires_piecewise_for_cudagraph(
            config.kv_transfer_config.kv_connector_extra_config
        )


@pytest.mark.parametrize(
    "key",
    [
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
        "nnodes",
    ],
)
def test_parallelism_that_is_not_supported_is_refused(model: ModelConfig, key: str) -> None:
    config = vllm_config(HYBRID, model)
    found = kv_cache_config(HYBRID, config)
    setattr(config.parallel_config, key, 2)
    with pytest.raises(ConfigError, match=f"{key}: 2 is not allowed; allowed: 1: .*one node"):
        make_blueprint(config, found)
    with pytest.raises(ConfigError, match=key):
        TierCacheConnector.get_required_kvcache_layout(config)


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"blocks_per_chunk": 2}, "blocks_per_chunk"), ({"block_size": 32}, "block_size")],
    ids=str,
)
def test_chunks_of_several_blocks_are_refused_with_states(
    model: ModelConfig, settings: dict[str, int], key: str
) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*recurrent.*omit '{key}'"):
        connect(model, replace(HYBRID, settings=settings), KVConnectorRole.SCHEDULER)


@pytest.mark.parametrize("mode", ["none", "all"])
def test_states_that_are_not_aligned_are_refused(model: ModelConfig, mode: str) -> None:
    setup = Setup([group(attention()), group(recurrent(mode=mode), "gdn")])
    config = vllm_config(setup, model)
    found = kv_cache_config(Setup([group(attention()), group(recurrent(), "gdn")]), config)
    found.kv_cache_groups = list(setup.groups)
    with pytest.raises(UnsupportedError, match=f"'{mode}'; supported: 'align'"):
        make_blueprint(config, found)


def test_a_kind_of_group_that_is_not_known_is_refused(model: ModelConfig) -> None:
    config = vllm_config(PLAIN, model)
    found = kv_cache_config(PLAIN, config)
    spec = attention()
    found.kv_cache_groups = [
        group(spec),
        group(
            CrossAttentionSpec(
                block_size=spec.block_size, num_kv_heads=1, head_size=16, dtype=spec.dtype
            ),
            "cross",
        ),
    ]
    with pytest.raises(UnsupportedError, match=r"CrossAttentionSpec; supported: full"):
        make_blueprint(config, found)


def test_more_memory_than_there_is_is_refused_with_both_numbers() -> None:
    from tiercache.arena import HostArena, available_bytes

    start = time.monotonic()
    with pytest.raises(OutOfMemoryError) as refusal:
        HostArena({0: (2**40, 4096)})
    assert time.monotonic() - start < SECOND
    assert str(2**52) in str(refusal.value)
    assert refusal.value.available <= available_bytes() * 2


def test_workers_that_made_other_slots_are_refused(model: ModelConfig) -> None:
    config = vllm_config(HYBRID, model)
    blueprint = make_blueprint(config, kv_cache_config(HYBRID, config))
    blueprint.check(blueprint.geometry.slots, rank=0)
    with pytest.raises(UnsupportedError, match="worker 1 made"):
        blueprint.check({**blueprint.geometry.slots, 0: 1}, rank=1)


def test_kinds_of_groups(model: ModelConfig) -> None:
    setup = Setup([group(attention(), "full"), group(window(40), "window")])
    config = vllm_config(setup, model)
    full, sliding = make_blueprint(config, kv_cache_config(setup, config)).geometry.groups
    assert (full.kind, full.window_chunks) == (GroupKind.FULL, None)
    assert (sliding.kind, sliding.window_chunks) == (GroupKind.WINDOW, 3)
