# SPDX-License-Identifier: Apache-2.0
"""From vLLM's configuration to groups, and the refusal of what is not supported.

Both the scheduler's and the workers' side run this on the same configuration and must come to
the same result; ``Blueprint.check`` compares them at start-up.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
    get_offloading_group_ids,
)
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from tiercache.blocks import GroupKind, GroupSpec, align_slot
from tiercache.config import TierCacheConfig
from tiercache.errors import ConfigError, UnsupportedError
from tiercache.layout import Geometry, plan_geometry
from tiercache.vllm.compat import stores_torn_chunks


@dataclass(frozen=True, slots=True)
class Blueprint:
    """All that a spec needs to build its manager or worker."""

    config: TierCacheConfig
    geometry: Geometry
    blocks_per_chunk: int
    world_size: int
    one_process: bool
    """Whether the worker shares the scheduler's process."""

    @property
    def shares_arena(self) -> bool:
        """Whether another process than the worker's has to reach the slots."""
        return bool(self.config.secondary_tiers) and not self.one_process

    @property
    def state_tokens(self) -> int | None:
        """Tokens between two boundaries at which a state can be kept; None without states."""
        states = (g for g in self.geometry.groups if g.kind is GroupKind.STATE)
        return next((group.tokens_per_chunk for group in states), None)

    def check(self, slots: Mapping[int, int], rank: object) -> None:
        """Compare with the slots of a worker's arena; raises UnsupportedError if they differ."""
        if dict(slots) != dict(self.geometry.slots):
            raise UnsupportedError(
                f"worker {rank} made {dict(slots)} slots per group "
                f"but the scheduler counts on {dict(self.geometry.slots)}"
            )


#: Set while a connector builds its spec, which vLLM creates without the KV cache's layout.
BLUEPRINT: ContextVar[Blueprint] = ContextVar("tiercache_blueprint")


def make_blueprint(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> Blueprint:
    """Work out groups and slots.

    Raises:
        ConfigError: a setting is wrong.
        UnsupportedError: the model or the topology cannot be served.
    """
    config = TierCacheConfig.from_mapping(extra_config(vllm_config))
    refuse_topology(vllm_config)
    group_ids = get_offloading_group_ids(kv_cache_config)
    blocks_per_chunk = _blocks_per_chunk(config, kv_cache_config, group_ids)
    groups = [describe_group(kv_cache_config, group_id, blocks_per_chunk) for group_id in group_ids]
    _refuse_loads_within_a_step(config, groups)
    speculative = vllm_config.speculative_config
    world_size = vllm_config.parallel_config.world_size
    geometry = plan_geometry(
        groups,
        budget_bytes=config.cpu_bytes_to_use // world_size,
        retention=vllm_config.cache_config.prefix_cache_retention_interval,
        reference_tokens=config.mamba_state_slots_reference_tokens
        or vllm_config.model_config.max_model_len,
        replay_boundaries=1 + (speculative is not None and speculative.use_eagle_block_drop()),
        group_slots=config.group_slots,
    )
    one_process = vllm_config.parallel_config.distributed_executor_backend == "uni"
    return Blueprint(config, geometry, blocks_per_chunk, world_size, one_process)


def extra_config(vllm_config: VllmConfig) -> dict[str, Any]:
    transfer = vllm_config.kv_transfer_config
    assert transfer is not None
    return transfer.kv_connector_extra_config


def model_name(vllm_config: VllmConfig) -> str:
    """What the model is called in clients' requests, without the folders that it lies in."""
    model = vllm_config.model_config
    served = model.served_model_name or model.model
    name = served if isinstance(served, str) else served[0]
    return name.rstrip("/").rsplit("/", 1)[-1]


def refuse_topology(vllm_config: VllmConfig) -> None:
    """Refuse parallelism under which one slot would not mean one block on every worker."""
    parallel = vllm_config.parallel_config
    sizes = {
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
        "nnodes": parallel.nnodes,
    }
    for key, size in sizes.items():
        if size != 1:
            raise ConfigError(key, size, "1: tiercache serves tensor parallelism on one node only")


def _blocks_per_chunk(
    config: TierCacheConfig, kv_cache_config: KVCacheConfig, group_ids: Sequence[int]
) -> int:
    specs = [kv_cache_config.kv_cache_groups[group_id].kv_cache_spec for group_id in group_ids]
    factor = config.blocks_per_chunk or 1
    if config.block_size is not None:
        sizes = sorted({spec.block_size for spec in specs})
        if len(sizes) > 1 or config.block_size % sizes[0]:
            allowed = f"a multiple of the engine's block of {' or '.join(map(str, sizes))} tokens"
            hint = "; use blocks_per_chunk for groups of different block sizes"
            raise ConfigError(
                "block_size", config.block_size, allowed + (hint if len(sizes) > 1 else "")
            )
        factor = config.block_size // sizes[0]
    if factor > 1 and (reason := _why_one_block(specs)):
        key = "block_size" if config.block_size is not None else "blocks_per_chunk"
        allowed = f"one engine block for a model with {reason}; omit {key!r}"
        raise ConfigError(key, config.block_size or factor, allowed)
    return factor


def _why_one_block(specs: Iterable[KVCacheSpec]) -> str | None:
    """What keeps a model with these groups from chunks of several blocks, if anything does."""
    layers = [_representative(spec) for spec in specs]
    if any(isinstance(layer, MambaSpec) for layer in layers):
        return "recurrent layers, whose states end on blocks"
    windows = (SlidingWindowSpec, ChunkedLocalAttentionSpec)
    if stores_torn_chunks() and any(isinstance(layer, windows) for layer in layers):
        return "sliding windows, of whose chunks vLLM before 0.33 may store a part only"
    return None


def _refuse_loads_within_a_step(config: TierCacheConfig, groups: Iterable[GroupSpec]) -> None:
    """vLLM 0.33 runs out of device blocks when it admits such a load of a recurrent state."""
    budget = config.sync_load_budget_bytes
    if budget and any(group.kind is GroupKind.STATE for group in groups):
        allowed = "0 for a model with recurrent layers, whose blocks vLLM does not count then"
        raise ConfigError("sync_load_budget_bytes", budget, allowed)


def describe_group(
    kv_cache_config: KVCacheConfig, group_id: int, blocks_per_chunk: int
) -> GroupSpec:
    """Translate one of vLLM's groups.

    Raises:
        UnsupportedError: a kind of group, or a mode of it, that is not known here.
    """
    group = kv_cache_config.kv_cache_groups[group_id]
    spec = _representative(group.kv_cache_spec)
    tokens = spec.block_size * blocks_per_chunk
    kind, window = _kind(group_id, spec, tokens)
    return GroupSpec(
        group_id=group_id,
        kind=kind,
        tokens_per_chunk=tokens,
        slot_bytes=align_slot(_block_bytes(kv_cache_config, group) * blocks_per_chunk),
        window_chunks=window,
        draft=group.is_eagle_group,
    )


def _representative(spec: KVCacheSpec) -> KVCacheSpec:
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values()))
    return spec


