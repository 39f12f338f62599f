# SPDX-License-Identifier: Apache-2.0
"""Every policy that a replay knows, by name, and how it is played.

Covers names: those that serve, those that serve with other settings, and those that only a replay
can have, as they know what comes.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiercache.config import EVICTION_POLICIES
from tiercache.errors import ConfigError

if TYPE_CHECKING:
    from tiercache.replay.simulate import Result, Setup
    from tiercache.replay.turns import Stream, Turn

#: Policies that are another one with other settings.
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {"lru-plain": ("lru", {"demote": False})}
#: Policies that see the whole stream beforehand: ``module:function``, called as ``simulate`` is.
OFFLINE: Mapping[str, str] = {"optimal": "tiercache.replay.optimal:simulate"}


def policy_names() -> list[str]:
    """Names of all policies, in the order in which they were made."""
    return [*EVICTION_POLICIES, *VARIANTS, *OFFLINE]


def check_policy(name: str) -> None:
    """Raises ConfigError if there is no policy of that name."""
    if name not in policy_names():
        raise ConfigError("policy", name, ", ".join(policy_names()))


def play(
    stream: "Stream",
    setup: "Setup",
    *,
    progress: "Callable[[Turn], object] | None" = None,
    **watching: Any,
) -> "Result":
    """Play ``stream`` through ``setup``, whatever its policy is; see `simulate`.

    ``watching`` is for policies that serve: the others have no cache to look at.
    """
    check_policy(setup.policy)
    target = OFFLINE.get(setup.policy, "tiercache.replay.simulate:simulate")
    module, _, function = target.partition(":")
    result: Result = getattr(import_module(module), function)(
        stream, setup, progress=progress, **watching
    )
    return result
