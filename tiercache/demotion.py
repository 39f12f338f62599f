# SPDX-License-Identifier: Apache-2.0
"""What is not worth keeping: superseded states, broken checkpoints, stranded attention blocks.

Covers the checkpoints across the pools of all groups, and which of their entries are evicted
first. When requests start and end, and which slots are taken, is decided in ``primary``.
"""

from collections.abc import Callable, Collection, Iterable

from tiercache.blocks import BlockHash, GroupKind, Key, Lineage, key_hash, make_key
from tiercache.checkpoints import Checkpoint, CheckpointTree
from tiercache.events import EventKind, Journal
from tiercache.policies.cost import checkpoint_worth
from tiercache.requests import Request
from tiercache.slots import SlotPool


class Demoter:
    """Keeps the checkpoint tree and the eviction orders of all pools in step.

    Args:
        pools: the pools of all groups.
        journal: told of every demotion.
        tokens_per_hash: tokens that one block hash stands for.
        demote: whether superseded states and stranded blocks are demoted; the rest of a broken
            checkpoint always is. Policies that appraise weigh superseded states themselves.
        keep_blocks: how many blocks before the newest state keep theirs.
        demote_forks: whether a checkpoint with several continuations can be superseded.

    Locking: none, as for the pools.
    """

    def __init__(
        self,
        pools: Collection[SlotPool],
        journal: Journal,
        *,
        tokens_per_hash: int,
        demote: bool,
        keep_blocks: int,
        demote_forks: bool,
    ) -> None:
        self.tree = CheckpointTree()
        self.demote_forks = demote_forks
        self._journal = journal
        self._tokens_per_hash = tokens_per_hash
        self._demote = demote
        self._keep_blocks = keep_blocks
        self.elsewhere: Callable[[Key], bool] = lambda _: False
        """Whether another tier has a key, so that nothing is lost with it here."""
        self.reused = 0
        """Demoted checkpoints that were used again."""
        self._states = [pool for pool in pools if pool.spec.kind is GroupKind.STATE]
        self._appraising = [pool for pool in self._states if pool.policy.appraises]
        self._fulls = [pool for pool in pools if pool.spec.kind is GroupKind.FULL]

    def tell_time(self) -> None:
        """Tell the policies that weigh age what time it is."""
        if self._appraising:
            now = self._journal.clock()
            for pool in self._appraising:
                pool.policy.tell(now)

    def members(self, block_hash: BlockHash) -> list[tuple[SlotPool, Key]]:
        """The states at a boundary, there or not, each with its pool."""
        return [(pool, make_key(block_hash, pool.spec.group_id)) for pool in self._states]

    def is_complete(self, block_hash: BlockHash) -> bool:
        """Whether the states of all state groups are there to be read."""
        return all(key in pool.ready for pool, key in self.members(block_hash))

    def is_reachable(self, block_hash: BlockHash, elsewhere: Callable[[Key], bool]) -> bool:
        """Whether the states of all state groups are there to be read, or ``elsewhere``."""
        for pool in self._states:
            key = make_key(block_hash, pool.spec.group_id)
            if key not in pool.ready and not elsewhere(key):
                return False
        return True

    def complete(self, request: Request, block_hash: BlockHash) -> None:
        """A state arrived: if its checkpoint is complete, demote what that replaces.

        Not only once the request ends: the states that one long prompt leaves on its way would
        evict those of everybody else.
        """
        index = request.lineage.index(block_hash)
        if index is None or not self.is_complete(block_hash):
            return
        node = self.tree.add(request.lineage, index)
        self._touch(node)
        self._appraise(node, node.parent, *node.children)
        self._reconsider(node.parent)
        self.supersede(request)

    def supersede(self, request: Request) -> None:
        """Demote the checkpoints that the newest one on the request's lineage replaces."""
        if not self._demote or not self._states or self._states[0].policy.appraises:
            return
        block = self._states[0].spec.tokens_per_chunk // self._tokens_per_hash
        nodes = self.tree.superseded(
            request.lineage,
            keep_hashes=self._keep_blocks * block,
            demote_forks=self.demote_forks,
        )
        for pool in self._states:
            keys = [make_key(node.block_hash, pool.spec.group_id) for node in nodes]
            demoted = pool.demote(keys)
            self._record(EventKind.DEMOTED, pool, demoted, request)
        for node in nodes:
            node.demoted = all(p.demoted((k,)) for p, k in self.members(node.block_hash))

    def revive(self, pool: SlotPool, keys: Iterable[Key]) -> None:
        """Keys are used again: undo their demotion, that of a state with its whole checkpoint."""
        pool.touch(pool.demoted(keys))
        if pool.spec.kind is GroupKind.STATE:
            for node in filter(None, map(self.tree.get, map(key_hash, keys))):
                self.reused += node.demoted
                self._undo_demotion(node)
                self._appraise(node)

    def _reconsider(self, node: Checkpoint | None) -> None:
        """Undo a demotion that no longer holds: ``node`` is the newest again, or became a fork."""
        if node is not None and (not node.children or (node.is_fork and not self.demote_forks)):
            self._undo_demotion(node)

    def _undo_demotion(self, node: Checkpoint) -> None:
        if node.demoted:
            node.demoted = False
            self._touch(node)

    def _touch(self, node: Checkpoint) -> None:
        for pool, key in self.members(node.block_hash):
            pool.touch((key,))

    def lose(self, request: Request, block_hash: BlockHash, running: Iterable[Request]) -> None:
        """A state was evicted for ``request``: nothing that only it could serve is worth keeping.

        What the lineages of ``running`` requests go through is left alone.
        """
        node = self.tree.get(block_hash)
        if node is None:
            return
        if self.is_reachable(block_hash, self.elsewhere):
            self._remove(node)
            return
        stranded = self.tree.stranded(node, [other.lineage for other in running])
        self._remove(node)
        self.discard(request, node.block_hash)
        if self._demote:
            self._strand(request, node, *stranded)

    def _remove(self, node: Checkpoint) -> None:
        children = list(node.children)
        parent = self.tree.remove(node)
        self._appraise(parent, *children)
        self._reconsider(parent)

    def _appraise(self, *nodes: Checkpoint | None) -> None:
        """Tell the policies what checkpoints are worth, since their neighbours have changed."""
        for node in nodes if self._appraising else ():
            if node is None or node.parent is None:
                continue
            saved = (node.index - node.parent.index) * self._tokens_per_hash
            worth = checkpoint_worth(saved, len(node.children))
            for pool in self._appraising:
                pool.appraise(make_key(node.block_hash, pool.spec.group_id), worth)

    def discard(self, request: Request, block_hash: BlockHash) -> None:
        """Make the remaining members of a broken checkpoint the next victims of their groups.

        It is not broken if what is missing here can be had elsewhere.
        """
        if self.is_reachable(block_hash, self.elsewhere):
            return
        for pool, key in self.members(block_hash):
            demoted = pool.demote((key,), first=True)
            self._record(EventKind.STRANDED, pool, demoted, request)

    def cut(self, request: Request, blocks: Iterable[Key]) -> None:
        """Attention blocks were evicted: the checkpoints that end with them go next.

        A prefix shrinks from its end, so these are the first that cannot be served any more.
        """
        if not self._demote or not self._states:
            return
        complete = self.tree.hashes
        ends = [key for key in blocks if key_hash(key) in complete and not self.elsewhere(key)]
        for block_hash in map(key_hash, ends):
            for pool, key in self.members(block_hash):
                pool.appraise(key, 0.0)
                demoted = pool.demote((key,), first=True)
                self._record(EventKind.STRANDED, pool, demoted, request)

    def _strand(self, request: Request, node: Checkpoint, start: int, end: int) -> None:
        """Demote the attention blocks at ``start <= index < end``, the end of the prefix first."""
        per_hash = self._tokens_per_hash
        lineage = Lineage(node.hashes, per_hash)
        for pool in self._fulls:
            step = pool.spec.tokens_per_chunk
            ends = range(start * per_hash // step * step + step, end * per_hash + 1, step)
            keys = list(lineage.keys(pool.spec.group_id, ends))
            self._record(EventKind.STRANDED, pool, pool.demote(keys[::-1]), request)

    def _record(
        self, kind: EventKind, pool: SlotPool, keys: Collection[Key], request: Request
    ) -> None:
        self._journal.record(kind, pool.spec.group_id, keys, request.request_id)
