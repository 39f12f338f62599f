# SPDX-License-Identifier: Apache-2.0
"""Rules for files that no linter knows."""

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
MAX_LINES = 400
#: Hosts that a file may name: where licences and formats are kept, and the project's own.
HOSTS = {"github.com", "keepachangelog.com", "localhost", "semver.org", "www.apache.org"}
HOSTS |= {"www.w3.org"}  # the namespace of SVG


def _tracked() -> list[Path]:
    """What a commit of everything here would hold."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


FILES = _tracked()
pytestmark = pytest.mark.skipif(not FILES, reason="not a git work tree")


def _is_code(path: Path) -> bool:
    return path.suffix in (".py", ".sh") or path.read_bytes().startswith(b"#!")


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def _names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_code_names_its_licence() -> None:
    def names_it(path: Path) -> bool:
        lines = _text(path).splitlines(keepends=True)
        return SPDX in lines[:2]

    code = [path for path in FILES if _is_code(path) and path.stat().st_size]
    assert _names([path for path in code if not names_it(path)]) == []


def test_a_file_can_be_read_in_one_sitting() -> None:
    code = [path for path in FILES if _is_code(path)]
    assert _names([path for path in code if len(_text(path).splitlines()) > MAX_LINES]) == []


def test_no_path_of_one_machine() -> None:
    home = re.compile(r"(?<![\w.$}~])/(?:home|root|Users|work)/\w")
    assert _names([path for path in FILES if home.search(_text(path))]) == []


def test_links_lead_to_known_hosts() -> None:
    def strangers(path: Path) -> set[str]:
        hosts = (
            urlsplit(link).hostname or "" for link in re.findall(r"https?://[\w.:-]+", _text(path))
        )
        return {host for host in hosts if "." in host and not _is_local(host)} - HOSTS

    assert {str(path): found for path in FILES if (found := strangers(path))} == {}


def _is_local(host: str) -> bool:
    return bool(re.fullmatch(r"(127|10)(\.\d+){3}|0\.0\.0\.0", host))


def test_editors_and_merges_left_nothing_behind() -> None:
    marker = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert _names([path for path in FILES if marker.search(_text(path))]) == []
