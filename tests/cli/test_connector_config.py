# SPDX-License-Identifier: Apache-2.0
import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from tiercache.cli.main import main
from tiercache.config import TierCacheConfig

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["connector-config", *arguments])
        assert isinstance(ended.value.code, int)
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run_command


def extra_config(run: Run, *arguments: str) -> dict[str, Any]:
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    extra = json.loads(out)["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    return extra


def test_the_connector_is_found_and_configured(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "kv_connector": "TierCacheConnector",
        "kv_connector_module_path": "tiercache.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": "64GiB"},
    }


@pytest.mark.parametrize(("size", "value"), [("8000000000", 8_000_000_000), ("16GiB", "16GiB")])
def test_cpu_bytes(run: Run, size: str, value: object) -> None:
    assert extra_config(run, "--cpu-bytes", size) == {"cpu_bytes_to_use": value}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("eviction_policy=arc", "arc"),
        ('eviction_policy="arc"', "arc"),
        ("demote_forks=true", True),
        ("demote_keep_blocks=4", 4),
        ("restore_patience_s=2.5", 2.5),
        ('group_slots={"0": 2000}', {"0": 2000}),
        ("cpu_bytes_to_use=1GiB", "1GiB"),
    ],
)
def test_a_value_is_json_where_it_parses_else_a_string(
    run: Run, setting: str, value: object
) -> None:
    assert extra_config(run, "--set", setting)[setting.partition("=")[0]] == value


def test_what_is_printed_is_what_the_server_can_read(run: Run) -> None:
    extra = extra_config(run, "--set", 'group_slots={"1": 40}', "--set", "stats=false")
    config = TierCacheConfig.from_mapping(extra)
    assert config.cpu_bytes_to_use == 64 * 2**30
    assert dict(config.group_slots) == {1: 40}
    assert config.stats is False


def test_the_shell_form_can_be_pasted(run: Run) -> None:
    code, out, _ = run("--shell", "--set", 'group_slots={"0": 2000}')
    assert code == 0
    option, argument = shlex.split(out)
    assert option == "--kv-transfer-config"
    assert json.loads(argument)["kv_connector_extra_config"]["group_slots"] == {"0": 2000}
    assert out.count("\n") == 1


def test_a_disk_is_a_secondary_tier(run: Run) -> None:
    extra = extra_config(run, "--nvme", "/mnt/nvme", "--nvme-capacity", "2TiB")
    assert extra["secondary_tiers"] == [{"type": "nvme", "path": "/mnt/nvme", "capacity": "2TiB"}]
    [tier] = TierCacheConfig.from_mapping(extra).secondary_tiers
    assert tier.capacity == 2 * 2**40


def test_tiers_can_be_set_as_they_are(run: Run) -> None:
    tiers = [{"type": "nvme", "path": "/a", "capacity": 5}, {"type": "memory", "capacity": "1GiB"}]
    extra = extra_config(run, "--set", f"secondary_tiers={json.dumps(tiers)}")
    assert extra["secondary_tiers"] == tiers


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cpu-bytes", "lots"], "cpu_bytes_to_use: 'lots' is not allowed"),
        (["--cpu-bytes", "-1"], "cpu_bytes_to_use: -1 is not allowed"),
        (["--set", "evction_policy=lru"], "did you mean 'eviction_policy'?"),
        (["--set", "eviction_policy=mru"], "eviction_policy: 'mru' is not allowed"),
        (["--set", "restore_patience_s=NaN"], "restore_patience_s: 'NaN' is not allowed"),
        (["--set", "demote_keep_blocks=a\nb"], "demote_keep_blocks: "),
        (["--set", "demote_forks"], "--set 'demote_forks' is not KEY=VALUE"),
        (["--set", "=1"], "--set '=1' is not KEY=VALUE"),
        (["--nvme", "/mnt/nvme"], "--nvme and --nvme-capacity need each other"),
        (["--nvme-capacity", "1TiB"], "--nvme and --nvme-capacity need each other"),
        (["--nvme", "here", "--nvme-capacity", "1TiB"], "secondary_tiers[0].path: 'here'"),
        (["--nvme", "/a", "--nvme-capacity", "x"], "secondary_tiers[0].capacity: 'x'"),
        (
            ["--nvme", "/a", "--nvme-capacity", "1TiB", "--set", "secondary_tiers=[]"],
            "--nvme cannot be given with --set secondary_tiers",
        ),
        (["surplus"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(run: Run, arguments: list[str], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tiercache: error: ")
    assert err.count("\n") == 1
    assert words in err
