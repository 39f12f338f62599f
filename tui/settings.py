# SPDX-License-Identifier: Apache-2.0
"""What the command line asks for, and the bounds of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tiercache.tui.state import UiState

#: Below this the server would make pages faster than anyone reads them.
MIN_INTERVAL_S: Final = 0.25
MAX_INTERVAL_S: Final = 60.0
THEMES: Final = ("ansi-dark", "ansi-light", "textual-dark")


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the monitor."""

    interval: float = 1.0
    count: int | None = None
    """Looks to print; None: one."""
    as_json: bool = False
    ascii_only: bool = False
    theme: str = THEMES[0]
    ui: UiState = field(default_factory=UiState)
    pool: str | None = None
    url: str | None = None
    demo: bool = False
    replay: Path | None = None
    record: Path | None = None
