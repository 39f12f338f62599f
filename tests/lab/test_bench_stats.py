# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = [
    *("event", "state", "groups", "tiers", "restores", "victims", "sequence"),
    *("snapshot-idle", "snapshot-fresh", "snapshot-first"),
]


def bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "lab.bench_stats", "--calls", "3", "--rounds", "2", *arguments]
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def test_the_document_has_every_call() -> None:
    document = json.loads(bench("--json", "--groups", "2"))
    assert document["schema"] == "tiercache.bench/1"
    assert [row["name"] for row in document["rows"]] == NAMES
    assert all(row["us"] > 0 for row in document["rows"])
    measured = [row["name"] for row in document["rows"] if row["read_us"] is not None]
    assert measured == NAMES[:7]


def test_the_table_has_a_line_for_each() -> None:
    head, *lines = bench("--groups", "1").splitlines()
    assert head.split() == ["call", "alone", "µs", "read", "µs"]
    assert [line.split()[0] for line in lines] == NAMES
