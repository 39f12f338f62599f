# SPDX-License-Identifier: Apache-2.0
import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.replay.samples import BAILIAN, MOONCAKE, compact, going_on, published, write_lines
from tiercache.errors import ConfigError, TraceError
from tiercache.replay.conversations import Selection
from tiercache.replay.traces import Malformed, open_trace
from tiercache.replay.turns import Turn

CONVERSATION = compact([going_on(0, 0, (1, 4)), going_on(9, 3, (7, 3))])


def read(path: Path, block_tokens: int = 64, **options: Any) -> list[Turn]:
    return list(open_trace(path, block_tokens=block_tokens, **options))


def read_all(path: Path, **options: Any) -> tuple[list[Turn], list[tuple[int, str]]]:
    """Turns, and line and reason of what was skipped."""
    found: list[Malformed] = []
    turns = read(path, report=found.append, **options)
    assert all(malformed.path == path for malformed in found)
    return turns, [(malformed.line, malformed.reason) for malformed in found]


def test_mooncake(tmp_path: Path) -> None:
    turns = read(write_lines(tmp_path / "t.jsonl", MOONCAKE), 512)
    assert [(t.time, t.input_tokens, t.output_tokens) for t in turns] == [
        (0.0, 1100, 5),
        (1.5, 1600, 7),
        (3.0, 512, 0),
    ]
    assert [len(t.hashes) for t in turns] == [2, 3, 1]
    assert turns[0].hashes == turns[1].hashes[:2]
    assert {t.conversation for t in turns} == {""}


def test_bailian(tmp_path: Path) -> None:
    turns = read(write_lines(tmp_path / "t.jsonl", BAILIAN), 16)
    assert [t.time for t in turns] == [0.5, 2.25, 3.0]
    assert [len(t.hashes) for t in turns] == [2, 3, 1]
    assert turns[0].hashes == turns[1].hashes[:2]
    assert turns[2].hashes == turns[0].hashes[:1]
    assert [t.conversation for t in turns] == ["7", "7", "7"]


def test_bailian_whose_first_request_is_not_there(tmp_path: Path) -> None:
    turns = read(write_lines(tmp_path / "t.jsonl", BAILIAN[1:]), 16)
    assert [t.conversation for t in turns] == ["7", "7"]


@pytest.mark.parametrize("form", [dict, published])
def test_kv_cache_tester(tmp_path: Path, form: Any) -> None:
    turns = read(write_lines(tmp_path / "t.jsonl", [form(CONVERSATION)]))
    assert [(t.time, t.input_tokens, t.conversation) for t in turns] == [
        (0.0, 256, "trace"),
        (9.0, 384, "trace"),
    ]
    assert turns[0].hashes[:3] == turns[1].hashes[:3]
    assert not set(turns[0].hashes[3:]) & set(turns[1].hashes[3:])


@pytest.mark.parametrize("records", [MOONCAKE, BAILIAN, [CONVERSATION]])
def test_gzip_is_told_by_content_not_by_name(tmp_path: Path, records: Any) -> None:
    plain = write_lines(tmp_path / "plain.gz", records)
    zipped = tmp_path / "zipped.jsonl"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain) == read(zipped) != []


def test_an_indented_document(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(published(CONVERSATION), indent=2))
    assert len(read(path)) == 2


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_records(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(MOONCAKE, indent=indent))
    assert len(read(path)) == 3


def test_a_folder_of_conversations(tmp_path: Path) -> None:
    for name in ("b", "a"):
        record = published(compact([going_on(0, 0, (1, 4))], id=name))
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    (tmp_path / "notes").mkdir()
    assert [t.conversation for t in read(tmp_path)] == ["a", "b"]


def test_a_stream_begins_anew_with_every_iteration(tmp_path: Path) -> None:
    stream = open_trace(write_lines(tmp_path / "t.jsonl", BAILIAN), block_tokens=16)
    assert list(stream) == list(stream)
    assert stream.name == "t.jsonl"


