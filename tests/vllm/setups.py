# SPDX-License-Identifier: Apache-2.0
"""vLLM's configuration objects for models that do not exist, built without an engine."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the harness drives vLLM's scheduler")

import torch
from vllm.config import (
    CacheConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.core.kv_cache_utils import (
    resolve_cache_hit_alignment_tokens,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)

BLOCK = 16
LAYERS = 2
MODEL_LEN = 4096
#: Bytes of one attention block of one layer; states are padded to it.
PAGE_BYTES = BLOCK * 64

#: The parts of a model that vLLM's configuration reads; its layers are in the KV cache's.
MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "ffn_dim": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": MODEL_LEN,
    "torch_dtype": "bfloat16",
}


def attention(block: int = BLOCK) -> Any:
    return FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=16, dtype=torch.bfloat16)


def window(tokens: int, block: int = BLOCK, **fields: Any) -> Any:
    return SlidingWindowSpec(
        block_size=block,
        num_kv_heads=1,
        head_size=16,
        dtype=torch.bfloat16,
        sliding_window=tokens,
        **fields,
    )


def recurrent(block: int = BLOCK, mode: str = "align", drafts: int = 0) -> Any:
    return MambaSpec(
        block_size=block,
        shapes=((4, 8), (8, 16)),
        dtypes=(torch.float32, torch.float32),
        page_size_padded=64 * block,
        mamba_cache_mode=mode,
        num_speculative_blocks=drafts,
    )


def group(spec: Any, name: str = "layer", *, layers: int = LAYERS, draft: bool = False) -> Any:
    return KVCacheGroupSpec([f"{name}.{i}" for i in range(layers)], spec, is_eagle_group=draft)


def qwen3_next(block: int = BLOCK, *, drafts: int = 0, draft_group: bool = False) -> list[Any]:
    """One group of attention and three of recurrent states; with drafts, a group of the drafter."""
    groups = [group(attention(block), "attention")]
    groups += [group(recurrent(block, drafts=drafts), f"gdn{i}") for i in range(3)]
    if draft_group:
        groups.append(group(attention(block), "draft", layers=1, draft=True))
    return groups


@dataclass(frozen=True, slots=True)
class Setup:
    """A model, a device and what the cache is configured with.

    ``slots`` are given per group in the order of ``groups``; None leaves the sizing to tiercache.
    """

    groups: Sequence[Any]
    slots: Sequence[int] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    device_blocks: int = 400
    batched_tokens: int = 64
    sequences: int = 8
    retention: int | None = 0
    match_unit: int | None = None
    drafts: int = 0
    asynchronous: bool = False
    second_runner: bool = False
    """Whether the scheduler talks to vLLM's second model runner, which it does on CUDA."""
    kv_events: bool = False
    cpu_bytes: int | str = "64MiB"
    block: int = BLOCK


def model_config(folder: Path) -> ModelConfig:
    folder.joinpath("config.json").write_text(json.dumps(MODEL))
    return ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=MODEL_LEN,
        seed=0,
        enforce_eager=True,
    )


def vllm_config(setup: Setup, model: ModelConfig) -> VllmConfig:
    has_states = any(isinstance(g.kv_cache_spec, MambaSpec) for g in setup.groups)
    settings = {"cpu_bytes_to_use": setup.cpu_bytes, **setup.settings}
    if setup.slots is not None:
        settings["group_slots"] = {str(i): n for i, n in enumerate(setup.slots)}
    config = VllmConfig(
        model_config=copy.copy(model),
        cache_config=CacheConfig(
            block_size=setup.block,
            enable_prefix_caching=True,
            mamba_cache_mode="align" if has_states else "none",
            mamba_block_size=setup.block if has_states else None,
            prefix_cache_retention_interval=setup.retention if has_states else None,
            prefix_match_unit=setup.match_unit,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=setup.sequences,
            max_num_batched_tokens=setup.batched_tokens,
            max_model_len=MODEL_LEN,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
        ),
        kv_transfer_config=KVTransferConfig(
            kv_connector="TierCacheConnector",
            kv_role="kv_both",
            kv_connector_module_path="tiercache.vllm.connector",
            kv_connector_extra_config=settings,
        ),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=setup.kv_events, publisher="null"),
    )
    # Neither a CPU nor a model without a drafter gets these through vLLM's own checks.
    config.scheduler_config.async_scheduling = setup.asynchronous
    if setup.drafts:
        config.speculative_config = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=setup.drafts,
            target_model_config=config.model_config,
            target_parallel_config=ParallelConfig(),
        )
        config.speculative_config.method = "mtp"
    return config


def kv_cache_config(setup: Setup, config: VllmConfig) -> KVCacheConfig:
    """As the engine's core resolves it."""
    found = KVCacheConfig(
        num_blocks=setup.device_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=list(setup.groups),
        prefix_cache_retention_interval=config.cache_config.prefix_cache_retention_interval,
    )
    config.cache_config.num_gpu_blocks = setup.device_blocks
    block, unit = resolve_kv_cache_block_sizes(found, config)
    found.hash_block_size = unit
    found.cache_hit_alignment_tokens = resolve_cache_hit_alignment_tokens(
        found, config, block, unit
    )
    return found
