# SPDX-License-Identifier: Apache-2.0
"""``tiercache bench``: what it measures, and what it leaves behind. No time is asserted."""

import ctypes
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.pool_helpers import Run, directory, document, run
from tests.tiers.nvme.segments_helpers import mounted
from tests.tiers.nvme.test_offline import tree
from tiercache.cli import benching, cuda
from tiercache.cli.diagnostics import ExitCode
from tiercache.errors import TierCacheError

__all__ = ["directory", "run"]

SMALL = ("--bytes", "2MiB", "--size", "64KiB", "--rounds", "2")

#: A driver whose GPU is the host: it counts what is open, and copies.
DRIVER = """
#include <stdlib.h>
#include <string.h>
static int open_, pinned;
int cuInit(unsigned f) { return FAIL_INIT; }
int cuDeviceGet(int *d, int n) { *d = 7; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { open_++; *c = &open_; return d != 7; }
int cuDevicePrimaryCtxRelease_v2(int d) { open_--; return d != 7; }
int cuCtxSetCurrent(void *c) { return c != &open_; }
int cuCtxSynchronize(void) { return 0; }
int cuMemAlloc_v2(unsigned long long *p, size_t n) { open_++; *p = (unsigned long long)malloc(n);
    return 0; }
int cuMemFree_v2(unsigned long long p) { open_--; free((void *)p); return 0; }
int cuMemHostRegister_v2(void *p, size_t n, unsigned f) { pinned++; open_++; return f != 0; }
int cuMemHostUnregister(void *p) { open_--; return 0; }
int cuMemcpyHtoD_v2(unsigned long long d, void *h, size_t n) { memcpy((void *)d, h, n); return 0; }
int cuMemcpyDtoH_v2(void *h, unsigned long long d, size_t n) { memcpy(h, (void *)d, n); return 0; }
int left_open(void) { return open_; }
int ever_pinned(void) { return pinned; }
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("driver")
    for name, code in (("good", 0), ("broken", 100)):
        source = made / f"{name}.c"
        source.write_text(DRIVER.replace("FAIL_INIT", str(code)))
        library = str(made / f"{name}.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(source)], check=True)
    return made


def test_memory(run: Run) -> None:
    found = document(run, "bench", "ram", *SMALL)
    assert found["schema"] == "tiercache.bench-run/1"
    assert (found["what"], found["path"]) == ("ram", None)
    assert [row["operation"] for row in found["data"]][:2] == [
        "copy, 4 KiB pages",
        "copy, huge pages",
    ]
    for row in found["data"]:
        assert (row["block_bytes"], row["bytes"]) == (65536, 2 << 20)
        assert len(row["bytes_per_s"]) == 2
        assert min(row["bytes_per_s"]) <= row["median_bytes_per_s"] <= max(row["bytes_per_s"])
    assert {"cpu", "cpus", "kernel", "python", "memory_available_bytes"} <= found["machine"].keys()


def test_a_tier_beside_a_pool(run: Run, directory: Path) -> None:
    before = tree(directory.parent)
    found = document(run, "bench", "nvme", directory.parent, *SMALL)
    rows = found["data"]
    assert [row["operation"] for row in rows] == ["store", "load", "steady store"]
    assert all(rate > 0 for row in rows for rate in row["bytes_per_s"])
    assert found["path"] == str(directory.parent)
    assert "file_system" in found["machine"]
    assert tree(directory.parent) == before


def test_a_table_for_people(run: Run, tmp_path: Path) -> None:
    code, out, err = run("bench", "nvme", tmp_path, *SMALL)
    assert (code, err) == (ExitCode.OK, "")
    head, *rows = out.splitlines()
    assert head.split() == ["operation", "block", "GB/s", "slowest", "fastest"]
    assert len(rows) == 3


def test_two_blocks_are_enough(run: Run, tmp_path: Path) -> None:
    for size in ("1MiB", "4KiB"):
        arguments = ("--bytes", size, "--size", size, "--rounds", "1")
        assert run("bench", "nvme", tmp_path, *arguments)[0] == ExitCode.OK


def test_a_disk_that_is_too_small_is_an_error_and_left_empty(run: Run, tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path / "small", "size=1m") as small:
        code, out, err = run("bench", "nvme", small, *SMALL)
        assert (code, out) == (ExitCode.PROBLEM, "")
        assert "1 MiB free, 18 MiB needed" in err
        assert err.count("\n") == 1
        assert list(small.iterdir()) == []


def test_blocks_that_are_not_stored_are_an_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benching, "SPARE_BYTES", -(1 << 30))
    logging.disable(logging.WARNING)
    try:
        with mounted("tmpfs", tmp_path / "small", "size=1m") as small:
            code, _, err = run("bench", "nvme", small, *SMALL)
            assert code == ExitCode.PROBLEM
            assert "blocks were not moved" in err
            assert list(small.iterdir()) == []
    finally:
        logging.disable(logging.NOTSET)


def test_progress_is_json_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiercache.cli.caring.INTERVAL_S", 0.0)
    code, _, err = run("bench", "ram", *SMALL, "--json", "--progress")
    assert code == ExitCode.OK
    last = json.loads(err.splitlines()[-1])
    assert last["done"] == last["total"]
    assert last["unit"] == "steps"


@pytest.mark.parametrize(
    "arguments",
    [["nvme"], ["ram", "/tmp"], ["disk"], ["ram", "--size", "5000"], ["ram", "--bytes", "4KiB"]],
)
def test_what_cannot_be_measured(run: Run, arguments: list[str]) -> None:
    code, out, _ = run("bench", *arguments)
    assert (code, out) == (ExitCode.USAGE, "")


def test_a_directory_that_is_not_there(run: Run, tmp_path: Path) -> None:
    code, _, err = run("bench", "nvme", tmp_path / "nowhere", *SMALL)
    assert code == ExitCode.PROBLEM
    assert "No such file or directory" in err
    assert err.count("\n") == 1


def test_no_torch_for_a_tier(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from tiercache.cli.main import main\n"
        "try:\n    main(['bench', 'nvme', sys.argv[1], '--bytes', '1MiB', '--size', '64KiB'])\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'torch', 'vllm'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


# --- a GPU


def test_copies_to_and_from_a_gpu(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, opened = str(driver / "good.so"), cuda.opened
    monkeypatch.setattr(cuda, "opened", lambda: opened(library))
    results = benching.memory(1 << 20, 1 << 20, 2, lambda _done, _total: None)
    assert [result.operation for result in results][2:] == [
        "to GPU, ordinary memory",
        "to GPU, pinned memory",
        "from GPU, ordinary memory",
        "from GPU, pinned memory",
    ]
    counted = ctypes.CDLL(library)
    assert (counted.left_open(), counted.ever_pinned()) == (0, 2)


def test_bytes_reach_the_gpu_and_come_back(driver: Path) -> None:
    here = ctypes.create_string_buffer(b"0123456789abcdef", 16)
    there = ctypes.create_string_buffer(16)
    with cuda.opened(str(driver / "good.so")) as gpu:
        assert gpu
        with gpu.allocated(16) as device:
            gpu.to_device(device, ctypes.addressof(here), 16)
            gpu.to_host(device, ctypes.addressof(there), 16)
    assert there.raw == here.raw


def test_without_a_gpu_there_is_none(driver: Path) -> None:
    for library in ("libnowhere.so", str(driver / "broken.so")):
        with cuda.opened(library) as gpu:
            assert gpu is None


def test_what_the_driver_refuses_is_an_error(driver: Path) -> None:
    with pytest.raises(TierCacheError, match="cuInit says 100"):
        cuda.call(ctypes.CDLL(str(driver / "broken.so")), "cuInit", ctypes.c_uint(0))
