# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tui.servers import START, event, qwen
from tiercache.errors import FormatError, TierCacheError
from tiercache.stats.model import Snapshot
from tiercache.tui import record
from tiercache.tui.plain import to_plain
from tiercache.tui.record import Recorder, Recording
from tiercache.tui.trouble import SourceError, Trouble


class Given:
    """A source of prepared snapshots."""

    target = "qwen3-next"
    span = None
    notice = ""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.left = list(snapshots)
        self.is_closed = False

    def fetch(self) -> Snapshot:
        if not self.left:
            raise SourceError(Trouble.NO_ANSWER, "no answer")
        return self.left.pop(0)

    def close(self) -> None:
        self.is_closed = True


def recorded(path: Path, *snapshots: Snapshot, interval: float = 1.0) -> Path:
    with closing(Recorder(Given(*snapshots), path, interval)) as recorder:
        for snapshot in snapshots:
            assert recorder.fetch() is snapshot
    return path


def played(path: Path) -> list[Snapshot]:
    with closing(Recording(path)) as recording:
        return list(recording.rest())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "night.tcr"


def test_what_was_recorded_is_played(path: Path) -> None:
    snapshots = [qwen(0), qwen(1), qwen(1, taken=START + 2, events=()), qwen(190, running=None)]
    recorded(path, *snapshots, interval=2.0)
    assert played(path) == [replace(snapshot, source="record") for snapshot in snapshots]
    with closing(Recording(path)) as recording:
        assert recording.span == (START, START + 190)
        assert recording.interval == 2.0
        assert recording.target == str(path)


def test_a_line_has_only_what_changed(path: Path) -> None:
    recorded(path, qwen(0), qwen(0), qwen(0, running=3, events=()))
    _, first, same, other = path.read_text().splitlines()
    assert len(first) > 2000
    assert json.loads(same) == {"taken": START, "events": [json.loads(first)["events"][0]]}
    assert json.loads(other) == {"taken": START, "running": 3}


def test_events_that_a_line_does_not_have_did_not_happen_again(path: Path) -> None:
    recorded(path, qwen(0, events=(event(1), event(2))), qwen(1, events=()), qwen(2))
    assert [[each.number for each in snapshot.events] for snapshot in played(path)] == [
        *([1, 2], [], [3])
    ]


def test_a_failure_is_no_line(path: Path) -> None:
    with closing(Recorder(Given(qwen(0)), path, 1.0)) as recorder:
        recorder.fetch()
        with pytest.raises(SourceError, match="no answer"):
            recorder.fetch()
    assert len(played(path)) == 1


def test_the_recorder_passes_on_what_it_records(path: Path) -> None:
    source = Given()
    recorder = Recorder(source, path, 1.0)
    assert (recorder.target, recorder.span) == ("qwen3-next", None)
    assert recorder.notice == ""
    recorder.close()
    assert source.is_closed


def test_a_file_is_never_overwritten(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(TierCacheError, match=r"cannot record to .*night.tcr: file exists"):
        Recorder(Given(), path, 1.0)
    assert path.read_text() == "mine"


def test_a_full_disk_ends_the_recording_but_not_the_numbers(path: Path) -> None:
    with closing(Recorder(Given(qwen(0), qwen(1), qwen(2)), path, 1.0)) as recorder:
        recorder.fetch()
        _is_full_from_now_on(recorder)
        assert recorder.fetch() == qwen(1)
        assert recorder.notice == "recording ended: no space left on device"
        assert recorder.fetch() == qwen(2)
    assert [snapshot.taken for snapshot in played(path)] == [START]


def _is_full_from_now_on(recorder: Recorder) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder._file.fileno())
    os.close(full)


def test_a_last_line_that_was_cut_off_is_not_played(path: Path) -> None:
    recorded(path, qwen(0), qwen(1))
    path.write_bytes(path.read_bytes()[:-10])
    assert [snapshot.taken for snapshot in played(path)] == [START]


