# SPDX-License-Identifier: Apache-2.0
"""The engine arguments of the lab, for the in-process engine and for the server alike."""

import json
from pathlib import Path

from lab.recipes import Recipe
from lab.transfers import Transfer

Argument = str | int | bool
KV_CACHE_BYTES = 64 << 20


def engine_arguments(recipe: Recipe, model: Path) -> dict[str, Argument]:
    """Everything but the KV connector, by the names that vLLM's `EngineArgs` has."""
    return {
        "model": str(model),
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "enforce_eager": True,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": True,
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
        "num_gpu_blocks_override": recipe.device_blocks,
        # 0.32 on a CPU falls back to 128 when it is left out, and a hybrid model's states then
        # never lie on a chunk boundary.
        "block_size": recipe.block_size,
        "mamba_ssm_cache_dtype": "float32",
        "seed": 0,
    }


def server_flags(recipe: Recipe, model: Path, transfer: Transfer, port: int) -> list[list[str]]:
    """The same as flags of the server, each with its value."""
    settings: dict[str, Argument] = {
        **engine_arguments(recipe, model),
        "served_model_name": recipe.name,
        "host": "127.0.0.1",
        "port": port,
        # Answers then say how much of the prompt was not computed.
        "enable_prompt_tokens_details": True,
        "kv_transfer_config": json.dumps(transfer),
    }
    return [_flag(name, value) for name, value in settings.items()]


def _flag(name: str, value: Argument) -> list[str]:
    flag = "--" + name.replace("_", "-")
    return [flag] if value is True else [flag, str(value)]
