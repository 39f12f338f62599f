# SPDX-License-Identifier: Apache-2.0
"""A draft model for speculative decoding: one EAGLE layer over the lab's models, random weights.

It hardly ever guesses right, which is no matter: its KV blocks are cached and restored like the
others.
"""

import json
import math
from pathlib import Path

from lab.recipes import MAX_POSITIONS, VOCABULARY

HIDDEN, INNER, HEADS, HEAD_DIM = 128, 256, 2, 64
GAIN = 1.5

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MAX_POSITIONS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def save_eagle(folder: Path, *, kv_heads: int, seed: int = 0) -> Path:
    """Write the draft model into ``folder``, which is returned."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"{name}.weight": torch.randn(shape, generator=generator).mul(GAIN / math.sqrt(shape[1]))
        for name, shape in _matrices(kv_heads).items()
    }
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    halved = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(halved, folder / "model.safetensors", metadata={"format": "pt"})
    config = CONFIG | {"num_key_value_heads": kv_heads}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _matrices(kv_heads: int) -> dict[str, tuple[int, int]]:
    """Rows and columns of each. Embeddings and head are the target's own."""
    queries, keys = HEADS * HEAD_DIM, kv_heads * HEAD_DIM
    return {
        "fc": (HIDDEN, 2 * HIDDEN),
        "layers.0.self_attn.q_proj": (queries, HIDDEN),
        "layers.0.self_attn.k_proj": (keys, HIDDEN),
        "layers.0.self_attn.v_proj": (keys, HIDDEN),
        "layers.0.self_attn.o_proj": (HIDDEN, queries),
        "layers.0.mlp.gate_proj": (INNER, HIDDEN),
        "layers.0.mlp.up_proj": (INNER, HIDDEN),
        "layers.0.mlp.down_proj": (HIDDEN, INNER),
    }
