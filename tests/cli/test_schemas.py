# SPDX-License-Identifier: Apache-2.0
"""What programs get of the looking commands: a change here is a new version of a schema."""

import csv
import io
import json

import pytest

from tests.cli import segments
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("server")

SOURCE = ("kind", "path", "pool", "pid", "rank", "alive", "phase", "taken", "heartbeat", "torn")
#: Each command, its schema, and what a row has, in this order. A change is a new version.
SCHEMAS = {
    ("groups",): (
        "tiercache.groups/1",
        (
            "group kind slots free live demoted busy spare tail_seconds slot_bytes pinned storing "
            "chunk_tokens stored evicted_demoted evicted_live"
        ),
    ),
    ("tiers",): (
        "tiercache.tiers/1",
        (
            "tier kind health used_bytes capacity_bytes entries restores hit_percent p50_seconds "
            "p99_seconds restored_tokens restored_bytes load_rate jobs queued corrupt failed "
            "stored loaded stored_bytes loaded_bytes evicted declined index_map_bytes "
            "index_file_bytes index_transactions index_readers index_max_readers"
        ),
    ),
    ("seq",): (
        "tiercache.seq/1",
        (
            "sequence turns idle_seconds cached_tokens restorable_tokens restorable_percent "
            "restorable_ram_tokens stranded_tokens tokens running ram_blocks ram_states below "
            "live_checkpoints demoted_checkpoints last_source last_tokens last_seconds lost_group "
            "lost_tokens lost_when lost_by lost_unreadable"
        ),
    ),
    ("next",): (
        "tiercache.next/1",
        ("group order slot class sequence tokens age_seconds below lost_tokens"),
    ),
    ("stat",): (
        "tiercache.stat/1",
        (
            "uptime_seconds running requests hit_percent restored_requests restored_tokens "
            "restored_bytes missed_requests missed_tokens p50_seconds p99_seconds used_bytes "
            "capacity_bytes tightest_group spare stored demoted evicted_demoted evicted_live "
            "refused sequences stranded_sequences cached_tokens restorable_tokens"
        ),
    ),
    ("stat", "0.25", "1"): (
        "tiercache.stat.rates/1",
        (
            "time requests hit_percent ram_percent tiers_percent stranded_sequences spare "
            "stored_rate demoted_rate evicted_demoted_rate evicted_live_rate restored_bytes_rate "
            "stored_bytes_rate p99_seconds seconds"
        ),
    ),
    ("events", "-n", "1"): (
        "tiercache.events/1",
        ("when event sequence group tier count tokens bytes seconds number"),
    ),
}


RATES = ("stat", "0.25", "1")


@pytest.mark.parametrize("arguments", SCHEMAS)
def test_schemas(command: Command, arguments: tuple[str, ...]) -> None:
    found = json.loads(command(*arguments, "--json")[1])
    schema, fields = SCHEMAS[arguments]
    assert list(found) == ["schema", "source", "data"]
    assert found["schema"] == schema
    assert tuple(found["source"]) == SOURCE
    assert found["source"]["kind"] == "segment"
    assert found["source"]["alive"] is True
    assert found["data"]
    assert all(list(row) == fields.split() for row in found["data"])


@pytest.mark.parametrize("arguments", SCHEMAS)
def test_csv_has_the_same_rows(command: Command, arguments: tuple[str, ...]) -> None:
    rows = json.loads(command(*arguments, "--json")[1])["data"]
    code, out, err = command(*arguments, "--format", "csv")
    assert (code, err) == (0, "")
    read = list(csv.DictReader(io.StringIO(out)))
    assert [list(row) for row in read] == [list(row) for row in rows]
    if arguments != RATES:  # it looks twice, so times differ
        for got, row in zip(read, rows, strict=True):
            plain = {k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()}
            assert got == {k: "" if v is None else str(v) for k, v in plain.items()}


@pytest.mark.parametrize("arguments", [*SCHEMAS, ("seq", "e00d"), ("next", "g1")])
def test_tables_say_where_they_come_from(command: Command, arguments: tuple[str, ...]) -> None:
    code, out, err = command(*arguments)
    assert (code, err) == (0, "")
    *_, last = out.splitlines()
    if arguments[:2] != ("stat", "0.25"):
        assert last == f"source: segment pid {segments.POOL.pid} rank 0, 0.3s old"