def test_an_empty_recording_has_no_snapshot(path: Path) -> None:
    recorded(path)
    with closing(Recording(path)) as recording:
        with pytest.raises(SourceError, match="ends here") as caught:
            recording.fetch()
        assert caught.value.trouble is Trouble.ENDED
        assert recording.span == (0.0, 0.0)


HEAD = '{"schema":"tiercache.record/1","interval":1.0,"target":"x"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: this is no recording of tiercache-top"),
        (b"{}\n", "line 1: this is no recording of tiercache-top"),
        (b"\x00\xff\xfe\n", "line 1: no JSON"),
        (b"[1]\n", "line 1: not a JSON object"),
        (b'{"schema":7}\n', "line 1: this is no recording"),
        (b'{"schema":"tiercache.top/1"}\n', "line 1: this is no recording"),
        (
            b'{"schema":"tiercache.record/2"}\n',
            "line 1: the recording has format 2, this program reads 1",
        ),
        (b'{"schema":"tiercache.record/1"}\n', "line 1: interval is not a number"),
        (b'{"schema":"tiercache.record/1","interval":-1}\n', "line 1: interval is not a number"),
        (HEAD.encode() + b"{}\n", "line 2: alive is missing"),
        (HEAD.encode() + b"no\n", "line 2: no JSON"),
        (HEAD.encode() + b"\n", "line 2: no JSON"),
        (HEAD.encode() + b'{"taken":NaN}\n', "line 2: no JSON: NaN is no number"),
        (HEAD.encode() + b"[" * 100_000 + b"\n", "line 2: no JSON"),
        (HEAD.encode() + b'{"taken":' + b"9" * 5000 + b"}\n", "line 2: no JSON"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(
    path: Path, content: bytes, message: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        Recording(path)
    assert str(caught.value).startswith(f"{path}, {message}")


def test_a_line_that_never_ends_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_LINE_BYTES", 1000)
    path.write_bytes(HEAD.encode() + b" " * 2000)
    with pytest.raises(FormatError, match="line 2: longer than 1000 bytes"):
        Recording(path)


def test_a_line_that_is_broken_later_is_named_when_it_is_reached(path: Path) -> None:
    recorded(path, qwen(0), qwen(1), qwen(2))
    lines = path.read_text().splitlines(keepends=True)
    lines[3] = '{"running":"many"}\n'
    path.write_text("".join(lines))
    with closing(Recording(path)) as recording:
        assert recording.fetch().taken == START
        with pytest.raises(SourceError, match="line 4: running: 'many' is not") as caught:
            recording.fetch()
        assert caught.value.trouble is Trouble.FORMAT


@pytest.mark.parametrize("name", ["missing.tcr", "."])
def test_what_cannot_be_opened_is_a_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(TierCacheError, match=r"^cannot read .*: (no such file|is a directory)"):
        Recording(tmp_path / name)


@given(st.binary(max_size=200), st.integers(0, 5))
def test_any_bytes_in_any_place_are_refused_or_played(junk: bytes, line: int) -> None:
    lines = [HEAD.encode(), *map(_line, (0, 1, 2))]
    lines.insert(line, junk)
    path = Path(f"/proc/self/fd/{_in_memory(b''.join(lines))}")
    try:
        with suppress(FormatError, SourceError):
            assert len(played(path)) <= len(lines)
    finally:
        os.close(int(path.name))


def _line(step: int) -> bytes:
    return json.dumps(to_plain(qwen(step))).encode() + b"\n"


def _in_memory(content: bytes) -> int:
    descriptor = os.memfd_create("recording")
    os.write(descriptor, content)
    return descriptor


PLAY = """
import resource, sys
from pathlib import Path
from tiercache.tui.record import Recording
recording = Recording(Path(sys.argv[1]))
for _ in range(3): recording.fetch()
early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in recording.rest(): pass
late = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
recording.close()
print(late - early)
"""


def test_a_long_recording_is_played_in_bounded_memory(path: Path) -> None:
    line = _line(1)
    path.write_bytes(HEAD.encode() + line * (24 * 2**20 // len(line)))
    ran = subprocess.run(
        [sys.executable, "-c", PLAY, str(path)], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 8 * 2**10  # KiB
