# SPDX-License-Identifier: Apache-2.0
"""The groups that vLLM makes of a model, from its Hugging Face ``config.json`` alone.

Covers attention, full and in sliding windows, and recurrent layers, under tensor parallelism. Not
latent attention, draft models, or options of vLLM that change what a block holds. Nothing is
downloaded, and no engine is needed; tests hold this to the engine's own figures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tiercache.blocks import GroupKind, GroupSpec
from tiercache.errors import ConfigError, UnsupportedError
from tiercache.grouping import KERNEL_BLOCK, Layer, arrange, block_tokens
from tiercache.modelfields import STATE_DTYPES, Fields, load_fields

#: Bytes of a number of a key or value, by vLLM's --kv-cache-dtype; ``auto`` is the model's.
KV_DTYPES: Final = {"auto": 0, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

#: Models with attention alone, in the way that most have it.
ATTENTION_MODELS: Final = (
    "arcee",
    "cohere",
    "cohere2",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "granite",
    "granitemoe",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "seed_oss",
    "smollm3",
)

FULL, WINDOW, STATE = GroupKind.FULL, GroupKind.WINDOW, GroupKind.STATE
#: What layers are called in ``layer_types`` and its predecessors, and what they keep.
LAYER_TYPES: Final[Mapping[str, Sequence[GroupKind]]] = {
    "attention": (FULL,),
    "conv": (STATE,),
    "full_attention": (FULL,),
    "linear_attention": (STATE,),
    "mamba": (STATE,),
    "mlp": (),
    "moe": (),
    "sliding_attention": (WINDOW,),
}
#: The same in one letter, as Nemotron-H has them.
LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


@dataclass(frozen=True, slots=True)
class Model:
    """What of a model decides how it is cached."""

    model_type: str
    block_tokens: int
    groups: tuple[GroupSpec, ...]
    """A slot has the bytes of one worker."""
    context: int | None
    """Tokens of its longest prompt, if the file says."""


def read_model(
    path: Path, *, tp: int = 1, block_size: int = KERNEL_BLOCK, kv_cache_dtype: str = "auto"
) -> Model:
    """Read a ``config.json``, or the one in a folder.

    Args:
        path: the file or folder.
        tp: workers that share each layer.
        block_size: vLLM's --block-size: tokens of a block, unless a state takes more.
        kv_cache_dtype: vLLM's --kv-cache-dtype.

    Raises:
        ConfigError: the file cannot be read, or an argument does not suit the model.
        UnsupportedError: a model of a kind that is not known here, or what its file lacks.
    """
    fields = load_fields(path / "config.json" if path.is_dir() else path, tp)
    layers = _layers(_family(fields), fields, kv_cache_dtype)
    tokens = block_tokens(layers, block_size)
    context = fields.get("max_position_embeddings")
    return Model(
        fields.model_type,
        tokens,
        arrange(layers, tokens),
        context if isinstance(context, int) and context > 0 else None,
    )


def _family(fields: Fields) -> "Family":
    if fields.get("kv_lora_rank"):
        raise UnsupportedError(f"{fields.path}: kv_lora_rank: latent attention is not known here")
    if fields.model_type in FAMILIES:
        return FAMILIES[fields.model_type]
    raise UnsupportedError(
        f"{fields.path}: model_type {fields.model_type!r} is not known: "
        f"its pages have to be given; known are {', '.join(sorted(FAMILIES))}"
    )


def _layers(family: "Family", fields: Fields, kv_cache_dtype: str) -> list[Layer]:
    kinds = family.kinds(fields)
    if not kinds:
        raise fields.lacks("layers that keep anything")
    made: dict[GroupKind, Layer] = {}
    if FULL in kinds or WINDOW in kinds:
        nbytes = _attention_bytes(fields, kv_cache_dtype)
        made[FULL] = Layer(FULL, nbytes)
        window = fields.integer("sliding_window") if WINDOW in kinds else None
        made[WINDOW] = Layer(WINDOW, nbytes, window)
    if STATE in kinds:
        if family.state is None:
            raise fields.lacks("a description of its recurrent layers that is known here")
        made[STATE] = Layer(STATE, family.state(fields))
    return [made[kind] for kind in kinds]


# --- which layers there are


def _listed(fields: Fields) -> list[GroupKind]:
    names = fields.names("layer_types", "layers_block_type")
    pattern = fields.get("hybrid_override_pattern")
    if names is None and isinstance(pattern, str):
        names = [LETTERS.get(letter, letter) for letter in pattern]
    if names is None:
        raise fields.lacks("layer_types, which is missing")
    if unknown := set(names) - LAYER_TYPES.keys():
        known = ", ".join(LAYER_TYPES)
        raise fields.lacks(f"layers of a known kind ({known}), not {min(unknown)!r}")
    return [kind for name in names for kind in LAYER_TYPES[name]]


def _attending(fields: Fields) -> list[GroupKind]:
    """Attention in every layer, in windows but for the last layer of each pattern."""
    if fields.get("layer_types") is not None:
        return _listed(fields)
    layers = range(fields.integer("num_hidden_layers"))
    opt_in = fields.model_type in OPT_IN
    if not fields.get("sliding_window") or not fields.get("use_sliding_window", not opt_in):
        return [FULL for _ in layers]
    if opt_in:
        raise fields.lacks("layer_types, as it uses sliding windows")
    usual = USUAL_PATTERNS.get(fields.model_type, 0)
    pattern = fields.integer("sliding_window_pattern", default=usual, least=0)
    return [FULL if pattern and (i + 1) % pattern == 0 else WINDOW for i in layers]


#: One of so many layers has full attention, where the file does not say.
USUAL_PATTERNS: Final = {"cohere2": 4, "gemma2": 2, "gemma3": 6}
#: Model types whose windows are off unless the file turns them on.
OPT_IN: Final = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})


def _interval(fields: Fields) -> list[GroupKind]:
    """Recurrent layers, but every so many one of attention."""
    if fields.get("layer_types") is not None:
        return _listed(fields)
    interval = fields.integer("full_attention_interval")
    layers = range(1, fields.integer("num_hidden_layers") + 1)
    return [STATE if layer % interval else FULL for layer in layers]


def _period(fields: Fields) -> list[GroupKind]:
    period = fields.integer("attn_layer_period")
    offset = fields.integer("attn_layer_offset", least=0)
    layers = range(fields.integer("num_hidden_layers"))
    return [FULL if layer % period == offset else STATE for layer in layers]


def _convolving(fields: Fields) -> list[GroupKind]:
    full = fields.get("full_attn_idxs")
    if fields.get("layer_types") is not None or not isinstance(full, list):
        return _listed(fields)
    layers = range(fields.integer("num_hidden_layers"))
    return [FULL if layer in full else STATE for layer in layers]


def _both(fields: Fields) -> list[GroupKind]:
    """Attention and a state in every layer."""
    return [STATE, FULL] * fields.integer("num_hidden_layers")


def _recurrent(fields: Fields) -> list[GroupKind]:
    return [STATE] * fields.integer("num_hidden_layers", "n_layer")


# --- what a layer keeps on one worker


def _attention_bytes(fields: Fields, kv_cache_dtype: str) -> int:
    """Keys and values of a token. Heads that are fewer than the workers are on several of them."""
    if kv_cache_dtype not in KV_DTYPES:
        raise ConfigError("kv_cache_dtype", kv_cache_dtype, ", ".join(KV_DTYPES))
    heads = fields.integer("num_attention_heads")
    fields.divide(heads, "num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if kv_heads % fields.tp and fields.tp % kv_heads:
        allowed = f"a divisor or a multiple of num_key_value_heads, which is {kv_heads}"
        raise ConfigError("tp", fields.tp, allowed)
    usual = fields.integer("hidden_size") // heads
    head = fields.integer("head_dim", "attention_head_dim", default=usual)
    numbers = 2 * head * max(1, kv_heads // fields.tp)
    return numbers * (KV_DTYPES[kv_cache_dtype] or fields.dtype_bytes)


def _gated_delta_net(fields: Fields) -> int:
    """Qwen3-Next and Qwen3.5; the latter say what type the recurrent part has."""
    keys = fields.integer("linear_num_key_heads")
    values = fields.integer("linear_num_value_heads")
    key, value = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    width = fields.divide(2 * keys * key + values * value, "the width of the convolution")
    heads = fields.divide(values, "linear_num_value_heads")
    kernel = fields.integer("linear_conv_kernel_dim")
    said = (
        0 if fields.model_type == "qwen3_next" else fields.bytes_of(STATE_DTYPES, "mamba_ssm_dtype")
    )
    return _state_bytes(fields, width * (kernel - 1), heads * key * value, said)


def _mamba2(names: "Mamba2") -> "State":
    def state(fields: Fields) -> int:
        heads, groups = fields.integer(names.heads), fields.integer(names.groups)
        inner = names.inner(fields)
        head = fields.get(names.head)
        head = inner // heads if head == "auto" else fields.integer(names.head)
        state = fields.integer(names.state)
        # Every worker has the groups that its heads need.
        groups += (fields.tp - groups) if groups % fields.tp else 0
        width = fields.divide(inner + 2 * groups * state, "the width of the convolution")
        kernel = fields.integer(names.kernel)
        recurrent = fields.divide(heads, names.heads) * head * state
        return _state_bytes(fields, width * (kernel - 1), recurrent, names.number(fields))

    return state


class Mamba2(NamedTuple):
    """What the fields of a Mamba-2 layer are called."""

    inner: Callable[[Fields], int]
    heads: str = "mamba_n_heads"
    head: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    kernel: str = "mamba_d_conv"
    number: Callable[[Fields], int] = lambda _: 0
    """Bytes of a number of the recurrent part; 0 for what the model has."""


def _mamba1(inner: Callable[[Fields], int], state: str, kernel: str) -> "State":
    def state_bytes(fields: Fields) -> int:
        width = fields.divide(inner(fields), "the width of a recurrent layer")
        convolution = width * (fields.integer(kernel) - 1)
        return _state_bytes(fields, convolution, width * fields.integer(state))

    return state_bytes


def _short_convolution(fields: Fields) -> int:
    return _state_bytes(fields, fields.shard("conv_dim") * (fields.integer("conv_L_cache") - 1), 0)


def _state_bytes(fields: Fields, convolution: int, recurrent: int, number: int = 0) -> int:
    """Bytes of so many numbers of either part; ``number`` is a size that the second has alone."""
    own = fields.dtype_bytes
    return convolution * own + recurrent * (number or own)


# --- the families


def _expanded(expand: str) -> Callable[[Fields], int]:
    return lambda fields: fields.integer(expand) * fields.integer("hidden_size")


def _falcon_inner(fields: Fields) -> int:
    default = fields.integer("mamba_expand", default=2) * fields.integer("hidden_size")
    return fields.integer("mamba_d_ssm", default=default)


State = Callable[[Fields], int]


class Family(NamedTuple):
    """Models that say the same with the same fields."""

    kinds: Callable[[Fields], list[GroupKind]]
    state: State | None = None
    """Bytes of one state."""


_ATTENTION = Family(_attending)
_DELTA_NET = Family(_interval, _gated_delta_net)
_MAMBA1 = Family(
    _recurrent,
    _mamba1(lambda fields: fields.integer("intermediate_size"), "state_size", "conv_kernel"),
)
_NEMOTRON = Mamba2(
    inner=lambda fields: fields.integer("mamba_num_heads") * fields.integer("mamba_head_dim"),
    heads="mamba_num_heads",
    head="mamba_head_dim",
    groups="n_groups",
    state="ssm_state_size",
    kernel="conv_kernel",
    number=lambda fields: fields.bytes_of(STATE_DTYPES, "mamba_ssm_cache_dtype") or 4,
)
_MAMBA2 = Mamba2(
    inner=_expanded("expand"),
    heads="num_heads",
    head="head_dim",
    groups="n_groups",
    state="state_size",
    kernel="conv_kernel",
)

FAMILIES: Final[Mapping[str, Family]] = {
    **dict.fromkeys(ATTENTION_MODELS, _ATTENTION),
    "falcon_h1": Family(_both, _mamba2(Mamba2(_falcon_inner))),
    "falcon_mamba": _MAMBA1,
    "granitemoehybrid": Family(_listed, _mamba2(Mamba2(_expanded("mamba_expand")))),
    "jamba": Family(_period, _mamba1(_expanded("mamba_expand"), "mamba_d_state", "mamba_d_conv")),
    "lfm2": Family(_convolving, _short_convolution),
    "lfm2_moe": Family(_convolving, _short_convolution),
    "mamba": _MAMBA1,
    "mamba2": Family(_recurrent, _mamba2(_MAMBA2)),
    "nemotron_h": Family(_listed, _mamba2(_NEMOTRON)),
    "qwen3_5": _DELTA_NET,
    "qwen3_5_moe": _DELTA_NET,
    "qwen3_next": _DELTA_NET,
}
