# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and their lineages: what supersedes what, and what strands when one goes.

Covers complete checkpoints only (the states of all state groups at one boundary); slots and
eviction orders are elsewhere.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Sequence
from itertools import chain

from tiercache.blocks import BlockHash, Lineage
from tiercache.errors import InvariantError
from tiercache.keytable import PARTS


class Checkpoint:
    """The states at one boundary of one prefix.

    ``hashes[: index + 1]`` are the block hashes of the prefix; ``hashes`` belongs to the request
    that stored the checkpoint and may go on beyond it. ``parent`` is the nearest checkpoint
    before it on the same prefix, ``children`` the nearest ones behind it.
    """

    __slots__ = ("children", "demoted", "hashes", "index", "parent")

    def __init__(self, hashes: Sequence[BlockHash], index: int) -> None:
        self.hashes = hashes
        self.index = index
        self.demoted = False
        self.parent: Checkpoint | None = None
        self.children: set[Checkpoint] = set()

    @property
    def block_hash(self) -> BlockHash:
        return self.hashes[self.index]

    @property
    def is_fork(self) -> bool:
        """Whether two or more continuations go on from here."""
        return len(self.children) > 1

    def leads_to(self, other: "Checkpoint") -> bool:
        return other.index > self.index and other.hashes[self.index] == self.block_hash

    def attach(self, parent: "Checkpoint") -> None:
        if self.parent is not None:
            self.parent.children.discard(self)
        self.parent = parent
        parent.children.add(self)


