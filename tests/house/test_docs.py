# SPDX-License-Identifier: Apache-2.0
"""The documentation names what there is, all of it and nothing else."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tiercache.config import TierCacheConfig
from tiercache.tierconfig import NvmeConfig, parse_tier

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
        key: json.loads(documented[key]) for key in ("high_water", "low_water", "queue_depth")
    }
    assert parse_tier("tier", required | spelled_out | numbers) == parse_tier("tier", required)


def test_every_metric_is_documented() -> None:
    pytest.importorskip("vllm", reason="the metrics are declared for vLLM")
    from vllm.v1.kv_offload.base import OffloadingCounterMetadata

    from tiercache.vllm.metrics import definitions

    documented = set(re.findall(r"`(vllm:tiercache_\w+)`", SETTINGS))
    assert documented == {
        name + "_total" * isinstance(metric, OffloadingCounterMetadata)
        for name, metric in definitions().items()
    }


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
