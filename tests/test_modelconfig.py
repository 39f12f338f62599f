# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.model_configs import CONFIGS
from tiercache.blocks import GroupKind, align_slot
from tiercache.errors import ConfigError, UnsupportedError
from tiercache.modelconfig import FAMILIES, Model, read_model

Read = Callable[..., Model]
FULL, WINDOW, STATE = GroupKind.FULL, GroupKind.WINDOW, GroupKind.STATE


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a known model, with fields of its file changed (None: left out) and with options."""

    def read_changed(name: str, options: dict[str, Any] | None = None, **changes: Any) -> Model:
        config = {**CONFIGS[name], **changes}
        kept = {key: value for key, value in config.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(kept))
        return read_model(tmp_path, **(options or {}))

    return read_changed


def kinds(model: Model) -> list[tuple[GroupKind, int]]:
    """Kind and slot bytes of each group."""
    return [(group.kind, group.slot_bytes) for group in model.groups]


def test_the_published_flash_model(read: Read) -> None:
    """784-token blocks, of 12 layers' 802,816 bytes; states fill all but 1,024 of those."""
    model = read("qwen3_5", {"tp": 4})
    assert model.block_tokens == 784
    assert kinds(model) == [*[(STATE, 12 * 801_792)] * 3, (FULL, 12 * 802_816)]
    assert model.context == 262_144


@pytest.mark.parametrize(
    ("name", "block", "groups"),
    [
        ("llama", 16, [(FULL, 16 * 32 * 4096)]),
        ("qwen3", 16, [(FULL, 16 * 36 * 4096)]),
        ("gemma3", 16, [*[(WINDOW, 65_536)] * 4, *[(WINDOW, 49_152)] * 2, (FULL, 65_536)]),
        ("jamba", 80, [*[(STATE, 1_245_184)] * 7, (FULL, 4 * 80 * 4096)]),
        ("lfm2", 16, [*[(STATE, 5 * 8192)] * 2, (FULL, 6 * 16 * 2048)]),
    ],
)
def test_groups(read: Read, name: str, block: int, groups: list[tuple[GroupKind, int]]) -> None:
    model = read(name)
    assert model.block_tokens == block
    assert kinds(model) == groups


def test_windows_reach_over_blocks(read: Read) -> None:
    model = read("gemma3", {"block_size": 48})
    assert {group.window_chunks for group in model.groups if group.kind is WINDOW} == {11}
    assert {group.tokens_per_chunk for group in model.groups} == {48}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("llama", {"sliding_window": 4096}, {WINDOW}),
        ("qwen3", {"sliding_window": 4096}, {FULL}),
        ("qwen3", {"sliding_window": 64, "layer_types": ["sliding_attention"] * 36}, {WINDOW}),
        ("gemma3", {"sliding_window_pattern": None}, {WINDOW, FULL}),
        ("gemma3", {"sliding_window": None}, {FULL}),
    ],
)
def test_which_layers_have_windows(
    read: Read, name: str, changes: dict[str, Any], expected: set[GroupKind]
) -> None:
    assert {group.kind for group in read(name, **changes).groups} == expected


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen3_next", {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}),
        (
            "nemotron_h",
            {
                "hybrid_override_pattern": None,
                "layers_block_type": [
                    {"M": "mamba", "*": "attention", "-": "mlp"}[letter]
                    for letter in CONFIGS["nemotron_h"]["hybrid_override_pattern"]
                ],
            },
        ),
        ("nemotron_h", {"mamba_ssm_cache_dtype": "float32"}),
        ("falcon_h1", {"mamba_d_ssm": None, "hidden_size": 768, "mamba_expand": 2}),
        ("granitemoehybrid", {"mamba_d_head": "auto", "mamba_n_heads": 48}),
        (
            "lfm2",
            {
                "layer_types": ["conv", "conv", "full_attention"] * 4
                + ["conv", "full_attention"] * 2
            },
        ),
        ("llama", {"torch_dtype": None, "dtype": "float32"}),
        ("llama", {"torch_dtype": None}),
        ("llama", {"head_dim": 128}),
    ],
)
def test_what_files_say_in_another_way(read: Read, name: str, changes: dict[str, Any]) -> None:
    assert kinds(read(name, **changes)) == kinds(read(name))


