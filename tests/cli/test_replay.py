# SPDX-License-Identifier: Apache-2.0
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.replay.samples import MOONCAKE, ROW_FIELDS
from tiercache.cli import replaying
from tiercache.replay import plots
from tiercache.replay.registry import policy_names
from tiercache.replay.workloads import SCENARIOS
from tiercache.stats.model import Phase, Snapshot
from tiercache.stats.reader import SegmentReader

FIELDS = [*ROW_FIELDS, "seconds"]
#: A workload that takes no time.
QUICK = ("--scenario", "coding", "--conversations", 3, "--max-requests", 5)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests, and lines that are none."""
    path = tmp_path / "trace.jsonl"
    lines: list[str] = [json.dumps(record) for record in MOONCAKE]
    path.write_text("\n".join([lines[0], "nonsense", lines[1], '{"timestamp": 1}', lines[2]]))
    return path


def data(command: Command, *arguments: object) -> list[dict[str, Any]]:
    code, out, err = command("replay", *arguments, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert list(document) == ["schema", "data"]
    assert document["schema"] == "tiercache.replay/1"
    rows: list[dict[str, Any]] = document["data"]
    return rows


def test_the_published_scenario_needs_no_options(command: Command) -> None:
    plain, demoting = data(command, "--scenario", "idle-conversation")
    assert (plain["policy"], demoting["policy"]) == ("lru-plain", "lru")
    assert (plain["token_slots"], plain["state_slots"]) == (2_255, 30)
    assert (plain["idle_restored_tokens"], demoting["idle_restored_tokens"]) == (0, 504_288)


def test_the_document_has_the_fields_of_the_schema(command: Command) -> None:
    [row] = data(command, *QUICK, "--policy", "lru")
    assert sorted(row) == sorted(FIELDS)


def test_a_table_that_fits_a_terminal(command: Command) -> None:
    code, out, err = command("replay", "--scenario", "idle-conversation")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:2] == [
        "idle-conversation",
        "123 requests, 26.7M prompt tokens, blocks of 1,632",
    ]
    assert lines[3].split() == [
        *["policy", "slots", "slots", "restored", "live", "demoted", "tokens", "restored", "time"]
    ]
    assert lines[5].startswith(
        "lru        2,255     30   94.52 %        0    1,512         0   504,"
    )
    assert len(lines) == 6


def test_several_sizes_are_plotted(command: Command) -> None:
    code, out, _ = command("replay", *QUICK, "--state-slots", "8,16", "--state-slots", 32)
    assert code == 0
    table, plot = out.split("\n\n")
    assert table.count("lru-plain") == 3
    assert plot.startswith("coding: prompt tokens restored, over state slots per group\n")
    assert max(map(len, out.splitlines())) <= 80


def test_only_token_slots_that_differ_are_what_is_plotted(command: Command) -> None:
    _, out, _ = command("replay", *QUICK, "--token-slots", "500,1000")
    assert "over token slots\n" in out


def test_a_number_can_be_in_several_pairs(command: Command) -> None:
    sizes = ("--token-slots", "500,1000,1000,500", "--state-slots", "8,8,16,8")
    rows = data(command, *QUICK, *sizes, "--policy", "lru")
    found = [(row["token_slots"], row["state_slots"]) for row in rows]
    assert found == [(500, 8), (1000, 8), (1000, 16)]


def test_sizes_and_policies_are_combined(command: Command) -> None:
    sizes = ("--token-slots", "500,1000", "--state-slots", "8,16")
    rows = data(command, *QUICK, *sizes, "--policy", "lru,arc", "--policy", "lru-plain")
    assert [(row["policy"], row["token_slots"], row["state_slots"]) for row in rows] == [
        (policy, *slots)
        for policy in ("lru", "arc", "lru-plain")
        for slots in ((500, 8), (1000, 16))
    ]


@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_can_be_played(command: Command, policy: str) -> None:
    [row] = data(command, *QUICK, "--policy", policy)
    assert row["policy"] == policy
    assert row["restored_tokens"] > 0


def test_several_sources_are_played_one_after_the_other(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, MOONCAKE)))
    rows = data(command, path, "--scenario", "idle-conversation", "--policy", "lru")
    assert [row["trace"] for row in rows] == ["mine.jsonl", "idle-conversation"]


def test_lines_that_cannot_be_read_are_named_once(command: Command, trace: Path) -> None:
    code, out, err = command("replay", trace, "--block-tokens", 512)
    assert code == 0
    assert "3 requests" in out
    assert err.splitlines() == [
        f"tiercache: warning: skipped {trace}:{line}: {reason}"
        for line, reason in (
            (2, "not JSON: Expecting value: line 1 column 1 (char 0)"),
            (4, "input_length is missing"),
        )
    ]


def test_many_such_lines_are_counted(command: Command, trace: Path) -> None:
    trace.write_text(json.dumps(MOONCAKE[0]) + "\nnonsense" * 1_200)
    _, _, err = command("replay", trace)
    *shown, last = err.splitlines()
    assert len(shown) == replaying.SHOWN_LINES
    assert last == "tiercache: warning: skipped 1,200 lines in all; --strict refuses them"


def test_strict_refuses_them(command: Command, trace: Path) -> None:
    code, out, err = command("replay", trace, "--strict")
    assert (code, out) == (1, "")
    assert err.startswith(f"tiercache: error: {trace}:2: not JSON")
    assert err.count("\n") == 1


def test_a_model_and_a_budget_are_slots(
    command: Command, model_file: Callable[[str], Path]
) -> None:
    """As many as ``tiercache size`` says."""
    model = ("--model-config", model_file("qwen3_next"), "--tp", 4)
    rows = data(command, *QUICK, *model, "--budget", "8GiB,64GiB", "--policy", "lru")
    _, out, _ = command("size", *model, "--ram", "64GiB", "--json")
    sized = json.loads(out)["data"]
    assert rows[1]["block_tokens"] == 272
    assert (rows[1]["token_slots"], rows[1]["state_slots"]) == (
        sized["token_slots"],
        sized["state_slots"],
    )
    assert rows[0]["token_slots"] < rows[1]["token_slots"]


def test_a_disk_keeps_what_memory_loses(command: Command) -> None:
    """Without demotion, too, the idle conversation comes back, if the disk is large enough."""
    arguments = ("--scenario", "idle-conversation", "--policy", "lru-plain")
    [above], [below] = (data(command, *arguments, *disk) for disk in ((), ("--nvme", 80_000)))
    assert (above["idle_restored_tokens"], below["idle_restored_tokens"]) == (0, 504_288)
    _, out, _ = command("replay", *arguments, "--nvme", 80_000)
    assert "blocks of 1,632, 80,000 slots on disk\n" in out


def test_a_picture_is_drawn(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, Path]] = []
    monkeypatch.setattr(plots, "save_plot", lambda rows, path: drawn.append((len(rows), path)))
    data(command, *QUICK, "--plot", tmp_path / "a.svg")
    assert drawn == [(2, tmp_path / "a.svg")]


def test_a_picture_that_cannot_be_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(plots, "save_plot", fail)
    code, out, err = command("replay", *QUICK, "--plot", tmp_path / "a.svg")
    assert code == 1
    assert "coding\n" in out
    assert err == f"tiercache: error: {tmp_path}/a.svg cannot be written: Permission denied\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a TRACE or --scenario, one of idle-conversation, coding, chat"),
        (["--scenario", "idle"], "scenario: 'idle' is not allowed"),
        ([*QUICK, "--policy", "lru,mru"], "policy: 'mru' is not allowed"),
        ([*QUICK, "--token-slots", "0"], "--token-slots: '0' is not allowed"),
        ([*QUICK, "--state-slots", "8,x"], "--state-slots: 'x' is not allowed"),
        ([*QUICK, "--state-slots", "9" * 30], "--state-slots: '999"),
        ([*QUICK, "--token-slots", "1,2", "--state-slots", "1,2,3"], "do not pair"),
        ([*QUICK, "--budget", "4GiB"], "--model-config and --budget need each other"),
        ([*QUICK, "--budget", "lots"], "--budget: 'lots' is not allowed"),
        ([*QUICK, "--tp", "4"], "--model-config and --budget need each other"),
        ([*QUICK, "--model-config", "x", "--state-slots", "4"], "cannot be given with"),
        (["--scenario", "coding", "--span", "5"], "span: 5.0 is not allowed"),
        (["--scenario", "idle-conversation", "--max-requests", "5"], "'idle-conversation'"),
        ([*QUICK, "--policy", "optimal", "--nvme", "5"], "--policy: 'optimal' is not allowed"),
        ([*QUICK, "--policy", "optimal", "--state-groups", "0"], "--policy: 'optimal'"),
        ([*QUICK, "--plot", "a.pdf"], "plot: 'a.pdf' is not allowed"),
        ([*QUICK, "--plot", "/nowhere/a.png"], "--plot: '/nowhere/a.png' is not allowed"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    command: Command, arguments: Sequence[object], words: str
) -> None:
    code, out, err = command("replay", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tiercache: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_trace_that_is_not_there(command: Command, tmp_path: Path) -> None:
    code, out, err = command("replay", tmp_path / "none", "--scenario", "idle-conversation")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.endswith("none' does not exist.\n")


def test_help_names_what_there_is(command: Command) -> None:
    code, out, _ = command("replay", "--help")
    assert code == 0
    words = " ".join(out.split())
    assert all(name in words for name in (*SCENARIOS, *policy_names()))


def test_no_progress_where_nobody_watches(command: Command) -> None:
    assert command("replay", *QUICK)[2] == ""


def test_progress_on_a_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown on stderr, with how many requests there are once that is known."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    arguments = ("--scenario", "coding", "--conversations", 10, "--max-requests", 10)
    _, out, err = command("replay", *arguments)
    assert out.startswith("coding\n")
    assert re.search(r"coding, lru-plain, 2255\+30 slots", err)
    assert re.search(r"coding, lru, 2255\+30 slots .* 60/\d\d", err)
    assert command("replay", *arguments, "--json")[2] == ""


def test_ctrl_c_is_130(tmp_path: Path) -> None:
    code = (
        "import signal, time\n"
        "from tiercache.cli.main import main\n"
        "from tiercache.replay import registry\n"
        "registry.play = lambda *_, **__: (signal.raise_signal(signal.SIGINT), time.sleep(60))\n"
        "main(['replay', '--scenario', 'coding'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 130
    assert "Traceback" not in ran.stderr


# --- to look at


def segments(folder: Path) -> list[Snapshot]:
    """What is left of the caches that were published, by their names."""
    found = []
    for path in sorted(folder.glob("*.tcs")):
        reader = SegmentReader(path)
        found.append(reader.snapshot(now=time.time()))
        reader.close()
    return found


def test_every_cache_can_be_looked_at(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path))
    scenario = ("--scenario", "idle-conversation")
    published = data(command, *scenario, "--publish")
    plain = data(command, *scenario)
    assert [row | {"seconds": 0} for row in published] == [row | {"seconds": 0} for row in plain]
    demoting, stranding = segments(tmp_path)
    for snapshot in (demoting, stranding):
        assert snapshot.phase is Phase.CLOSED
        assert snapshot.pool is not None
        assert snapshot.pool.writer == "replay"
    assert demoting.pool is not None
    assert demoting.pool.name == "idle-conversation-lru-2255+30"
    assert demoting.sequences[0].restored == 504_288
    assert stranding.sequences[0].source == "miss"
    assert stranding.totals["lost_tokens"] == 504_288


def test_what_a_disk_restores_can_be_looked_at(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path))
    data(
        command,
        "--scenario",
        "idle-conversation",
        "--policy",
        "lru-plain",
        "--nvme",
        "50000",
        "--publish",
    )
    [snapshot] = segments(tmp_path)
    [tier] = snapshot.tiers
    assert tier.restores.requests > 0
    assert snapshot.sequences[0].source == "disk"


def test_nothing_is_published_unless_it_is_asked_for(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERCACHE_DIR", str(tmp_path))
    data(command, *QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_without_a_cache_cannot_be_looked_at(command: Command) -> None:
    code, _, err = command("replay", *QUICK, "--policy", "lru,optimal", "--publish")
    assert code == 2
    assert "optimal" in err
    assert "--publish" in err


def test_it_is_played_as_fast_as_asked_for(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 5.0, sleep=waited.append)
    monkeypatch.setattr("tiercache.cli.replaying.time", clock)
    [row] = data(command, "--scenario", "idle-conversation", "--policy", "lru", "--speed", 60)
    assert len(waited) == row["requests"] == 123
    # A turn per minute, and no time passes while it waits.
    assert waited == [float(turn) for turn in range(123)]


@pytest.mark.parametrize("speed", ["0", "-1", "fast"])
def test_a_speed_that_is_none(command: Command, speed: str) -> None:
    code, _, err = command("replay", *QUICK, "--speed", speed)
    assert code == 2
    assert "--speed" in err
