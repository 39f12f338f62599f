# SPDX-License-Identifier: Apache-2.0
"""Settings: defaults, accepted forms, and the refusal of everything else."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.config import EVICTION_POLICIES, TierCacheConfig
from tiercache.errors import ConfigError, UnknownKeyError
from tiercache.policies import make_policy
from tiercache.tierconfig import MemoryConfig, NvmeConfig

GIB = 1 << 30
FIELDS = [setting.name for setting in dataclasses.fields(TierCacheConfig)]
NVME = {"type": "nvme", "path": "/mnt/nvme", "capacity": "1GiB"}


def parse(**values: object) -> TierCacheConfig:
    return TierCacheConfig.from_mapping({"cpu_bytes_to_use": GIB, **values})


def refusal(values: Mapping[str, object]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        TierCacheConfig.from_mapping(values)
    return caught.value


def refuse(key: str, value: object) -> ConfigError:
    return refusal({"cpu_bytes_to_use": GIB, key: value})


def test_defaults() -> None:
    assert dataclasses.asdict(parse()) == {
        "cpu_bytes_to_use": GIB,
        "block_size": None,
        "blocks_per_chunk": None,
        "eviction_policy": "lru",
        "demote_superseded_states": True,
        "demote_keep_blocks": 3,
        "demote_forks": False,
        "mamba_state_slots_reference_tokens": None,
        "group_slots": {},
        "offload_prompt_only": True,
        "store_threshold": 0,
        "max_tracker_size": 64_000,
        "secondary_tiers": (),
        "restore_patience_s": 5.0,
        "restore": "auto",
        "share_junctions": True,
        "stats": True,
        "self_describing_kv_events": False,
        "sync_load_budget_bytes": 0,
    }


def test_defaults_are_accepted_when_spelled_out() -> None:
    values = json.loads(json.dumps(dataclasses.asdict(parse())))
    assert TierCacheConfig.from_mapping(values) == parse()


def test_input_is_left_alone() -> None:
    values = {"cpu_bytes_to_use": "1GiB", "group_slots": {"0": 5}}
    TierCacheConfig.from_mapping(values)
    assert values == {"cpu_bytes_to_use": "1GiB", "group_slots": {"0": 5}}


@pytest.mark.parametrize(
    ("key", "value", "parsed"),
    [
        ("cpu_bytes_to_use", "64GiB", 64 * GIB),
        ("block_size", 1_568, 1_568),
        ("blocks_per_chunk", 1, 1),
        ("eviction_policy", "arc", "arc"),
        ("demote_superseded_states", False, False),
        ("demote_keep_blocks", 1, 1),
        ("demote_forks", True, True),
        ("mamba_state_slots_reference_tokens", 1, 1),
        ("group_slots", {"0": 2_000, "10": 1}, {0: 2_000, 10: 1}),
        ("group_slots", {0: 2_000, 10: 1}, {0: 2_000, 10: 1}),
        ("offload_prompt_only", False, False),
        ("store_threshold", 2, 2),
        ("max_tracker_size", 1, 1),
        ("secondary_tiers", [], ()),
        ("secondary_tiers", (), ()),
        (
            "secondary_tiers",
            [{"type": "memory", "capacity": GIB}, NVME],
            (MemoryConfig(capacity=GIB), NvmeConfig(path=Path("/mnt/nvme"), capacity=GIB)),
        ),
        ("restore_patience_s", 0.25, 0.25),
        ("restore_patience_s", 1, 1.0),
        ("restore", "always", "always"),
        ("share_junctions", False, False),
        ("stats", False, False),
        ("self_describing_kv_events", True, True),
        ("sync_load_budget_bytes", 1 << 20, 1 << 20),
    ],
)
def test_accepted(key: str, value: object, parsed: object) -> None:
    found = getattr(parse(**{key: value}), key)
    assert found == parsed
    assert type(found) is type(parsed)


WRONG: dict[str, list[object]] = {
    "cpu_bytes_to_use": [None, True, "", "lots", [], {}, 0, -1, 0.5, math.nan, math.inf],
    "block_size": [True, "16", 16.0, 0, -16, []],
    "blocks_per_chunk": [False, "2", 2.0, 0, -2],
    "eviction_policy": [None, "", "LRU", "fifo", 1, ["lru"]],
    "demote_superseded_states": [None, 0, 1, "true", "false", []],
    "demote_keep_blocks": [None, True, "3", 3.0, 0, -3],
    "demote_forks": [None, 0, 1, "no"],
    "mamba_state_slots_reference_tokens": [True, "65536", 65536.0, "64Ki", 0, -1],
    "group_slots": [
        None,
        True,
        2_000,
        [2_000, 40],
        {"x": 1},
        {"": 1},
        {"-1": 1},
        {-1: 1},
        {"00": 1},
        {"1.0": 1},
        {True: 1},
        {"9" * 5_000: 1},
        {"0": 0},
        {"0": -1},
        {"0": True},
        {"0": "40"},
        {"0": 40.0},
        {"0": None},
    ],
    "offload_prompt_only": [None, 0, 1, "true", "false"],
    "store_threshold": [None, False, "2", 2.0, -1],
    "max_tracker_size": [None, True, "64000", 64e3, 0, -1],
    "secondary_tiers": [None, {}, NVME, "nvme", 0],
    "restore_patience_s": [None, True, "5", "5s", 0, -1, math.nan, math.inf, 10**400],
    "restore": [None, "", "never", "Auto", True],
    "share_junctions": [None, 1, "yes"],
    "stats": [None, 0, "off"],
    "self_describing_kv_events": [None, 1, "true"],
    "sync_load_budget_bytes": [None, True, "64MiB", 1e6, -1],
    "spec_name": [None, "", "CPUOffloadingSpec", 1],
    "spec_module_path": [None, "", "vllm.v1.kv_offload.cpu.spec"],
}


def test_every_setting_has_wrong_values() -> None:
    assert WRONG.keys() == {*FIELDS, "spec_name", "spec_module_path"}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values]
)
def test_refused_with_key_value_and_what_is_allowed(key: str, value: object) -> None:
    error = refuse(key, value)
    assert type(error) is ConfigError
    assert (error.key, repr(error.value)) == (key, repr(value))
    assert str(error).startswith(f"{key}: {value!r} is not allowed; allowed: {error.allowed}")
    assert error.allowed


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("cpu_bytes_to_use", "64 G", "KiB, MiB, GiB, TiB (powers of 1024)"),
        ("eviction_policy", "fifo", "'lru' or 'arc' or 'cost'"),
        ("restore", "never", "'auto' or 'always'"),
        ("offload_prompt_only", "false", "true or false"),
        ("demote_keep_blocks", 0, "an integer of at least 1"),
        ("store_threshold", -1, "an integer of at least 0"),
        (
            "mamba_state_slots_reference_tokens",
            0,
            "mamba_state_slots_reference_tokens must be positive",
        ),
        ("group_slots", {"-1": 1}, "group ids"),
        ("group_slots", {"0": 0}, "slots"),
        ("secondary_tiers", NVME, 'a list of objects, each with a "type"'),
        ("restore_patience_s", math.nan, "a finite number of seconds"),
        ("spec_name", "CPUOffloadingSpec", "'TierCacheSpec'"),
    ],
)
def test_says_what_is_allowed(key: str, value: object, allowed: str) -> None:
    assert allowed in refuse(key, value).allowed


def test_group_slots_names_the_wrong_entry_alone() -> None:
    assert refuse("group_slots", {"0": 2_000, "1": -4}).value == {"1": -4}


@pytest.mark.parametrize(
    ("tier", "key", "value"),
    [
        ("nvme", "secondary_tiers[1]", "nvme"),
        ({**NVME, "type": "nfs"}, "secondary_tiers[1].type", "nfs"),
        ({**NVME, "policy": "arc"}, "secondary_tiers[1].policy", "arc"),
        ({**NVME, "polcy": "lru"}, "secondary_tiers[1].polcy", "lru"),
    ],
)
def test_a_wrong_setting_of_a_tier_is_named_with_its_tier(
    tier: object, key: str, value: object
) -> None:
    error = refuse("secondary_tiers", [NVME, tier])
    assert (error.key, error.value) == (key, value)


def test_tiers_do_not_share_a_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    first, second = {**NVME, "path": f"{tmp_path}/disk"}, {**NVME, "path": f"{tmp_path}/link/."}
    error = refuse("secondary_tiers", [first, {"type": "memory", "capacity": 1}, second])
    assert (error.key, error.value) == ("secondary_tiers[2].path", f"{tmp_path}/link")
    assert error.allowed == "a directory of its own; secondary_tiers[0] is in this one"
    assert len(parse(secondary_tiers=[first, {**NVME, "path": f"{tmp_path}"}]).secondary_tiers) == 2


def test_a_directory_that_cannot_be_resolved_is_for_the_tier_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = tmp_path / "loop" / ("x" * 300)
    config = parse(secondary_tiers=[{**NVME, "path": str(path)}])
    assert config.secondary_tiers == (NvmeConfig(path=path, capacity=GIB),)


def test_cpu_bytes_to_use_is_required() -> None:
    error = refusal({"stats": False})
    assert (error.key, error.value) == ("cpu_bytes_to_use", None)
    assert "required" in str(error)
    assert '"cpu_bytes_to_use": "64GiB"' in str(error)


def test_block_size_and_blocks_per_chunk_exclude_each_other() -> None:
    error = refusal({"cpu_bytes_to_use": GIB, "block_size": 64, "blocks_per_chunk": 2})
    assert (error.key, error.value) == ("blocks_per_chunk", 2)
    assert "only one of it and block_size, which is 64" in str(error)


@pytest.mark.parametrize("absent", ["block_size", "blocks_per_chunk"])
def test_null_is_the_same_as_left_out(absent: str) -> None:
    values: dict[str, object] = {"block_size": 64, "blocks_per_chunk": 2, absent: None}
    assert getattr(parse(**values), absent) is None


def test_first_wrong_setting_in_order_is_reported() -> None:
    error = refusal({"stats": "off", "restore": "never", "cpu_bytes_to_use": GIB})
    assert error.key == "restore"


@pytest.mark.parametrize("key", FIELDS)
def test_misspelled_key_names_the_nearest(key: str) -> None:
    error = refuse(f"{key[:-1]}x", 17)
    assert isinstance(error, UnknownKeyError)
    assert (error.key, error.value) == (f"{key[:-1]}x", 17)
    assert f"did you mean {key!r}?" in str(error)


def test_misspelled_required_key_is_unknown_not_missing() -> None:
    error = refusal({"cpu_bytes_to_us": "64GiB"})
    assert isinstance(error, UnknownKeyError)
    assert "did you mean 'cpu_bytes_to_use'?" in str(error)


@pytest.mark.parametrize("key", ["grouped_pools", "kv_bytes_per_rank", "connectors", ""])
def test_key_that_resembles_none_lists_all(key: str) -> None:
    error = refuse(key, True)
    assert isinstance(error, UnknownKeyError)
    assert f"known keys are {', '.join(sorted([*FIELDS, 'spec_name', 'spec_module_path']))}" in str(
        error
    )


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("backpressure", "queue_depth and write_budget"),
        ("cache_policy_module_path", "use eviction_policy, one of lru, arc, cost"),
        ("canonical_layout", "leave it out"),
        ("mamba_checkpoint_stride", "--prefix-cache-retention-interval"),
        ("tier_poll_interval_s", "leave it out"),
    ],
)
def test_key_of_another_system_comes_with_advice(key: str, advice: str) -> None:
    error = refuse(key, 1)
    assert isinstance(error, UnknownKeyError)
    assert advice in str(error)
    assert "did you mean" not in str(error)


def test_own_spec_is_tolerated() -> None:
    spec = {"spec_name": "TierCacheSpec", "spec_module_path": "tiercache.vllm.spec"}
    assert parse(**spec) == parse()


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_every_eviction_policy_exists(name: str) -> None:
    assert make_policy(name, 4).name == name


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
nested = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(), scalars, max_size=2)
paths = nested | st.text().map("/".__add__)
tiers = st.lists(
    st.fixed_dictionaries({"type": st.just("nvme")}, optional={"path": paths, "capacity": nested})
    | nested,
    min_size=1,
    max_size=2,
)


@given(st.sampled_from([*FIELDS, "spec_name"]) | st.text(max_size=40), nested | tiers)
def test_nothing_but_a_config_error_is_raised(key: str, value: object) -> None:
    try:
        TierCacheConfig.from_mapping({"cpu_bytes_to_use": GIB, key: value})
    except ConfigError as error:
        unknown = f"unknown key {error.key!r} (its value: {error.value!r})"
        refused = f"{error.key}: {error.value!r} is not allowed"
        prefix = unknown if isinstance(error, UnknownKeyError) else refused
        assert str(error).startswith(prefix)  # noqa: PT017
