# SPDX-License-Identifier: Apache-2.0
"""Numbers, bars and names as text of a known width."""

import math
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
    between: str
    more: str
    ascii_only: bool = False


UNICODE = Glyphs("█", "▒", "▓", "·", "─", "▁▂▃▄▅▆▇█", "│", "…")
ASCII = Glyphs("#", "=", "!", ".", "-", ".:|", "|", "~", ascii_only=True)


def clean(name: str, glyphs: Glyphs) -> str:
    """``name`` as one line that the terminal can show: labels come from outside."""
    if name.isascii() and name.isprintable():
        return name
    shown = (c if c.isprintable() and (c.isascii() or not glyphs.ascii_only) else "?" for c in name)
    return "".join(shown)


def fit(text: str, width: int) -> str:
    """``text`` in exactly ``width`` cells."""
    return set_cell_size(text, max(width, 0))


def right(text: str, width: int) -> str:
    """``text`` in exactly ``width`` cells, its end at the right."""
    return fit(" " * (width - cell_len(text)) + text, width)


def cut(text: str, width: int, glyphs: Glyphs) -> str:
    """``text`` in ``width`` cells at most; a mark at its end says that it goes on."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + glyphs.more if width > 0 else ""


def count(number: float | None) -> str:
    """A number in at most 5 characters up to 999 T: 31, 22550, 1.23M."""
    if number is None:
        return UNKNOWN
    if 0 < number < 10 and number != int(number):
        return f"{number:.1f}"
    return _scaled(number, 1000, ("k", "M", "G", "T", "P", "E"), plain_below=100_000)


def tokens(number: float | None) -> str:
    """A length in at most 6 characters: 0, 784, 24.1k, 508.8k, 1.71M."""
    if number is None:
        return UNKNOWN
    if 1000 <= number < 999_950:
        return f"{number / 1000:.1f}k"
    return _scaled(number, 1000, ("k", "M", "G", "T", "P", "E"), plain_below=1000)


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


def percent(part: float | None, whole: float | None) -> str:
    """``part`` of ``whole`` in at most 4 characters; only nothing is 0% and only all is 100%."""
    if part is None or not whole:
        return UNKNOWN
    share = 100 * part / whole
    if 0 < share < 1:
        return "<1%"
    return f"{min(math.floor(share + 0.5), 99 if share < 100 else 999)}%"


def duration(seconds: float) -> str:
    """How long, in its two largest units: 7s, 2m05s, 3h12m, 4d03h."""
    if not math.isfinite(seconds):
        return UNKNOWN
    whole = max(int(seconds), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def age(seconds: float | None) -> str:
    """How long in its largest unit, in at most 4 characters below 27 years: 7s, 38m, 5h, 4d."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = max(int(seconds), 0)
    for unit, length in (("s", 60), ("m", 60), ("h", 48)):
        if whole < length:
            return f"{whole}{unit}"
        whole //= 24 if unit == "h" else length
    return f"{whole}d"


def latency(seconds: float | None) -> str:
    """A short time in at most 6 characters: 850us, 0.9ms, 212ms, 1.9s, 2m05s."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0.0001:
        return f"{max(seconds, 0.0) * 1e6:.0f}us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{1 if seconds < 0.00995 else 0}f}ms"
    return f"{seconds:.1f}s" if seconds < 59.95 else duration(round(seconds))


def clock(moment: float | None) -> str:
    """The local time of day; nothing that a hostile file says makes it fail."""
    if moment is None:
        return UNKNOWN
    try:
        return time.strftime("%H:%M:%S", time.localtime(moment))
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


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


def sparkline(values: Sequence[float | None], width: int, levels: str) -> str:
    """The last ``width`` values, the newest at the right, against the largest of them.

    Only nothing has the lowest level; values below 0 count as nothing, unknown ones are blank.
    """
    shown = list(values[-width:]) if width > 0 else []
    top = max((value for value in shown if value is not None), default=0)
    marks = (" " if value is None else _level(value, top, levels) for value in shown)
    return right("".join(marks), width)


def _level(value: float, top: float, levels: str) -> str:
    if value <= 0 or top <= 0:
        return levels[0]
    return levels[max(math.ceil(value / top * (len(levels) - 1)), 1)]
