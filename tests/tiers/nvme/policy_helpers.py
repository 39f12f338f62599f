# SPDX-License-Identifier: Apache-2.0
"""A policy of the disk as a test sees it: by keys, whose slots are none of its business."""

import random
from collections.abc import Collection, Iterable, Sequence

from tiercache.blocks import Key
from tiercache.tiers.nvme.policy import DiskPolicy, make_disk_policy


class ByKey:
    """A policy with whoever gives keys the slots, which are in no order, and seldom the same again.

    A key that it does not know stands for a slot that is free.
    """

    def __init__(self, policy: DiskPolicy) -> None:
        self.policy = policy
        self.free = random.Random(1).sample(range(policy.capacity), policy.capacity)
        self.holder: dict[int, Key] = {}

    def slots(self, keys: Iterable[Key]) -> list[int]:
        """The slots of keys, in their order, as long as there is one for each."""
        slot_of, free = {k: slot for slot, k in self.holder.items()}, iter(self.free)
        found = [slot_of[k] if k in slot_of else next(free, None) for k in keys]
        return [slot for slot in found if slot is not None]

    def keys(self, slots: Iterable[int]) -> list[Key]:
        return [self.holder[slot] for slot in slots]

    def insert(self, keys: Sequence[Key]) -> None:
        slots = [self.free.pop(0) for _ in keys]
        self.holder.update(zip(slots, keys, strict=True))
        self.policy.insert(slots, keys)

    def touch(self, keys: Iterable[Key]) -> None:
        self.policy.touch(self.slots(keys))

    def demote(self, keys: Iterable[Key]) -> None:
        self.policy.demote(self.slots(keys))

    def remove(self, keys: Iterable[Key]) -> None:
        slots = self.slots(keys)
        self.policy.remove(slots)
        self._release(slots)

    def victims(self, n: int, held: Collection[Key] = ()) -> list[Key]:
        return self.keys(self.policy.victims(n, self.slots(held)))

    def evict(self, n: int, held: Collection[Key] = ()) -> list[Key]:
        slots = self.policy.evict(n, self.slots(held))
        keys = self.keys(slots)
        self._release(slots)
        return keys

    def _release(self, slots: Iterable[int]) -> None:
        self.free += [slot for slot in slots if self.holder.pop(slot, None) is not None]

    def __len__(self) -> int:
        return len(self.policy)

    def __contains__(self, key: Key) -> bool:
        return any(slot in self.policy for slot in self.slots([key]))


def by_key(name: str, capacity: int) -> ByKey:
    return ByKey(make_disk_policy(name, capacity))
