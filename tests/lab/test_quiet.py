# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from lab.quiet import logged, tail


def test_only_the_terminal_is_heard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    with logged(log) as terminal:
        os.write(1, b"chatter\n")
        os.write(2, b"complaint\n")
        terminal.say("progress")
        terminal.out.write("result\n")
    heard = capfd.readouterr()
    assert heard.out == "result\n"
    assert heard.err == "progress\n"
    assert log.read_text() == "chatter\ncomplaint\n"


def test_streams_come_back_after_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError), logged(tmp_path / "log"):
        raise RuntimeError
    os.write(1, b"heard again\n")
    assert capfd.readouterr().out == "heard again\n"


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{number}\n" for number in range(30)))
    assert tail(log, lines=2) == "28\n29\n"
