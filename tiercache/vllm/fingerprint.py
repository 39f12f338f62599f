# SPDX-License-Identifier: Apache-2.0
"""Everything that changes what the bytes of a block mean, so that a later start can tell.

Covers the engine, the model and its weights, types, layouts and parallelism. LoRA adapters, cache
salts and images are in the block hashes. What only changes how much is kept is left out.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vllm
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from tiercache.tiers.nvme.namespace import RANDOM_SEED
from tiercache.vllm.geometry import Blueprint

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


def fingerprint(
    vllm_config: VllmConfig, blueprint: Blueprint, tokens_per_hash: int
) -> dict[str, object]:
    """The fields, each of a type that JSON knows."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel = vllm_config.parallel_config
    algorithm = cache.prefix_caching_hash_algo
    return {
        "engine": f"vllm {vllm.__version__}",
        "device": f"{current_platform.device_type} {current_platform.get_device_name()}",
        "model": str(model.model),
        "revision": model.revision,
        "weights": weights(Path(model.model)),
        "model_config": _digest(model.hf_config.to_dict()),
        "quantization": model.quantization,
        "dtype": str(model.dtype),
        "cache_dtypes": [
            str(getattr(cache, name, None))
            for name in ("cache_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
        ],
        "draft_model": _draft_model(vllm_config),
        "kv_layout": cache.kv_cache_layout,
        "attention_backend": str(vllm_config.attention_config.backend),
        "tokens_per_hash": tokens_per_hash,
        "blocks_per_chunk": blueprint.blocks_per_chunk,
        "groups": [
            [group.group_id, group.kind.value, group.tokens_per_chunk, group.window_chunks]
            for group in blueprint.geometry.groups
        ],
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "data_parallel_rank": parallel.data_parallel_rank,
        "hash_algorithm": algorithm,
        "hash_seed": _hash_seed(algorithm),
    }


def _hash_seed(algorithm: str) -> str:
    """What the chain of block hashes starts from.

    Without PYTHONHASHSEED vLLM takes a constant for cryptographic algorithms and random bytes for
    the others.
    """
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None and not algorithm.startswith("sha256"):
        return RANDOM_SEED + os.urandom(16).hex()
    return f"PYTHONHASHSEED={seed}"


def _draft_model(vllm_config: VllmConfig) -> list[str] | None:
    speculative = vllm_config.speculative_config
    if speculative is None:
        return None
    model = str(speculative.model)
    return [str(speculative.method), model, str(weights(Path(model)))]


def weights(directory: Path) -> str | None:
    """Of a local model, names, sizes and times of its weights: it may be trained further."""
    return _digest(list(_stats(directory))) if directory.is_dir() else None


def _stats(directory: Path) -> Iterator[tuple[str, int, int]]:
    for file in sorted(file for pattern in _WEIGHTS for file in directory.glob(pattern)):
        stat = file.stat()
        yield file.name, stat.st_size, stat.st_mtime_ns


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
