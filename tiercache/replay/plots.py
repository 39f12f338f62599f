# SPDX-License-Identifier: Apache-2.0
"""Plots of the restored share over slots: as text, or as a picture.

Covers drawing alone, from rows that were just made or stored before. Pictures need matplotlib,
which the extra ``plot`` brings.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tiercache.errors import ConfigError, UnsupportedError
from tiercache.replay.report import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = (".png", ".svg")
#: What a picture would say of when and by which version it was drawn.
TELLTALES = {"png": ("Software",), "svg": ("Creator", "Date")}
#: Inches, and dots per inch of a PNG.
PANEL_WIDTH, PANEL_HEIGHT = 6.4, 4.0
DPI = 150

#: One per policy, in turn; the last one is for points that fall upon each other.
MARKERS, OVERLAP = "ox+*#%@&", "="
#: Before the axis: a share.
MARGIN = len("100 % |")
#: Shares are drawn on a scale that ends at multiples of this.
GRAIN = 0.05


class _Panel(NamedTuple):
    """The curves of one trace: restored share by slots, for each policy."""

    trace: str
    axis: str
    curves: dict[str, dict[int, float]]

    @property
    def slots(self) -> list[int]:
        return sorted({slots for curve in self.curves.values() for slots in curve})

    @property
    def scale(self) -> tuple[float, float]:
        """The lowest and the highest share that is drawn."""
        shares = [share for curve in self.curves.values() for share in curve.values()]
        low = math.floor(min(shares) / GRAIN) * GRAIN
        high = math.ceil(max(shares) / GRAIN) * GRAIN
        return low, max(high, low + GRAIN)


def _panels(rows: Sequence[Row]) -> list[_Panel]:
    """One panel per trace, over state slots, or over token slots if only these differ.

    Where both differ, and not in step, there is one for each number of token slots.
    """
    panels: dict[tuple[str, str], _Panel] = {}
    sizes = {(row["state_slots"], row["token_slots"]) for row in rows}
    in_step = len(sizes) == len({states for states, _ in sizes})
    tokens_alone = (
        len({row["state_slots"] for row in rows if row["state_slots"]})
        == 1
        < len({row["token_slots"] for row in rows})
    )
    for row in rows:
        states = row["state_slots"] > 0 and not tokens_alone
        axis = "state slots per group" if states else "token slots"
        if states and not in_step:
            axis += f", with {row['token_slots']:,} token slots"
        panel = panels.setdefault((row["trace"], axis), _Panel(row["trace"], axis, {}))
        slots = row["state_slots"] if states else row["token_slots"]
        panel.curves.setdefault(row["policy"], {})[slots] = row["restored_share"]
    return list(panels.values())


# --- text


def text_plot(rows: Sequence[Row], *, width: int = 72, height: int = 15) -> str:
    """Plots in ASCII, one trace below the other, ``width`` columns wide."""
    return "\n\n".join(_text_panel(panel, width - MARGIN, height) for panel in _panels(rows))


def _text_panel(panel: _Panel, width: int, height: int) -> str:
    """``width`` columns behind the axis, ``height`` lines above it."""
    slots = panel.slots
    # Sizes stand at equal distances: those that are compared mostly double.
    columns = {size: (2 * i + 1) * width // (2 * len(slots)) for i, size in enumerate(slots)}
    canvas = [[" "] * width for _ in range(height)]
    low, high = panel.scale
    for index, curve in enumerate(panel.curves.values()):
        for size, share in curve.items():
            line = canvas[round((high - share) / (high - low) * (height - 1))]
            free = line[columns[size]] == " "
            line[columns[size]] = MARKERS[index % len(MARKERS)] if free else OVERLAP
    labels = [
        f"{abs(100 * (high - (high - low) * line / (height - 1))):3.0f} % |"
        for line in range(height)
    ]
    lines = [
        f"{panel.trace}: prompt tokens restored, over {panel.axis}",
        # A share at every other line, so that they do not crowd.
        *(
            (label if line % 2 == 0 else "|".rjust(MARGIN)) + "".join(canvas[line])
            for line, label in enumerate(labels)
        ),
        "+".rjust(MARGIN) + "-" * width,
        " " * MARGIN + _ticks(columns, width),
        " " * MARGIN + _legend(panel),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _ticks(columns: dict[int, int], width: int) -> str:
    """The sizes below their columns, as many as there is room for."""
    ticks = ""
    for size, column in columns.items():
        label = str(size)
        start = min(max(column - len(label) // 2, 0), width - len(label))
        if not ticks or start > len(ticks):
            ticks = ticks.ljust(start) + label
    return ticks


def _legend(panel: _Panel) -> str:
    markers = (MARKERS[index % len(MARKERS)] for index in range(len(panel.curves)))
    names = [f"{marker} {name}" for marker, name in zip(markers, panel.curves, strict=True)]
    return "   ".join([*names, f"{OVERLAP} several"] if len(names) > 1 else names)


# --- pictures


def check_picture(path: Path) -> None:
    """Make sure that ``path`` could be drawn; raises ConfigError and UnsupportedError if not."""
    if path.suffix.lower() not in PICTURES:
        raise ConfigError("plot", str(path), f"a file that ends in {' or '.join(PICTURES)}")
    try:
        import matplotlib as mpl  # noqa: F401 - is it there?
    except ImportError as error:
        raise UnsupportedError(
            "a plot needs matplotlib: pip install 'tiercache-kv[plot]'"
        ) from error


def save_plot(rows: Sequence[Row], path: Path) -> None:
    """Write a picture, one panel per trace; equal rows make equal files.

    Raises:
        ConfigError: ``path`` ends neither in .png nor in .svg.
        UnsupportedError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    check_picture(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = _panels(rows)
    # Text stays text, and names within the file are not random.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tiercache"}):
        size = (PANEL_WIDTH, PANEL_HEIGHT * max(len(panels), 1))
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        axes = figure.subplots(max(len(panels), 1), squeeze=False)
        for panel, (axis,) in zip(panels, axes, strict=False):
            _draw(panel, axis)
        kind = path.suffix[1:].lower()
        figure.savefig(path, format=kind, metadata=dict.fromkeys(TELLTALES[kind]))


def _draw(panel: _Panel, axes: "Axes") -> None:
    for name, curve in panel.curves.items():
        slots = sorted(curve)
        axes.plot(slots, [100 * curve[size] for size in slots], marker="o", label=name)
    low, high = panel.scale
    axes.set_ylim(100 * low, 100 * high)
    axes.set_xscale("log")
    axes.set_xticks(panel.slots, [str(size) for size in panel.slots])
    axes.minorticks_off()
    axes.set_xlabel(panel.axis)
    axes.set_ylabel("prompt tokens restored, %")
    axes.set_title(panel.trace)
    axes.grid(alpha=0.3)
    axes.legend()
