# SPDX-License-Identifier: Apache-2.0
"""Files that hold anything: a reader answers or says in a sentence why not; nothing else."""

import json
import os
import stat
import struct
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stats_helpers import GROUP, NOW, POOL, TIER, create, event
from tiercache.errors import FormatError, NoPoolError
from tiercache.stats import files
from tiercache.stats.format import (
    FORMAT,
    HEADER_BYTES,
    MAGIC,
    Counts,
    Identity,
    Layout,
    Table,
    pack_header,
    unpack_header,
)
from tiercache.stats.manifest import Manifest
from tiercache.stats.model import Phase, Restores, Sequence, SlotClass, Snapshot, Victim, Where
from tiercache.stats.process import Process
from tiercache.stats.reader import SegmentReader

MANIFEST = Manifest.of(POOL, [GROUP], [TIER]).encode()
COUNTS = Counts(len(MANIFEST), 1, 1, 8)
IDENTITY = Identity(FORMAT, 0, Process.of(POOL.pid))
#: Where a stray byte has a meaning, as opposed to the empty part of the ring.
INTERESTING = Layout(COUNTS).ring.offset + 8 * 64


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a segment with something of everything in it."""
    with closing(create(tmp_path_factory.mktemp("segment"))) as writer:
        writer.put_state(NOW, phase=Phase.RUN, running=1, totals={"late": 1})
        writer.put_restores(Restores(1, 2, 3), Restores())
        writer.put_victims(0, [Victim("g0", 1, SlotClass.LIVE, 7, 16, NOW, "nvme0", 3)] * 64)
        writer.put_sequence(0, Sequence(7, 2, NOW, 64, 48, 32, 16, 2, 1, Where.RAM_BLOCKS))
        for _ in range(5):
            event(writer)
        return writer.path.read_bytes()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "demo.1.0.tcs"


def tables(layout: Layout) -> list[Table]:
    first = [layout.state, layout.groups, layout.tiers]
    return [*first, layout.restores, layout.victims, layout.sequences]


def look(path: Path) -> Snapshot:
    with closing(SegmentReader(path)) as reader:
        reader.snapshot(now=NOW)
        return reader.snapshot(now=NOW)


def answer(path: Path) -> Snapshot | None:
    """What a reader says; None: a sentence."""
    try:
        return look(path)
    except FormatError:
        return None


def test_the_valid_segment_is_read(valid: bytes, file: Path) -> None:
    file.write_bytes(valid)
    assert answer(file) is not None


@given(st.dictionaries(st.integers(0, INTERESTING), st.integers(0, 255), min_size=1, max_size=9))
def test_any_byte_may_be_any_other(valid: bytes, file: Path, bytes_: dict[int, int]) -> None:
    damaged = bytearray(valid)
    for at, value in bytes_.items():
        damaged[at] = value
    file.write_bytes(damaged)
    answer(file)


@given(st.integers(0, INTERESTING), st.binary(min_size=1, max_size=300))
def test_any_stretch_may_be_any_other(valid: bytes, file: Path, at: int, stretch: bytes) -> None:
    file.write_bytes(valid[:at] + stretch + valid[at + len(stretch) :])
    answer(file)


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_every_part_may_be_filled_with_one_byte(valid: bytes, file: Path, byte: int) -> None:
    layout = Layout(COUNTS)
    columns = [column for table in tables(layout) for column in table]
    for column in (*columns, layout.manifest, layout.events, layout.dropped, layout.ring):
        filling = bytes([byte]) * (column.end - column.offset)
        file.write_bytes(valid[: column.offset] + filling + valid[column.end :])
        answer(file)


def test_any_length_is_too_short(valid: bytes, file: Path) -> None:
    for nbytes in (0, 1, 8, 48, HEADER_BYTES - 1, HEADER_BYTES, len(valid) // 2, len(valid) - 1):
        file.write_bytes(valid[:nbytes])
        with pytest.raises(FormatError, match="cut short"):
            look(file)


@given(st.tuples(*[st.integers(0, 2**32 - 1) | st.integers(0, 100)] * 4))
def test_counts_may_claim_anything(valid: bytes, file: Path, counts: tuple[int, ...]) -> None:
    header = pack_header(IDENTITY, Counts(*counts))
    file.write_bytes(header + valid[HEADER_BYTES:])
    if (snapshot := answer(file)) is not None:
        assert len(snapshot.sequences) <= counts[3]


def test_a_file_may_be_huge_and_hollow(valid: bytes, file: Path) -> None:
    counts = COUNTS._replace(sequences=2**32 - 1)
    file.write_bytes(pack_header(IDENTITY, counts) + valid[HEADER_BYTES:])
    os.truncate(file, 2**40)
    with pytest.raises(FormatError, match="the header is damaged"):
        look(file)


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 60_000,
        b"1" * 5_000,
        b'{"pool": 1, "groups": 2, "tiers": 3}',
        MANIFEST.replace(b'"demo"', b"5"),
        MANIFEST.replace(str(NOW).encode(), b"NaN"),
        MANIFEST.replace(str(NOW).encode(), b"-1"),
        MANIFEST.replace(str(NOW).encode(), b"1e300"),
        MANIFEST.replace(b'"slot_bytes": 4096', b'"slot_bytes": -1'),
        MANIFEST.replace(b'"slot_bytes": 4096', b'"slot_bytes": true'),
        MANIFEST.replace(b'"slot_bytes": 4096', b'"slot_bytes": 1.5'),
        MANIFEST.replace(b'"capacity"', b'"capacities"'),
        json.dumps([POOL.name]).encode(),
    ],
)
def test_a_manifest_that_is_none_is_refused(manifest: bytes) -> None:
    with pytest.raises(FormatError, match="the manifest is damaged"):
        Manifest.decode(manifest)


def test_a_manifest_of_other_counts_is_refused(file: Path) -> None:
    counts = COUNTS._replace(groups=2)
    body = bytearray(Layout(counts).nbytes)
    body[:HEADER_BYTES] = pack_header(IDENTITY, counts)
    body[HEADER_BYTES : HEADER_BYTES + len(MANIFEST)] = MANIFEST
    file.write_bytes(body)
    with pytest.raises(FormatError, match="header and manifest differ"):
        look(file)


def test_another_format_is_named(valid: bytes, file: Path) -> None:
    file.write_bytes(IDENTITY._replace(format=2).pack().ljust(HEADER_BYTES, b"\0"))
    with pytest.raises(FormatError, match=r"tcs: server writes format 2, this program reads 1$"):
        look(file)


def test_another_file_is_named(file: Path) -> None:
    file.write_bytes(b"ELF".ljust(HEADER_BYTES, b"\0"))
    with pytest.raises(FormatError, match=r"tcs: not a segment$"):
        look(file)


def test_a_header_comes_back() -> None:
    assert unpack_header(pack_header(IDENTITY, COUNTS)) == (IDENTITY, COUNTS)


def test_the_bytes_of_format_1_stay_where_they_are(valid: bytes) -> None:
    """Whatever breaks this makes a new format: servers and programs are of different ages."""
    assert valid[:10] == MAGIC + b"\x01\x00"
    assert struct.unpack_from("<HIQQ4I", valid, 10)[:2] == (0, POOL.pid)
    layout = Layout(Counts(100, 2, 1, 4096))
    words = (layout.manifest.offset, layout.events.offset, layout.dropped.offset)
    assert words == (4096, 4224, 4288)
    assert [(t.versions.offset, t.rows.offset, t.rows.width) for t in tables(layout)] == [
        (4352, 4416, 64),
        (4480, 4544, 152),
        (4864, 4928, 1200),
        (6144, 6208, 1048),
        (8320, 8384, 2568),
        (13568, 46336, 104),
    ]
    assert (layout.ring.offset, layout.ring.width, layout.nbytes) == (472320, 64, 996608)


def test_a_file_may_shrink_under_a_reader(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as writer, closing(SegmentReader(writer.path)) as reader:
        reader.snapshot(now=NOW)
        event(writer)
        copy = tmp_path / "copy.1.0.tcs"
        copy.write_bytes(writer.path.read_bytes())
        with closing(SegmentReader(copy)) as shrinking:
            shrinking.snapshot(now=NOW)
            os.truncate(copy, HEADER_BYTES)
            with pytest.raises(FormatError, match="cut short"):
                shrinking.snapshot(now=NOW)
            with pytest.raises(FormatError, match="cut short"):
                _ = shrinking.phase


def test_no_file_is_no_pool(tmp_path: Path) -> None:
    with pytest.raises(NoPoolError, match=r"no pool at .*nothing\.tcs$"):
        SegmentReader(tmp_path / "nothing.tcs")
    with pytest.raises(NoPoolError, match="cannot read"):
        SegmentReader(tmp_path / "null\0byte")


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.tcs"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path):
        with pytest.raises(FormatError, match="not a file"):
            SegmentReader(path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as writer:
        link = tmp_path / "link.tcs"
        link.symlink_to(writer.path)
        with pytest.raises(NoPoolError, match="symbolic link"):
            SegmentReader(link)


def test_a_file_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so it is the system that is taken the place of."""

    def refuse(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    path = tmp_path / "demo.1.0.tcs"
    path.touch()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NoPoolError) as refused:
        SegmentReader(path)
    monkeypatch.undo()
    assert str(refused.value) == (
        f"no permission to read {path}, which belongs to user {os.getuid()}; "
        "run this as the user of the server"
    )


def test_a_segment_is_private(tmp_path: Path) -> None:
    with closing(create(tmp_path / "a" / "b")) as writer:
        assert stat.S_IMODE(writer.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(writer.path.parent.stat().st_mode) == 0o700


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="Not a directory"):
        create(tmp_path / "link")


def test_a_directory_where_others_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    with pytest.raises(PermissionError, match="others can write in it"):
        create(tmp_path / "open")


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="belongs to user"):
        create(tmp_path)


def test_a_link_in_the_way_of_a_segment_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    name = files.FileName(POOL.name, POOL.pid, 0)
    for taken in (name, name._replace(is_new=True)):
        (tmp_path / str(taken)).symlink_to(victim)
    with closing(create(tmp_path)) as writer:
        assert not writer.path.is_symlink()
    assert victim.read_bytes() == b"precious"


def test_no_room_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        create(tmp_path)
    assert not list(tmp_path.iterdir())
