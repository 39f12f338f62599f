# SPDX-License-Identifier: Apache-2.0
"""Settings of a Mooncake tier: what is taken and refused."""

import dataclasses
import math

import pytest

from tiercache.errors import ConfigError, UnknownKeyError
from tiercache.tierconfig import MAX_QUEUE_DEPTH, MooncakeConfig, parse_tier

GIB = 1 << 30
KEY = "secondary_tiers[0]"
REQUIRED = {"type": "mooncake", "master": "store:50051", "capacity": "1GiB"}


def parsed(**values: object) -> MooncakeConfig:
    config = parse_tier(KEY, REQUIRED | values)
    assert isinstance(config, MooncakeConfig)
    return config


def test_defaults() -> None:
    assert parsed() == MooncakeConfig(master="store:50051", capacity=GIB)
    assert parse_tier(KEY, dataclasses.asdict(parsed())) == parsed()


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("master", "10.0.0.1:1", "10.0.0.1:1"),
        ("master", "[fe80::1]:50051", "[fe80::1]:50051"),
        ("metadata", "http://10.0.0.1:8080/metadata", "http://10.0.0.1:8080/metadata"),
        ("metadata", "etcd://a:2379", "etcd://a:2379"),
        ("protocol", "rdma", "rdma"),
        ("devices", "mlx5_0,mlx5_1", "mlx5_0,mlx5_1"),
        ("host", None, None),
        ("host", "node-7.local", "node-7.local"),
        ("segment", "64GiB", 64 * GIB),
        ("replicas", 16, 16),
        ("spill", "on_evict", "on_evict"),
        ("queue_depth", MAX_QUEUE_DEPTH, MAX_QUEUE_DEPTH),
        ("lookup_timeout_s", 1, 1.0),
        ("timeout_s", 60, 60.0),
        ("switch_interval", None, None),
    ],
)
def test_accepted(key: str, value: object, found: object) -> None:
    setting = getattr(parsed(**{key: value}), key)
    assert setting == found
    assert type(setting) is type(found)


WRONG: dict[str, list[object]] = {
    "type": [None, "", "Mooncake", 1],
    "master": [
        None,
        "",
        "store",
        ":50051",
        "store:",
        "store:port",
        "http://store:1",
        "a b:1",
        50051,
    ],
    "capacity": [None, True, 0, "lots"],
    "metadata": [None, "", "p2phandshake", "10.0.0.1:8080", "ftp://a/b", "http://", "http://a b"],
    "protocol": [None, "", "TCP", "udp"],
    "devices": [None, ",", "mlx5_0,", "a b", 0],
    "host": ["", "a b", "http://a", 1],
    "segment": [None, -1, True, "lots"],
    "replicas": [None, 0, 17, True, 1.0],
    "spill": [None, "", "on_commit"],
    "queue_depth": [None, 0, MAX_QUEUE_DEPTH + 1, "4"],
    "lookup_timeout_s": [None, 0, -1, True, 61, "1", math.nan],
    "timeout_s": [None, 0, 0.0001, 61, math.inf],
    "switch_interval": [True, 0, 2],
}


def test_every_setting_has_wrong_values() -> None:
    assert WRONG.keys() == {setting.name for setting in dataclasses.fields(MooncakeConfig)}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values]
)
def test_refused_with_key_value_and_what_is_allowed(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tier(KEY, REQUIRED | {key: value})
    assert (caught.value.key, repr(caught.value.value)) == (f"{KEY}.{key}", repr(value))
    assert caught.value.allowed


@pytest.mark.parametrize("key", ["master", "capacity"])
def test_required(key: str) -> None:
    values = {name: value for name, value in REQUIRED.items() if name != key}
    with pytest.raises(ConfigError, match="which is required"):
        parse_tier(KEY, values)


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(UnknownKeyError, match="the nearest is 'master'"):
        parse_tier(KEY, REQUIRED | {"masters": "a:1"})
