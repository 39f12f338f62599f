# SPDX-License-Identifier: Apache-2.0
"""``tiercache export`` and ``import``: there and back, and what is refused."""

import io
import json
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.pool_helpers import Run, directory, document, run
from tests.tiers.nvme.damage_helpers import FIRST, SECOND, STORED, data_file, flip, segment
from tests.tiers.nvme.segments_helpers import mounted
from tests.tiers.nvme.server_helpers import Server, reopened
from tests.tiers.nvme.test_offline import tree
from tests.tiers.nvme.tier_helpers import FINGERPRINT, SLOT_BYTES, Rig, content, keys
from tiercache.blocks import key_group, key_hash
from tiercache.cli.commands import import_
from tiercache.cli.diagnostics import ExitCode
from tiercache.errors import FormatError
from tiercache.tiers.nvme.pages import Entry, Location
from tiercache.tiers.nvme.transfer import read_export
from tiercache.tiers.nvme.writing import index_of

__all__ = ["directory", "run"]


@pytest.fixture(autouse=True)
def _small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_, "MIN_FREE_BYTES", 0)


@pytest.fixture
def tar(run: Run, directory: Path, tmp_path: Path) -> Path:
    assert run("export", directory, "--data", tmp_path / "records.tar")[0] == ExitCode.OK
    return tmp_path / "records.tar"


def served(directory: Path) -> set[bytes]:
    with reopened(directory.parent) as found:
        return set(found)


# --- export


def test_the_index_is_json_lines_with_a_header(run: Run, directory: Path) -> None:
    code, out, err = run("export", directory)
    assert (code, err) == (ExitCode.OK, "")
    header, *rows = map(json.loads, out.splitlines())
    assert header["schema"] == "tiercache.export/1"
    assert header["namespace"] == directory.name
    assert header["fingerprint"] == {**FINGERPRINT, "record_bytes": {"0": 8192, "1": 16384}}
    assert header["entries"] == len(rows) == 30
    assert [row["stamp"] for row in rows] == sorted(row["stamp"] for row in rows)
    assert {(row["group"], row["hash"]) for row in rows} == {
        (key_group(key), key_hash(key).hex()) for key in STORED
    }


def test_records_come_as_a_tar_that_any_program_reads(tar: Path) -> None:
    assert stat.S_IMODE(tar.stat().st_mode) == 0o600
    with tarfile.open(tar) as opened:
        assert len(opened.getnames()) == 31
        for key in STORED:
            member = opened.extractfile(f"g{key_group(key)}/{key_hash(key).hex()}")
            assert member
            assert member.read() == content(key, 0)


def test_files_that_exist_are_left_alone(run: Run, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        for option in ("-o", "--data"):
            code, _, err = run("export", directory, option, tmp_path / name)
            assert code == ExitCode.PROBLEM
            assert "is there already" in err
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_damaged_records_are_left_out_and_said(run: Run, directory: Path, tmp_path: Path) -> None:
    flip(segment(directory, 0), 100)
    target = tmp_path / "x.tar"
    code, out, err = run("export", directory, "--data", target, "--json")
    found = json.loads(out)
    assert code == ExitCode.PROBLEM
    assert (found["entries"], found["left_out"]) == (29, 1)
    assert "1 records do not verify" in err


def test_a_full_disk_leaves_no_file(run: Run, directory: Path, tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path / "small", "size=64k") as small:
        code, _, err = run("export", directory, "--data", small / "x.tar")
        assert code == ExitCode.PROBLEM
        assert "No space left" in err
        assert not list(small.iterdir())


@pytest.fixture
def cleared(directory: Path) -> Path:
    """A pool whose server has reset its caches, and stored what is there after that."""
    (directory / "index" / "cleared").touch(mode=0o600)
    return directory


def test_what_came_after_a_reset_is_not_exported(run: Run, cleared: Path) -> None:
    code, out, err = run("export", cleared)
    assert (code, out) == (ExitCode.PROBLEM, "")
    assert "has reset its caches" in err


def test_what_came_after_a_reset_is_replaced_by_an_import(
    run: Run, tar: Path, directory: Path
) -> None:
    (directory / "index" / "cleared").touch(mode=0o600)
    assert run("verify", directory)[0] == ExitCode.OK
    assert run("import", directory.parent, tar, "--yes")[0] == ExitCode.OK
    assert served(directory) == set(STORED)


def test_an_export_beside_a_server_is_whole(run: Run, tmp_path: Path) -> None:
    with Server(tmp_path / "nvme") as server:
        server.store(0, 24)
        server.churn()
        for number in range(5):
            target = tmp_path / f"{number}.tar"
            run("export", tmp_path / "nvme", "--data", target)
            with tarfile.open(target) as opened:
                index = opened.extractfile("index.jsonl")
                assert index
                header, *rows = map(json.loads, index)
                assert header["entries"] == len(rows) == len(opened.getnames()) - 1
        server.kill()


# --- import


def test_there_and_back(run: Run, directory: Path, tar: Path, tmp_path: Path) -> None:
    code, _, err = run("import", tmp_path / "other", tar, "--yes")
    assert code == ExitCode.NO_POOL
    assert err.count("\n") == 1
    target = tmp_path / "other"
    found = document(run, "import", target, tar, "--create", "--yes")
    assert (found["added"], found["entries"], found["refused"]) == (30, 30, 0)
    assert run("verify", target, "--data")[0] == ExitCode.OK
    [made] = target.iterdir()
    assert made.name == directory.name
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.rglob("*")} == {0o600, 0o700}
    assert served(made) == set(STORED)


