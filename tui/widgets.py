# SPDX-License-Identifier: Apache-2.0
"""The one widget of the monitor: lines, of which only the changed ones are painted again."""

from collections.abc import Sequence
from itertools import zip_longest

from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class Lines(Widget):
    """Shows lines as they are; a tick that changes two numbers sends two lines to the terminal."""

    DEFAULT_CSS = "Lines { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._lines: Sequence[Text] = ()
        self._strips: list[Strip] = []

    def show(self, lines: Sequence[Text]) -> None:
        """Draw ``lines``, whose styles are all in their spans: by these they are compared."""
        console = self.app.console
        before, self._lines = self._lines, lines
        changed = []
        for y, (old, new) in enumerate(zip_longest(before, lines)):
            if old == new:
                continue
            changed.append(Region(0, y, self.size.width, 1))
            if new is not None:
                self._strips[y : y + 1] = [Strip(new.render(console), new.cell_len)]
        del self._strips[len(lines) :]
        if changed:  # to refresh nothing would mean everything
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    @property
    def plain(self) -> list[str]:
        """What is shown, without its styles."""
        return [strip.text for strip in self._strips]