class CheckpointTree:
    """All live checkpoints, each below the nearest one before it on its prefix.

    Invariant: a leaf is never demoted, so every child of a checkpoint stands for a live
    continuation. Locking: none, as for the pools. A lookup walks the lineage backwards from its
    end to the first checkpoint: O(hashes) dictionary reads. Siblings, of which a system prompt has
    thousands, are only gone through for one that goes between them and their parent.
    """

    def __init__(self) -> None:
        self._root = Checkpoint((), -1)
        self._nodes: dict[BlockHash, Checkpoint] = {}
        self._passing: list[dict[BlockHash, int]] = [{} for _ in range(PARTS)]
        """How many checkpoints are reached through a block from the one before it.

        By the first byte of its hash, as in `KeyTable`: there may be a million of them.
        """

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._nodes.values())

    @property
    def hashes(self) -> KeysView[BlockHash]:
        """Hashes of the boundaries that have a checkpoint."""
        return self._nodes.keys()

    def get(self, block_hash: BlockHash) -> Checkpoint | None:
        return self._nodes.get(block_hash)

    def on(self, lineage: Lineage, end: int | None = None) -> Iterator[Checkpoint]:
        """Checkpoints on ``lineage`` with an index below ``end``, the deepest first."""
        node = self._deepest(lineage.hashes, len(lineage.hashes) if end is None else end)
        while node is not self._root:
            yield node
            assert node.parent is not None
            node = node.parent

    def _deepest(self, hashes: Sequence[BlockHash], end: int) -> Checkpoint:
        # A prompt has 30,000 hashes, and this is asked at each of its steps: no loop of ours.
        found = next(filter(self._nodes.__contains__, reversed(hashes[:end])), None)
        return self._root if found is None else self._nodes[found]

    def add(self, lineage: Lineage, index: int) -> Checkpoint:
        """Add the checkpoint that ends at hash ``index`` of ``lineage``, between its neighbours."""
        node = Checkpoint(lineage.hashes, index)
        parent = self._deepest(lineage.hashes, index)
        if self._behind(node.block_hash):
            for child in [child for child in parent.children if node.leads_to(child)]:
                child.attach(node)
        node.attach(parent)
        self._nodes[node.block_hash] = node
        self._pass(node, parent, 1 - len(node.children))
        return node

    def _behind(self, block_hash: BlockHash) -> int:
        return self._passing[block_hash[0]].get(block_hash, 0)

    def _pass(self, node: Checkpoint, parent: Checkpoint, more: int) -> None:
        """Count ``more`` checkpoints behind each block from ``parent`` to ``node``."""
        for block_hash in node.hashes[parent.index + 1 : node.index + 1] if more else ():
            passing = self._passing[block_hash[0]]
            count = passing.get(block_hash, 0) + more
            if count:
                passing[block_hash] = count
            else:
                del passing[block_hash]

    def remove(self, node: Checkpoint) -> Checkpoint:
        """Take ``node`` out and hand its children to its parent.

        Returns the parent: if that was demoted and is a leaf now, the caller must undo it.
        """
        parent = node.parent
        assert parent is not None
        del self._nodes[node.block_hash]
        parent.children.discard(node)
        self._pass(node, parent, len(node.children) - 1)
        for child in list(node.children):
            child.attach(parent)
        return parent

    def superseded(
        self, lineage: Lineage, *, keep_hashes: int, demote_forks: bool
    ) -> list[Checkpoint]:
        """Checkpoints that the newest one on ``lineage`` replaces, the oldest first.

        Counted from the newest checkpoint, not from the end of the request, whose last blocks
        may never get a state: those within ``keep_hashes`` hashes before it are kept.
        """
        nodes = list(self.on(lineage))
        return [
            node
            for node in reversed(nodes[1:])
            if node.index <= nodes[0].index - keep_hashes
            and not node.demoted
            and (demote_forks or not node.is_fork)
        ]

    def stranded(self, node: Checkpoint, running: Iterable[Lineage] = ()) -> tuple[int, int]:
        """Range of indexes on ``node.hashes`` that nothing serves once ``node`` is gone.

        What the lineages of ``running`` requests share will be served by checkpoints to come.
        """
        if node.children:
            return 0, 0
        assert node.parent is not None
        own = range(node.parent.index + 1, node.index + 1)
        start = own.start + bisect_left(own, 1, key=lambda i: self._behind(node.hashes[i]) == 1)
        for lineage in running:
            start = _first_difference(node.hashes, lineage.hashes, start)
        return start, len(node.hashes)

    def clear(self) -> None:
        self._nodes.clear()
        for passing in self._passing:
            passing.clear()
        self._root.children.clear()

    def validate(self) -> None:
        """Check every invariant of the tree; raises InvariantError."""
        children = [child for node in (self._root, *self) for child in node.children]
        if Counter(children) != Counter(self):
            raise InvariantError("checkpoints: each is a child once: violated")
        if dict(chain.from_iterable(map(dict.items, self._passing))) != self._recount():
            raise InvariantError("checkpoints: those behind a block are counted: violated")
        for block_hash, node in self._nodes.items():
            parent = node.parent
            checks = {
                "filed under its hash": node.block_hash == block_hash,
                "below its parent": parent is not None and node in parent.children,
                "its parent is the nearest": parent is self._deepest(node.hashes, node.index),
                "a leaf is live": bool(node.children) or not node.demoted,
            }
            for invariant, holds in checks.items():
                if not holds:
                    raise InvariantError(f"checkpoint {block_hash.hex()}: {invariant}: violated")

    def _recount(self) -> Counter[BlockHash]:
        before = ((node, -1 if node.parent is None else node.parent.index) for node in self)
        return Counter(h for node, index in before for h in node.hashes[index + 1 : node.index + 1])


def _first_difference(a: Sequence[BlockHash], b: Sequence[BlockHash], start: int) -> int:
    """First index from ``start`` on at which two chains differ.

    Hashes are chained: once they differ they differ for good, so most pairs are told apart by
    one look at ``start``, and bisection finds the place for the others.
    """
    end = min(len(a), len(b))
    if start >= end or a[start] != b[start]:
        return start
    return bisect_left(range(end), 1, lo=start, key=lambda i: a[i] != b[i])