def test_the_order_is_kept(run: Run, tar: Path, tmp_path: Path) -> None:
    run("import", tmp_path / "other", tar, "--create", "--yes")
    run("prune", tmp_path / "other", "--keep", "50%", "--yes")
    [made] = (tmp_path / "other").iterdir()
    assert served(made) == {*FIRST[12:], *SECOND[3:]}


def test_what_is_there_stays_and_the_rest_is_added(run: Run, directory: Path, tar: Path) -> None:
    new = keys(range(700, 706))
    run("drop", directory, *(key_hash(key).hex() for key in FIRST[4:14]), "--yes")
    with Rig(directory.parent) as rig:
        tier = rig.open()
        rig.stored(tier, new)
        tier.close()
    found = document(run, "import", directory, tar, "--yes")
    assert (found["wanted"], found["added"]) == (10 + 2, 12)
    assert run("verify", directory, "--data")[0] == ExitCode.OK
    assert served(directory) == {*STORED, *new}
    again = document(run, "import", directory, tar, "--yes")
    assert (again["wanted"], again["added"]) == (0, 0)


def test_an_index_that_was_lost_comes_back(run: Run, directory: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.jsonl"
    run("export", directory, "-o", index)
    data_file(directory).unlink()
    (directory / "index" / "lock.mdb").unlink()
    flip(segment(directory, 1), 2 * SLOT_BYTES[0])
    status, out, _ = run("import", directory, index, "--yes")
    assert status == ExitCode.PROBLEM
    assert "added 29 entries" in out
    assert "1 are no longer where they were" in out
    assert run("verify", directory, "--data")[0] == ExitCode.OK
    assert served(directory) == {*STORED} - {FIRST[10]}


def test_an_entry_is_not_put_where_another_one_is(
    run: Run, directory: Path, tmp_path: Path
) -> None:
    """Even if the record that lies there is the one that was exported."""
    index = tmp_path / "index.jsonl"
    run("export", directory, "-o", index)
    with index_of(directory) as writer:
        writer.change({Location(0, 10): Entry(b"another block", 1, 99)})
    found = document(run, "import", directory, index, "--yes", code=ExitCode.PROBLEM)
    assert (found["wanted"], found["added"], found["refused"]) == (1, 0, 1)


def test_another_model_is_refused(run: Run, tar: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with Rig(other) as rig:
        tier = rig.open(fingerprint={**FINGERPRINT, "model": "another"})
        rig.stored(tier, keys(range(3)))
        tier.close()
    before = tree(other)
    code, _, err = run("import", other, tar, "--yes")
    assert code == ExitCode.FORMAT
    assert "model differ" in err
    assert tree(other) == before


def test_a_server_keeps_its_pool(run: Run, directory: Path, tar: Path) -> None:
    with Server(directory.parent) as server:
        code, _, err = run("import", directory, tar, "--yes")
        assert code == ExitCode.BUSY
        assert f"in use by process {server.pid}" in err


def test_nothing_is_added_without_consent(run: Run, directory: Path, tar: Path) -> None:
    run("drop", directory, key_hash(FIRST[9]).hex(), "--yes")
    before = tree(directory)
    assert run("import", directory, tar)[0] == ExitCode.USAGE
    code, out, _ = run("import", directory, tar, "-n")
    assert code == ExitCode.OK
    assert out.startswith("1 of 30 entries are new to ")
    assert tree(directory) == before


def test_a_record_that_does_not_verify_stops_all_of_it(
    run: Run, directory: Path, tar: Path
) -> None:
    run("drop", directory, *(key_hash(key).hex() for key in FIRST[8:16]), "--yes")
    raw = tar.read_bytes()
    at = raw.index(content(FIRST[12], 0))
    tar.write_bytes(raw[: at + 50] + bytes([raw[at + 50] ^ 1]) + raw[at + 51 :])
    code, _, err = run("import", directory, tar, "--yes")
    assert code == ExitCode.DAMAGED
    assert "does not match its checksum" in err
    assert run("verify", directory, "--data")[0] == ExitCode.OK
    assert served(directory) == {*STORED} - {*FIRST[8:16]}


def test_a_full_disk_adds_nothing(run: Run, tar: Path, tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path / "small", "size=200k") as small:
        code, _, err = run("import", small / "nvme", tar, "--create", "--yes")
        assert code == ExitCode.PROBLEM
        assert "has no room for it" in err
        assert run("verify", small / "nvme")[0] == ExitCode.OK
        with reopened(small / "nvme") as found:
            assert found == []


def test_min_free_is_kept(
    run: Run, tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_, "MIN_FREE_BYTES", 1 << 60)
    code, _, err = run("import", tmp_path / "other", tar, "--create", "--yes")
    assert code == ExitCode.PROBLEM
    assert "are to stay free" in err


# --- files of others


def lines_of(run: Run, directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("export", directory)[1].splitlines()]


BAD: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "no schema": lambda rows: rows[0].pop("schema"),
    "a later schema": lambda rows: rows[0].update(schema="tiercache.export/2"),
    "a later format": lambda rows: rows[0].update(format=2),
    "no fingerprint": lambda rows: rows[0].pop("fingerprint"),
    "no sizes": lambda rows: rows[0]["fingerprint"].update(record_bytes=None),
    "a size of nothing": lambda rows: rows[0]["fingerprint"].update(record_bytes={"0": 0}),
    "a group of letters": lambda rows: rows[0]["fingerprint"].update(record_bytes={"../": 4096}),
    "an entry less": lambda rows: rows.pop(),
    "no hash": lambda rows: rows[3].pop("hash"),
    "a long hash": lambda rows: rows[3].update(hash="aa" * 41),
    "no hexadecimal hash": lambda rows: rows[3].update(hash="xyz"),
    "a slot below": lambda rows: rows[3].update(slot=-1),
    "a slot beyond": lambda rows: rows[3].update(slot=1 << 40),
    "a slot that is no number": lambda rows: rows[3].update(slot=True),
    "another group": lambda rows: rows[3].update(group=5),
    "a stamp beyond": lambda rows: rows[3].update(stamp=1 << 64),
    "a checksum beyond": lambda rows: rows[3].update(checksum="1" * 17),
    "no object": lambda rows: rows.__setitem__(3, [1]),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("name", BAD)
def test_lines_that_cannot_be(run: Run, directory: Path, tmp_path: Path, name: str) -> None:
    rows = lines_of(run, directory)
    BAD[name](rows)
    file = tmp_path / "bad.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = tree(directory)
    code, _, err = run("import", directory, file, "--yes")
    assert code == ExitCode.FORMAT
    assert err.count("\n") == 1
    assert tree(directory) == before


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_whatever_is_read_is_an_export_or_an_error_of_ours(raw: bytes) -> None:
    with pytest.raises(FormatError):
        read_export(io.BytesIO(raw))


@pytest.mark.parametrize("size", [0, 1, 600, 5000, 20_000])
def test_a_tar_that_was_cut_off(run: Run, directory: Path, tar: Path, size: int) -> None:
    os.truncate(tar, size)
    before = tree(directory)
    assert run("import", directory, tar, "--yes")[0] == ExitCode.FORMAT
    assert tree(directory) == before


def test_a_tar_of_links_and_strange_names(run: Run, directory: Path, tar: Path) -> None:
    run("drop", directory, key_hash(FIRST[9]).hex(), "--yes")
    name = f"g0/{key_hash(FIRST[9]).hex()}"
    made = tar.with_name("made.tar")
    with tarfile.open(tar) as source, tarfile.open(made, "w") as target:
        for member in source:
            if member.name == name:
                member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0
                target.addfile(member)
            else:
                target.addfile(member, source.extractfile(member))
        target.addfile(tarfile.TarInfo("../../escaped"))
    code, _, err = run("import", directory, made, "--yes")
    assert code == ExitCode.DAMAGED
    assert f"the record {name} is missing" in err
    assert not list(tar.parent.rglob("escaped"))
