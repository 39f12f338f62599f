# SPDX-License-Identifier: Apache-2.0
"""The slots of one group: what `validate` catches."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.core_helpers import full, key
from tiercache.errors import InvariantError
from tiercache.policies.lru import LRU
from tiercache.slots import SlotPool

A, B, C, E = map(key, "abce")


def _lose_a_slot(pool: SlotPool) -> None:
    pool._free.pop()


def _give_a_slot_twice(pool: SlotPool) -> None:
    pool.ready._parts[A[0]][A] = pool.ready[B]


def _free_a_used_slot(pool: SlotPool) -> None:
    pool._free.append(pool.ready[A])


def _store_what_is_ready(pool: SlotPool) -> None:
    pool.storing[A] = pool._free.pop()


def _forget_the_holder_of_a_slot(pool: SlotPool) -> None:
    pool.ready.holders[pool.ready[A]] = None


def _hold_what_is_not_ready(pool: SlotPool) -> None:
    pool.ready.holders[pool.storing[C]] = C


def _forget_in_the_order(pool: SlotPool) -> None:
    pool.policy.remove([pool.ready[A]])


def _order_what_is_free(pool: SlotPool) -> None:
    pool.policy.insert([pool._free[-1]], [E])


def _order_what_is_storing(pool: SlotPool) -> None:
    pool.policy.remove([pool.ready[A]])
    pool.policy.insert([pool.storing[C]], [C])


def _pin_what_is_storing(pool: SlotPool) -> None:
    slots = np.array([pool.storing[C]])
    pool.policy.insert(slots, [C])
    pool.pin(slots, hit=False)


def _pin_against_the_order(pool: SlotPool) -> None:
    pool._pins[pool.ready[A]] = 1


def _pin_in_the_order_only(pool: SlotPool) -> None:
    pool.policy.pin([pool.ready[A]], hit=False)


def _pin_less_than_never(pool: SlotPool) -> None:
    pool._pins[pool.ready[A]] = -1


@pytest.mark.parametrize(
    "damage",
    [
        _lose_a_slot,
        _give_a_slot_twice,
        _free_a_used_slot,
        _store_what_is_ready,
        _forget_the_holder_of_a_slot,
        _hold_what_is_not_ready,
        _forget_in_the_order,
        _order_what_is_free,
        _order_what_is_storing,
        _pin_what_is_storing,
        _pin_against_the_order,
        _pin_in_the_order_only,
        _pin_less_than_never,
    ],
)
def test_validate_finds_damage(damage: Callable[[SlotPool], None]) -> None:
    pool = SlotPool(full(3), 4, LRU(4))
    pool.reserve([A, B])
    pool.commit([A, B])
    pool.reserve([C])
    pool.validate()
    damage(pool)
    with pytest.raises(InvariantError, match=r"^group 3: .*: violated$"):
        pool.validate()
