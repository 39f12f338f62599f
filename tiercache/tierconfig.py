# SPDX-License-Identifier: Apache-2.0
"""The settings of a secondary tier, checked, and how a single value is read.

Covers the objects in ``secondary_tiers`` and the readers of sizes, integers and choices, which
``config`` shares. Not whether a path can be written to or a disk holds a capacity: the tier finds
out when it opens.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard, get_args

from tiercache.errors import ConfigError, UnknownKeyError

Spill = Literal["on_store", "on_evict"]
Durability = Literal["crash", "power"]
Protocol = Literal["tcp", "rdma"]
Parser = Callable[[str, object], Any]

DISK_POLICIES: Final = ("lru", "fifo", "s3fifo")
#: Each is a thread that a scheduler shares the interpreter with, and no device needs more.
MAX_QUEUE_DEPTH: Final = 256
MAX_BYTES: Final = 2**63 - 1  # the largest size that the system's calls take


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeConfig:
    """A tier of preallocated files on a local disk."""

    type: Literal["nvme"] = "nvme"
    """Chooses this kind of tier."""
    path: Path
    """Directory on a local file system; absolute. Each model gets a folder of its own in it."""
    capacity: int
    """Bytes on disk that the tier never exceeds, its index included. Accepts ``"1TiB"``."""
    policy: str = "lru"
    """Who goes first: one of ``DISK_POLICIES``."""
    spill: Spill = "on_store"
    """Write every block once it is stored, or only when host memory evicts it."""
    durability: Durability = "crash"
    """What published blocks survive: a killed process, or a power loss as well."""
    write_budget: int | None = None
    """Bytes written per day at most. Accepts ``"2TiB/day"``. None: no limit."""
    high_water: float = 0.95
    """Share of the slots in use above which blocks are evicted."""
    low_water: float = 0.90
    """Share of the slots in use down to which they are evicted."""
    queue_depth: int = 8
    """Jobs that are at the disk at once."""
    min_free: int = 1 << 30
    """Bytes that the file system keeps free of us. Accepts ``"10GiB"``, and 0."""
    switch_interval: float | None = 0.001
    """Seconds that Python code of the process goes on while a thread of the tier waits for its
    turn: see ``sys.setswitchinterval``. None: what the process has, which is 0.005."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """A tier in ordinary host memory: the smallest that works."""

    type: Literal["memory"] = "memory"
    """Chooses this kind of tier."""
    capacity: int
    """Bytes that the tier never exceeds. Accepts ``"64GiB"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeConfig:
    """A tier in a Mooncake store, which the servers of several machines share."""

    type: Literal["mooncake"] = "mooncake"
    """Chooses this kind of tier."""
    master: str
    """The store's master, as ``"host:port"``."""
    capacity: int
    """Bytes in the store that this server keeps in mind. Accepts ``"1TiB"``."""
    metadata: str = "P2PHANDSHAKE"
    """URL of the store's metadata server, or ``"P2PHANDSHAKE"`` to do without."""
    protocol: Protocol = "tcp"
    """How blocks travel."""
    devices: str = ""
    """Network devices for ``rdma``, separated by commas. Empty: the store chooses."""
    host: str | None = None
    """Name or address by which others reach this machine. None: the one that reaches the master."""
    segment: int = 0
    """Bytes of this machine's memory that the server adds to the store while it runs."""
    replicas: int = 1
    """Copies of a block that the store keeps."""
    spill: Spill = "on_store"
    """Send every block once it is stored, or only when host memory evicts it."""
    queue_depth: int = 2
    """Copies to and from the store at once; each keeps a core busy while it waits."""
    lookup_timeout_s: float = 0.05
    """Seconds that a request waits for the store to say what it has; then the tier rests."""
    timeout_s: float = 10.0
    """Seconds without any copy ending after which the tier rests."""
    switch_interval: float | None = 0.001
    """As for `NvmeConfig`."""


TierConfig = NvmeConfig | MemoryConfig | MooncakeConfig


def parse_tier(key: str, value: object) -> TierConfig:
    """Check one object of ``secondary_tiers``; ``key`` names it, as in ``secondary_tiers[0]``.

    Raises:
        UnknownKeyError: a key that a tier of this type does not have.
        ConfigError: the first setting, in the order above, that is missing or cannot be used.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, 'an object with a "type"')
    kind = choice(*_TIERS)(f"{key}.type", value.get("type"))
    make, parsers = _TIERS[kind]
    _check_keys(key, value, parsers)
    given = {
        name: parse(f"{key}.{name}", value[name])
        for name, parse in parsers.items()
        if name in value
    }
    config: TierConfig = make(**given)
    if isinstance(config, NvmeConfig) and config.low_water > config.high_water:
        allowed = f"at most high_water, which is {config.high_water}"
        raise ConfigError(f"{key}.low_water", config.low_water, allowed)
    return config


def _check_keys(key: str, value: Mapping[Any, object], known: Collection[str]) -> None:
    for name in value:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            advice = f"the nearest is {near[0]!r}" if near else None
            raise UnknownKeyError(f"{key}.{name}", value[name], known, advice)
    for name, example in _REQUIRED.items():
        if name in known and name not in value:
            raise ConfigError(f"{key}.{name}", None, example)


def parse_bytes(key: str, value: object, *, least: int = 1) -> int:
    """Read a size such as 4096, 8e9, "4096", "64GiB" or "1.5 TB"; returns bytes, rounded down.

    Raises:
        ConfigError: not a size, or one that is below ``least`` bytes or beyond ``MAX_BYTES``.
    """
    size = -1
    if is_integer(value) or (isinstance(value, float) and value.is_integer()):
        size = int(value)
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        number, unit = match.group("digits") or match.group("number"), match.group("unit")
        size = int(Fraction(number) * _UNITS[(unit or "b").lower()])
    if not least <= size <= MAX_BYTES:
        raise ConfigError(key, value, f"a whole number of bytes from {least} to {_SIZE_ALLOWED}")
    return size


_UNITS: Final = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
# 19 digits reach MAX_BYTES, and int() refuses thousands of them with an error of its own.
_SIZE: Final = re.compile(
    r"(?P<digits>[0-9]{1,19})|(?P<number>[0-9]{1,19}(\.[0-9]{1,19})?) *(?P<unit>[KMGT]i?B|B)",
    re.ASCII | re.IGNORECASE,
)
_SIZE_ALLOWED: Final = (
    '2^63 - 1, or a number with a unit, such as "64GiB"; units are B, KB, MB, GB, TB (powers of '
    "1000) and KiB, MiB, GiB, TiB (powers of 1024)"
)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether ``value`` is an int; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def integer(least: int, most: int | None = None, *, allowed: str | None = None) -> Parser:
    """Read an integer of at least ``least`` and, if given, at most ``most``."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(key: str, value: object) -> int:
        if not is_integer(value) or value < least or (most is not None and value > most):
            raise ConfigError(key, value, allowed or f"an integer {bounds}")
        return value

    return parse


