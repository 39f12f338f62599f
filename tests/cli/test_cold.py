# SPDX-License-Identifier: Apache-2.0
"""``ls`` and ``show`` on the directory of a real tier, open or not."""

import csv
import io
import json
import os
import stat as modes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.tiers.nvme.tier_helpers import (
    DISK,
    FINGERPRINT,
    SEGMENT_BYTES,
    SLOT_BYTES,
    Rig,
    content,
    keys,
    namespace_of,
    segment,
)
from tiercache.blocks import Key, key_group, key_hash
from tiercache.cli import cold
from tiercache.cli.commands import show
from tiercache.errors import TierCacheError
from tiercache.stats.writer import SegmentWriter
from tiercache.tiers.nvme import offline

#: The command as it is installed, in a process of its own.
TIERCACHE = (sys.executable, "-c", "from tiercache.cli.main import main; main()")
#: As in an engine, a block has the same hash in each group.
STORED = [*keys(range(12)), *keys(range(4), 1)]
LS = ["key", "bytes", "slot", "stamp", "namespace", "group", "hash", "checksum"]
SHOW = [
    *("key", "namespace", "group", "hash", "bytes", "file", "offset"),
    *("present", "slot", "stamp", "checksum", "verified"),
]


def name(key: Key) -> str:
    return f"g{key_group(key)}:{key_hash(key).hex()}"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Slots on disk in segments that are smaller than a server's."""
    plain = offline.open_readonly
    monkeypatch.setattr(
        offline, "open_readonly", lambda path: plain(path, segment_bytes=SEGMENT_BYTES)
    )
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path / "none"))
    monkeypatch.delenv("TIERCACHE_POOL", raising=False)
    path = tmp_path / "disk"
    path.mkdir()
    with Rig(path) as rig:
        yield rig


@pytest.fixture
def filled(rig: Rig) -> Path:
    """A tier that was closed."""
    tier = rig.open()
    rig.stored(tier, STORED[:12], at_once=4)
    rig.stored(tier, STORED[12:], at_once=4)
    tier.close()
    return rig.path