def test_other_blocks_than_usual(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", MOONCAKE)
    assert [len(t.hashes) for t in read(path, 1100, id_tokens=550)] == [1, 1, 0]


MALFORMED = [
    ("{", "not JSON"),
    ('{"timestamp": 1', "not JSON"),
    ("17", "not a JSON object"),
    ({"timestamp": 1, "input_length": 9}, "hash_ids is missing"),
    ({**MOONCAKE[0], "input_length": 0}, "input_length is 0, not an integer of at least 1"),
    ({**MOONCAKE[0], "input_length": True}, "input_length is True"),
    ({**MOONCAKE[0], "input_length": "9"}, "input_length is '9'"),
    ({**MOONCAKE[0], "timestamp": None}, "timestamp is missing"),
    ('{"timestamp": NaN, "input_length": 1, "hash_ids": []}', "timestamp is nan"),
    ({**MOONCAKE[0], "output_length": -1}, "output_length is -1"),
    ({**MOONCAKE[0], "hash_ids": [0, "1", 2]}, "hash_ids is not a list of 64-bit integers"),
    ({**MOONCAKE[0], "hash_ids": [1 << 64]}, "hash_ids is not a list of 64-bit integers"),
    ({**MOONCAKE[0], "hash_ids": 3}, "hash_ids is not a list of 64-bit integers"),
    ({**MOONCAKE[0], "hash_ids": [1]}, "there are 1 ids, but 1100 tokens have 2 blocks of 512"),
]


@pytest.mark.parametrize(("bad", "reason"), MALFORMED)
def test_a_malformed_line_is_reported_and_skipped(tmp_path: Path, bad: Any, reason: str) -> None:
    path = write_lines(tmp_path / "t.jsonl", [MOONCAKE[0], "", bad, MOONCAKE[1]])
    turns, skipped = read_all(path)
    assert [t.input_tokens for t in turns] == [1100, 1600]
    [(line, found)] = skipped
    assert line == 3
    assert reason in found


@pytest.mark.parametrize(("bad", "reason"), MALFORMED)
def test_a_malformed_line_is_refused_if_asked_for(tmp_path: Path, bad: Any, reason: str) -> None:
    path = write_lines(tmp_path / "t.jsonl", [MOONCAKE[0], bad])
    with pytest.raises(TraceError, match=r"t\.jsonl:2: "):
        read(path, strict=True)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", MOONCAKE)
    path.write_bytes(b"\xff\xfe\x00\n" + path.read_bytes())
    turns, skipped = read_all(path)
    assert len(turns) == 3
    assert [line for line, _ in skipped] == [1]


def test_brackets_without_end(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [MOONCAKE[0], "[" * 200_000])
    assert len(read(path)) == 1


def test_damaged_lines_do_not_hide_the_format(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", ['{"time', '{"what": 1}', *MOONCAKE])
    turns, skipped = read_all(path)
    assert len(turns) == 3
    assert [line for line, _ in skipped] == [1, 2]


def test_a_truncated_file(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{json.dumps(r)}\n" for r in [*MOONCAKE] * 500).encode())
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    turns, skipped = read_all(path)
    [(line, reason)] = skipped
    assert len(turns) == line - 1 > 0
    assert "cannot be read" in reason
    with pytest.raises(TraceError, match="cannot be read"):
        read(path, strict=True)


@pytest.mark.parametrize("content", ["", "\n\n", "no trace\n", '{"a": 1}\n', "[]"])
def test_what_is_no_trace_is_refused_at_once(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=r"t\.jsonl"):
        open_trace(path, block_tokens=16)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    with pytest.raises(TraceError) as error:
        open_trace(missing, block_tokens=16)
    assert str(error.value) == f"{missing}: cannot be read: No such file or directory"


def test_requests_with_times_of_their_own_are_not_spread(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", MOONCAKE)
    with pytest.raises(ConfigError, match="conversations"):
        open_trace(path, block_tokens=512, selection=Selection(conversations=2))
    assert len(read(path, selection=Selection(max_requests=2))) == 2


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    def lines(count: int) -> Iterator[dict[str, Any]]:
        for i in range(count):
            yield {
                **MOONCAKE[0],
                "timestamp": i,
                "input_length": 5120,
                "hash_ids": [*range(i, i + 10)],
            }

    def peak(count: int) -> int:
        stream = open_trace(write_lines(tmp_path / f"{count}", lines(count)), block_tokens=512)
        tracemalloc.start()
        try:
            assert sum(1 for _ in stream) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)  # what is imported and cached on the way
    assert peak(2_000) < 1.2 * peak(200)
