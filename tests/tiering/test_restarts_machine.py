# SPDX-License-Identifier: Apache-2.0
"""Random conversations over a real disk, through restarts and kills: nothing wrong is ever served.

As ``test_machine``, whose rules it plays, with an NVMe tier instead of those that the test drives.
The tier's threads are waited for in every step, so that examples can be played again; what happens
while they run is covered by the tier's own machine.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.core_helpers import BLOCK, SLOT_BYTES, keys
from tests.tier_helpers import GARBAGE
from tests.tiering.test_machine import MODELS, PATIENCE_S, Conversations, prefixes, words
from tests.tiers.nvme.device import Device
from tests.tiers.nvme.tier_helpers import until
from tiercache.blocks import key_group
from tiercache.cache import TieredCache
from tiercache.policies import POLICIES
from tiercache.tierconfig import NvmeConfig
from tiercache.tiers.base import Batch, Done
from tiercache.tiers.nvme.index import index_bytes
from tiercache.tiers.nvme.space import slack_bytes
from tiercache.tiers.nvme.tier import NvmeTier

TIERS: dict[str, Sequence[str]] = {
    "eager disk": ["on_store"],
    "lazy disk": ["on_evict"],
    "memory, disk": ["memory", "on_store"],
}
SEGMENT_SLOTS, WORKERS = 4, 2

pytestmark = pytest.mark.timeout(300)  # it waits for the disk, and others may use that too


class PromptTier(NvmeTier):
    """A tier whose jobs are over by the time somebody asks."""

    def poll(self) -> list[Done]:
        until(lambda: not self._engine.pending)
        return super().poll()


class Restarts(Conversations):
    """The engine's process ends, and the next one finds the disk as it was left."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.device = Device().__enter__()

    @initialize(
        model=st.sampled_from(sorted(MODELS)),
        tiers=st.sampled_from(sorted(TIERS)),
        policy=st.sampled_from(sorted(POLICIES)),
        room=st.sampled_from([2, 6, 20]),
        restore=st.sampled_from(["auto", "always"]),
        known=st.lists(words, min_size=1, max_size=3),
    )
    def begin(
        self, *, model: str, tiers: str, policy: str, room: int, restore: Any, known: list[str]
    ) -> None:
        self.chosen = model, tiers, policy, room, restore
        super().begin(
            model=model, tiers="memory", policy=policy, room=room, restore=restore, known=["a"]
        )
        self.known = list(known)
        self.start()
        for word in known:
            self.stock(word)

    def start(self) -> None:
        """A new process: nothing in memory, and the disk as it is."""
        model, tiers, policy, room, restore = self.chosen
        groups = list(MODELS[model])
        for region in self.slots.memory.regions():
            region[:] = GARBAGE * len(region)
        self.cache = TieredCache(
            groups,
            {group.group_id: n for group, n in MODELS[model].items()},
            tokens_per_hash=BLOCK,
            policy=policy,
            keep_blocks=1,
            clock=self.clock,
        )
        self.tiers = [self.make_tier(kind, room) for kind in TIERS[tiers]]
        self.manual = []
        self.running, self.stores, self.loads, self.waits = [], [], [], {}
        self.cache.attach(self.tiers, patience_s=PATIENCE_S, restore=restore, clock=self.clock)
        assert self.cache.tiering is not None
        self.cache.tiering.promoter.compute_rate = 1.0

    def make_tier(self, kind: Any, room: int) -> Any:
        if kind == "memory":
            return super().make_tier(kind, room)
        slots = dict.fromkeys(self.slots.memory.record_bytes, room)
        records = room * sum(self.slots.memory.record_bytes.values())
        config = NvmeConfig(
            path=Path(self.folder.name),
            capacity=records + index_bytes(slots) + slack_bytes(slots),
            min_free=0,
            spill=kind,
            queue_depth=1,
            switch_interval=None,
        )
        return PromptTier(
            "disk",
            self.slots.memory,
            list(MODELS[self.chosen[0]]),
            slots,
            config=config,
            fingerprint={},
            clock=self.clock,
            segment_bytes=SEGMENT_SLOTS * WORKERS * SLOT_BYTES,
        )

    def stock(self, word: str) -> None:
        tier, everything = self.tiers[-1], keys(prefixes(word), *self.cache.groups)
        for job_id, each in enumerate(tier.missing(everything)):
            self.slots.write(each, 0, self.epoch)
            assert tier.store(Batch(job_id, key_group(each), [each], [0]))
            tier.poll()

    @rule()
    def restart(self) -> None:
        self.cache.close()
        self.start()

    @rule(steps=st.integers(0, 8), torn=st.booleans())
    def die(self, steps: int, torn: bool) -> None:
        """While it writes what waits, or closes."""
        self.tiers[-1].poll()  # or blocks from before a reset might be there again
        self.device.torn, self.device.steps_left = torn, steps
        self.cache.close()
        self.device.reset()
        self.start()

    @rule(n=st.integers(1, 3), reads=st.booleans())
    def fail(self, n: int, reads: bool) -> None:
        """The next calls, whenever they come."""
        setattr(self.device, "reads_to_fail" if reads else "writes_to_fail", n)

    @invariant()
    def every_slot_holds_what_it_is_said_to(self) -> None:
        for pool in self.cache.primary.pools.values():
            for each, slot in pool.ready.items():
                assert self.slots.holds(each, slot, self.epoch)

    def teardown(self) -> None:
        self.device.reset()
        super().teardown()
        self.device.close()
        self.folder.cleanup()


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(max_examples=10, stateful_step_count=40)
