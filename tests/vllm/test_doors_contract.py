# SPDX-License-Identifier: Apache-2.0
"""What our doors to vLLM's own managers rely on, in the installed vLLM and in another one."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="this is about vLLM")

from vllm.v1.kv_offload.cpu.policies.base import CachePolicy
from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

from tiercache.tierconfig import NvmeConfig
from tiercache.vllm import policy, tier
from tiercache.vllm.compat import broken_contracts

ROOT = Path(__file__).parents[2]
PROBE = """
from tests.vllm.test_doors_contract import check
check()
"""


def check() -> None:
    assert broken_contracts({**tier.CONTRACT, **policy.CONTRACT}) == []
    names = list(inspect.signature(CachePolicy.insert).parameters)
    assert names in (["self", "key", "chunk"], ["self", "key", "chunk", "req_context"])
    for ours, theirs in (
        (tier.NvmeTier, SecondaryTierManager),
        (policy.DemotingLRU, CachePolicy),
    ):
        assert not ours.__abstractmethods__
        # What a version adds and we do not override must have a default of its own.
        assert theirs.__abstractmethods__ <= ours.__dict__.keys()


def test_the_installed_version_keeps_the_contract() -> None:
    check()


def test_another_version_keeps_the_contract() -> None:
    """TIERCACHE_VLLM_SOURCES names a folder with vLLM's Python code, as unpacked from its wheel."""
    sources = os.environ.get("TIERCACHE_VLLM_SOURCES")
    if not sources:
        pytest.skip("TIERCACHE_VLLM_SOURCES is not set: no second vLLM to compare with")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([sources, str(ROOT), str(ROOT / "scripts")]),
        "VLLM_TARGET_DEVICE": "cpu",
    }
    subprocess.run([sys.executable, "-c", PROBE], env=environment, check=True)


def test_vllm_finds_them_by_what_the_documentation_says() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    section = text[text.index("## With vLLM's own manager\n") :]
    (written, *_) = re.findall("--kv-transfer-config '(.*?)'", section, re.DOTALL)
    document = json.loads(written)
    extra = document["kv_connector_extra_config"]
    (given,) = extra["secondary_tiers"]
    assert SecondaryTierFactory.get_tier_class(given) is tier.NvmeTier
    name, module = extra["eviction_policy"], extra["cache_policy_module_path"]
    assert CachePolicyFactory.get_cache_policy_cls(name, module) is policy.DemotingLRU
    settings = {key: given[key] for key in given.keys() - {"type", "module_path"}}
    assert isinstance(tier._parse("NvmeTier", settings), NvmeConfig)
