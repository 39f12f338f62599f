# SPDX-License-Identifier: Apache-2.0
"""Writes a picture to files: what was seen as text, what is known as JSON."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from tiercache.tui.document import document
from tiercache.tui.frame import Frame


def save(frame: Frame, lines: Sequence[Text], folder: Path) -> Path:
    """Write ``lines`` and the document of ``frame`` to new files; the text's path is returned.

    Raises:
        OSError: if they cannot be written, or were already in this second.
    """
    name = time.strftime("tiercache-top-%Y%m%d-%H%M%S", time.localtime(frame.now))
    text, numbers = folder / f"{name}.txt", folder / f"{name}.json"
    with text.open("x", encoding="utf-8") as file:
        file.writelines(f"{line.plain.rstrip()}\n" for line in lines)
    with numbers.open("x", encoding="ascii") as file:
        json.dump(document(frame), file, allow_nan=False, indent=2)
        file.write("\n")
    return text
