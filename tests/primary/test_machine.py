# SPDX-License-Identifier: Apache-2.0
"""Random requests on random prefixes, as vLLM plays them: every invariant after every step."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core_helpers import (
    BLOCK,
    FULL,
    STATES,
    chain,
    checkpoint,
    full,
    is_demoted,
    keys,
    reserve,
    state,
    turn,
)
from tiercache.blocks import BlockHash, Key
from tiercache.checkpoints import Checkpoint
from tiercache.errors import InvariantError
from tiercache.policies import POLICIES
from tiercache.policies.cost import Cost, checkpoint_worth
from tiercache.primary import PrimaryTier
from tiercache.requests import Request

FULL_SLOTS, STATE_SLOTS = 10, 4
#: A prompt is a word, its blocks are its letters: words that begin alike share blocks.
words = st.text("ab", min_size=1, max_size=7)
data = st.data()


def prefix_hashes(word: str) -> list[BlockHash]:
    return [word[: i + 1].encode() for i in range(len(word))]


class Conversations(RuleBasedStateMachine):
    """Several requests at a time, with failures, aborts, late reports and resets."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Request] = []
        self.stores: list[list[Key]] = []
        self.loads: list[list[Key]] = []
        self.cut: set[Checkpoint] = set()
        self.present: set[Key] = set()
        """What was committed and is not evicted."""

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        demote=st.booleans(),
        demote_forks=st.booleans(),
        keep_blocks=st.integers(1, 3),
    )
    def begin(self, policy: str, demote: bool, demote_forks: bool, keep_blocks: int) -> None:
        self.demote_forks = demote_forks
        self.tier = PrimaryTier(
            [full(FULL), *map(state, STATES)],
            {FULL: FULL_SLOTS} | dict.fromkeys(STATES, STATE_SLOTS),
            tokens_per_hash=BLOCK,
            policy=policy,
            demote=demote,
            demote_forks=demote_forks,
            keep_blocks=keep_blocks,
        )

    @rule(word=words)
    def open(self, word: str) -> None:
        self.running.append(self.tier.open(word, prefix_hashes(word)))

    @precondition(lambda self: self.running)
    @rule(data=data, blocks=st.integers(1, 7), groups=st.sets(st.sampled_from(STATES)))
    def reserve(self, data: st.DataObject, blocks: int, groups: set[int]) -> None:
        request = data.draw(st.sampled_from(self.running))
        hashes = request.lineage.hashes[:blocks]
        wanted = [*keys(hashes, FULL), *keys(hashes[-1:], *groups)]
        before, busy = (
            self.tier.counts(),
            {k for batch in [*self.stores, *self.loads] for k in batch},
        )
        reservation = self.tier.reserve(request, wanted)
        if reservation is None:
            assert self.tier.counts() == before
        else:
            assert not {*wanted, *busy} & set(reservation.evicted)
            assert set(reservation.keys) == set(wanted) - self.present - self.storing()
            self.stores.append(reservation.keys)
            assert set(reservation.evicted) <= self.present
            self.present.difference_update(reservation.evicted)

    def storing(self) -> set[Key]:
        return {k for batch in self.stores for k in batch}

    @precondition(lambda self: self.stores)
    @rule(data=data, failed=st.sampled_from([0, 0, 0, 1, 2, 9]))
    def report_stores(self, data: st.DataObject, failed: int) -> None:
        batch = self.stores.pop(data.draw(st.integers(0, len(self.stores) - 1)))
        self.tier.fail(set(batch[:failed]))
        self.tier.commit(set(batch[failed:]))
        self.present.update(batch[failed:])

    @precondition(lambda self: self.running)
    @rule(data=data, on_device=st.integers(0, 3))
    def load(self, data: st.DataObject, on_device: int) -> None:
        request = data.draw(st.sampled_from(self.running))
        hashes = request.lineage.hashes
        on_device = min(on_device, len(hashes))
        plan = self.tier.plan(request, start=on_device * BLOCK, limit=len(hashes) * BLOCK)
        blocks = plan.boundary // BLOCK
        if not self.storing() & set(keys(hashes, FULL, *STATES)):
            assert blocks == self.restorable(hashes, on_device)
        if plan.restored and not plan.pending:
            self.loads.append([*keys(hashes[on_device:blocks], FULL), *checkpoint(hashes, blocks)])
            self.tier.pin(request, self.loads[-1])

    def restorable(self, hashes: Sequence[BlockHash], start: int) -> int:
        """After how many blocks all states are there, and the attention blocks before them."""
        for blocks in range(len(hashes), start, -1):
            if self.present.issuperset(
                [*keys(hashes[start:blocks], FULL), *checkpoint(hashes, blocks)]
            ):
                return blocks
        return start

    @precondition(lambda self: self.loads)
    @rule(data=data)
    def report_load(self, data: st.DataObject) -> None:
        batch = self.loads.pop(data.draw(st.integers(0, len(self.loads) - 1)))
        self.tier.unpin(set(batch))

    @precondition(lambda self: self.running)
    @rule(data=data)
    def finish(self, data: st.DataObject) -> None:
        self.tier.finish(self.running.pop(data.draw(st.integers(0, len(self.running) - 1))))

    @rule(dice=st.integers(1, 6))
    def reset(self, dice: int) -> None:
        if dice == 6:
            self.tier.reset()
            self.stores, self.loads = [], []
            self.present.clear()

    def whole(self) -> list[Checkpoint]:
        """Checkpoints that were never cut off from the attention blocks that they end with."""
        cut = self.cut
        for node in self.tier.tree:
            [end] = keys([node.block_hash], FULL)
            if end not in self.tier.pools[FULL].ready:
                cut.add(node)
        return [node for node in self.tier.tree if node not in cut]

    @invariant()
    def is_valid(self) -> None:
        self.tier.validate()

    @invariant()
    def what_is_there_is_what_was_committed(self) -> None:
        pools = self.tier.pools.values()
        assert {k for pool in pools for k in pool.ready} == self.present
        assert {k for pool in pools for k in pool.storing} == self.storing()

    @invariant()
    def pins_are_those_of_the_loads_in_flight(self) -> None:
        pinned = Counter(k for batch in self.loads for k in batch)
        assert sum(pool.pins for pool in self.tier.pools.values()) == pinned.total()

    @invariant()
    def the_newest_states_and_forks_are_never_demoted(self) -> None:
        for node in self.whole():
            if not node.children or (node.is_fork and not self.demote_forks):
                assert not any(is_demoted(self.tier, keys([node.block_hash], *STATES)))

    @invariant()
    def blocks_that_a_checkpoint_serves_are_not_stranded(self) -> None:
        for node in self.tier.tree:
            assert not any(is_demoted(self.tier, keys(node.hashes[: node.index + 1], FULL)))

    @invariant()
    def checkpoints_are_appraised(self) -> None:
        for node in self.whole():
            assert node.parent is not None
            saved = (node.index - node.parent.index) * BLOCK
            worth = checkpoint_worth(saved, len(node.children))
            for member in keys([node.block_hash], *STATES):
                pool = self.tier.pools[int.from_bytes(member[-4:], "big")]
                if isinstance(pool.policy, Cost):
                    assert pool.policy._known[pool.ready[member]].worth == worth

    def teardown(self) -> None:
        """Once everything is over, nothing is left in flight, pinned or remembered."""
        for batch in self.stores:
            self.tier.commit(batch)
        for batch in self.loads:
            self.tier.unpin(batch)
        for request in self.running:
            self.tier.finish(request)
        if hasattr(self, "tier"):
            self.tier.validate()
            assert all(c.storing == c.pinned == 0 for c in self.tier.counts().values())
            assert not self.tier._open


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=90)