def _kind(group_id: int, spec: KVCacheSpec, tokens: int) -> tuple[GroupKind, int | None]:
    if isinstance(spec, MambaSpec):
        if spec.mamba_cache_mode != "align":
            raise UnsupportedError(
                f"group {group_id} keeps recurrent states in mode {spec.mamba_cache_mode!r}; "
                "supported: 'align' (--enable-prefix-caching --mamba-cache-mode align)"
            )
        return GroupKind.STATE, None
    if isinstance(spec, SlidingWindowSpec):
        reach = max(spec.sliding_window, spec.sliding_window - 1 + spec.extra_retained_tokens)
        return GroupKind.WINDOW, math.ceil(reach / tokens)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return GroupKind.WINDOW, math.ceil(spec.attention_chunk_size / tokens)
    if isinstance(spec, FullAttentionSpec):
        return GroupKind.FULL, None
    raise UnsupportedError(
        f"group {group_id} is a {type(spec).__name__}; supported: full, sliding-window and "
        "chunked-local attention, and recurrent states"
    )


def _block_bytes(kv_cache_config: KVCacheConfig, group: KVCacheGroupSpec) -> int:
    """Bytes of one block of all layers of a group, padding left out.

    Layers of a lone group may differ in size, and the scheduler is told the size of one of them
    only; but then the device's memory holds nothing else, and both sides are told its size.
    """
    tensors, blocks = kv_cache_config.kv_cache_tensors, kv_cache_config.num_blocks
    if len(kv_cache_config.kv_cache_groups) == 1 and tensors and blocks:
        return tensors[0].size // blocks
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return sum(_page_bytes(layer) for layer in spec.kv_cache_specs.values())
    return _page_bytes(spec) * len(group.layer_names)


def _page_bytes(spec: KVCacheSpec) -> int:
    if isinstance(spec, AttentionSpec):
        return spec.unpadded_page_size_bytes
    if isinstance(spec, MambaSpec):
        return replace(spec, page_size_padded=None).page_size_bytes
    return spec.page_size_bytes
