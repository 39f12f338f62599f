# SPDX-License-Identifier: Apache-2.0
"""What the tiny models look like: one recipe per family of attention.

Covers sizes only; `lab.weights` fills them and `lab.models` writes them to disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass

VOCABULARY = 512
MAX_POSITIONS = 8192

Setting = int | float | bool | str | None | list[int] | list[str] | dict[str, str | float]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One tiny model: the transformers architecture and its settings.

    ``block_size`` is what the engine is asked for; a hybrid model's real block is larger, because
    an attention page must hold a state (``tokens_per_block``). ``mamba2`` models run once their
    layers stop to promise states from inside a prefill: the CPU kernel returns none.
    """

    name: str
    model_type: str
    settings: Mapping[str, Setting]
    block_size: int
    tokens_per_block: int
    device_blocks: int
    mamba2: bool = False
    seed: int = 0


_COMMON: dict[str, Setting] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}

QWEN3_NEXT = Recipe(
    name="qwen3_next",
    model_type="qwen3_next",
    settings=_COMMON
    | {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "tie_word_embeddings": False,
    },
    block_size=64,
    tokens_per_block=64,
    device_blocks=100,
)

LFM2 = Recipe(
    name="lfm2",
    model_type="lfm2",
    settings=_COMMON
    | {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "conv_L_cache": 3,
        "conv_bias": False,
        # vLLM reads the names that the first releases of this family used.
        "conv_dim": 128,
        "conv_dim_out": 128,
        "block_dim": 128,
        "block_multiple_of": 64,
        "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": True,
    },
    block_size=32,
    tokens_per_block=32,
    device_blocks=200,
)

FALCON_H1 = Recipe(
    name="falcon_h1",
    model_type="falcon_h1",
    settings=_COMMON
    | {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "mamba_d_ssm": 128,
        "mamba_n_heads": 2,
        "mamba_d_head": 64,
        "mamba_d_state": 32,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 64,
        "attention_out_multiplier": 4.0,
        "key_multiplier": 4.0,
        "tie_word_embeddings": False,
    },
    block_size=64,
    tokens_per_block=64,
    device_blocks=100,
    mamba2=True,
)

GEMMA3 = Recipe(
    name="gemma3",
    model_type="gemma3_text",
    settings=_COMMON
    | {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 256,
        "layer_types": [
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "full_attention",
        ],
        "tie_word_embeddings": False,
    },
    block_size=32,
    tokens_per_block=32,
    device_blocks=300,
)

QWEN3 = Recipe(
    name="qwen3",
    model_type="qwen3",
    settings=_COMMON
    | {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "tie_word_embeddings": False,
    },
    block_size=32,
    tokens_per_block=32,
    device_blocks=200,
)

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe for recipe in (QWEN3_NEXT, LFM2, FALCON_H1, GEMMA3, QWEN3)
}
