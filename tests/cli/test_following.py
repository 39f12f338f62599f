# SPDX-License-Identifier: Apache-2.0
"""``stat INTERVAL`` and ``events -f`` while a server goes on and ends."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.cli import segments
from tests.cli.conftest import Command
from tiercache.cli import listing, pools
from tiercache.stats.model import Kind, Phase
from tiercache.stats.writer import SegmentWriter

Steps = Callable[[Sequence[Callable[[], object]]], None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Says what happens in each pause of a command, which takes a second of its clock."""

    def arrange(steps: Sequence[Callable[[], object]]) -> None:
        left = iter(steps)
        clock = [segments.NOW]

        def pause(seconds: float) -> None:
            next(left)()
            clock[0] += 1.0

        monkeypatch.setattr(pools, "pause", pause)
        monkeypatch.setattr(pools, "now", lambda: clock[0])

    return arrange


def store(writer: SegmentWriter, times: int) -> None:
    group = segments.GROUPS[0]
    counts = {**group.counts, Kind.STORED: group.counts[Kind.STORED] + times}
    writer.put_groups([replace(group, counts=counts), *segments.GROUPS[1:]])
    writer.put_restores(replace(segments.RAM, requests=segments.RAM.requests + 1), segments.MISSED)


def test_rates_until_the_server_ends(
    command: Command, server: SegmentWriter, meanwhile: Steps
) -> None:
    meanwhile([lambda: store(server, 7), lambda: None, server.close])
    code, out, err = command("stat", "1")
    assert code == 7
    assert err == (
        f"tiercache: error: the server has ended; source: segment pid {segments.POOL.pid} rank 0, "
        "closed in order 3.3s ago; ages are as of then\n"
    )
    head, *rows = [line.split() for line in out.splitlines()]
    assert head[:5] == ["TIME", "REQ", "HIT%", "RAM%", "TIER%"]
    assert [row[1:8] for row in rows] == [
        ["1", "100.0", "100.0", "0.0", "1", "0", "7.0"],
        ["0", "-", "-", "-", "1", "0", "0.0"],
        ["0", "-", "-", "-", "1", "0", "0.0"],
    ]


@pytest.mark.usefixtures("server")
def test_as_many_rows_as_were_asked_for(command: Command, meanwhile: Steps) -> None:
    meanwhile([lambda: None] * 3)
    code, out, err = command("stat", "1", "3", "--json")
    assert (code, err) == (0, "")
    rows = [json.loads(line)["data"][0] for line in out.splitlines()]
    assert [row["seconds"] for row in rows] == [1.0, 1.0, 1.0]


@pytest.mark.usefixtures("server")
def test_the_head_comes_again_on_a_terminal(
    command: Command, meanwhile: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile([lambda: None] * 50)
    monkeypatch.setattr(listing, "width", lambda: 80)
    _, out, _ = command("stat", "1", "25")
    lines = out.splitlines()
    assert [at for at, line in enumerate(lines) if "REQ" in line] == [0, 21]
    assert max(map(len, lines)) <= 80
    monkeypatch.setattr(listing, "width", lambda: None)
    _, out, _ = command("stat", "1", "25")
    assert out.count("REQ") == 1


@pytest.mark.parametrize("interval", ["0.1", "nan", "inf", "-1"])
def test_intervals_that_make_no_sense(command: Command, interval: str) -> None:
    code, out, err = command("stat", "--", interval)
    assert (code, out) == (2, "")
    assert "INTERVAL" in err
    assert err.count("\n") == 1


def test_events_as_they_come(command: Command, server: SegmentWriter, meanwhile: Steps) -> None:
    meanwhile(
        [
            lambda: server.event(Kind.MISSED, round(segments.NOW * 1e9), sequence=1, tokens=5),
            lambda: server.event(Kind.STORED, round(segments.NOW * 1e9), group=0, count=1),
            lambda: None,
            server.close,
        ]
    )
    code, out, err = command("events", "-f", "-n", "1", "--kind", "missed,evicted_live")
    assert code == 7
    assert "the server has ended" in err
    assert [line.split()[1] for line in out.splitlines()] == ["EVENT", "evicted", "missed"]


def test_events_that_came_too_fast_are_counted(
    command: Command, server: SegmentWriter, meanwhile: Steps
) -> None:
    def flood() -> None:
        for _ in range(10_000):
            server.event(Kind.STORED, 1, group=0, count=1)

    meanwhile([flood, server.close])
    code, out, err = command("events", "-f", "--csv")
    assert code == 7
    warning, _ = err.splitlines()
    lost = int(warning.removeprefix("tiercache: warning: ").split()[0].replace(",", ""))
    assert warning.endswith(" events came too fast to be read")
    assert len(out.splitlines()) == 1 + 4 + 10_000 - lost


def test_a_probe_that_failed_ends_it(
    command: Command, server: SegmentWriter, meanwhile: Steps
) -> None:
    meanwhile([lambda: server.put_state(segments.NOW, phase=Phase.FAILED, running=0, totals={})])
    code, _, err = command("events", "-f")
    assert code == 7
    assert "published nothing after a fault" in err


def test_ctrl_c(command: Command, server: SegmentWriter, meanwhile: Steps) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    for arguments in (["stat", "1"], ["events", "-f"]):
        meanwhile([interrupt])
        assert command(*arguments)[0] == 130
