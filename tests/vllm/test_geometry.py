# SPDX-License-Identifier: Apache-2.0
"""From vLLM's own configuration objects to groups and slots."""

import copy
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the groups are vLLM's")

import torch
from vllm.config import ModelConfig
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheTensor,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
)

from tests.vllm.setups import (
    BLOCK,
    MODEL_LEN,
    Setup,
    attention,
    group,
    kv_cache_config,
    qwen3_next,
    recurrent,
    vllm_config,
    window,
)
from tiercache.blocks import GroupKind, GroupSpec
from tiercache.errors import ConfigError
from tiercache.vllm.compat import stores_torn_chunks
from tiercache.vllm.geometry import Blueprint, describe_group, make_blueprint

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
        get_sliding_window_size_in_chunks,
    )
except ImportError:  # where vLLM 0.32 has it
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
        get_sliding_window_size_in_chunks,
    )

DTYPE = torch.bfloat16


def blueprint(model: ModelConfig, setup: Setup) -> Blueprint:
    config = vllm_config(setup, model)
    return make_blueprint(config, kv_cache_config(setup, config))


def described(*specs: Any, blocks_per_chunk: int = 1, **fields: Any) -> list[GroupSpec]:
    """Groups of one layer each, as they are cached."""
    groups = [group(spec, layers=1, **fields) for spec in specs]
    config = KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=groups)
    return [
        describe_group(config, group_id, blocks_per_chunk)
        for group_id in config.prefix_cacheable_group_ids
    ]


def latent(**fields: Any) -> Any:
    return MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=36, dtype=DTYPE, **fields)


def local(tokens: int, block: int = BLOCK) -> Any:
    return ChunkedLocalAttentionSpec(
        block_size=block,
        num_kv_heads=1,
        head_size=16,
        dtype=DTYPE,
        attention_chunk_size=tokens,
    )


def heads(count: int) -> Any:
    return FullAttentionSpec(block_size=BLOCK, num_kv_heads=count, head_size=16, dtype=DTYPE)


# --- kinds


@pytest.mark.parametrize(
    ("spec", "kind", "chunks"),
    [
        pytest.param(attention(), GroupKind.FULL, None, id="full"),
        pytest.param(latent(), GroupKind.FULL, None, id="latent"),
        pytest.param(window(40), GroupKind.WINDOW, 3, id="window"),
        pytest.param(window(48, extra_retained_tokens=1), GroupKind.WINDOW, 3, id="retained"),
        pytest.param(window(48, extra_retained_tokens=2), GroupKind.WINDOW, 4, id="more retained"),
        pytest.param(local(64), GroupKind.WINDOW, 4, id="chunked local"),
        pytest.param(recurrent(), GroupKind.STATE, None, id="recurrent"),
        pytest.param(
            UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs={"a": window(40)}),
            GroupKind.WINDOW,
            3,
            id="uniform",
        ),
    ],
)
def test_kinds(spec: Any, kind: GroupKind, chunks: int | None) -> None:
    (found,) = described(spec)
    assert (found.kind, found.window_chunks, found.draft) == (kind, chunks, False)


@pytest.mark.parametrize("block", [16, 48])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 47, 48, 49, 1000])
@pytest.mark.parametrize("kind", [window, local])
def test_windows_have_as_many_chunks_as_vllm_says(kind: Any, tokens: int, block: int) -> None:
    spec = kind(tokens, block)
    (found,) = described(spec, blocks_per_chunk=2)
    assert found.window_chunks == get_sliding_window_size_in_chunks(spec, 2 * block)


def test_a_drafters_group_is_marked() -> None:
    assert [found.draft for found in described(attention(), draft=True)] == [True]


def test_groups_that_are_not_cached_leave_holes_in_the_ids() -> None:
    ring = CircularBufferSpec(block_size=4, num_kv_heads=1, head_size=16, dtype=DTYPE)
    replayed = SlidingWindowMLASpec(
        block_size=BLOCK,
        num_kv_heads=1,
        head_size=16,
        dtype=DTYPE,
        sliding_window=40,
        bounded_replay=True,
    )
    found = described(ring, attention(), replayed, recurrent())
    assert [(g.group_id, g.kind) for g in found] == [(1, GroupKind.FULL), (3, GroupKind.STATE)]


# --- sizes


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        # Keys and values of a head, in bfloat16.
        pytest.param(attention(64), 64 * 2 * 16 * 2, id="full"),
        pytest.param(replace(attention(64), page_size_padded=9000), 64 * 2 * 16 * 2, id="padded"),
        # Both states in float32; their page is padded to that of the attention.
        pytest.param(replace(recurrent(256), shapes=((2, 512), (8, 128))), 8192, id="recurrent"),
        pytest.param(recurrent(256), 4096, id="rounded up"),
    ],
)
def test_a_slot_holds_the_bytes_that_are_used(spec: Any, size: int) -> None:
    assert [found.slot_bytes for found in described(spec)] == [size]


