# SPDX-License-Identifier: Apache-2.0
"""Every setting, checked, with its error text.

Covers ``kv_connector_extra_config``: names, types, units, defaults, and what excludes what. Not
the settings of a single secondary tier (``tierconfig``), nor whether a setting suits the model or
the memory of the machine: that takes the engine's groups (``layout``) and the host.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from tiercache.errors import ConfigError, UnknownKeyError
from tiercache.tierconfig import (
    NvmeConfig,
    Parser,
    TierConfig,
    choice,
    integer,
    is_integer,
    optional,
    parse_bytes,
    parse_tier,
)

Restore = Literal["auto", "always"]

EVICTION_POLICIES: Final = ("lru", "arc", "cost")
REFERENCE_TOKENS_ALLOWED: Final = (
    "an integer, in tokens; mamba_state_slots_reference_tokens must be positive"
)


@dataclass(frozen=True, slots=True)
class TierCacheConfig:
    """The settings of one server, as ``from_mapping`` checked them."""

    cpu_bytes_to_use: int
    """RAM in bytes over all workers of the node. Required; accepts ``"64GiB"``."""
    block_size: int | None = None
    """Tokens per chunk, instead of ``blocks_per_chunk``. None: one block of the engine."""
    blocks_per_chunk: int | None = None
    """Engine blocks that are offloaded together. None: 1."""
    eviction_policy: str = "lru"
    """Who goes first: one of ``EVICTION_POLICIES``."""
    demote_superseded_states: bool = True
    """Whether recurrent states that a newer one of their request replaced go first."""
    demote_keep_blocks: int = 3
    """How many blocks, counted back from the newest stored state, keep theirs."""
    demote_forks: bool = False
    """Whether a state from which several conversations go on can be demoted too."""
    mamba_state_slots_reference_tokens: int | None = None
    """Tokens of the request for which state slots are sized. None: the engine's max_model_len."""
    group_slots: Mapping[int, int] = field(default_factory=dict)
    """Slots by group id, for groups that are not to be sized; keys may be strings."""
    offload_prompt_only: bool = True
    """Whether blocks of the answer are left out. vLLM reads this itself."""
    store_threshold: int = 0
    """Store a block from this many offers on; below 2, at its first."""
    max_tracker_size: int = 64_000
    """How many blocks ``store_threshold`` counts the offers of."""
    secondary_tiers: tuple[TierConfig, ...] = ()
    """Tiers below RAM, fastest first: objects with the fields of ``tierconfig``."""
    restore_patience_s: float = 5.0
    """Seconds that a request waits for a slower tier before it recomputes what is missing."""
    restore: Restore = "auto"
    """Restore from a slower tier where it beats computing (``auto``), or ``always``."""
    share_junctions: bool = True
    """Whether the engine is told to keep a state where conversations part."""
    stats: bool = True
    """Whether the stats segment is written."""
    self_describing_kv_events: bool = False
    """Whether KV events carry what they are about. vLLM reads this itself."""
    sync_load_budget_bytes: int = 0
    """Bytes per worker and step that are loaded within the step. vLLM reads this itself, from
    0.33 on, and takes no unit."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> "TierCacheConfig":
        """Check ``kv_connector_extra_config``; what is left out has its default.

        Raises:
            UnknownKeyError: a key that is not a setting. Comes before all others, as it may be
                the one that seems to be missing.
            ConfigError: the first setting, in the order above, that cannot be used.
        """
        _check_keys(values)
        if "cpu_bytes_to_use" not in values:
            example = 'a size, which is required, such as "cpu_bytes_to_use": "64GiB"'
            raise ConfigError("cpu_bytes_to_use", None, example)
        given = {key: parse(key, values[key]) for key, parse in _PARSERS.items() if key in values}
        config = cls(**given)
        if config.block_size is not None and config.blocks_per_chunk is not None:
            allowed = f"only one of it and block_size, which is {config.block_size}"
            raise ConfigError("blocks_per_chunk", config.blocks_per_chunk, allowed)
        return config


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(key, value, "true or false, without quotes")
    return value


def _seconds(key: str, value: object) -> float:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    # Neither nan nor infinity passes, nor an integer that no float can hold.
    if not 0 < number <= sys.float_info.max:
        raise ConfigError(key, value, "a finite number of seconds above 0")
    return float(number)


def _group_slots(key: str, value: object) -> dict[int, int]:
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, 'an object of group ids and slots, such as {"0": 2000}')
    for group, slots in value.items():
        if not _GROUP_ID.fullmatch(str(group)):
            raise ConfigError(key, {group: slots}, "group ids: integers of at least 0")
        if not is_integer(slots) or slots < 1:
            raise ConfigError(key, {group: slots}, "slots: an integer of at least 1")
    return {int(group): slots for group, slots in value.items()}


_GROUP_ID: Final = re.compile("0|[1-9][0-9]{0,8}")  # fits the 4 bytes that a key has for it


def _secondary_tiers(key: str, value: object) -> tuple[TierConfig, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(key, value, 'a list of objects, each with a "type"')
    tiers = tuple(parse_tier(f"{key}[{index}]", tier) for index, tier in enumerate(value))
    _refuse_shared_paths(key, tiers)
    return tiers


def _refuse_shared_paths(key: str, tiers: Sequence[TierConfig]) -> None:
    """Two tiers in one directory, under whatever names, would lock each other out."""
    owners: dict[str, int] = {}
    for index, tier in enumerate(tiers):
        if isinstance(tier, NvmeConfig):
            owner = owners.setdefault(os.path.realpath(tier.path), index)
            if owner != index:
                allowed = f"a directory of its own; {key}[{owner}] is in this one"
                raise ConfigError(f"{key}[{index}].path", str(tier.path), allowed)


_PARSERS: Final[dict[str, Parser]] = {
    "cpu_bytes_to_use": parse_bytes,
    "block_size": optional(integer(1)),
    "blocks_per_chunk": optional(integer(1)),
    "eviction_policy": choice(*EVICTION_POLICIES),
    "demote_superseded_states": _flag,
    "demote_keep_blocks": integer(1),
    "demote_forks": _flag,
    "mamba_state_slots_reference_tokens": optional(integer(1, allowed=REFERENCE_TOKENS_ALLOWED)),
    "group_slots": _group_slots,
    "offload_prompt_only": _flag,
    "store_threshold": integer(0),
    "max_tracker_size": integer(1),
    "secondary_tiers": _secondary_tiers,
    "restore_patience_s": _seconds,
    "restore": choice(*get_args(Restore)),
    "share_junctions": _flag,
    "stats": _flag,
    "self_describing_kv_events": _flag,
    "sync_load_budget_bytes": integer(0),
}

#: How vLLM's offloading connector finds our spec. Our connector fills them in, a user may.
_SPEC: Final = {"spec_name": "TierCacheSpec", "spec_module_path": "tiercache.vllm.spec"}

#: Settings of other offloading specs, and what to do about them here.
_FOREIGN: Final = {
    "backpressure": "leave it out: a tier's queue_depth and write_budget bound what it writes",
    "cache_policy_module_path": f"use eviction_policy, one of {', '.join(EVICTION_POLICIES)}",
    "canonical_layout": "leave it out: slots have the layout of the worker that fills them",
    "mamba_checkpoint_stride": "use vLLM's --prefix-cache-retention-interval",
    "tier_poll_interval_s": "leave it out: tiers are polled at every step of the engine",
}


def _check_keys(values: Mapping[str, object]) -> None:
    for key, value in values.items():
        if key in _SPEC:
            choice(_SPEC[key])(key, value)
        elif key not in _PARSERS:
            raise UnknownKeyError(key, value, [*_PARSERS, *_SPEC], _FOREIGN.get(key))
