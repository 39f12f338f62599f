# SPDX-License-Identifier: Apache-2.0
"""Eviction policies, chosen by name."""

from tiercache.errors import ConfigError
from tiercache.policies.arc import ARC
from tiercache.policies.base import Evicted as Evicted
from tiercache.policies.base import Policy as Policy
from tiercache.policies.lru import LRU

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (LRU, ARC)}


def make_policy(name: str, capacity: int) -> Policy:
    """Return a new policy for a pool of ``capacity`` slots.

    Raises:
        ConfigError: there is no policy of that name.
    """
    if name not in POLICIES:
        raise ConfigError("eviction_policy", name, ", ".join(sorted(POLICIES)))
    return POLICIES[name](capacity)
