# SPDX-License-Identifier: Apache-2.0
"""What keeps a fault of an observer from the cache that it watches.

Covers the one decorator for everything that a cache calls.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast


class Fragile(Protocol):
    """Something that can fail, once."""

    def give_up(self, where: str, fault: Exception) -> None:
        """Log the fault, and do nothing from now on."""


Method = TypeVar("Method", bound=Callable[..., None])


def guarded(method: Method) -> Method:
    """Never raise: on a fault, have the object give up."""

    @functools.wraps(method)
    def call(self: Fragile, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as fault:  # noqa: BLE001 - whatever it is, the cache goes on
            self.give_up(method.__name__, fault)

    return cast(Method, call)
