# SPDX-License-Identifier: Apache-2.0
"""Getting vLLM's tests: what is kept of the archive, and no network."""

import io
import tarfile
from pathlib import Path

import pytest

from tests.host import sdist


def _archive(folder: Path, names: list[str]) -> Path:
    path = folder / "vllm-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"one"))
    return path


def test_only_the_tests_are_kept(tmp_path: Path) -> None:
    wanted = ["tests/__init__.py", "tests/v1/kv_offload/cpu/test_manager.py"]
    others = ["setup.py", "vllm/__init__.py", "tests/conftest.py", "tests/v1/core/test_output.py"]
    archive = _archive(tmp_path, [f"vllm-1/{name}" for name in wanted + others])
    sdist._unpack(archive, tmp_path / "kept")
    kept = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "kept")) for path in kept) == wanted


def test_nothing_is_unpacked_elsewhere(tmp_path: Path) -> None:
    archive = _archive(tmp_path, ["vllm-1/tests/v1/kv_offload/../../../../outside.py"])
    with pytest.raises(tarfile.OutsideDestinationError):
        sdist._unpack(archive, tmp_path / "kept")
    assert not (tmp_path / "outside.py").exists()


def test_an_archive_without_the_tests_is_none(tmp_path: Path) -> None:
    with pytest.raises(sdist.NoSdistError, match="holds none of the tests"):
        sdist._unpack(_archive(tmp_path, ["vllm-1/setup.py"]), tmp_path / "kept")


def test_without_an_index_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm", reason="its version is asked for")
    monkeypatch.setattr(sdist, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(sdist.NoSdistError, match="could not be downloaded"):
        sdist.host_tests()
    assert list((tmp_path / "cache").iterdir()) == []
