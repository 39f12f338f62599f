# SPDX-License-Identifier: Apache-2.0
"""Settings of a secondary tier, and the readers of single values: what is taken and refused."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache import tierconfig
from tiercache.errors import ConfigError, UnknownKeyError
from tiercache.tierconfig import MAX_BYTES, MemoryConfig, NvmeConfig, parse_bytes, parse_tier
from tiercache.tiers.nvme import policy

GIB = 1 << 30
KEY = "secondary_tiers[0]"
NVME = {"type": "nvme", "path": "/mnt/nvme", "capacity": "1GiB"}


def nvme(**values: object) -> NvmeConfig:
    config = parse_tier(KEY, NVME | values)
    assert isinstance(config, NvmeConfig)
    return config


def refusal(value: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_tier(KEY, value)
    return caught.value


def test_defaults_of_an_nvme_tier() -> None:
    assert dataclasses.asdict(nvme()) == {
        "type": "nvme",
        "path": Path("/mnt/nvme"),
        "capacity": GIB,
        "policy": "lru",
        "spill": "on_store",
        "durability": "crash",
        "write_budget": None,
        "high_water": 0.95,
        "low_water": 0.90,
        "queue_depth": 8,
        "min_free": GIB,
        "switch_interval": 0.001,
    }


def test_defaults_are_accepted_when_spelled_out() -> None:
    values = json.loads(json.dumps(dataclasses.asdict(nvme()), default=str))
    assert parse_tier(KEY, values) == nvme()


def test_a_memory_tier() -> None:
    assert parse_tier(KEY, {"type": "memory", "capacity": "2GiB"}) == MemoryConfig(capacity=2 * GIB)


@pytest.mark.parametrize(
    ("key", "value", "parsed"),
    [
        ("path", "/", Path("/")),
        ("path", Path("/mnt/a b"), Path("/mnt/a b")),
        ("capacity", 1, 1),
        ("policy", "fifo", "fifo"),
        ("policy", "s3fifo", "s3fifo"),
        ("spill", "on_evict", "on_evict"),
        ("durability", "power", "power"),
        ("write_budget", None, None),
        ("write_budget", 1_000, 1_000),
        ("write_budget", "2TiB/day", 2 << 40),
        ("write_budget", "2 TiB /day", 2 << 40),
        ("write_budget", "500GB", 500 * 10**9),
        ("high_water", 1, 1.0),
        ("low_water", 0.01, 0.01),
        ("queue_depth", 1, 1),
        ("queue_depth", 256, 256),
        ("switch_interval", None, None),
        ("switch_interval", 1, 1.0),
        ("switch_interval", 0.00001, 0.00001),
        ("min_free", 0, 0),
        ("min_free", "10GiB", 10 * GIB),
    ],
)
def test_accepted(key: str, value: object, parsed: object) -> None:
    found = getattr(nvme(**{key: value}), key)
    assert found == parsed
    assert type(found) is type(parsed)


WRONG: dict[str, list[object]] = {
    "type": [None, "", "NVMe", "fs", 1, ["nvme"], {}],
    "path": [None, "", "nvme", "./nvme", "~/nvme", "/a\0b", "/\ud800", b"/mnt", 1, ["/mnt"]],
    "capacity": [None, True, "", "lots", 0, -1, 0.5, math.inf],
    "policy": [None, "", "LRU", "arc", 1, ["lru"]],
    "spill": [None, "", "on_commit", True],
    "durability": [None, "", "none", False],
    "write_budget": [
        True,
        0,
        -1,
        "",
        "/day",
        "2TiB/hour",
        "2TiB/day/day",
        "2TiB per day",
        math.nan,
    ],
    "high_water": [None, True, 0, -0.5, 1.01, 95, "0.95", "95%", math.nan, math.inf, 10**400],
    "low_water": [None, False, 0, 1.01, "0.9", math.nan],
    "queue_depth": [None, True, 0, -1, 257, 8.0, "8"],
    "switch_interval": [True, 0, -0.001, 1e-6, 2, "0.001", math.nan, math.inf],
    "min_free": [None, True, -1, "-1", "lots", 0.5, math.nan],
}


def test_every_setting_has_wrong_values() -> None:
    assert WRONG.keys() == {setting.name for setting in dataclasses.fields(NvmeConfig)}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values]
)
def test_refused_with_key_value_and_what_is_allowed(key: str, value: object) -> None:
    error = refusal(NVME | {key: value})
    assert type(error) is ConfigError
    assert (error.key, repr(error.value)) == (f"{KEY}.{key}", repr(value))
    assert str(error).startswith(f"{KEY}.{key}: {value!r} is not allowed; allowed: {error.allowed}")
    assert error.allowed


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("type", "fs", "'nvme' or 'memory'"),
        ("path", "nvme", "an absolute path"),
        ("policy", "arc", "'lru' or 'fifo' or 's3fifo'"),
        ("write_budget", "2TiB/hour", 'null, or a size in bytes per day, such as "2TiB/day"'),
        ("high_water", 95, "a number above 0 and up to 1"),
        ("queue_depth", 257, "an integer from 1 to 256"),
        ("capacity", 0, "from 1 to"),
        ("min_free", -1, "from 0 to"),
    ],
)
def test_says_what_is_allowed(key: str, value: object, allowed: str) -> None:
    assert allowed in refusal(NVME | {key: value}).allowed


@pytest.mark.parametrize("value", [None, "nvme", 1, [], [NVME]])
def test_a_tier_is_an_object(value: object) -> None:
    error = refusal(value)
    assert (error.key, error.value) == (KEY, value)
    assert error.allowed == 'an object with a "type"'


@pytest.mark.parametrize("missing", NVME)
def test_what_is_required_is_named(missing: str) -> None:
    error = refusal({key: value for key, value in NVME.items() if key != missing})
    assert (error.key, error.value) == (f"{KEY}.{missing}", None)


@pytest.mark.parametrize(
    ("values", "high", "low"),
    [({"low_water": 0.96}, 0.95, 0.96), ({"high_water": 0.5}, 0.5, 0.9)],
)
def test_low_water_is_not_above_high_water(
    values: dict[str, float], high: float, low: float
) -> None:
    error = refusal(NVME | values)
    assert (error.key, error.value) == (f"{KEY}.low_water", low)
    assert error.allowed == f"at most high_water, which is {high}"
    assert nvme(high_water=0.5, low_water=0.5).low_water == 0.5


def test_an_unknown_key_comes_first_and_with_the_nearest_one() -> None:
    error = refusal({"type": "nvme", "capacty": "1GiB"})
    assert isinstance(error, UnknownKeyError)
    assert (error.key, error.value) == (f"{KEY}.capacty", "1GiB")
    assert "the nearest is 'capacity'; known keys are capacity, durability, " in str(error)


@pytest.mark.parametrize("key", ["", "backpressure", 1])
def test_a_key_that_resembles_none_lists_all(key: object) -> None:
    error = refusal(dict([*NVME.items(), (key, 1)]))
    assert isinstance(error, UnknownKeyError)
    assert "nearest" not in str(error)
    assert "known keys are capacity, " in str(error)


def test_the_keys_of_a_memory_tier_are_its_own() -> None:
    error = refusal({"type": "memory", "capacity": 1, "path": "/mnt/nvme"})
    assert isinstance(error, UnknownKeyError)
    assert "known keys are capacity, type" in str(error)


def test_every_policy_exists() -> None:
    assert tierconfig.DISK_POLICIES == policy.DISK_POLICIES


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (1, 1),
        (4_096, 4_096),
        (8e9, 8_000_000_000),
        ("4096", 4_096),
        ("4096B", 4_096),
        ("1kb", 1_000),
        ("1KiB", 1_024),
        ("3MB", 3_000_000),
        ("512MiB", 512 << 20),
        ("500GB", 500 * 10**9),
        ("64GiB", 64 * GIB),
        ("64 GiB", 64 * GIB),
        (" 64gib ", 64 * GIB),
        ("64GIB", 64 * GIB),
        ("2TB", 2 * 10**12),
        ("1.5TiB", 3 << 39),
        ("0.3GiB", 322_122_547),
        ("1.9B", 1),
        (MAX_BYTES, MAX_BYTES),
        (str(MAX_BYTES), MAX_BYTES),
    ],
)
def test_sizes(value: object, size: int) -> None:
    found = parse_bytes("capacity", value)
    assert found == size
    assert type(found) is int


@pytest.mark.parametrize(
    "value",
    [
        "64 G",
        "64G",
        "64K",
        "64Gi",
        "64GBit",
        "64 bytes",
        "64PiB",
        "64_000",
        "64,5GiB",
        "64.5",
        "64.GiB",
        ".5GiB",
        "1e9",
        "8e9B",
        "-64GiB",
        "+64GiB",
        "64 G iB",
        "64GiB 1",
        "GiB",
        "0",
        "0GiB",
        "0.0001KiB",
        "nan",
        "infGiB",
        "٦٤GiB",  # digits, but not ours
        "64Gıb",  # noqa: RUF001 - a dotless i, which is an i when case is ignored
        "9" * 5_000,
        "9999999TiB",
        MAX_BYTES + 1,
        1e300,
        -8e9,
        8.5,
        b"64GiB",
        2j,
    ],
)
def test_not_sizes(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bytes("capacity", value)
    assert (caught.value.key, caught.value.value) == ("capacity", value)


@given(st.integers(1, MAX_BYTES >> 40), st.sampled_from("KMGT"))
def test_units_are_powers(number: int, prefix: str) -> None:
    power = "KMGT".index(prefix) + 1
    assert parse_bytes("capacity", f"{number}{prefix}iB") == number * 1024**power
    assert parse_bytes("capacity", f"{number} {prefix}B") == number * 1000**power


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
nested = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(), scalars, max_size=2)


@given(st.sampled_from(list(WRONG)) | st.text(max_size=20), nested)
def test_nothing_but_a_config_error_is_raised(key: str, value: object) -> None:
    try:
        parse_tier(KEY, {**NVME, key: value})
    except ConfigError as error:
        assert error.key in (KEY, f"{KEY}.{key}", f"{KEY}.low_water")  # noqa: PT017
