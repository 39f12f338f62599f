# SPDX-License-Identifier: Apache-2.0
"""The demo as a program: one document on stdout, everything else elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def demo(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "lab.demo", *arguments],
        env=os.environ | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_json() -> None:
    finished = demo("--json", "--repeats", "1")
    assert finished.returncode == 0, finished.stderr
    document = json.loads(finished.stdout)
    assert document["schema"] == "tiercache.demo/1"
    runs = {run.pop("name"): run for run in document["runs"]}
    assert list(runs) == ["vllm-lru", "tiercache-lru", "tiercache-demote"]
    assert [run["restored_tokens"] for run in runs.values()] == [0, 0, 2_112]
    for run in runs.values():
        assert run["prompt_tokens"] == 2_240
        assert run["others_cached"] > 0.8
        assert run["ttft_ms"] > 0
        assert run["tokens_equal"] is True
    assert runs["tiercache-demote"]["ttft_ms"] < runs["tiercache-lru"]["ttft_ms"]


def test_failure_shows_the_end_of_the_log(tmp_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.touch()
    finished = demo("--json", TIERCACHE_LAB_DIR=str(nowhere))
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert "the end of" in finished.stderr
