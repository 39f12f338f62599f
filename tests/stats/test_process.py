# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pytest

from tiercache.stats import process
from tiercache.stats.process import Process


def test_this_process_is_alive() -> None:
    assert Process.of(os.getpid()).is_alive
    assert process.exists(os.getpid())


def test_a_pid_that_is_used_again_is_another_process() -> None:
    earlier = Process.of(os.getpid())._replace(started=Process.of(os.getpid()).started - 1)
    assert not earlier.is_alive


def test_a_process_that_ended_and_is_not_waited_for_is_not_alive() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = Process.of(child.pid)
        before = found.is_alive
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert (before, found.is_alive) == (True, False)
        assert not process.exists(child.pid)
    assert Process.of(child.pid).started == 0


def test_a_pid_of_another_container_means_nothing_here() -> None:
    elsewhere = Process.of(os.getpid())._replace(space=1)
    assert not elsewhere.is_near
    assert not elsewhere.is_alive


@pytest.mark.parametrize("name", ["python", "a b", "(x) y) S 1 1 (", "\N{SNOWMAN}"])
def test_whatever_a_process_is_called(name: str) -> None:
    code = "import sys; open('/proc/self/comm', 'w').write(sys.argv[1]); print(flush=True); input()"
    command = [sys.executable, "-c", code, name]
    before = Process.of(os.getpid()).started
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert Process.of(child.pid).started >= before
        assert child.stdin is not None
        child.stdin.close()
