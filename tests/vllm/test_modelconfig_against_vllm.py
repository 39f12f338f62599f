# SPDX-License-Identifier: Apache-2.0
"""The pages that are read off a ``config.json`` are those that vLLM comes to.

The engine's configuration is a stand-in with the few fields that are asked for: a real one is
checked against this machine, which has no GPU, and takes minutes for all models.
"""

import json
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the figures are vLLM's")

import torch
from transformers import AutoConfig
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.config import (
    NemotronHForCausalLMConfig,
    Qwen3_5ForConditionalGenerationConfig,
)
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core.kv_cache_utils import (
    _get_kv_cache_groups_uniform_page_size,
    unify_kv_cache_spec_page_size,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

from tests.model_configs import CONFIGS
from tiercache.blocks import GroupKind, align_slot
from tiercache.modelconfig import read_model

DTYPE = torch.bfloat16
STATES = {
    "falcon_h1": ("falcon_h1", "FalconH1ForCausalLM"),
    "granitemoehybrid": ("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    "jamba": ("jamba", "JambaForCausalLM"),
    "lfm2": ("lfm2", "Lfm2ForCausalLM"),
    "mamba": ("mamba", "MambaForCausalLM"),
    "mamba2": ("mamba2", "Mamba2ForCausalLM"),
    "nemotron_h": ("nemotron_h", "NemotronHForCausalLM"),
    # Its own module needs torchvision, and asks the same of the same fields.
    "qwen3_5": ("qwen3_next", "Qwen3NextForCausalLM"),
    "qwen3_next": ("qwen3_next", "Qwen3NextForCausalLM"),
}


class Backend:
    """An attention backend with the blocks that kernels on CUDA take."""

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [MultipleOf(16)]

    @staticmethod
    def customize_spec(spec: Any) -> Any:
        return spec


class Device(Platform):
    """A platform with that backend alone."""

    @classmethod
    def _find_non_ssm_backends(cls, vllm_config: Any) -> list[type[Backend]]:
        return [Backend]


def engine(name: str, tp: int) -> Any:
    """What vLLM's code asks of its configuration."""
    config = AutoConfig.for_model(**CONFIGS[name])
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", 0) or 0
    head = (
        getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        if heads
        else 0
    )
    cache = SimpleNamespace(
        block_size=16,
        cache_dtype="auto",
        mamba_cache_dtype="auto",
        mamba_ssm_cache_dtype="auto",
        mamba_cache_mode="align",
        mamba_block_size=16,
        mamba_page_size_padded=None,
        use_replayssm=False,
    )
    model = SimpleNamespace(
        architecture=name,
        dtype=DTYPE,
        hf_config=config,
        hf_text_config=text,
        use_mla=False,
        get_head_size=lambda: head,
        get_num_kv_heads=lambda parallel: max(1, heads // parallel.tensor_parallel_size),
    )
    made = SimpleNamespace(
        cache_config=cache,
        model_config=model,
        parallel_config=SimpleNamespace(tensor_parallel_size=tp),
        speculative_config=None,
        num_speculative_tokens=0,
    )
    if name == "nemotron_h":
        NemotronHForCausalLMConfig.verify_and_update_config(made)
    if name == "qwen3_5":
        Qwen3_5ForConditionalGenerationConfig.verify_and_update_config(made)
    return made


def model_class(name: str) -> Any:
    module, attribute = STATES[name]
    return getattr(import_module(f"vllm.model_executor.models.{module}"), attribute)


def layers(name: str, config: Any) -> dict[str, Any]:
    """Specs by layer as the model's layers make them, in their order."""
    cache, model = config.cache_config, config.model_config
    page = {
        "block_size": cache.block_size,
        "num_kv_heads": model.get_num_kv_heads(config.parallel_config),
        "head_size": model.get_head_size(),
        "dtype": DTYPE,
    }
    made: dict[GroupKind, Any] = {}
    if page["head_size"]:
        made[GroupKind.FULL] = FullAttentionSpec(**page)
        window = CONFIGS[name].get("sliding_window")
        made[GroupKind.WINDOW] = window and SlidingWindowSpec(**page, sliding_window=window)
    if name in STATES:
        of = model_class(name)
        made[GroupKind.STATE] = MambaSpec(
            shapes=of.get_mamba_state_shape_from_config(config),
            dtypes=of.get_mamba_state_dtype_from_config(config),
            block_size=cache.mamba_block_size,
            page_size_padded=cache.mamba_page_size_padded,
            mamba_cache_mode="align",
        )
    return {f"{i}": made[kind] for i, kind in enumerate(order(name, config.model_config))}


def order(name: str, model: Any) -> list[GroupKind]:
    """What each layer is, as transformers say it."""
    text = model.hf_text_config
    count = text.num_hidden_layers
    if name in ("mamba", "mamba2"):
        return [GroupKind.STATE] * count
    if name == "falcon_h1":
        return [GroupKind.STATE, GroupKind.FULL] * count
    kinds = {
        "conv": GroupKind.STATE,
        "linear_attention": GroupKind.STATE,
        "mamba": GroupKind.STATE,
        "full_attention": GroupKind.FULL,
        "attention": GroupKind.FULL,
        "sliding_attention": GroupKind.WINDOW,
    }
    names = getattr(text, "layer_types", None) or ["full_attention"] * count
    return [kinds[each] for each in names if each in kinds]


def unpadded(spec: Any) -> int:
    if isinstance(spec, MambaSpec):
        return int(spec.state_content_size_bytes)
    return int(spec.unpadded_page_size_bytes)


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_groups(name: str, tp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = engine(name, tp)
    if name in STATES and config.model_config.get_head_size():
        found = model_class(name)
        monkeypatch.setattr(ModelRegistry, "resolve_model_cls", lambda *_, **__: (found, name))
        monkeypatch.setattr("vllm.config.vllm.set_current_vllm_config", lambda _: nullcontext())
        Device._align_hybrid_block_size(config, Backend)
    specs = unify_kv_cache_spec_page_size(layers(name, config))
    theirs = _get_kv_cache_groups_uniform_page_size(specs)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    ours = read_model(path, tp=tp)
    assert [(group.tokens_per_chunk, group.slot_bytes) for group in ours.groups] == [
        (
            group.kv_cache_spec.block_size,
            align_slot(unpadded(group.kv_cache_spec) * len(group.layer_names)),
        )
        for group in theirs
    ]