def test_a_state_in_another_type(read: Read) -> None:
    half, whole = (
        read("qwen3_5", text_config={**CONFIGS["qwen3_5"]["text_config"], **changes})
        for changes in ({"mamba_ssm_dtype": "bfloat16"}, {})
    )
    assert half.block_tokens < whole.block_tokens


def test_keys_and_values_of_one_byte(read: Read) -> None:
    whole, half = (read("llama", {"kv_cache_dtype": each}) for each in ("auto", "fp8"))
    assert half.groups[0].slot_bytes * 2 == whole.groups[0].slot_bytes


def test_heads_that_are_too_few_are_on_several_workers(read: Read) -> None:
    sizes = [read("llama", {"tp": tp}).groups[0].slot_bytes for tp in (1, 8, 16)]
    assert [sizes[0] // size for size in sizes] == [1, 8, 8]


def test_a_file_or_its_folder(read: Read, tmp_path: Path) -> None:
    assert read("llama") == read_model(tmp_path / "config.json")


def test_a_model_without_a_context(read: Read) -> None:
    assert read("mamba2").context is None


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama", {"model_type": "bert"}, "model_type 'bert' is not known"),
        ("llama", {"num_attention_heads": None}, "num_attention_heads, which is missing"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers to be an integer of at least 1"),
        ("llama", {"hidden_size": "4096"}, "not '4096'"),
        ("llama", {"torch_dtype": "int8"}, "dtype to be one of bfloat16, float16, float32"),
        ("llama", {"kv_lora_rank": 512}, "latent attention"),
        ("llama", {"layer_types": ["chunked_attention"]}, "'chunked_attention'"),
        ("llama", {"layer_types": "full"}, "layer_types to be a list of names"),
        ("llama", {"layer_types": ["linear_attention"]}, "recurrent layers"),
        ("llama", {"layer_types": []}, "layers that keep anything"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 64}, "needs layer_types"),
        (
            "gemma3",
            {"layer_types": ["sliding_attention"], "sliding_window": None},
            "sliding_window",
        ),
        ("qwen3_next", {"linear_num_value_heads": None}, "linear_num_value_heads"),
        ("qwen3_next", {"full_attention_interval": None}, "full_attention_interval"),
        ("falcon_h1", {"mamba_d_state": None}, "mamba_d_state"),
        ("nemotron_h", {"ssm_state_size": None}, "ssm_state_size"),
        ("nemotron_h", {"hybrid_override_pattern": "MX"}, "'X'"),
        ("nemotron_h", {"mamba_ssm_cache_dtype": "fp8"}, "mamba_ssm_cache_dtype"),
        ("granitemoehybrid", {"layer_types": None}, "layer_types, which is missing"),
        ("jamba", {"attn_layer_period": None}, "attn_layer_period"),
        ("lfm2", {"conv_dim": None}, "conv_dim"),
        ("mamba2", {"expand": None}, "expand"),
    ],
)
def test_what_is_not_known_is_named(
    read: Read, name: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedError) as refused:
        read(name, **changes)
    assert words in str(refused.value)
    assert "config.json" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("llama", {"tp": 3}, "tp"),
        ("qwen3_next", {"tp": 5}, "tp"),
        ("mamba2", {"tp": 3}, "tp"),
        ("llama", {"kv_cache_dtype": "int4"}, "kv_cache_dtype"),
    ],
)
def test_options_that_do_not_suit_a_model(
    read: Read, name: str, options: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(name, options)
    assert refused.value.key == key


@pytest.mark.parametrize("text", ["", "[1]", "{}", "\udcff"])
def test_what_is_no_such_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_model(path)


def test_slots_are_aligned(read: Read) -> None:
    for name in CONFIGS:
        for group in read(name).groups:
            assert group.slot_bytes == align_slot(group.slot_bytes)


def test_every_kind_of_state_has_a_sample() -> None:
    samples = {config["model_type"].removesuffix("_text") for config in CONFIGS.values()}
    with_states = {name for name, family in FAMILIES.items() if family.state is not None}
    others = {"falcon_mamba", "lfm2_moe", "qwen3_5_moe"}  # like one that has
    assert with_states - others <= samples
