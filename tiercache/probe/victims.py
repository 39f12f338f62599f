# SPDX-License-Identifier: Apache-2.0
"""Who is evicted next in a group, and what that would cost.

Covers questions to a pool and its policy, which keep their order. What is lost with an entry is
what is restorable from RAM now and would not be without it, taken by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tiercache.blocks import BlockHash, GroupKind, Key, key_hash
from tiercache.checkpoints import CheckpointTree
from tiercache.probe.sequences import Followed
from tiercache.slots import SlotPool
from tiercache.stats.model import SlotClass, Victim

#: Rows of a group, and how many of them pinned entries get.
ROWS, PINNED_ROWS = 64, 16
#: Blocks that are looked for in a whole prompt, per group; others lie beside the one before.
SEARCHES = 4


class Surroundings(NamedTuple):
    """What a pool does not know of its entries."""

    tree: CheckpointTree
    tokens_per_hash: int
    owner: Callable[[int, int], Followed | None]
    """Whose entry is in a slot, by group id and slot."""
    below: Callable[[Key], str | None]
    """The tier that has a copy."""
    has_states: bool
    """Whether a restore can only end at a checkpoint."""


def victims(pool: SlotPool, around: Surroundings) -> list[Victim]:
    """The next victims of ``pool``, in their order, and behind them what is pinned."""
    pinned = pool.pinned(PINNED_ROWS)
    peeked = pool.next_victims(ROWS - len(pinned))
    classes = [SlotClass.DEMOTED] * peeked.demoted
    classes += [SlotClass.LIVE] * (len(peeked.keys) - peeked.demoted)
    classes += [SlotClass.PINNED] * len(pinned)
    keys = [*peeked.keys, *pinned]
    slots = pool.ready.locate(keys)
    owners = [around.owner(pool.spec.group_id, slot) for slot in slots]
    ends = _ends(pool, keys, owners, around)
    found = []
    for key, slot, slot_class, owner, end in zip(keys, slots, classes, owners, ends, strict=True):
        lost = 0
        if slot_class is not SlotClass.DEMOTED and end is not None:
            lost = _lost(pool, key, owner, end, around)
        found.append(
            Victim(
                f"g{pool.spec.group_id}",
                slot,
                slot_class,
                None if owner is None else owner.number,
                end,
                None if owner is None else owner.last_used,
                around.below(key),
                lost,
            )
        )
    return found


def _ends(
    pool: SlotPool, keys: Sequence[Key], owners: Sequence[Followed | None], around: Surroundings
) -> Iterator[int | None]:
    """Where the entries end in their sequences, in tokens; None for what is not known."""
    if pool.spec.kind is GroupKind.STATE:
        for key in keys:
            node = around.tree.get(key_hash(key))
            yield None if node is None else (node.index + 1) * around.tokens_per_hash
        return
    finder = _Finder(pool.spec.tokens_per_chunk // around.tokens_per_hash)
    for key, owner in zip(keys, owners, strict=True):
        index = None if owner is None else finder.index(key_hash(key), owner, around)
        yield None if index is None else (index + 1) * around.tokens_per_hash


class _Finder:
    """Finds blocks in prompts of thousands: the next victim is mostly beside the one before."""

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._at: int | None = None
        self._searches = SEARCHES

    def index(self, block_hash: BlockHash, owner: Followed, around: Surroundings) -> int | None:
        hashes = owner.lineage.hashes
        for index in self._guesses(owner, around):
            if 0 <= index < len(hashes) and hashes[index] == block_hash:
                self._at = index
                return index
        if not self._searches:
            return None
        self._searches -= 1
        try:
            self._at = hashes.index(block_hash)
        except ValueError:
            return None
        return self._at

    def _guesses(self, owner: Followed, around: Surroundings) -> Iterator[int]:
        if self._at is not None:
            yield self._at - self._stride
            yield self._at + self._stride
        if owner.shown is not None:  # a prefix goes from its end
            yield owner.shown.cached // around.tokens_per_hash - 1


def _lost(pool: SlotPool, key: Key, owner: Followed | None, end: int, around: Surroundings) -> int:
    if pool.spec.kind is GroupKind.STATE:
        return _lost_with_state(key, around)
    return 0 if owner is None else _lost_with_block(pool, owner, end, around)


def _lost_with_state(key: Key, around: Surroundings) -> int:
    """Tokens back to the nearest live checkpoint, unless a later one serves its sequence."""
    node = around.tree.get(key_hash(key))
    if node is None or node.children:
        return 0
    before = node.parent
    while before is not None and before.demoted:
        before = before.parent
    return (node.index - (-1 if before is None else before.index)) * around.tokens_per_hash


def _lost_with_block(pool: SlotPool, owner: Followed, end: int, around: Surroundings) -> int:
    """Tokens back to where the prefix could still be served without the block."""
    restorable = 0 if owner.shown is None else owner.shown.restorable_ram
    start = end - pool.spec.tokens_per_chunk
    window = pool.spec.window_chunks
    if start >= restorable:
        return 0
    if window is not None and end <= restorable - window * pool.spec.tokens_per_chunk:
        return 0
    if not around.has_states:
        return restorable - start
    return restorable - next((at for at in owner.boundaries if at <= start), 0)
