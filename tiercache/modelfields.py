# SPDX-License-Identifier: Apache-2.0
"""A model's ``config.json``, and its fields, checked as they are read.

Covers single values; what follows from them is in ``modelconfig``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tiercache.errors import ConfigError, UnsupportedError

#: Bytes of a number of the model; vLLM runs what says float32, or nothing, in half of that.
DTYPES: Final = {"bfloat16": 2, "float16": 2, "float32": 2}
#: Bytes of a number of a recurrent state.
STATE_DTYPES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}


class Fields:
    """The fields of a ``config.json`` that are about text, each checked as it is read.

    Raises: UnsupportedError for a field that is missing or not what it has to be.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], tp: int) -> None:
        self.path = path
        self.tp = tp
        self.get = values.get
        self.model_type = str(self.get("model_type")).removesuffix("_text")

    def lacks(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.path}: a {self.model_type} model needs {what}")

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of ``keys`` that is there."""
        key = next((key for key in keys if self.get(key) is not None), None)
        if key is None:
            if default is None:
                raise self.lacks(f"{' or '.join(keys)}, which is missing")
            return default
        value = self.get(key)
        if type(value) is not int or value < least:
            raise self.lacks(f"{key} to be an integer of at least {least}, not {value!r}")
        return value

    def shard(self, *keys: str, default: int | None = None) -> int:
        """A worker's share of what ``keys`` count."""
        return self.divide(self.integer(*keys, default=default), keys[0])

    def divide(self, number: int, what: str) -> int:
        if number % self.tp:
            raise ConfigError("tp", self.tp, f"a divisor of {what}, which is {number}")
        return number // self.tp

    def names(self, *keys: str) -> list[str] | None:
        """The first of ``keys`` that is there: a list of names."""
        key = next((key for key in keys if self.get(key) is not None), None)
        value = None if key is None else self.get(key)
        if value is not None and not (
            isinstance(value, list) and all(isinstance(name, str) for name in value)
        ):
            raise self.lacks(f"{key} to be a list of names")
        return value

    def bytes_of(self, sizes: Mapping[str, int], *keys: str) -> int:
        """Bytes of a number of the type that the first of ``keys`` names; 0 if none is there."""
        name = next((self.get(key) for key in keys if self.get(key)), None)
        if name is not None and name not in sizes:
            raise self.lacks(f"{keys[0]} to be one of {', '.join(sizes)}, not {name!r}")
        return 0 if name is None else sizes[name]

    @property
    def dtype_bytes(self) -> int:
        return self.bytes_of(DTYPES, "dtype", "torch_dtype") or DTYPES["bfloat16"]


def load_fields(path: Path, tp: int) -> Fields:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        allowed = f"a model's config.json; this cannot be read: {error}"
        raise ConfigError("model_config", str(path), allowed) from error
    if not isinstance(config, dict) or "model_type" not in config:
        allowed = "a model's config.json, a JSON object with model_type"
        raise ConfigError("model_config", str(path), allowed)
    inner = config.get("text_config")
    # A model of images and text says of both together what its numbers are.
    return Fields(path, {**config, **inner} if isinstance(inner, dict) else config, tp)
