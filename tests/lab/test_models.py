# SPDX-License-Identifier: Apache-2.0
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.models import DIRECTORY_VARIABLE, ROOT, model_path, models_directory
from lab.recipes import QWEN3, RECIPES

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_path(QWEN3, tmp_path_factory.mktemp("models"))


def test_the_same_recipe_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    again = model_path(QWEN3, tmp_path)
    assert again.name == model.name
    assert (again / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()


def test_a_model_is_made_once(model: Path) -> None:
    made = (model / WEIGHTS).stat().st_mtime_ns
    assert model_path(QWEN3, model.parent) == model
    assert (model / WEIGHTS).stat().st_mtime_ns == made


def test_builders_at_the_same_time_leave_one_model(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(model_path, [QWEN3] * 2, [tmp_path] * 2)
    assert first == second
    assert list(tmp_path.iterdir()) == [first]


def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("lab.models._save", fail)
    with pytest.raises(OSError, match="disk full"):
        model_path(QWEN3, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    assert models_directory() == ROOT / ".venv" / "lab-models"
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    assert models_directory() == tmp_path


@pytest.mark.parametrize("name", RECIPES)
def test_names(name: str) -> None:
    assert RECIPES[name].name == name
