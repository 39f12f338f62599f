# SPDX-License-Identifier: Apache-2.0
"""Functions that several parts of a picture ask the same of."""

from collections.abc import Callable
from typing import TypeVar

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


def remembering(function: Callable[[Argument], Answer]) -> Callable[[Argument], Answer]:
    """``function`` with the last answer kept, for as long as it is asked of the same object.

    For what never changes, as a tuple of frozen values. Locking: none; one thread asks.
    """
    last: list[tuple[Argument, Answer]] = []

    def remembered(argument: Argument) -> Answer:
        if not last or last[0][0] is not argument:
            last[:] = [(argument, function(argument))]
        return last[0][1]

    return remembered
