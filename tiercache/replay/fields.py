# SPDX-License-Identifier: Apache-2.0
"""Fields of trace records, checked as they are read.

Covers single values. Which fields a record has is known to the module of its format.
"""

import math
from array import array
from collections.abc import Mapping
from typing import Any

#: What a line of a trace holds, as the JSON parser returns it.
Record = Mapping[str, Any]

_ABSENT = object()


class UnreadableError(Exception):
    """A record that is not what its format says; the message names the field."""


def count(record: Record, key: str, *, least: int = 0, default: int | None = None) -> int:
    """Return the integer at ``key``, at least ``least``."""
    value = _value(record, key, default)
    # JSON's true is an int in Python.
    if type(value) is not int or value < least:
        raise UnreadableError(f"{key} is {value!r}, not an integer of at least {least}")
    return value


def number(record: Record, key: str, *, default: float | None = None) -> float:
    """Return the finite number at ``key``."""
    value = _value(record, key, default)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise UnreadableError(f"{key} is {value!r}, not a number")
    return float(value)


def text(record: Record, key: str, *, default: str) -> str:
    """Return the string at ``key``; numbers are taken as they are written."""
    value = _value(record, key, default)
    if not isinstance(value, str | int):
        raise UnreadableError(f"{key} is {value!r}, not a string")
    return str(value)


def records(record: Record, key: str) -> list[Record]:
    """Return the list of records at ``key``."""
    value = _value(record, key, None)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnreadableError(f"{key} is not a list of objects")
    return value


def ids(record: Record, key: str) -> "array[int]":
    """Return the list of block ids at ``key``, signed 64-bit integers."""
    try:
        return array("q", _value(record, key, None))
    except (TypeError, OverflowError):
        raise UnreadableError(f"{key} is not a list of 64-bit integers") from None


def covers(found: int, tokens: int, id_tokens: int) -> None:
    """Refuse a record whose ids are too few for its prompt.

    Formats differ in whether a last block that is not full has an id, and some name the blocks of
    the answer too: more ids than needed are fine.
    """
    if found < tokens // id_tokens:
        needed = f"{tokens} tokens have {tokens // id_tokens} blocks of {id_tokens}"
        raise UnreadableError(f"there are {found} ids, but {needed}")


def _value(record: Record, key: str, default: object) -> Any:
    value = record.get(key, _ABSENT)
    if value is not _ABSENT and value is not None:
        return value
    if default is None:
        raise UnreadableError(f"{key} is missing")
    return default
