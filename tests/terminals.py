# SPDX-License-Identifier: Apache-2.0
"""``tiercache-top`` in a terminal that tmux keeps."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

TMUX = shutil.which("tmux")

PROGRAM = "from tiercache.tui.app import main; main()"
#: A shell around the program: what it leaves behind is looked at once it has ended.
SHELL = """
stty -a > before
{program} & echo $! > pid
fg > /dev/null
echo "ended $?"
stty -a > after
exec cat
"""


#: Each terminal has a server of its own: one that ends cannot take another with it.
NUMBERS = count()


class Screen:
    """A terminal of a size; what is on it can be read at any time."""

    def __init__(self, folder: Path, width: int, height: int, *arguments: str) -> None:
        self.folder = folder
        self.socket = f"{next(NUMBERS)}"
        self.width, self.height = width, height
        command = shlex.join([sys.executable, "-c", PROGRAM, *arguments])
        script = folder / "shell"
        script.write_text(f"set -m\n{SHELL.format(program=command)}")
        size = ("-x", str(width), "-y", str(height))
        self.tmux("new-session", "-d", *size, f"bash {shlex.quote(str(script))}")

    def tmux(self, *arguments: str) -> str:
        assert TMUX is not None
        environment = os.environ | {"LC_ALL": "C.UTF-8", "TMUX_TMPDIR": str(self.folder)}
        ran = subprocess.run(
            [TMUX, "-L", self.socket, "-f", "/dev/null", *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout

    @property
    def lines(self) -> list[str]:
        return self.tmux("capture-pane", "-p").splitlines()

    def until(self, *words: str) -> list[str]:
        """The lines once all the words are among them; the test's own timeout ends a vain wait."""
        while True:
            lines = self.lines
            if all(word in "\n".join(lines) for word in words):
                return lines
            time.sleep(0.05)

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def mode(self, name: str) -> str:
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip()

    def is_as_before(self) -> bool:
        self.until("ended")
        assert self.mode("alternate_on") == "0"
        assert self.mode("mouse_any_flag") == "0"
        assert self.mode("cursor_flag") == "1"
        while not (after := self.folder / "after").exists() or not after.read_text():
            time.sleep(0.05)
        return _settings(self.folder / "before") == _settings(after)

    def kill(self) -> None:
        with suppress(subprocess.CalledProcessError):  # the test has done so
            self.tmux("kill-server")


def _settings(path: Path) -> str:
    """What ``stty -a`` said, but for the size, which changes without us."""
    return re.sub(r"rows \d+; columns \d+;", "", path.read_text())
