# SPDX-License-Identifier: Apache-2.0
"""Numbers, bars and names as text of a known width."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that are not words. ``levels`` of a sparkline go from nothing to the most."""

    live: str
    demoted: str
    busy: str
    free: str
    rule: str
    levels: str
    ascii_only: bool = False


UNICODE = Glyphs("█", "▒", "▓", "·", "─", "▁▂▃▄▅▆▇█")
ASCII = Glyphs("#", "=", "!", ".", "-", ".:|", ascii_only=True)


def clean(name: str, glyphs: Glyphs) -> str:
    """``name`` as one line that the terminal can show: labels come from outside."""
    shown = (c if c.isprintable() and (c.isascii() or not glyphs.ascii_only) else "?" for c in name)
    return "".join(shown)


def fit(text: str, width: int) -> str:
    """``text`` in exactly ``width`` cells."""
    return set_cell_size(text, max(width, 0))


def right(text: str, width: int) -> str:
    """``text`` in exactly ``width`` cells, its end at the right."""
    return fit(" " * (width - cell_len(text)) + text, width)


def count(number: float | None) -> str:
    """A number in at most 5 characters up to 999 T: 31, 22550, 1.23M."""
    if number is None:
        return UNKNOWN
    if 0 < number < 10 and number != int(number):
        return f"{number:.1f}"
    return _scaled(number, 1000, ("k", "M", "G", "T", "P", "E"), plain_below=100_000)


def size(number: float | None) -> str:
    """Bytes in at most 7 characters: 512B, 30.9MiB."""
    if number is None:
        return UNKNOWN
    if number < 1024:
        return f"{number:.0f}B"
    return _scaled(number, 1024, ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"), plain_below=1024)


def _scaled(number: float, base: int, units: Sequence[str], plain_below: int) -> str:
    if number < plain_below:
        return f"{number:.0f}"
    for unit in units:
        number /= base
        # 999.5 would be rounded to 1000, one digit wider than three.
        if number < 999.5 or unit is units[-1]:
            break
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}{unit}"


def duration(seconds: float) -> str:
    """How long, in its two largest units: 7s, 2m05s, 3h12m, 4d03h."""
    whole = max(int(seconds), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def clock(moment: float) -> str:
    """The local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def share(parts: Sequence[int], width: int) -> list[int]:
    """``width`` cells shared out in proportion to ``parts``, by largest remainder.

    Whatever is not 0 gets a cell, as long as there are cells: one pinned slot in thousands counts.
    """
    total = sum(parts)
    if total == 0 or width <= 0:
        return [0] * len(parts)
    cells = [part * width // total for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: -(parts[i] * width % total))
    for i in by_remainder[: width - sum(cells)]:
        cells[i] += 1
    for i, part in enumerate(parts):
        widest = max(range(len(parts)), key=cells.__getitem__)
        if part and not cells[i] and cells[widest] > 1:
            cells[i], cells[widest] = 1, cells[widest] - 1
    return cells


def sparkline(values: Sequence[int], width: int, levels: str) -> str:
    """The last ``width`` values, the newest at the right, against the largest of them.

    Only nothing has the lowest level; values below 0 count as nothing.
    """
    shown = [max(value, 0) for value in values[-width:]] if width > 0 else []
    top = max(shown, default=0) or 1
    marks = (levels[-(-value * (len(levels) - 1) // top)] for value in shown)
    return right("".join(marks), width)
