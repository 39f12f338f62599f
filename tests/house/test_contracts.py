# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_who_may_import_whom(installed: Path) -> None:
    """Checked on the installed layout: import-linter knows no packages in mapped folders."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    checked = subprocess.run(
        [*command, str(ROOT / "pyproject.toml")],
        cwd=installed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
