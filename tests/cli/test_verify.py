# SPDX-License-Identifier: Apache-2.0
"""``tiercache verify`` over real pools: what it finds, how it ends, and that --fix is enough."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.pool_helpers import Run, directory, document, run
from tests.tiers.nvme.damage_helpers import DAMAGES, STORED
from tests.tiers.nvme.server_helpers import Server, fill, reopened
from tests.tiers.nvme.test_offline import tree
from tiercache.cli.diagnostics import ExitCode
from tiercache.tiers.nvme import tree as tree_of_files

__all__ = ["directory", "run"]


def test_a_sound_pool(run: Run, directory: Path) -> None:
    for path in (directory, directory.parent):
        code, out, err = run("verify", path, "--data")
        assert (code, err) == (ExitCode.OK, "")
        assert "records  ok     30 of 30 read, 288 KiB\n" in out
        assert out.endswith("nothing is wrong\n")
        assert "bad" not in out


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_ends_with_1_and_fixed_with_0(run: Run, directory: Path, name: str) -> None:
    make, code, left, _ = DAMAGES[name]
    make(directory)
    before = tree(directory)
    found = document(run, "verify", directory.parent, "--data", code=ExitCode.PROBLEM)
    assert (found["schema"], found["fixed"]) == ("tiercache.verify/1", False)
    [row] = found["data"]
    assert code in {finding["code"] for finding in row["findings"]}
    refused, _, err = run("verify", directory.parent, "--data", "--fix")
    assert refused == ExitCode.USAGE
    assert "--yes" in err
    assert run("verify", directory.parent, "--data", "--fix", "-n")[0] == ExitCode.PROBLEM
    assert tree(directory) == before
    status, out, err = run("verify", directory.parent, "--data", "--fix", "--yes")
    assert (status, err) == (ExitCode.OK, "")
    assert "found and put right" in out
    assert run("verify", directory.parent, "--data")[0] == ExitCode.OK
    with reopened(directory.parent) as served:
        assert set(left) <= set(served) <= set(STORED)


def test_without_data_records_are_not_read(run: Run, directory: Path) -> None:
    DAMAGES["bit flipped in a record"].make(directory)
    code, out, _ = run("verify", directory)
    assert code == ExitCode.OK
    assert "records  -      not read (--data, --sample 1%)" in out
    [row] = document(run, "verify", directory, "--sample", "0%")["data"]
    assert row["records_read"] == 0
    [row] = document(run, "verify", directory, "--sample", "100%", code=1)["data"]
    assert row["records_read"] == 30


def test_many_findings_are_cut_short_for_people_only(run: Run, directory: Path) -> None:
    for number in range(20):
        (directory / f"stranger {number}").touch()
    code, out, _ = run("verify", directory)
    assert code == ExitCode.PROBLEM
    assert "and 12 more like these" in out
    assert "20 problems found; --fix puts them right" in out
    [row] = document(run, "verify", directory, code=1)["data"]
    assert len(row["findings"]) == 20


def test_a_server_is_named_and_keeps_its_pool(run: Run, tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.store(0, 8)
        [directory] = tmp_path.iterdir()
        code, out, _ = run("verify", tmp_path, "--data")
        assert code == ExitCode.OK
        assert f"in use by pid {server.pid}" in out
        (directory / "stranger").touch()
        code, _, err = run("verify", tmp_path, "--fix", "--yes")
        assert code == ExitCode.BUSY
        assert err.startswith(f"tiercache: error: the namespace {directory} is in use by process ")
        assert str(server.pid) in err
        assert (directory / "stranger").exists()


def test_a_server_that_starts_after_the_look_is_seen(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts when it was found that nobody is there, and before anything is changed."""
    (directory / "stranger").touch()
    started = []

    def agreed(question: str, *, yes: bool) -> None:
        started.append(Server(directory.parent))

    monkeypatch.setattr("tiercache.cli.commands.verify.agree", agreed)
    try:
        code, _, err = run("verify", directory, "--fix", "--yes")
        assert code == ExitCode.BUSY
        assert str(started[0].pid) in err
        assert (directory / "stranger").exists()
    finally:
        with started[0]:
            pass


