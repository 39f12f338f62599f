# SPDX-License-Identifier: Apache-2.0
"""Every error this package raises on purpose: one base, flat children, lower-case messages."""

from collections.abc import Iterable
from difflib import get_close_matches


class TierCacheError(Exception):
    """Base of all errors raised by tiercache."""


class ConfigError(TierCacheError, ValueError):
    """A setting cannot be used. The message names the key, the value and what is allowed."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key = key
        self.value = value
        self.allowed = allowed
        super().__init__(f"{key}: {value!r} is not allowed; allowed: {allowed}")


class UnknownKeyError(ConfigError):
    """A setting that does not exist; names the nearest one that does, or says what to do instead.

    ``advice`` is for keys that are known from elsewhere, where no similar name would help.
    """

    def __init__(
        self, key: str, value: object, known: Iterable[str], advice: str | None = None
    ) -> None:
        names = sorted(known)
        near = get_close_matches(key, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if advice:
            hint = f"{advice}; "
        super().__init__(key, value, f"known keys are {', '.join(names)}")
        self.args = (f"unknown key {key!r} (its value: {value!r}): {hint}{self.allowed}",)


class OutOfMemoryError(TierCacheError):
    """Host memory does not hold what was asked for. Both numbers are in the message, in bytes."""

    def __init__(self, needed: int, available: int) -> None:
        self.needed = needed
        self.available = available
        super().__init__(
            f"the arena needs {needed} bytes ({needed / 2**30:.2f} GiB) "
            f"but only {available} bytes ({available / 2**30:.2f} GiB) are available"
        )


class UnsupportedError(TierCacheError):
    """A model, topology or engine version that cannot be served; the message says why."""


class InvariantError(TierCacheError, AssertionError):
    """``validate()`` found state that must never exist."""


class TraceError(TierCacheError):
    """A trace, or a line of one, cannot be read; the message names file, line and reason."""


class NoPoolError(TierCacheError):
    """There is no pool where one was looked for; the message says where, and what to do."""


class FormatError(TierCacheError):
    """A file is of a version that this program does not read, or not what it claims to be."""


class PoolBusyError(TierCacheError):
    """A pool is in use by a running process, so it cannot be changed; the message names its pid."""


class DamageError(TierCacheError):
    """What is stored is damaged beyond repair."""
