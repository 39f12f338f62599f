# SPDX-License-Identifier: Apache-2.0
"""What the tests of the core share: names for keys, chains and groups, and requests to play."""

from collections.abc import Iterable, Sequence

from tiercache.blocks import BlockHash, GroupKind, GroupSpec, Key, make_key
from tiercache.primary import PrimaryTier
from tiercache.requests import Request

BLOCK = 16
SLOT_BYTES = 4096


def key(name: str, group_id: int = 0) -> Key:
    return make_key(name.encode(), group_id)


def names(keys: Iterable[Key]) -> str:
    """The names of keys that ``key`` made, one after the other."""
    return "".join(k[:-4].decode() for k in keys)


def chain(name: str, blocks: int, *, after: Sequence[BlockHash] = ()) -> list[BlockHash]:
    """Hashes of ``blocks`` blocks that continue the prefix ``after``."""
    return [*after, *(f"{name}{i} ".encode() for i in range(len(after), len(after) + blocks))]


def keys(hashes: Iterable[BlockHash], *group_ids: int) -> list[Key]:
    """A key per hash and group, group by group, as vLLM orders them."""
    hashes = list(hashes)
    return [make_key(block_hash, group_id) for group_id in group_ids for block_hash in hashes]


def full(group_id: int, tokens: int = BLOCK, *, draft: bool = False) -> GroupSpec:
    return GroupSpec(group_id, GroupKind.FULL, tokens, SLOT_BYTES, draft=draft)


def state(group_id: int, tokens: int = BLOCK) -> GroupSpec:
    return GroupSpec(group_id, GroupKind.STATE, tokens, SLOT_BYTES)


def window(group_id: int, chunks: int, tokens: int = BLOCK) -> GroupSpec:
    return GroupSpec(group_id, GroupKind.WINDOW, tokens, SLOT_BYTES, window_chunks=chunks)
