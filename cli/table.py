# SPDX-License-Identifier: Apache-2.0
"""Tables of plain text, and numbers as people read them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

GAP: Final = "  "


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines with a head, the first column to the left and all others to the right.

    A head may have several lines, which end at the same height.
    """
    parts = [head.split("\n")[::-1] for head in heads]
    above = [*zip_longest(*parts, fillvalue="")][::-1]
    cells = [*above, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        first, *others = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield GAP.join([first, *others]).rstrip()


def count(number: int) -> str:
    """A number with separators: 1,234,567."""
    return f"{number:,}"


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
