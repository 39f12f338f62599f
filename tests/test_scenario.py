# SPDX-License-Identifier: Apache-2.0
"""The published idle conversation, at full geometry, on the tier that serves."""

import hashlib
from dataclasses import dataclass, field

import pytest

from tiercache.blocks import GroupKind, GroupSpec, Key, make_key
from tiercache.primary import PrimaryTier
from tiercache.requests import Request

BLOCK = 1_632
STATE_GROUPS = range(1, 8)
TOKEN_SLOTS, STATE_SLOTS = 2_255, 30
TURN = 3_800


def published_tier(*, demote: bool) -> PrimaryTier:
    groups = [GroupSpec(0, GroupKind.FULL, BLOCK, 7_204_864)]
    groups += [GroupSpec(g, GroupKind.STATE, BLOCK, 4_415_488) for g in STATE_GROUPS]
    slots = {0: TOKEN_SLOTS} | dict.fromkeys(STATE_GROUPS, STATE_SLOTS)
    return PrimaryTier(groups, slots, tokens_per_hash=BLOCK, demote=demote)


@dataclass
class Conversation:
    name: str
    hashes: list[bytes] = field(default_factory=list)
    turns: int = 0

    def turn(self, tier: PrimaryTier, tokens: int) -> int:
        """Play one request of ``tokens`` prompt tokens; returns the tokens restored."""
        while len(self.hashes) < tokens // BLOCK:
            self.hashes.append(hashlib.sha256(f"{self.name}{len(self.hashes)}".encode()).digest())
        self.turns += 1
        request = tier.open(f"{self.name}-{self.turns}", self.hashes)
        plan = tier.plan(request, start=0, limit=(tokens - 1) // BLOCK * BLOCK)
        restored = plan.boundary // BLOCK
        keys = [make_key(h, 0) for h in self.hashes[:restored]]
        if restored:
            keys += [make_key(self.hashes[restored - 1], g) for g in STATE_GROUPS]
        tier.pin(request, keys)
        tier.unpin(keys)
        last = (tokens - 1) // BLOCK
        new = self.hashes[restored : tokens // BLOCK]
        self._store(tier, request, [make_key(block_hash, 0) for block_hash in new])
        for boundary in (last - 1, last):
            states = [make_key(self.hashes[boundary - 1], g) for g in STATE_GROUPS]
            self._store(tier, request, states)
        tier.finish(request)
        return plan.boundary

    def _store(self, tier: PrimaryTier, request: Request, keys: list[Key]) -> None:
        reservation = tier.reserve(request, keys)
        assert reservation is not None
        tier.commit(reservation.keys)


def play(tier: PrimaryTier) -> tuple[int, float]:
    """Returns the tokens restored for the idle conversation and the share for the others."""
    idle = Conversation("A")
    idle.turn(tier, 501_201)
    idle.turn(tier, 505_001)
    others = [Conversation(name) for name in "BCD"]
    prompts = [100_000, 136_000, 172_000]
    for other, prompt in zip(others, prompts, strict=True):
        other.turn(tier, prompt)
    restored = asked = 0
    for turn in range(1, 40):
        for other, prompt in zip(others, prompts, strict=True):
            restored += other.turn(tier, prompt + turn * TURN)
            asked += prompt + turn * TURN
    return idle.turn(tier, 508_801), restored / asked


@pytest.mark.parametrize(("demote", "expected"), [(False, 0), (True, 504_288)])
def test_published_scenario(demote: bool, expected: int) -> None:
    tier = published_tier(demote=demote)
    idle, others = play(tier)
    tier.validate()
    assert idle == expected
    assert round(others, 3) == 0.978
