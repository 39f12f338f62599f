# SPDX-License-Identifier: Apache-2.0
"""What the tests of the policies share: slots 0, 1, 2... are named a, b, c... here."""

from collections.abc import Iterable

from tests.core_helpers import key
from tiercache.policies import Policy

A, B, C, D, E = range(5)


def names(slots: Iterable[int]) -> str:
    """The names of slots, one after the other."""
    return "".join(chr(ord("a") + slot) for slot in slots)


def insert(policy: Policy, slots: Iterable[int]) -> None:
    """Insert slots that hold keys of their names."""
    slots = list(slots)
    policy.insert(slots, [key(name) for name in names(slots)])
