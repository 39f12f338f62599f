# SPDX-License-Identifier: Apache-2.0
"""The filter language: words that a row must have, ``field:value`` among them, ``!`` for not.

All words must match. A filter that cannot be understood matches everything, and says why.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

FIELDS = ("kind", "seq", "group", "tier")
Row = TypeVar("Row")


class Word(NamedTuple):
    """One condition; without a ``field`` it is text that the row has somewhere."""

    field: str
    value: str
    inverted: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What a row says of itself: values of the fields that it has, and all its text."""

    text: str
    fields: Mapping[str, Sequence[str]]


class Matches(NamedTuple):
    """Positions of the rows that match, and what is wrong with the filter ("" if nothing)."""

    rows: Sequence[int]
    problem: str


def parse(expression: str) -> tuple[list[Word], str]:
    """The words of a filter, and what is wrong with it ("" if nothing)."""
    words = []
    for part in expression.split():
        inverted = part.startswith("!")
        body = part.removeprefix("!")
        field, colon, value = body.rpartition(":")
        if colon and field not in FIELDS:
            return [], f"no field {field!r}; there are {', '.join(FIELDS)}"
        if not value:
            return [], f"nothing after {part!r}"
        words.append(Word(field, value.lower(), inverted))
    return words, ""


def matching(
    expression: str, rows: Sequence[Row], facts: Callable[[Row], Facts], known: Sequence[str]
) -> Matches:
    """The rows that match; ``known`` are the fields that rows of this list have."""
    words, problem = parse(expression)
    foreign = sorted({word.field for word in words if word.field and word.field not in known})
    if foreign and not problem:
        problem = f"{foreign[0]}: says nothing about this list"
        words = [word for word in words if word.field not in foreign]
    if not words:
        return Matches(range(len(rows)), problem)
    found = [i for i, row in enumerate(rows) if _matches(words, facts(row))]
    return Matches(found, problem)


def _matches(words: Sequence[Word], facts: Facts) -> bool:
    return all(_has(word, facts) is not word.inverted for word in words)


def _has(word: Word, facts: Facts) -> bool:
    if not word.field:
        return word.value in facts.text.lower()
    values = [value.lower() for value in facts.fields.get(word.field, ())]
    if word.field == "group":
        return any(value == word.value or value.endswith(f".{word.value}") for value in values)
    if word.field == "seq":
        return any(value.startswith(word.value) for value in values)
    return any(word.value in value for value in values)