def test_another_format(run: Run, directory: Path) -> None:
    meta = directory / "meta.json"
    meta.write_text(meta.read_text().replace('"format": 1', '"format": 2'))
    code, _, err = run("verify", directory, "--fix", "--yes")
    assert code == ExitCode.FORMAT
    assert "format 2 found, this version reads 1" in err
    assert err.count("\n") == 1


def test_no_pool(run: Run, tmp_path: Path) -> None:
    code, out, err = run("verify", tmp_path / "nowhere")
    assert (code, out) == (ExitCode.NO_POOL, "")
    assert err.count("\n") == 1


def test_what_cannot_be_read_is_beyond_repair(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(tree_of_files, "scan", broken)
    code, _, err = run("verify", directory)
    assert code == ExitCode.DAMAGED
    assert "Input/output error" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a file that cannot be removed")
def test_what_cannot_be_removed_is_beyond_repair(run: Run, directory: Path) -> None:
    file = directory / "g0" / "stranger"
    file.touch()
    if subprocess.run(["chattr", "+i", str(file)], check=False, capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        code, _, err = run("verify", directory, "--fix", "--yes")
        assert code == ExitCode.DAMAGED
        assert "cannot be repaired" in err
    finally:
        subprocess.run(["chattr", "-i", str(file)], check=True)


def test_more_than_the_capacity_stays_a_problem(run: Run, directory: Path) -> None:
    [row] = document(run, "verify", directory, "--capacity", "100KiB", code=1)["data"]
    [finding] = row["findings"]
    assert (finding["code"], finding["remedy"]) == ("over-capacity", None)
    code, out, _ = run("verify", directory, "--capacity", "100KiB", "--fix", "--yes")
    assert code == ExitCode.PROBLEM
    assert "1 problem found" in out


def test_one_namespace_of_two(run: Run, directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "nvme" / "0123456789abcdef"
    other.mkdir(mode=0o700)
    (other / "stranger").touch()
    assert run("verify", directory.parent)[0] == ExitCode.PROBLEM
    assert run("verify", directory.parent, "--namespace", directory.name[:4])[0] == ExitCode.OK
    code, _, err = run("verify", directory.parent, "--namespace", "ffff")
    assert code == ExitCode.NO_POOL
    assert other.name in err


def test_progress_is_json_lines_on_stderr(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercache.cli.caring.INTERVAL_S", 0.0)
    code, out, err = run("verify", directory, "--data", "--json", "--progress")
    assert code == ExitCode.OK
    assert json.loads(out)["schema"] == "tiercache.verify/1"
    lines = [json.loads(line) for line in err.splitlines()]
    assert len(lines) == 30
    assert {line["type"] for line in lines} == {"progress"}
    assert lines[-1]["done"] == lines[-1]["total"] == 24 * 8192 + 6 * 16384
    assert run("verify", directory, "--data", "--progress")[2] == ""


def test_the_pool_of_another_user_stays_that_users(run: Run, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may look after the pool of another user")
    directory = fill(tmp_path / "nvme")
    for path in (directory.parent, directory, *directory.rglob("*")):
        os.lchown(path, 65534, 65534)
    DAMAGES["block twice"].make(directory)
    DAMAGES["segment deleted"].make(directory)
    os.lchown(directory / "index" / "data.mdb", 65534, 65534)
    (directory / "lock").unlink()
    assert run("verify", directory, "--fix", "--yes")[0] == ExitCode.OK
    assert {path.lstat().st_uid for path in directory.rglob("*")} == {65534}
    assert run("verify", directory, "--data")[0] == ExitCode.OK