def test_a_slot_holds_all_layers_and_all_blocks_of_a_chunk() -> None:
    groups = [group(attention(64), layers=3)]
    config = KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=groups)
    found = describe_group(config, 0, blocks_per_chunk=5)
    assert (found.slot_bytes, found.tokens_per_chunk) == (3 * 5 * 4096, 5 * 64)


def test_the_scheduler_and_the_workers_agree_on_layers_of_different_sizes(
    model: ModelConfig,
) -> None:
    """Workers know the layers of such a group, the scheduler only the first of them."""
    layers = {f"layer.{count}": heads(count) for count in (1, 2, 4)}
    sizes = {name: spec.page_size_bytes for name, spec in layers.items()}
    total, offset, tensors = 100 * sum(sizes.values()), 0, []
    for name, size in sizes.items():
        tensors.append(KVCacheTensor(total, [name], 100 * size, size, offset))
        offset += 100 * size
    spec = UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs=layers)
    setup = Setup([group(spec)], device_blocks=100)
    config = vllm_config(setup, model)
    worker = kv_cache_config(setup, config)
    worker.kv_cache_tensors = tensors
    worker.kv_cache_groups[0].layer_names = list(layers)
    scheduler = generate_scheduler_kv_cache_config([copy.deepcopy(worker)])
    assert not isinstance(scheduler.kv_cache_groups[0].kv_cache_spec, UniformTypeKVCacheSpecs)
    ours, theirs = make_blueprint(config, worker), make_blueprint(config, scheduler)
    assert ours.geometry.groups[0].slot_bytes == 8192
    theirs.check(ours.geometry.slots, rank=0)


def test_each_worker_gets_its_share_of_the_budget(model: ModelConfig) -> None:
    setup = Setup([group(attention())], cpu_bytes=64 * 4096)
    config = vllm_config(setup, model)
    found = kv_cache_config(setup, config)
    alone = make_blueprint(config, found)
    config.parallel_config.world_size = 4
    shared = make_blueprint(config, found)
    assert (alone.geometry.token_slots, shared.geometry.token_slots) == (64, 16)
    assert shared.world_size == 4


def test_states_are_sized_for_the_longest_request_unless_told_otherwise(
    model: ModelConfig,
) -> None:
    settings = {"mamba_state_slots_reference_tokens": MODEL_LEN // 8}
    longest = blueprint(model, Setup(qwen3_next())).geometry
    shorter = blueprint(model, Setup(qwen3_next(), settings=settings)).geometry
    assert longest.reference_tokens == MODEL_LEN
    assert shorter.state_slots > longest.state_slots


def test_drafts_need_two_states_a_turn(model: ModelConfig) -> None:
    plain = blueprint(model, Setup(qwen3_next())).geometry
    drafts = blueprint(model, Setup(qwen3_next(drafts=2), drafts=2)).geometry
    assert drafts.state_slots > plain.state_slots


# --- chunks


@pytest.mark.parametrize(
    "settings", [{"blocks_per_chunk": 3}, {"block_size": 3 * BLOCK}], ids=["blocks", "tokens"]
)
def test_chunks_of_several_blocks(model: ModelConfig, settings: dict[str, int]) -> None:
    found = blueprint(model, Setup([group(attention())], settings=settings))
    assert found.blocks_per_chunk == 3
    assert found.geometry.groups[0].tokens_per_chunk == 3 * BLOCK


def test_tokens_per_chunk_that_no_number_of_blocks_has_are_refused(model: ModelConfig) -> None:
    setup = Setup([group(attention())], settings={"block_size": 24})
    with pytest.raises(ConfigError, match=r"block_size: 24.*a multiple of.*16 tokens"):
        blueprint(model, setup)


def test_tokens_per_chunk_are_refused_for_blocks_of_different_sizes(model: ModelConfig) -> None:
    groups = [group(attention(16), "a"), group(window(40, 32), "b")]
    with pytest.raises(ConfigError, match=r"block_size: 64.*16 or 32 tokens; use blocks_per_chunk"):
        blueprint(model, Setup(groups, settings={"block_size": 64}))


@pytest.mark.parametrize("spec", [window(40), local(64)], ids=["window", "chunked local"])
def test_chunks_of_several_blocks_with_windows_depend_on_the_version(
    model: ModelConfig, spec: Any
) -> None:
    """vLLM 0.32 stores and restores chunks of which a window has left the first blocks behind."""
    setup = Setup([group(attention(), "a"), group(spec, "b")], settings={"blocks_per_chunk": 2})
    if stores_torn_chunks():
        with pytest.raises(ConfigError, match=r"blocks_per_chunk: 2.*windows.*omit"):
            blueprint(model, setup)
    else:
        assert blueprint(model, setup).blocks_per_chunk == 2


def test_loads_within_a_step_are_refused_with_states(model: ModelConfig) -> None:
    """vLLM 0.33 then allocates more device blocks than it has made sure of, and stops."""
    settings = {"sync_load_budget_bytes": 1}
    with pytest.raises(ConfigError, match=r"sync_load_budget_bytes: 1.*0 for.*recurrent"):
        blueprint(model, Setup(qwen3_next(), settings=settings))
    blueprint(model, Setup([group(attention())], settings=settings))
