# SPDX-License-Identifier: Apache-2.0
"""The model's values as plain ones, which JSON has, and back.

Covers the classes of ``tiercache.stats.model``: what is read comes from a file that anyone may
have written, so every value is checked against the annotation of its field. An enumeration is its
name or value in lower case, flags are a list of names.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum, IntFlag, StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

#: Counters are u64 at their source.
MAX_INT = 2**64
#: Times beyond the year 30000 are none, and no local time can be made of them.
MAX_FLOAT = 1e12
MAX_TEXT = 4096

Read = Callable[[object], Any]
T = TypeVar("T")


def to_plain(value: object) -> Any:
    """``value`` with nothing in it but what JSON has; what is plain already is not copied."""
    match value:
        case IntFlag():
            return [flag.name.lower() for flag in type(value) if flag in value and flag.name]
        case IntEnum():
            return value.name.lower()
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [to_plain(each) for each in value]
        case Mapping():
            return {str(name): to_plain(each) for name, each in value.items()}
        case _:
            return {name: to_plain(getattr(value, name)) for name in _names(_kind(value))}


def from_plain(kind: type[T], data: object) -> T:
    """The ``kind`` that ``data`` was made of.

    Raises:
        ValueError: if it cannot have been; the message says which field is wrong.
    """
    wanted: Any = kind
    found = _reader(wanted)(data)
    assert isinstance(found, kind)
    return found


def _kind(value: object) -> Any:
    return type(value)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _reader(annotation: Any) -> Read:
    """Reads values of one annotation. Made once each, as a recording has a million of them."""
    if isinstance(annotation, UnionType):
        (inner,) = (each for each in get_args(annotation) if each is not NoneType)
        return _optional(_reader(inner))
    if get_origin(annotation) is tuple:
        return _listed(_reader(get_args(annotation)[0]))
    if get_origin(annotation) is Mapping:
        return _mapped(_reader(get_args(annotation)[1]))
    if is_dataclass(annotation):
        return _made(annotation)
    if issubclass(annotation, Enum):
        return _enumerated(annotation)
    return {int: _integer, float: _number, str: _text, bool: _truth}[annotation]


def _optional(read: Read) -> Read:
    return lambda data: None if data is None else read(data)


def _listed(read: Read) -> Read:
    def items(data: object) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _unlike(data, "a list")
        return tuple([read(each) for each in data])

    return items


def _mapped(read: Read) -> Read:
    def items(data: object) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise _unlike(data, "an object")
        return {_text(name): read(each) for name, each in data.items()}

    return items


def _made(kind: Any) -> Read:
    hints = get_type_hints(kind)
    readers = {name: _reader(hints[name]) for name in _names(kind)}

    def make(data: object) -> Any:
        if not isinstance(data, dict):
            raise _unlike(data, "an object")
        if data.keys() - readers.keys():
            unknown = min(map(str, data.keys() - readers.keys()))
            raise ValueError(f"{unknown[:40]!r} is no field of a {kind.__name__.lower()}")
        if missing := readers.keys() - data.keys():
            raise ValueError(f"{min(missing)} is missing")
        return kind(**{name: _at(name, read, data[name]) for name, read in readers.items()})

    return make


def _at(name: str, read: Read, data: object) -> Any:
    try:
        return read(data)
    except ValueError as failure:
        raise ValueError(f"{name}: {failure}") from failure


def _enumerated(kind: type[Enum]) -> Read:
    if issubclass(kind, IntFlag):
        return lambda data: kind(sum({_member(kind, each).value for each in _names_in(data)}))
    return lambda data: _member(kind, data)


def _names_in(data: object) -> list[object]:
    if not isinstance(data, list):
        raise _unlike(data, "a list")
    return data


def _member(kind: type[Enum], data: object) -> Any:
    by_value = issubclass(kind, StrEnum)
    for member in kind:
        if data == (member.value if by_value else member.name.lower()):
            return member
    raise _unlike(data, f"a {kind.__name__.lower()}")


def _integer(data: object) -> int:
    if isinstance(data, bool) or not isinstance(data, int) or not 0 <= data < MAX_INT:
        raise _unlike(data, "a counter")
    return data


def _number(data: object) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise _unlike(data, "a number")
    if abs(data) > MAX_FLOAT or not math.isfinite(data):
        raise _unlike(data, "a number")
    return float(data)


def _text(data: object) -> str:
    if not isinstance(data, str) or len(data) > MAX_TEXT:
        raise _unlike(data, "a short text")
    return data


def _truth(data: object) -> bool:
    if not isinstance(data, bool):
        raise _unlike(data, "true or false")
    return data


def _unlike(data: object, wanted: str) -> ValueError:
    return ValueError(f"{repr(data)[:40]} is not {wanted}")
