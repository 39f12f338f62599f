# SPDX-License-Identifier: Apache-2.0
"""Eviction policies, chosen by name."""

from tiercache.blocks import GroupKind
from tiercache.errors import ConfigError
from tiercache.policies.arc import ARC
from tiercache.policies.base import Policy as Policy
from tiercache.policies.base import Victims as Victims
from tiercache.policies.cost import Cost
from tiercache.policies.lru import LRU

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (LRU, ARC, Cost)}


def make_policy(name: str, capacity: int, kind: GroupKind = GroupKind.STATE) -> Policy:
    """Return a new policy for a pool of ``capacity`` slots of a group of this ``kind``.

    Raises:
        ConfigError: there is no policy of that name.
    """
    if name not in POLICIES:
        raise ConfigError("eviction_policy", name, ", ".join(sorted(POLICIES)))
    policy = POLICIES[name]
    # Only states are worth something by themselves: blocks are evicted by recency.
    return LRU(capacity) if policy.appraises and kind is not GroupKind.STATE else policy(capacity)
