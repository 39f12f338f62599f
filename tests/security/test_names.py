# SPDX-License-Identifier: Apache-2.0
"""Names and numbers from outside never lead out of the folder that they are for."""

import io
import json
import os
import tarfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.pool_helpers import Run, directory, run
from tests.security import attacks
from tests.stats_helpers import POOL, create
from tests.tiers.nvme.server_helpers import fill
from tests.tiers.nvme.test_offline import tree
from tiercache.cli.commands import import_
from tiercache.cli.diagnostics import ExitCode
from tiercache.errors import FormatError
from tiercache.stats.files import FileName
from tiercache.tiers.nvme.namespace import NAME, namespace
from tiercache.tiers.nvme.offline import is_group, open_readonly
from tiercache.tiers.nvme.segments import segment_name, segment_number
from tiercache.tiers.nvme.transfer import read_export
from tiercache.tiers.nvme.tree import group_of

__all__ = ["directory", "run"]

LEADING_OUT = [
    "..",
    "../x",
    "/etc/passwd",
    "a/../../b",
    "x\0y",
    "\n",
    ".",
    "",
    "~",
    "\udcff",
    "x" * 999,
]
texts = st.text() | st.sampled_from(LEADING_OUT)


@pytest.fixture(autouse=True)
def _small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_, "MIN_FREE_BYTES", 0)


@given(st.dictionaries(texts, texts | st.integers() | st.lists(texts)))
def test_a_namespace_is_a_number(fingerprint: dict[str, object]) -> None:
    assert NAME.fullmatch(namespace(fingerprint))


@given(texts)
def test_only_such_a_number_is_a_namespace(name: str) -> None:
    assert not NAME.fullmatch(f"../{name}")
    assert "/" not in name or not NAME.fullmatch(name)


@given(st.integers(0, 2**64))
def test_a_segment_is_a_number(number: int) -> None:
    name = segment_name(number)
    assert Path(name).name == name
    assert segment_number(name) == number


@given(texts)
def test_what_is_called_otherwise_is_no_segment_and_no_group(name: str) -> None:
    number, group = segment_number(name), group_of(name)
    assert number < 0 or name.partition(".seg")[0] == f"{number:06d}"
    assert group is None or name == f"g{group}"


@given(texts, st.integers())
def test_a_group_of_a_file_is_a_small_number(group: str, size: int) -> None:
    if is_group(group, size):
        assert 0 <= int(group) < 2**16
        assert f"{int(group)}".isascii()


@given(texts, st.integers(0, 10**9 - 1), st.integers(0, 10**5 - 1))
def test_a_pool_is_called_what_a_file_may_be_called(pool: str, pid: int, rank: int) -> None:
    name = str(FileName(pool, pid, rank))
    assert Path(name).name == name
    assert len(name) < 255
    assert FileName.parse(name) is not None


@pytest.mark.parametrize("pool", LEADING_OUT)
def test_a_segment_lies_in_its_folder_whatever_its_pool_is_called(
    pool: str, tmp_path: Path
) -> None:
    with suppress(UnicodeEncodeError):
        create(tmp_path / "segments", pool=replace(POOL, name=pool)).close()
    assert {path.name for path in tmp_path.iterdir()} == {"segments"}


# --- exports of somebody else


def header(**fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"schema": "tiercache.export/1", "format": 1}
    return made | {"fingerprint": {"record_bytes": {"0": 4096}}, "entries": 0} | fields


@pytest.mark.parametrize(
    "group", ["../../x", "/etc", "-1", "65536", "99999", "\u0660", "0" * 9, ""]
)
def test_an_export_names_no_group_that_is_a_path(group: str) -> None:
    text = json.dumps(header(fingerprint={"record_bytes": {group: 4096}}))
    with pytest.raises(FormatError):
        read_export(io.BytesIO(text.encode()))


def test_an_import_makes_its_namespace_and_nothing_else(run: Run, tmp_path: Path) -> None:
    """Whatever the export calls itself, the folder follows from its fingerprint."""
    fingerprint = {"model": "../../../x", "../y": "/z", "record_bytes": {"0": 4096}}
    export = tmp_path / "export.jsonl"
    (tmp_path / "pool").mkdir()
    export.write_text(json.dumps(header(namespace="../../escaped", fingerprint=fingerprint)))
    code, _, err = run("import", tmp_path / "pool", export, "--create", "--yes")
    assert code in {ExitCode.OK, ExitCode.FORMAT}, err
    assert {path.name for path in tmp_path.iterdir()} == {"pool", "export.jsonl"}
    made = {path.name for path in (tmp_path / "pool").iterdir()}
    assert made <= {namespace(fingerprint)}


def test_the_members_of_a_tar_are_read_not_unpacked(
    run: Run, directory: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made.tar"
    with tarfile.open(made, "w") as target:
        for name in ("../out", "/tmp/out", "g0/../../../out", "index.jsonl"):
            content = json.dumps(header()).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    before = tree(directory)
    assert run("import", directory, made, "--yes")[0] == ExitCode.FORMAT
    assert tree(directory) == before
    assert not list(tmp_path.rglob("out"))


def test_hostile_exports(tmp_path: Path) -> None:
    pool = fill(tmp_path / "pristine").parent
    attacks.run(attacks.imports, tmp_path, pool, 0, 60)


# --- what else could be aimed at


def test_a_link_among_namespaces_is_none(tmp_path: Path) -> None:
    outside = fill(tmp_path / "outside")
    pool = fill(tmp_path / "pool").parent
    (pool / ("0" * 16)).symlink_to(outside)
    with open_readonly(pool) as opened:
        assert [one.name for one in opened.namespaces] == [outside.name]
        assert opened.namespaces[0].directory.parent == pool


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_a_namespace_of_another_user_is_neither_read_nor_removed(tmp_path: Path) -> None:
    """A server removes namespaces that nobody can use again, if they are its own."""
    ours = fill(tmp_path / "pool")
    theirs = ours.with_name("f" * 16)
    theirs.mkdir()
    (theirs / "lock").touch()
    meta = {"format": 1, "fingerprint": {**attacks.FINGERPRINT, "hash_seed": "random:1"}}
    (theirs / "meta.json").write_text(json.dumps(meta))
    os.chown(theirs, 65534, 65534)
    attacks.serve(tmp_path / "pool")
    assert (theirs / "meta.json").exists()
    os.chown(theirs, 0, 0)
    attacks.serve(tmp_path / "pool")
    assert not theirs.exists()
