# SPDX-License-Identifier: Apache-2.0
"""What an import brings along: nothing heavy, but where it is the module's work."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"tiercache": "tiercache", "cli": "tiercache.cli", "tui": "tiercache.tui"}
HEAVY = {"aiofiles", "lmdb", "matplotlib", "numpy", "textual", "torch", "vllm"}
#: What decides for a cache that serves, or replays.
SERVING = (
    *("cache", "cli.replaying", "demotion", "ghosts", "jobs", "observer", "policies", "primary"),
    *("probe", "promotion", "replay.demo", "replay.disk", "replay.optimal", "replay.plots"),
    *("replay.report", "replay.simulate", "requests", "slotqueue", "slots", "spilling", "tiering"),
    *("tiers.nvme.disk", "tiers.nvme.policy", "tiers.nvme.space", "tiers.nvme.tier"),
)
#: Modules and packages that may load some of it; all others nothing.
ALLOWED = {
    **{f"tiercache.{name}": {"numpy"} for name in SERVING},
    "tiercache.arena": {"numpy", "torch"},
    "tiercache.pinning": {"numpy", "torch"},
    "tiercache.tiers.mooncake": {"aiofiles"},
    "tiercache.tiers.nvme": {"aiofiles", "lmdb"},
    "tiercache.tui.monitor": {"textual"},
    "tiercache.tui.widgets": {"textual"},
}
#: Needs the engine, which is allowed everything.
ENGINE = "tiercache.vllm"


def _modules() -> list[str]:
    found = []
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found.append(".".join([package, *parts]).removesuffix(".__init__"))
    return sorted(name for name in found if not _is_in(name, ENGINE))


def _is_in(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


@pytest.mark.parametrize("name", _modules())
def test_an_import_loads_nothing_heavy(name: str) -> None:
    allowed = {lib for package, libs in ALLOWED.items() if _is_in(name, package) for lib in libs}
    code = f"import sys, {name}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (HEAVY - allowed) & set(ran.stdout.split()) == set()