# --- what `validate` catches

MAIN = chain("a", 8)
BRANCH = chain("b", 2, after=MAIN[:4])


def _damage_a_pool(tier: PrimaryTier) -> None:
    tier.pools[FULL]._free.pop()


def _damage_the_tree(tier: PrimaryTier) -> None:
    next(iter(tier.tree)).children.clear()


def _lose_a_writer(tier: PrimaryTier) -> None:
    tier._writers.popitem()


def _close_a_writer(tier: PrimaryTier) -> None:
    tier._open.clear()


def _miscount_what_is_in_flight(tier: PrimaryTier) -> None:
    next(iter(tier._open)).storing += 1


def _miscount_the_boundaries_in_flight(tier: PrimaryTier) -> None:
    tier._arriving[MAIN[7]] += 1


def _forget_a_checkpoint(tier: PrimaryTier) -> None:
    tier.tree.clear()


def _demote_a_checkpoint_but_not_its_members(tier: PrimaryTier) -> None:
    node = tier.tree.get(MAIN[1])
    assert node is not None
    node.demoted = True


def _demote_a_fork(tier: PrimaryTier) -> None:
    node = tier.tree.get(MAIN[3])
    assert node is not None
    node.demoted = True
    for member in checkpoint(MAIN, 4):
        tier.pools[int.from_bytes(member[-4:], "big")].demote([member])


@pytest.mark.parametrize(
    "damage",
    [
        _damage_a_pool,
        _damage_the_tree,
        _lose_a_writer,
        _close_a_writer,
        _miscount_what_is_in_flight,
        _miscount_the_boundaries_in_flight,
        _forget_a_checkpoint,
        _demote_a_checkpoint_but_not_its_members,
        _demote_a_fork,
    ],
)
def test_validate_finds_damage(damage: Callable[[PrimaryTier], None]) -> None:
    groups = [full(FULL), *map(state, STATES)]
    tier = PrimaryTier(groups, {FULL: 16, 1: 8, 2: 8}, tokens_per_hash=BLOCK, keep_blocks=8)
    turn(tier, MAIN[:6], 2, 4, 6)
    turn(tier, BRANCH, 6)
    reserve(tier, tier.open("", MAIN), checkpoint(MAIN, 8))
    tier.validate()
    damage(tier)
    with pytest.raises(InvariantError, match=r"violated$"):
        tier.validate()
