# SPDX-License-Identifier: Apache-2.0
"""Hostile bytes: what somebody could put in the place of a file of ours, chosen at random.

Everything follows from a seed, which a failure names.
"""

import json
import random
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

PAGE = 4096
#: What breaks readers: limits of fields, signs, and what looks like a place in the file.
NUMBERS = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 4095, 4096, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)
#: What JSON can hold in the place of anything else.
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    1.5,
    1e308,
    float("nan"),
    2**31,
    2**63,
    2**64,
    10**400,
    "",
    "../../../etc/passwd",
    "/dev/zero",
    "g0/../../x",
    "\x1b[2J\x1b]0;title\x07",
    "\ud800",
    "9" * 5000,
    "x" * 20_000,
    "\u0669\u0661",
    [],
    {},
    {"0": 8192},
    [[[[[]]]]],
    {"": {"": {"": None}}},
)
Change = Callable[[bytearray, random.Random], None]


def _bytes(raw: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 20)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)


def _numbers(raw: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(("<H", "<I", "<Q"))
        size = struct.calcsize(kind)
        number = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
        if places := len(raw) // size:
            struct.pack_into(kind, raw, rng.randrange(places) * size, number)


def _heads(raw: bytearray, rng: random.Random) -> None:
    """Where a page says what it is and where its entries lie."""
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(0, len(raw), PAGE) + 2 * rng.randrange(40)
        if at + 2 <= len(raw):
            struct.pack_into("<H", raw, at, rng.choice(NUMBERS) & 0xFFFF)


def _pages(raw: bytearray, rng: random.Random) -> None:
    """One page in the place of another, as a writer that lost its way would leave it."""
    pages = range(0, len(raw) - PAGE + 1, PAGE)
    if pages:
        source, target = rng.choice(pages), rng.choice(pages)
        raw[target : target + PAGE] = raw[source : source + PAGE]


def _filling(raw: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(raw))
    end = min(len(raw), start + rng.choice((8, 64, 512, PAGE, 4 * PAGE)))
    raw[start:end] = bytes([rng.choice((0, 0x7F, 0x80, 0xFF))]) * (end - start)


def _length(raw: bytearray, rng: random.Random) -> None:
    if rng.random() < 0.7:
        del raw[rng.randrange(1, len(raw) + 1) :]
    else:
        raw += rng.randbytes(rng.choice((1, 100, PAGE, 3 * PAGE)))


def _noise(raw: bytearray, rng: random.Random) -> None:
    raw[:] = rng.randbytes(rng.choice((1, 16, PAGE, 2 * PAGE, len(raw))))


CHANGES: tuple[Change, ...] = (_bytes, _numbers, _heads, _pages, _filling, _length, _noise)


def changed(raw: bytes, rng: random.Random) -> bytes:
    """The bytes of a file after one to three kinds of damage."""
    made = bytearray(raw)
    for change in rng.choices(CHANGES, k=rng.choice((1, 1, 2, 3))):
        if made:
            change(made, rng)
    return bytes(made)


def changed_json(text: str, rng: random.Random) -> bytes:
    """A document with other values, or other keys, somewhere; or damaged as bytes are."""
    match rng.randrange(8):
        case 0:
            return changed(text.encode(), rng)
        case 1:
            return (rng.choice(("[", '{"a":')) * 100_000).encode()
        case 2:
            return json.dumps(rng.choice(VALUES)).encode()
    document = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(list(_places(document)))
        if isinstance(holder, dict) and rng.random() < 0.3:
            holder[str(rng.choice(VALUES))] = holder.pop(key, None)
        else:
            holder[key] = rng.choice(VALUES)
    return json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document that holds a value."""
    inside: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    for key, below in inside:
        yield value, key
        yield from _places(below)


def sweep(raw: bytes, step: int) -> Iterator[bytes]:
    """The same file cut off at every ``step`` bytes."""
    for _, end in pairwise(range(0, len(raw) + step, step)):
        yield raw[:end]
