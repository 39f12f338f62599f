# SPDX-License-Identifier: Apache-2.0
"""Tables of plain text, and numbers as people read them."""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

GAP: Final = "  "


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int] = (0,)
) -> Iterator[str]:
    """Lines with a head; the columns in ``left`` begin at the same place, all others end there.

    A head may have several lines, which end at the same height.
    """
    parts = [head.split("\n")[::-1] for head in heads]
    above = [*zip_longest(*parts, fillvalue="")][::-1]
    cells = [*above, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield GAP.join(padded).rstrip()


def count(number: int) -> str:
    """A number with separators: 1,234,567."""
    return f"{number:,}"


def plural(number: int, one: str, several: str | None = None) -> str:
    """A number of things: 1 store, 2,255 stores."""
    return f"{count(number)} {one if number == 1 else several or one + 's'}"


def short(number: float) -> str:
    """A number of at most five characters: 950, 12.3k, 4.56M."""
    for unit in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.0f}" if not unit else f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"


def share(part: float) -> str:
    """A share in per cent with two decimals."""
    return f"{100 * part:.2f} %"


def size(nbytes: float) -> str:
    """Bytes in powers of 1024, with three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}" if unit == "B" else f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def duration(seconds: float) -> str:
    """How long, in one unit, as an age is read: 0.3s, 9s, 38m, 5h, 12d."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}s"
    for unit, length, most in (("s", 1, 100), ("m", 60, 100), ("h", 3600, 72)):
        if seconds < most * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def latency(seconds: float) -> str:
    """How long something took, in three digits: 240us, 4.1ms, 1.9s."""
    for unit, length in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.3g}s" if seconds < 999.5 else duration(seconds)


def clock(moment: float, now: float | None = None) -> str:
    """The local time of day; with the date, if ``now`` is given and it is long ago."""
    form = "%H:%M:%S" if now is None or now - moment < 43_200 else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(moment))


def clean(name: str) -> str:
    """``name`` as part of one line that a terminal can show: names come from files of others."""
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else "?" for letter in name)
