# SPDX-License-Identifier: Apache-2.0
"""The documentation names what there is, all of it and nothing else."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from lab import docs_commands
from tiercache.cli.diagnostics import ExitCode
from tiercache.config import TierCacheConfig
from tiercache.tierconfig import MooncakeConfig, NvmeConfig, parse_tier

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = (DOCS / "settings.md").read_text()


def table(heading: str) -> dict[str, str]:
    """Keys and defaults in the first table under ``heading``."""
    below = SETTINGS[SETTINGS.index(f"# {heading}\n") :]
    rows = below[below.index("| key |") :].split("\n\n", 1)[0]
    found = re.findall(r"^\| `(\w+)` \| (.+?) \|", rows, re.MULTILINE)
    assert len(found) == len(dict(found))
    return dict(found)


def test_every_setting_is_documented() -> None:
    assert sorted(table("Settings")) == sorted(field.name for field in fields(TierCacheConfig))


def test_every_setting_of_an_nvme_tier_is_documented() -> None:
    assert list(table("Secondary tiers")) == [field.name for field in fields(NvmeConfig)]


def test_defaults_of_an_nvme_tier_are_documented() -> None:
    documented = table("Secondary tiers")
    required = {"type": "nvme", "path": "/mnt/nvme", "capacity": "1TiB"}
    assert {key for key, default in documented.items() if default == "required"} == required.keys()
    spelled_out = {
        key: None if default == "none" else default.strip("`")
        for key, default in documented.items()
        if key not in required
    }
    numbers = {
        key: json.loads(documented[key])
        for key in ("high_water", "low_water", "queue_depth", "switch_interval")
    }
    assert parse_tier("tier", required | spelled_out | numbers) == parse_tier("tier", required)


def test_every_setting_of_a_shared_store_is_documented() -> None:
    documented = table("A store that servers share")
    assert list(documented) == [field.name for field in fields(MooncakeConfig)]
    required = {"type": "mooncake", "master": "store:50051", "capacity": "1TiB"}
    assert {key for key, default in documented.items() if default == "required"} == required.keys()
    spelled_out = {
        key: None if default == "none" else default.strip("`")
        for key, default in documented.items()
        if key not in required and default != "empty"
    }
    for key in ("segment", "replicas", "queue_depth", "timeout_s", "lookup_timeout_s"):
        spelled_out[key] = json.loads(documented[key])
    spelled_out["switch_interval"] = json.loads(documented["switch_interval"])
    assert parse_tier("tier", required | spelled_out) == parse_tier("tier", required)


def test_every_metric_is_documented() -> None:
    pytest.importorskip("vllm", reason="the metrics are declared for vLLM")
    from vllm.v1.kv_offload.base import OffloadingCounterMetadata

    from tiercache.vllm.metrics import definitions

    documented = set(re.findall(r"`(vllm:tiercache_\w+)`", SETTINGS))
    assert documented == {
        name + "_total" * isinstance(metric, OffloadingCounterMetadata)
        for name, metric in definitions().items()
    }


def test_every_command_has_its_page() -> None:
    made = dict(docs_commands.pages())
    assert sorted(made) == sorted(docs_commands.PAGES.iterdir())
    old = [path.name for path, text in made.items() if path.read_text() != text]
    assert old == [], "run scripts/docs_commands"


def test_what_was_written_by_hand_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_commands, "PAGES", tmp_path)
    docs_commands.write()
    page = tmp_path / "size.md"
    made = page.read_text()
    page.write_text(made.replace("# tiercache size\n", "# Sizes\n\nBy hand.\n") + "old\n")
    docs_commands.write()
    assert page.read_text() == made.replace("# tiercache size\n", "# Sizes\n\nBy hand.\n")


def test_every_exit_status_is_documented() -> None:
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "commands/README.md").read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(ExitCode)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
