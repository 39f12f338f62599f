# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.bench_top import Window, summary

SCRIPTS = Path(__file__).parents[2] / "scripts"
SMALLEST = ("--views", "tiers", "--ticks", "1", "--windows", "1")


def bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "lab.bench_top", *SMALLEST, *arguments]
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def test_the_document_has_a_row_for_each_pool() -> None:
    document = json.loads(bench("--json", "--pools", "2", "full"))
    assert (document["schema"], document["bench"]) == ("tiercache.bench/1", "top")
    assert [(row["pool"], row["view"]) for row in document["data"]] == [
        ("2", "tiers"),
        ("full", "tiers"),
    ]
    for row in document["data"]:
        assert min(row["cpu_ms"], row["idle_ms"], row["unit_ms"], row["first_ms"]) > 0
    assert document["unit_ms"] > 0


def test_a_row_is_the_median_of_its_windows() -> None:
    windows = [Window(n, n / 10, n / 100, n * 100) for n in (9.0, 7.0, 30.0)]
    cost = summary("full", "tiers", 20, windows, 800.0)
    assert (cost.cpu_ms, cost.least_ms, cost.most_ms) == (9.0, 7.0, 30.0)
    assert (cost.idle_ms, cost.unit_ms, cost.sent_bytes) == pytest.approx((0.9, 0.09, 900.0))
