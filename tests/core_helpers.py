# SPDX-License-Identifier: Apache-2.0
"""What the tests of the core share: names for keys, chains and groups, and requests to play."""

from collections.abc import Callable, Collection, Iterable, Sequence

from tiercache.blocks import BlockHash, GroupKind, GroupSpec, Key, make_key
from tiercache.primary import PrimaryTier, Reservation
from tiercache.requests import Request

BLOCK = 16
SLOT_BYTES = 4096
#: The groups of the hybrid model that most tests play on.
FULL = 0
STATES = (1, 2)
#: Slots of the full group, slots of each state group, and what `PrimaryTier` takes by name.
MakeTier = Callable[..., PrimaryTier]


def key(name: str, group_id: int = FULL) -> Key:
    return make_key(name.encode(), group_id)


def names(keys: Iterable[Key]) -> str:
    """The names of keys that ``key`` made, one after the other."""
    return "".join(k[:-4].decode() for k in keys)


def chain(name: str, blocks: int, *, after: Sequence[BlockHash] = ()) -> list[BlockHash]:
    """Hashes of the prefix ``after`` and of ``blocks`` blocks that continue it."""
    return [*after, *(f"{name}{i}".encode() for i in range(len(after), len(after) + blocks))]


def keys(hashes: Iterable[BlockHash], *group_ids: int) -> list[Key]:
    """A key per hash and group, group by group, as vLLM orders them."""
    hashes = list(hashes)
    return [make_key(block_hash, group_id) for group_id in group_ids for block_hash in hashes]


def checkpoint(hashes: Sequence[BlockHash], blocks: int) -> list[Key]:
    """The states of all groups after the first ``blocks`` blocks."""
    return keys([hashes[blocks - 1]], *STATES)


def full(group_id: int, tokens: int = BLOCK, *, draft: bool = False) -> GroupSpec:
    return GroupSpec(group_id, GroupKind.FULL, tokens, SLOT_BYTES, draft=draft)


def state(group_id: int, tokens: int = BLOCK) -> GroupSpec:
    return GroupSpec(group_id, GroupKind.STATE, tokens, SLOT_BYTES)


def window(group_id: int, chunks: int, tokens: int = BLOCK) -> GroupSpec:
    return GroupSpec(group_id, GroupKind.WINDOW, tokens, SLOT_BYTES, window_chunks=chunks)


def reserve(tier: PrimaryTier, request: Request, wanted: Collection[Key]) -> Reservation:
    reservation = tier.reserve(request, wanted)
    assert reservation is not None
    return reservation


def store(tier: PrimaryTier, request: Request, wanted: Collection[Key]) -> list[Key]:
    """Reserve and commit; returns what was evicted. vLLM reports its stores as sets."""
    reservation = reserve(tier, request, wanted)
    tier.commit(set(reservation.keys))
    return reservation.evicted


def restorable(tier: PrimaryTier, request: Request) -> int:
    """How many blocks of its prompt a request can get."""
    limit = len(request.lineage.hashes) * BLOCK
    return tier.plan(request, start=0, limit=limit).boundary // BLOCK


def load(tier: PrimaryTier, request: Request) -> int:
    """Restore what a request can get; returns how many blocks that is."""
    blocks = restorable(tier, request)
    if blocks:
        hashes = request.lineage.hashes
        loaded = [*keys(hashes[:blocks], FULL), *checkpoint(hashes, blocks)]
        tier.pin(request, loaded)
        tier.unpin(set(loaded))
    return blocks


def turn(tier: PrimaryTier, hashes: Sequence[BlockHash], *states: int, name: str = "") -> int:
    """Play a request on a hybrid model: restore, store its blocks and these states, finish.

    Returns how many blocks it restored. As vLLM does, it offers its blocks from the first one on.
    """
    request = tier.open(name, hashes)
    restored = load(tier, request)
    store(tier, request, keys(hashes, FULL))
    for blocks in states:
        store(tier, request, checkpoint(hashes, blocks))
    tier.finish(request)
    return restored


def is_demoted(tier: PrimaryTier, wanted: Iterable[Key]) -> list[bool]:
    return [tier.pools[int.from_bytes(k[-4:], "big")].demoted([k]) == [k] for k in wanted]


def victims(tier: PrimaryTier, group_id: int = FULL) -> list[bytes]:
    """Hashes in the order in which a group would evict them."""
    pool = tier.pools[group_id]
    return [k[:-4] for k in pool.next_victims(pool.capacity).keys]