def listed(command: Command, *arguments: object) -> list[dict[str, Any]]:
    code, out, err = command("ls", *arguments, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert list(document) == ["schema", "source", "data"]
    assert document["schema"] == "tiercache.ls/1"
    assert list(document["source"]) == ["kind", "path", "namespaces", "alive"]
    rows: list[dict[str, Any]] = document["data"]
    assert all(list(row) == LS for row in rows)
    return rows


def shown(command: Command, *arguments: object) -> dict[str, Any]:
    code, out, err = command("show", *arguments, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "tiercache.show/1"
    [row] = document["data"]
    assert list(row) == SHOW
    assert isinstance(row, dict)
    return row


def state_of(path: Path) -> dict[Path, tuple[int, int, bytes]]:
    """Everything in a directory, but for the places that LMDB gives its readers."""
    return {
        file: (file.stat().st_mtime_ns, modes.S_IMODE(file.stat().st_mode), file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "lock.mdb"
    }


def test_every_key_once(command: Command, filled: Path) -> None:
    rows = listed(command, "--pool", filled)
    assert sorted(row["key"] for row in rows) == sorted(map(name, STORED))
    assert [row["bytes"] for row in rows] == [8192] * 12 + [16384] * 4
    assert [row["stamp"] for row in rows] == list(range(16))


def test_nothing_is_changed(command: Command, filled: Path) -> None:
    before = state_of(filled)
    for form in ("table", "csv", "json"):
        command("ls", "--pool", filled, "--format", form)
    command("show", "--pool", filled, name(STORED[0]), "--verify")
    assert state_of(filled) == before


def test_a_server_goes_on_meanwhile(command: Command, rig: Rig) -> None:
    """Another process lists what this one's open tier stores and evicts."""
    tier = rig.open()
    for first in range(0, 200, 20):
        rig.stored(tier, keys(range(first, first + 20)), at_once=4)
        ran = subprocess.run(
            [*TIERCACHE, "ls", "--pool", str(rig.path), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        found = json.loads(ran.stdout)
        assert found["source"]["alive"] is True
        assert found["source"]["namespaces"][0]["pid"] == os.getpid()
        assert 0 < len(found["data"]) <= DISK[0]
    tier.close()


def test_a_table_and_csv(command: Command, filled: Path) -> None:
    code, out, err = command("ls", "--pool", filled)
    assert (code, err) == (0, "")
    head, *rows, total, source = out.splitlines()
    assert head.split() == ["KEY", "BYTES", "SLOT", "STAMP", "NAMESPACE"]
    assert [row.split()[0] for row in rows] == [name(key) for key in STORED]
    assert total == "16 keys"
    assert source == f"source: index of {filled}, not in use"
    _, out, _ = command("ls", "--pool", filled, "--csv")
    read = list(csv.DictReader(io.StringIO(out)))
    assert [list(row) for row in read] == [LS] * 16


def test_keys_are_chosen(command: Command, filled: Path) -> None:
    first = name(STORED[0])
    everything = [name(key) for key in STORED]
    chosen = {
        ("--group", "g1"): everything[12:],
        ("--group", "1"): everything[12:],
        ("--limit", "3"): everything[:3],
        ("--newest", "2"): everything[:-3:-1],
        (first,): [first],
        (first.partition(":")[2][:12],): [first, everything[12]],
        (name(STORED[7])[3:15],): [name(STORED[7])],
        ("nothing",): [],
        ("g1:", first): [first, *everything[12:]],
    }
    for arguments, wanted in chosen.items():
        assert [row["key"] for row in listed(command, "--pool", filled, *arguments)] == wanted


def test_an_empty_index(command: Command, rig: Rig) -> None:
    rig.open().close()
    assert listed(command, "--pool", rig.path) == []
    assert "0 keys" in command("ls", "--pool", rig.path)[1]


def test_namespaces(command: Command, filled: Path, rig: Rig) -> None:
    one = namespace_of(filled)
    tier = rig.open(fingerprint={**FINGERPRINT, "model": "other"})
    rig.stored(tier, STORED[:2])
    tier.close()
    [other] = [each for each in filled.iterdir() if each != one]
    assert len(listed(command, "--pool", filled)) == 18
    assert len(listed(command, "--pool", filled, "--namespace", other.name[:6])) == 2
    assert len(listed(command, "--pool", other)) == 2
    code, _, err = command("ls", "--pool", filled, "--namespace", "zz")
    assert code == 3
    assert one.name in err
    code, out, err = command("show", "--pool", filled, name(STORED[0]))
    assert (code, out) == (2, "")
    assert "is not unique" in err


def test_show(command: Command, filled: Path) -> None:
    for at, key in ((0, STORED[0]), (9, STORED[9]), (1, STORED[13])):
        row = shown(command, "--pool", filled, name(key)[:20])
        group = key_group(key)
        per_segment = SEGMENT_BYTES // SLOT_BYTES[group]
        directory = namespace_of(filled) / f"g{group}"
        assert row["key"] == name(key)
        assert row["file"] == str(directory / f"{at // per_segment:06}.seg")
        assert row["offset"] == at % per_segment * SLOT_BYTES[group]
        assert row["verified"] is None
        assert row["present"] is True
        record = Path(row["file"]).read_bytes()[row["offset"] :][: row["bytes"]]
        assert record == content(key, 0)


def test_show_reads_what_was_stored(filled: Path) -> None:
    key = STORED[5]
    ran = subprocess.run(
        [*TIERCACHE, "show", name(key), "--raw", "--pool", str(filled)],
        capture_output=True,
        check=True,
    )
    assert ran.stdout == content(key, 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_show_verifies(command: Command, tmp_path: Path, rig: Rig, workers: int) -> None:
    path = tmp_path / "workers"
    path.mkdir()
    with Rig(path, workers) as shared:
        tier = shared.open()
        shared.stored(tier, STORED[:3])
        tier.close()
        key = name(STORED[1])
        assert shown(command, "--pool", path, key, "--verify")["verified"] is True
        file = segment(shared, 0)
        damaged = bytearray(file.read_bytes())
        damaged[SLOT_BYTES[0] * workers + 17] ^= 1
        file.write_bytes(damaged)
        code, out, _ = command("show", "--pool", path, key, "--verify")
        assert code == 1
        assert "DOES NOT VERIFY" in out
        assert shown(command, "--pool", path, name(STORED[0]), "--verify")["verified"] is True


def test_a_record_that_is_missing(command: Command, filled: Path, rig: Rig) -> None:
    segment(rig, 1).unlink()
    key = name(STORED[9])
    assert shown(command, "--pool", filled, key)["present"] is False
    code, out, err = command("show", "--pool", filled, key, "--verify")
    assert (code, out) == (1, "")
    assert "the record is missing" in err


def test_hexadecimals(command: Command, filled: Path) -> None:
    code, out, err = command("show", "--pool", filled, name(STORED[2]), "--hex")
    assert (code, err) == (0, "")
    *lines, end = out.splitlines()
    assert end == f"{SLOT_BYTES[0]:08x}"
    assert b"".join(bytes.fromhex(line[10:57]) for line in lines) == content(STORED[2], 0)


def test_lines_that_repeat_are_a_star(command: Command, filled: Path, rig: Rig) -> None:
    file = segment(rig, 0)
    with file.open("r+b") as opened:
        opened.write(bytes(SLOT_BYTES[0]))
    out = command("show", "--pool", filled, name(STORED[0]), "--hex")[1]
    assert out == f"00000000  {' '.join(['00'] * 16)}  |{'.' * 16}|\n*\n{SLOT_BYTES[0]:08x}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ls", "--group", "g5"], 2, "there is no group 'g5'; there are: g0, g1"),
        (["show", "--hex", "--raw", "ab"], 2, "exclude each other"),
        (["show", "--raw", "--json", "ab"], 2, "exclude each other"),
        (["show", "zz"], 1, "no key begins with 'zz'"),
        (["show", "g"], 2, "'g' is not unique"),
        (["show", name(STORED[0])[3:]], 2, "give the group, as in g0:"),
    ],
)
def test_what_cannot_be_done(
    command: Command, filled: Path, arguments: list[str], code: int, words: str
) -> None:
    found, out, err = command(*arguments, "--pool", filled)
    assert (found, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (None, "no server runs here: give the directory of a tier with --pool DIR"),
        ("/nowhere/at/all", "there is no directory /nowhere/at/all"),
        ("name", "no pool is called 'name'"),
    ],
)
@pytest.mark.usefixtures("rig")
def test_no_directory(command: Command, pool: str | None, words: str) -> None:
    code, out, err = command("ls", *(["--pool", pool] if pool else []))
    assert (code, out) == (3, "")
    assert words in err


def test_a_directory_without_a_pool(command: Command, rig: Rig) -> None:
    code, out, err = command("ls", "--pool", rig.path)
    assert (code, out) == (3, "")
    assert err.startswith("tiercache: error: there is no pool in")


def test_a_server_leads_to_its_directory(rig: Rig) -> None:
    assert cold.opened_by(os.getpid()) == []
    tier = rig.open()
    assert cold.opened_by(os.getpid()) == [rig.path]
    tier.close()
    assert cold.opened_by(2**22 + 1) == []


@pytest.mark.usefixtures("server")
def test_a_server_without_a_disk(command: Command) -> None:
    code, out, err = command("ls")
    assert (code, out) == (3, "")
    assert err == (
        f"tiercache: error: process {os.getpid()} has no tier on a disk open; give the directory "
        "of a tier with --pool DIR\n"
    )


def test_the_disk_of_the_only_server(
    command: Command, rig: Rig, server: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERCACHE_DIR", str(server.path.parent))
    tier = rig.open()
    rig.stored(tier, STORED[:2])
    assert cold.directory(None) == rig.path
    assert cold.directory("qwen3-next") == rig.path
    other = rig.path.with_name("other")
    other.mkdir()
    second = rig.open(path=other)
    code, _, err = command("ls")
    assert code == 3
    assert f"has several tiers on disks: {rig.path}, {other};" in err
    second.close()
    tier.close()


def test_of_entries_with_one_key_the_youngest_counts(rig: Rig) -> None:
    rig.open().close()
    with offline.open_readonly(rig.path) as opened:
        place = opened.only()
        entries = [
            offline.StoredEntry(0, slot, b"hash", 0, stamp) for slot, stamp in ((3, 9), (5, 2))
        ]
        for order in (entries, entries[::-1]):
            assert cold.by_prefix([(place, each) for each in order], "g0:") == (place, entries[0])


def test_an_entry_that_was_replaced_meanwhile_is_not_shown(filled: Path) -> None:
    with offline.open_readonly(filled) as opened:
        place = opened.only()
        [entry, *_] = next(place.entries(0))
        assert bytes(show.read(place, entry)) == content(STORED[0], 0)
        with pytest.raises(TierCacheError, match="was evicted while it was read"):
            show.read(place, entry._replace(stamp=99))


def test_torn_pages_are_left_out(command: Command, filled: Path) -> None:
    data = namespace_of(filled) / "index" / "data.mdb"
    content = data.read_bytes()
    torn = content.replace(key_hash(STORED[7]), bytes(32))
    assert torn != content
    data.write_bytes(torn)
    code, out, err = command("ls", "--pool", filled)
    assert code == 0
    assert "4 keys" in out
    assert "left out 1 damaged pages" in err
