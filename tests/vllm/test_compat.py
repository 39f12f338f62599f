# SPDX-License-Identifier: Apache-2.0
"""The vLLM that is supported, and the signatures that are relied on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="this is about vLLM")

from tiercache.errors import UnsupportedError
from tiercache.vllm.compat import broken_contracts, check_version

ROOT = Path(__file__).parents[2]
PROBE = "import tiercache.vllm.connector, tiercache.vllm.spec, tiercache.vllm.compat as compat;"
PROBE += "compat.check_version(); print(compat.broken_contracts())"


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.1rc2", "0.33.0", "0.33.1.dev3"])
def test_supported_versions(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.25.1", "0.31.9", "0.34.0", "0.34.0rc1", "1.0"])
def test_other_versions_are_refused_with_the_range(version: str) -> None:
    with pytest.raises(UnsupportedError, match=r"not supported; supported: >= 0\.32, < 0\.34") as e:
        check_version(version)
    assert version in str(e.value)


def test_the_installed_version_is_supported_and_keeps_the_contract() -> None:
    check_version()
    assert broken_contracts() == []


def test_another_version_keeps_the_contract() -> None:
    """TIERCACHE_VLLM_SOURCES names a folder with vLLM's Python code, as unpacked from its wheel."""
    sources = os.environ.get("TIERCACHE_VLLM_SOURCES")
    if not sources:
        pytest.skip("TIERCACHE_VLLM_SOURCES is not set: no second vLLM to compare with")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([sources, str(ROOT)]),
        "VLLM_TARGET_DEVICE": "cpu",
    }
    probe = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    assert probe.stdout.splitlines()[-1] == "[]"
