# SPDX-License-Identifier: Apache-2.0
"""The documentation names what there is, all of it and nothing else."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tiercache.config import TierCacheConfig

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = (DOCS / "settings.md").read_text()


def test_every_setting_is_documented() -> None:
    table = SETTINGS[SETTINGS.index("| key |") : SETTINGS.index("## Sizes")]
    documented = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert sorted(documented) == sorted(field.name for field in fields(TierCacheConfig))


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