def optional(parse: Parser) -> Parser:
    """Let None, JSON's null, stand for the default."""
    return lambda key, value: None if value is None else parse(key, value)


def choice(*names: str) -> Parser:
    """Read one of ``names``."""

    def parse(key: str, value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ConfigError(key, value, " or ".join(map(repr, names)))
        return value

    return parse


def _path(key: str, value: object) -> Path:
    text = str(value) if isinstance(value, str | Path) else ""
    if not _ABSOLUTE.fullmatch(text):
        raise ConfigError(key, value, 'an absolute path, such as "/mnt/nvme/tiercache"')
    return Path(text)


_ABSOLUTE: Final = re.compile("/[^\0\ud800-\udfff]*")  # the rest has no bytes in a file system


def _bytes_per_day(key: str, value: object) -> int:
    try:
        return parse_bytes(key, value.removesuffix("/day") if isinstance(value, str) else value)
    except ConfigError:
        allowed = 'null, or a size in bytes per day, such as "2TiB/day"'
        raise ConfigError(key, value, allowed) from None


def _share(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(key, value, "a number above 0 and up to 1")
    return float(value)


def _free_bytes(key: str, value: object) -> int:
    return parse_bytes(key, value, least=0)


def _switch_interval(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-5 <= value <= 1:
        raise ConfigError(key, value, "null, or seconds from 0.00001 to 1")
    return float(value)


def _seconds(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= 60:
        raise ConfigError(key, value, "seconds from 0.001 to 60")
    return float(value)


def _text(pattern: str, allowed: str) -> Parser:
    """Read a text that all of ``pattern`` describes."""

    def parse(key: str, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise ConfigError(key, value, allowed)
        return value

    return parse


_HOST: Final = r"[\w.-]+|\[[0-9a-fA-F:.]+\]"

_REQUIRED: Final = {
    "master": 'a host and a port, which is required, such as "master": "10.0.0.1:50051"',
    "path": 'a path, which is required, such as "path": "/mnt/nvme/tiercache"',
    "capacity": 'a size, which is required, such as "capacity": "1TiB"',
}
_TIERS: Final[dict[str, tuple[Callable[..., TierConfig], dict[str, Parser]]]] = {
    "nvme": (
        NvmeConfig,
        {
            "type": choice("nvme"),
            "path": _path,
            "capacity": parse_bytes,
            "policy": choice(*DISK_POLICIES),
            "spill": choice(*get_args(Spill)),
            "durability": choice(*get_args(Durability)),
            "write_budget": optional(_bytes_per_day),
            "high_water": _share,
            "low_water": _share,
            "queue_depth": integer(1, MAX_QUEUE_DEPTH),
            "min_free": _free_bytes,
            "switch_interval": optional(_switch_interval),
        },
    ),
    "memory": (MemoryConfig, {"type": choice("memory"), "capacity": parse_bytes}),
    "mooncake": (
        MooncakeConfig,
        {
            "type": choice("mooncake"),
            "master": _text(rf"({_HOST}):[0-9]{{1,5}}", 'a host and a port: "10.0.0.1:50051"'),
            "capacity": parse_bytes,
            "metadata": _text(
                r"P2PHANDSHAKE|(http|https|etcd|redis)://[!-~]+",
                '"P2PHANDSHAKE", or a URL, such as "http://10.0.0.1:8080/metadata"',
            ),
            "protocol": choice(*get_args(Protocol)),
            "devices": _text(r"([\w.:-]+(,[\w.:-]+)*)?", 'names with commas: "mlx5_0,mlx5_1"'),
            "host": optional(_text(_HOST, "null, or a name or an address of this machine")),
            "segment": _free_bytes,
            "replicas": integer(1, 16),
            "spill": choice(*get_args(Spill)),
            "queue_depth": integer(1, MAX_QUEUE_DEPTH),
            "lookup_timeout_s": _seconds,
            "timeout_s": _seconds,
            "switch_interval": optional(_switch_interval),
        },
    ),
}
