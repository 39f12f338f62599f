# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import bench_scale
from lab.bench_scale import numbers
from lab.bench_scale_disk import BATCH, index_file, make, restart, summed, turnover
from lab.bench_scale_ram import primary
from lab.bench_scale_report import extrapolated, fit, row, table

SCRIPTS = Path(__file__).parents[2] / "scripts"
ENTRIES = 5 * BATCH


def test_a_line_is_found_again() -> None:
    line = fit([(n, 7 + 0.25 * n) for n in (100, 1000, 10_000)])
    assert line.fixed == pytest.approx(7)
    assert line.each == pytest.approx(0.25)
    assert line.at(100_000) == pytest.approx(25_007)


def test_a_row_tells_what_each_entry_costs() -> None:
    found = row(
        "disk", 1000, {"rss_bytes": 400_000.0, "restart_cpu_s": 0.002, "lookup_ms": 1.23456}
    )
    assert found == {
        "name": "disk",
        "entries": 1000,
        "rss_bytes": 400_000.0,
        "restart_cpu_s": 0.002,
        "lookup_ms": 1.235,
        "rss_bytes_each": 400.0,
        "restart_cpu_us_each": 2.0,
    }


def test_sizes_beyond_are_guessed_from_two_that_were_measured() -> None:
    rows = [row("disk", n, {"rss_bytes": 500.0 + 4 * n, "lookup_ms": 1.0}) for n in (100, 1000)]
    (guessed,) = extrapolated(rows, "disk", [10_000])
    assert guessed == row("disk-fit", 10_000, {"rss_bytes": 40_500.0})
    assert extrapolated(rows[:1], "disk", [10_000]) == []
    assert extrapolated(rows, "primary", [10_000]) == []


def test_steps_are_summed_up() -> None:
    found = summed("turn", [0.001] * 999 + [0.5], 1499)
    assert found == {
        "turn_us": pytest.approx(1000),
        "turn_p999_ms": pytest.approx(500),
        "turn_worst_ms": pytest.approx(500),
    }


def test_the_table_has_a_block_for_each_row() -> None:
    first, second = table([row("disk", 1000, {"lookup_ms": 1.5}), row("x", 1, {"y": 2.0})]).split(
        "\n\n"
    )
    assert first.splitlines()[0] == "disk, 1,000 entries"
    assert first.splitlines()[1].split() == ["lookup_ms", "1.5"]
    assert second.splitlines()[1].split() == ["y", "2"]


def test_a_tier_is_opened_and_turned_over(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    made = make(path, ENTRIES)
    assert made["index_bytes"] == index_file(path).stat().st_size
    opened = restart(path, ENTRIES, 100, rounds=2)
    assert opened["restart_s"] > 0
    assert opened["lookup_ms"] > 0
    turned = turnover(path, ENTRIES, rounds=2)
    assert turned["turn_us"] > 0
    assert turned["turn_worst_ms"] >= turned["turn_p999_ms"]
    assert turned["publish_near_us"] > 0


def test_a_tier_that_lacks_entries_is_no_measurement(tmp_path: Path) -> None:
    make(tmp_path / "tier", ENTRIES)
    with pytest.raises(RuntimeError, match="did not find"):
        restart(tmp_path / "tier", ENTRIES + 200, ENTRIES + 200, rounds=1)


def test_a_primary_tier_is_played() -> None:
    found = primary(1000, 100, rounds=2)
    times = ("turn_us", "store_us", "plan_us", "load_us", "release_us", "finish_us")
    assert all(found[name] > 0 for name in times)


def test_numbers() -> None:
    assert numbers("1,20") == [1, 20]
    assert numbers("") == []
    with pytest.raises(argparse.ArgumentTypeError, match="above 0"):
        numbers("1,0")


def test_the_document_has_every_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_scale, "alone", lambda measure, *args: measure(*args))
    sizes = ("--entries", "300,600", "--resident", "600", "--rounds", "1", "--beyond", "6000")
    bench_scale.main(["--json", "--path", str(tmp_path), *sizes])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tiercache.bench/1"
    found = [(r["name"], r["entries"]) for r in document["rows"]]
    assert found == [("disk", 300), ("disk", 600), ("primary", 600), ("disk-fit", 6000)]
    assert list(tmp_path.iterdir()) == []


def test_each_measurement_has_a_process_of_its_own(tmp_path: Path) -> None:
    sizes = ("--entries", "", "--resident", "600", "--rounds", "1")
    command = [sys.executable, "-m", "lab.bench_scale", "--path", str(tmp_path), *sizes]
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert output.startswith("primary, 600 entries")
