# SPDX-License-Identifier: Apache-2.0
"""The checks in tests/conftest.py find what they look for."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAKY = """
import os, tempfile, threading

def test_descriptor():
    os.open("/dev/null", os.O_RDONLY)

def test_thread():
    threading.Thread(target=threading.Event().wait, name="stray", daemon=True).start()

def test_shared_memory():
    tempfile.NamedTemporaryFile(dir="/dev/shm", prefix={prefix!r}, delete=False).close()

def test_clean():
    threading.Thread(target=threading.Event().set).start()
    with tempfile.TemporaryFile():
        pass
"""


def test_a_leak_is_an_error(tmp_path: Path) -> None:
    prefix = f"leaky-{tmp_path.name}-"
    (tmp_path / "test_leaky.py").write_text(LEAKY.format(prefix=prefix))
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    assert "JOIN_S = 5.0" in conftest
    (tmp_path / "conftest.py").write_text(conftest.replace("JOIN_S = 5.0", "JOIN_S = 0.1"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    try:
        ran = subprocess.run(
            [*command, "-c", "/dev/null", "-o", f"pythonpath={ROOT / 'scripts'}", "test_leaky.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for path in Path("/dev/shm").glob(f"{prefix}*"):
            path.unlink()
    assert "descriptors left open: [" in ran.stdout
    assert "/dev/null" in ran.stdout
    assert "threads left running: stray" in ran.stdout
    assert f"files left in /dev/shm: /dev/shm/{prefix}" in ran.stdout
    # The file is reported by its test and once more when all tests are over.
    assert "4 passed" in ran.stdout
    assert "4 errors" in ran.stdout
