# SPDX-License-Identifier: Apache-2.0
"""What never changes in a segment: the pool, its groups and its tiers, written once as JSON.

Covers both directions. Names are here only; rows refer to them by their place.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from tiercache.errors import FormatError
from tiercache.stats.model import Group, Pool, Tier

#: Room for hundreds of groups; a longer one is not ours.
MAX_BYTES = 64 << 10
#: Rows name a tier in one byte, and some of its values mean none, RAM or nowhere.
MAX_TIERS = 250
#: Later times do not fit into nanoseconds since the epoch.
_LATEST_S = 2**64 / 1e9


class GroupHead(NamedTuple):
    """What is fixed about a group."""

    name: str
    kind: str
    slot_bytes: int | None
    chunk_tokens: int | None


class TierHead(NamedTuple):
    """What is fixed about a tier."""

    name: str
    kind: str
    capacity: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is fixed about a pool."""

    pool: Pool
    groups: tuple[GroupHead, ...]
    tiers: tuple[TierHead, ...]

    @classmethod
    def of(cls, pool: Pool, groups: Sequence[Group], tiers: Sequence[Tier]) -> "Manifest":
        return cls(
            pool,
            tuple(GroupHead(g.name, g.kind, g.slot_bytes, g.chunk_tokens) for g in groups),
            tuple(TierHead(t.name, t.kind, t.capacity) for t in tiers),
        )

    def encode(self) -> bytes:
        """Raises: FormatError if there is more than a segment has room for."""
        document = {
            "pool": asdict(self.pool),
            "groups": [group._asdict() for group in self.groups],
            "tiers": [tier._asdict() for tier in self.tiers],
        }
        encoded = json.dumps(document).encode()
        if len(encoded) > MAX_BYTES or len(self.tiers) > MAX_TIERS:
            raise FormatError(
                f"{len(self.groups)} groups and {len(self.tiers)} tiers do not fit into a segment"
            )
        return encoded

    @classmethod
    def decode(cls, encoded: bytes) -> "Manifest":
        """Raises: FormatError if it is anything but what ``encode`` makes."""
        try:
            document = json.loads(encoded)
            return cls(
                _pool(document["pool"]),
                tuple(_group(group) for group in document["groups"]),
                tuple(_tier(tier) for tier in document["tiers"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FormatError("the manifest is damaged") from error


def _pool(document: Mapping[str, Any]) -> Pool:
    texts = {f.name: _text(document[f.name]) for f in fields(Pool) if f.type is str}
    numbers = {f.name: _number(document[f.name]) for f in fields(Pool) if f.type is int}
    started = float(document["started"])
    if not 0 <= started < _LATEST_S:
        raise ValueError(started)
    return Pool(started=started, **texts, **numbers)  # type: ignore[arg-type]  # by their types


def _group(document: Mapping[str, Any]) -> GroupHead:
    slot_bytes, chunk_tokens = document["slot_bytes"], document["chunk_tokens"]
    return GroupHead(
        _text(document["name"]),
        _text(document["kind"]),
        None if slot_bytes is None else _number(slot_bytes),
        None if chunk_tokens is None else _number(chunk_tokens),
    )


def _tier(document: Mapping[str, Any]) -> TierHead:
    return TierHead(_text(document["name"]), _text(document["kind"]), _number(document["capacity"]))


def _text(value: object) -> str:
    """What a terminal shows as it is: a segment is not to be trusted with its control codes."""
    if not isinstance(value, str):
        raise TypeError(value)
    return "".join(c if c.isprintable() else "?" for c in value)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError(value)
    return value
