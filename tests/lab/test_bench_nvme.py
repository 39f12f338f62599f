# SPDX-License-Identifier: Apache-2.0
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab import bench_nvme_fio as fio
from lab import bench_nvme_rivals as rivals
from lab.bench_nvme import main, takes_direct
from lab.bench_nvme_contenders import Workload, busy
from lab.bench_nvme_report import Case, Figures, document, ratio, single, table

SCRIPTS = Path(__file__).parents[2] / "scripts"
SMALLEST = (
    "--json",
    "--bytes",
    "32KiB",
    "--sizes",
    "4KiB,8KiB",
    "--rounds",
    "1",
    "--entries",
    "300",
)
COLUMNS = {"name", "block_bytes", "busy", "ours", "fio", "vllm_fs", "lmcache"}
COLUMNS |= {"ratio_fio", "ratio_vllm_fs"}

TABLE = """\
operation   block  busy  ours   fio  vllm_fs  lmcache  unit  of fio  of vllm_fs
load        1 MiB    no  2.00  4.00        -        -  GB/s    0.50           -
load       31 MiB    no  1.00  1.00        -        -  GB/s    1.00           -
load        1 MiB   yes  1.00  2.00        -        -  GB/s    0.50           -
lookup          -    no  3.12     -        -        -    ms       -           -

a note"""


def bench(path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lab.bench_nvme", "--path", str(path), *arguments],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    if not takes_direct(tmp_path):
        pytest.skip(f"no direct I/O in {tmp_path}")
    return tmp_path


@pytest.mark.parametrize("against", ["none", pytest.param("vllm_fs", marks=pytest.mark.slow)])
def test_smallest_run(disk: Path, against: str) -> None:
    if against != "none" and not find_spec("vllm"):
        pytest.skip("vLLM is not installed")
    process = bench(disk, *SMALLEST, "--against", against)
    out, err = process.communicate()
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["schema"] == "tiercache.bench/1"
    cases: list[tuple[str, int | None, bool]] = [
        (name, size, spins)
        for spins in (False, True)
        for size in (4096, 8192)
        for name in ("store", "load", "steady_store")
    ]
    cases += [("lookup", None, False), ("restart", None, False)]
    rows = found["rows"]
    assert [(row["name"], row["block_bytes"], row["busy"]) for row in rows] == cases
    assert all(row.keys() == COLUMNS for row in rows)
    assert all(row["ours"] >= 0 and row["fio"] is None for row in rows)
    rivalled = [row["ratio_vllm_fs"] is not None for row in rows]
    assert rivalled == [against == "vllm_fs" and size is not None for _, size, _ in cases]
    assert not list(disk.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_nothing(disk: Path, number: signal.Signals) -> None:
    process = bench(disk, *SMALLEST[:-3], "9999", "--against", "none")
    with process:
        assert process.stderr
        while "round 3" not in (line := process.stderr.readline()):
            assert line, process.returncode
        process.send_signal(number)
        out, _ = process.communicate()
    assert process.returncode == 128 + number
    assert not out
    assert not list(disk.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [("--sizes", "1000"), ("--bytes", "much"), ("--rounds", "0"), ("--against", "ceph")],
)
def test_wrong_arguments(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_batches() -> None:
    work = Workload.of(10, 57)
    assert work == Workload(10, 5)
    assert work.nbytes == 50
    assert work.batches(25) == [[0, 1], [2, 3], [4]]
    assert work.batches(1) == [[0], [1], [2], [3], [4]]
    assert Workload.of(10, 5).blocks == 1


def test_ratios_are_those_of_a_round() -> None:
    found = {"ours": [1.0, 2.0, 30.0], "fio": [2.0, 2.0, 40.0]}
    assert ratio(found, "fio") == 0.75
    assert ratio(found, "vllm_fs") is None


def figures() -> Figures:
    found = Figures()
    for case, ours, theirs in (
        (Case("load", 1 << 20, busy=False), 2e9, 4e9),
        (Case("load", 1 << 20, busy=True), 1e9, 2e9),
        (Case("load", 31 << 20, busy=False), 1e9, 1e9),
    ):
        found.add(case, "ours", int(ours), 1.0)
        found.add(case, "fio", int(theirs), 1.0)
    return found


def test_table() -> None:
    assert table([*figures().rows(), single("lookup", [3, 3.1234, 9])], ["a note"]) == TABLE


def test_document() -> None:
    rows = [*figures().rows(), single("restart", [1.0])]
    found = json.loads(document(rows))
    assert found == {"schema": "tiercache.bench/1", "rows": rows}
    assert all(row.keys() == COLUMNS for row in rows)
    assert rows[0]["ours"] == 2.0
    assert rows[0]["ratio_fio"] == 0.5


def test_fio_is_asked_for_the_same(tmp_path: Path) -> None:
    line = fio.command(tmp_path, "write", Workload(4096, 3), "libaio", depth=5, overwrite=True)
    assert {"--bs=4096", "--size=12288", "--iodepth=5", "--direct=1", "--overwrite=1"} <= set(line)


def test_rate_of_fio() -> None:
    answer = {"jobs": [{"read": {"bw_bytes": 7}, "write": {"bw_bytes": 9}}]}
    assert fio.rate(f"note: something\n{json.dumps(answer)}", "write") == 9


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert fio.missing() == fio.INSTALL
    monkeypatch.setattr(rivals, "MODULES", {rivals.LMCache: "no_such_module"})
    assert rivals.missing(rivals.LMCache) == "cannot be imported (No module named 'no_such_module')"


def test_busy_thread_ends() -> None:
    with busy(spins=True):
        pass
    with busy(spins=False):
        pass
