# SPDX-License-Identifier: Apache-2.0
"""The soak of the engine-free cache: as a whole, for moments or minutes; that it sees damage."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.soak_cache import Phase, document, main, table
from lab.soak_figures import BOUNDS, ENOUGH, WARM_BLOCKS, Stopwatch, course, times
from lab.soak_life import Orders
from lab.soak_lives import Found, Listener
from lab.soak_talks import LONGEST, Talks

SCRIPTS = Path(__file__).parents[2] / "scripts"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
MINUTES = 5.0


def soak(path: Path, *arguments: str) -> dict[str, Any]:
    """What a soak that found nothing says."""
    command = [sys.executable, "-m", "lab.soak_cache", "--json", "--path", str(path), *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(path.iterdir())
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == "tiercache.soak/1"
    assert found["problems"] == []
    assert found["wrong"] == found["lost"] == 0
    return found


@pytest.mark.timeout(600)
def test_a_tiny_soak(tmp_path: Path) -> None:
    found = soak(tmp_path, "--blocks", "2000", "--faults", "none", "--seed", "1")
    assert [row["layout"] for row in found["phases"]] == ["hybrid", "windowed"]
    assert found["blocks"]["stored"] >= 2000
    assert found["blocks"]["compared"] > found["blocks"]["restored"] > 0
    assert found["blocks"]["looked_at_after_restarts"] > 0
    assert found["kills"] == 0
    assert found["worst_step_ms"] >= found["p99_step_ms"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tiny_soak_with_all_faults(tmp_path: Path) -> None:
    found = soak(tmp_path, "--blocks", "6000", "--faults", "all", "--seed", "2")
    assert found["blocks"]["stored"] >= 6000
    assert found["kills"] >= 2
    assert found["processes"] >= found["kills"] + 4
    assert found["blocks"]["looked_at_after_restarts"] > 0


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 * 4)
def test_minutes_with_all_faults(tmp_path: Path) -> None:
    found = soak(tmp_path, "--minutes", str(MINUTES), "--faults", "all")
    assert found["kills"] > 5
    assert all(found["injected"][kind] for kind in ("eio", "enospc", "slow"))
    assert found["blocks"]["restored_by_source"]["disk"] > 0


# --- what it notices


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    return Orders(
        seed=1,
        number=0,
        layout="hybrid",
        kinds=[],
        path=str(tmp_path / "tier"),
        journal=str(tmp_path / "journal"),
        shared=str(shared),
        blocks=2000,
        seconds=600.0,
        spill="on_store",
    )


def live(orders: Orders, tmp_path: Path, before: str = "") -> dict[str, Any]:
    """The last thing of each kind that one process says, after it did what ``before`` does."""
    said = tmp_path / "said"
    call = f"soak_life.run({orders.text()!r}, {str(said)!r}, {str(tmp_path / 'log')!r})"
    command = [sys.executable, "-c", f"from lab import soak_life\n{before}\n{call}"]
    subprocess.run(command, env=ENVIRONMENT, check=True)
    return {event["event"]: event for event in Listener(said).new()}


def test_a_damaged_disk_is_noticed(orders: Orders, tmp_path: Path) -> None:
    assert live(orders, tmp_path)["looked"]["checked"] == 0
    [segment] = (tmp_path / "tier").glob("*/g1/000000.seg")
    os.truncate(segment, 5 * 8192)
    looked = live(replace(orders, number=1, blocks=0), tmp_path)["looked"]
    assert looked["checked"] > looked["missing"] > 0
    assert looked["wrong"] == 0


def test_what_is_left_behind_is_noticed(orders: Orders, tmp_path: Path) -> None:
    live(orders, tmp_path)
    [index] = (tmp_path / "tier").glob("*/index")
    (index / "unfinished").touch()
    looked = live(replace(orders, number=1, blocks=0), tmp_path)["looked"]
    assert looked["left"] == ["unfinished"]


LATE = """
from tiercache.cache import TieredCache
load = TieredCache.load
TieredCache.load = lambda cache, request, keys: [slot ^ 1 for slot in load(cache, request, keys)]
"""
UNCHECKED = """
from tiercache.tiers.nvme.records import Records
read = Records.read
Records.read = lambda records, keys, slots, disk, sums: read(records, keys, slots, disk[::-1], sums)
"""


NOT_INDEXED = """
from tiercache.tiers.nvme.index import Index
Index.update = lambda index, changes: None
"""


def test_what_was_acknowledged_and_is_not_indexed_is_noticed(
    orders: Orders, tmp_path: Path
) -> None:
    live(orders, tmp_path, before=NOT_INDEXED)
    looked = live(replace(orders, number=1, blocks=0), tmp_path)["looked"]
    assert looked["checked"] == looked["missing"] > 0


def test_wrong_slots_are_noticed(orders: Orders, tmp_path: Path) -> None:
    played = live(orders, tmp_path, before=LATE)["played"]
    assert played["counts"]["wrong"] > 0
    assert "wrong blocks of group" in played["problems"][0]


def test_records_of_others_are_noticed(orders: Orders, tmp_path: Path) -> None:
    live(orders, tmp_path)
    looked = live(replace(orders, number=1, blocks=0), tmp_path, before=UNCHECKED)["looked"]
    assert looked["unreadable"] > 0


def test_a_problem_is_in_the_document() -> None:
    found = Found(Counter(stored=7, ram=2, restored=2), problems=["after a restart: 3 missing"])
    result = document(5, "kill", 1.5, [(Phase("hybrid", [], kills=True), found)])
    assert result["problems"] == ["hybrid, kill: after a restart: 3 missing"]
    assert result["blocks"]["stored"] == 7
    assert "seed 5" in table(result)


def test_what_grows_is_a_problem() -> None:
    count = 2 * ENOUGH
    samples = [
        {"stored": WARM_BLOCKS + at, "rss_mb": 100.0 + at, "fds": 9, "threads": 3, "shm": 1}
        for at in range(count)
    ]
    found = Found(samples=[{**samples[0], "stored": 0, "rss_mb": 1.0}, *samples])
    result = document(5, "none", 1.5, [(Phase("hybrid", [], kills=False), found)])
    assert result["rss_mb"] == {"first": 1.0, "last": 139.0, "max": 139.0, "growth": 20.0}
    [problem] = result["problems"]
    assert problem == "hybrid, none: rss_mb grew by 20.0 in the second half, beyond 16.0"


# --- its parts


def test_nothing_is_said_of_too_few_samples() -> None:
    assert course([], "fds") == {"first": None, "last": None, "max": None, "growth": None}
    few = [{"stored": WARM_BLOCKS, "fds": at} for at in range(ENOUGH - 1)]
    assert course(few, "fds") == {"first": 0, "last": ENOUGH - 2, "max": ENOUGH - 2, "growth": None}
    assert BOUNDS["threads"] == BOUNDS["shm"] == 0


def test_times() -> None:
    watch = Stopwatch()
    for number in range(1, 201):
        watch.add("poll", number / 1e3, number / 1e4)
    found = times(json.loads(json.dumps(watch.document())).values())
    assert found.calls == 200
    assert 198 <= found.p99_ms <= 198 * 1.06
    assert found.worst_ms == pytest.approx(200)
    assert found.worst_cpu_ms == pytest.approx(20)
    assert times([]) == (0, 0.0, 0.0, 0.0)


def test_a_line_that_was_cut_off_is_not_heard(tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_bytes(b'{"a": 1}\n{"a"')
    listener = Listener(said)
    assert listener.new() == [{"a": 1}]
    assert listener.new() == []
    said.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    assert listener.new() == [{"a": 2}]


def test_conversations_are_the_same_everywhere() -> None:
    talks, others = Talks(1), Talks(1)
    numbers = range(60)
    backwards = {number: others.hashes(number) for number in reversed(numbers)}
    assert all(talks.hashes(number) == backwards[number] for number in numbers)
    assert all(len(set(talks.hashes(number))) == LONGEST for number in numbers)
    heads = Counter(talks.hashes(number)[0] for number in numbers)
    assert max(heads.values()) > 1
    assert len(heads) > len(numbers) // 2
    assert Talks(2).hashes(0)[0] not in heads


@pytest.mark.parametrize(
    "arguments", [("--blocks", "0"), ("--minutes", "-1"), ("--faults", "fire"), ("--seed", "x")]
)
def test_wrong_arguments(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err
