# SPDX-License-Identifier: Apache-2.0
"""Tiny models on disk, made once per recipe.

Nothing is downloaded: weights are random, the tokenizer is byte-level without merges.
"""

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.recipes import VOCABULARY, Recipe

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY_VARIABLE = "TIERCACHE_LAB_DIR"
#: Part of the cache key: raise it when `lab.weights` or the tokenizer changes.
RECIPE_VERSION = 1


def models_directory() -> Path:
    """Where models are kept unless the caller says otherwise."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or ROOT / ".venv" / "lab-models")


def model_path(recipe: Recipe, directory: Path | None = None) -> Path:
    """The model's folder, built on first use.

    Concurrent builders each write a folder of their own; the first rename wins.
    """
    parent = directory or models_directory()
    target = parent / f"{recipe.name}-{_fingerprint(recipe)}"
    if target.is_dir():
        return target
    parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{recipe.name}-", dir=parent))
    try:
        _save(recipe, draft)
        _publish(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _fingerprint(recipe: Recipe) -> str:
    text = json.dumps([RECIPE_VERSION, asdict(recipe)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _publish(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        # Lost the race: a folder that is there is complete, because it arrived by rename too.
        if not target.is_dir():
            raise


def _save(recipe: Recipe, folder: Path) -> None:
    # Importing transformers takes seconds; a model that is there already needs none of it.
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from lab import weights

    config = AutoConfig.for_model(recipe.model_type, **recipe.settings)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    weights.fill(model, recipe.seed)
    model.to(torch.bfloat16).save_pretrained(folder)
    _save_tokenizer(folder)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<bos>", "<eos>", "<pad>"]
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    filler = [f"<unused{n}>" for n in range(VOCABULARY - len(special) - len(bytes_))]
    vocabulary = {text: index for index, text in enumerate([*special, *bytes_, *filler])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapper: Any = PreTrainedTokenizerFast
    fast = wrapper(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
