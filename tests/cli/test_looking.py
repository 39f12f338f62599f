# SPDX-License-Identifier: Apache-2.0
"""The commands that look at a server's segment, which its writer has written."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import segments
from tests.cli.conftest import Command
from tiercache.stats.model import Kind
from tiercache.stats.writer import SegmentWriter

pytestmark = pytest.mark.usefixtures("server")


def document(command: Command, *arguments: object) -> dict[str, Any]:
    code, out, err = command(*arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def data(command: Command, *arguments: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = document(command, *arguments)["data"]
    return rows


def lines(command: Command, *arguments: object) -> list[str]:
    code, out, err = command(*arguments)
    assert (code, err) == (0, "")
    return list(out.splitlines())


def test_groups(command: Command) -> None:
    assert lines(command, "groups")[:-1] == [
        "GROUP  KIND   SLOTS  FREE   LIVE  DEMOTED  PINNED  SPARE  TAIL      PAGE",
        "g0     full   2,255    41  2,198        0      16     41   38m  27.5 MiB",
        "g1-g6  state     30     4     13       11       2     15   52m  16.8 MiB",
        "g7     state     30     0     28        0       2      0    4m  16.8 MiB",
        "! g7: the next store evicts a live checkpoint",
    ]
    rows = data(command, "groups")
    assert [row["group"] for row in rows] == [f"g{index}" for index in range(8)]
    assert rows[7]["spare"] == 0


def test_tiers(command: Command) -> None:
    found = lines(command, "tiers")
    assert [line.split()[0] for line in found] == [
        *("TIER", "ram", "nvme0", "missed", "nvme0", "source:")
    ]
    assert found[4] == "nvme0 index: 9 MiB of 64 MiB, 1 of 512 readers"
    ram, nvme, missed = data(command, "tiers")
    assert (ram["restores"], nvme["restores"], missed["restores"]) == (1_204, 37, 5)
    assert ram["hit_percent"] + nvme["hit_percent"] + missed["hit_percent"] == pytest.approx(100)
    assert 0.0009 <= ram["p50_seconds"] < 0.0011
    assert 1.9 <= nvme["p99_seconds"] < 2.3
    assert nvme["index_max_readers"] == 512
    assert ram["capacity_bytes"] == 4 * (2_255 * 7_204_864 + 7 * 30 * 4_415_488)


def test_sequences(command: Command) -> None:
    assert lines(command, "seq")[:-1] == [
        "SEQ     TURNS  IDLE  CACHED  RESTORABLE        STATES  WHERE     LAST RESTORE",
        "e00d3b      3   58m    509k           0    0%     0+0  ram kv    miss",
        "1f09bc     61   52m    509k        504k   99%     2+0  ram+tier  ram 504k 5.8s",
        "c7f3a1    117  0.0s    308k        308k  100%     3+3  ram       -",
        "3 sequences: 1.33M tokens cached, 812k restorable; 1 cannot be restored at all",
    ]


@pytest.mark.parametrize(
    ("option", "first"), [("idle", "e00d3b"), ("stranded", "e00d3b"), ("turns", "c7f3a1")]
)
def test_sequences_are_sorted(command: Command, option: str, first: str) -> None:
    assert data(command, "seq", "--sort", option)[0]["sequence"] == first


def test_only_what_is_stranded(command: Command) -> None:
    assert [row["sequence"] for row in data(command, "seq", "--stranded")] == ["e00d3b"]


def test_why_a_sequence_cannot_be_restored(command: Command) -> None:
    found = "\n".join(lines(command, "seq", "E00"))
    assert "restorable    nothing\n" in found
    assert "why not more  the entry of g7 that ends at 508,800 tokens was evicted at " in found
    assert " by a store of 91be02\n" in found


def test_where_a_sequence_is_restored_from_and_when_it_goes(command: Command) -> None:
    found = "\n".join(lines(command, "seq", "1f09bc"))
    assert "restorable    504,288 tokens with the tiers below, 96,288 from ram alone\n" in found
    assert "next to go    g1 in 7 stores; g7 with the next store\n" in found
    assert "why not more  no checkpoint serves the last 4,512 tokens that are cached\n" in found


def test_what_nobody_would_miss_is_no_risk(command: Command) -> None:
    """A demoted entry of it goes in five stores, in g1."""
    assert "next to go    g7 in 2 stores" in lines(command, "seq", "c7")


def test_a_sequence_that_is_not_there(command: Command) -> None:
    assert command("seq", "ff") == (
        1,
        "",
        "tiercache: error: there is no sequence 'ff'; 'tiercache seq' lists them\n",
    )


def test_digits_that_are_not_enough(command: Command, server: SegmentWriter) -> None:
    server.put_sequence(7, segments.STRANDED.__class__(0xE00FFF, *[0] * 10))  # type: ignore[arg-type]
    code, out, err = command("seq", "e00")
    assert (code, out) == (2, "")
    assert err == "tiercache: error: 'e00' is not unique: e00d3b, e00fff\n"


def test_next_shows_the_group_that_loses_first(command: Command) -> None:
    assert lines(command, "next")[:-1] == [
        "g7 (state, 30 slots): the next store evicts a live entry",
        "#  SLOT  CLASS  SEQ     ENDS AT  AGE  BELOW  IF EVICTED",
        "0    12  live   1f09bc  504,288   4m  nvme0  reload 504k tokens",
        "1     6  live   c7f3a1   98,200  60s  -      RECOMPUTE 98.2k tokens",
    ]


def test_next_counts_free_slots_first(command: Command) -> None:
    assert lines(command, "next", "g1")[:-1] == [
        "g1 (state, 30 slots): 15 stores until a live entry is evicted",
        "  #  SLOT  CLASS    SEQ       ENDS AT   AGE  BELOW  IF EVICTED",
        "0-3     -  free     -               -     -  -      nothing lost",
        "  4    17  demoted  c7f3a1  1,906,176    3m  -      nothing lost",
        "  5    22  demoted  91be02    589,152    2m  nvme0  nothing lost",
        "  6    12  live     1f09bc    504,288   52m  nvme0  reload 504k tokens",
        "  7     6  live     -          98,200   41m  -      RECOMPUTE 98.2k tokens",
        "  -     2  pinned   c7f3a1    308,000  0.0s  -      in use, not evicted",
    ]
    rows = data(command, "next", "g1", "-n", 3)
    assert [row["order"] for row in rows] == [4, 5, 6]


@pytest.mark.parametrize("arguments", [("next", "g9"), ("events", "--group", "g9")])
def test_a_group_that_is_not_there(command: Command, arguments: tuple[str, ...]) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    known = ", ".join(f"g{index}" for index in range(8))
    assert err == f"tiercache: error: there is no group 'g9'; there are: {known}\n"


def test_the_screen(command: Command) -> None:
    assert lines(command, "stat")[:-1] == [
        "pool       qwen3-next, serve, policy lru, 4 workers, up 3h, 2 requests open",
        "ram        62.5 GiB of 64 GiB, 97.7 %",
        "nvme0      204 GiB of 512 GiB, 39.8 %, 31,022 entries, 3 waiting",
        "restores   99.6 % of 1,246 requests: ram 1,204, nvme0 37; none 5",
        "           63.1M tokens restored, 794 GiB; half within 1.02ms, 99 % within 220ms",
        "           181k tokens of requests that found nothing were computed",
        "slots      g7 (state) evicts a live entry with the next store !",
        "evicted    89,016 demoted and 1 live entries; 0 stores refused",
        "sequences  3: 1.33M tokens cached, 812k restorable",
        "           1 cannot be restored, 509k tokens: tiercache seq --stranded",
    ]


def test_a_new_server_has_nothing_to_show_yet(
    command: Command, server: SegmentWriter, tmp_path: Path
) -> None:
    fresh = tmp_path / "fresh"
    writer = SegmentWriter.create(fresh, segments.POOL, [], [])
    try:
        for arguments in (["stat"], ["groups"], ["tiers"], ["seq"], ["events"]):
            code, out, err = command(*arguments, "--pool", writer.path)
            assert (code, err) == (0, "")
            assert "still starting" in out
        code, out, err = command("next", "--pool", writer.path)
        assert (code, out) == (1, "")
        assert err == "tiercache: error: the pool has no groups yet: the server is still starting\n"
    finally:
        writer.close()


def test_events(command: Command) -> None:
    head, *found, _ = lines(command, "events")
    assert (
        head
        == "TIME          EVENT            SEQ     GROUP  TIER   COUNT  TOKENS     BYTES    TOOK"
    )
    assert [line[14:].rstrip() for line in found] == [
        "stored           c7f3a1  g1     -          6    308k         -       -",
        "demoted          c7f3a1  g1     -          6    306k         -       -",
        "restored         aa41d0  -      nvme0     90     96k  2.89 GiB   410ms",
        "evicted live     e00d3b  g7     -          1       -         -       -",
    ]


def test_events_are_lines_of_json(command: Command) -> None:
    code, out, _ = command("events", "-j")
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["data"][0]["number"] for each in found] == [1, 2, 3, 4]
    assert found[2]["data"][0] == {
        "when": segments.NOW - 59,
        "event": "restored",
        "sequence": "aa41d0",
        "group": None,
        "tier": "nvme0",
        "count": 90,
        "tokens": 96_000,
        "bytes": 3_100_000_000,
        "seconds": 0.41,
        "number": 3,
    }


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        (["--kind", "stored,restored"], ["stored", "restored"]),
        (["--kind", "stored", "--kind", "demoted"], ["stored", "demoted"]),
        (["--group", "g7"], ["evicted_live"]),
        (["--seq", "c7f3a1"], ["stored", "demoted"]),
        (["--seq", "aa41d0"], ["restored"]),
        (["-n", "2"], ["restored", "evicted_live"]),
        (["--kind", "stored,demoted", "-n", "1"], ["demoted"]),
    ],
)
def test_events_are_chosen(command: Command, arguments: list[str], kinds: list[str]) -> None:
    _, out, _ = command("events", "--json", *arguments)
    assert [json.loads(line)["data"][0]["event"] for line in out.splitlines()] == kinds


def test_a_kind_that_is_not_there(command: Command) -> None:
    code, out, err = command("events", "--kind", "stored,nope")
    assert (code, out) == (2, "")
    assert "'nope' is not one of 'stored'" in err


def test_groups_of_a_step_are_one_line(command: Command, server: SegmentWriter) -> None:
    at = round(segments.NOW * 1e9)
    for group in (1, 2, 3, 4):
        server.event(Kind.DEMOTED, at + group, group=group, count=2, sequence=5, tokens=16)
    for group in (1, 3):
        server.event(Kind.STORED, at, group=group, count=1, sequence=5, nbytes=1024)
    server.event(Kind.STORED, at, group=3, count=1, sequence=5, nbytes=1024)
    server.event(Kind.STORED, at + 10**9, group=4, count=1, sequence=5, nbytes=1024)
    found = [line[14:] for line in lines(command, "events", "--seq", "000005")[1:-1]]
    assert found == [
        "demoted          000005  g1-g4  -          8      16         -       -",
        "stored           000005  g1,g3  -          2       -     2 KiB       -",
        "stored           000005  g3     -          1       -     1 KiB       -",
        "stored           000005  g4     -          1       -     1 KiB       -",
    ]


def test_what_the_ring_has_lost_is_said(command: Command, server: SegmentWriter) -> None:
    for _ in range(9_000):
        server.event(Kind.STORED, 1, group=0, count=1)
    _, *shown, gone, _ = lines(command, "events")
    assert len(shown) > 8_000
    assert gone == f"{9_004 - len(shown)} older events are gone"
