# SPDX-License-Identifier: Apache-2.0
"""``tiercache connector-config``: the JSON that makes vLLM use this cache.

Covers what is printed. Which settings exist and which values they take is known to
``TierCacheConfig`` alone, which reads the very mapping that is printed here.
"""

import json
import shlex
from collections.abc import Sequence
from typing import NoReturn

import click

from tiercache.cli import output
from tiercache.config import TierCacheConfig

CONNECTOR = {
    "kv_connector": "TierCacheConnector",
    "kv_connector_module_path": "tiercache.vllm.connector",
    "kv_role": "kv_both",
}

EXAMPLES = """\b
Examples:
  vllm serve MODEL --kv-transfer-config "$(tiercache connector-config --cpu-bytes 64GiB)"
  tiercache connector-config --set demote_keep_blocks=4 --set 'group_slots={"0": 2000}'
  tiercache connector-config --nvme /mnt/nvme/tiercache --nvme-capacity 2TiB --shell
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--cpu-bytes",
    default="64GiB",
    show_default=True,
    metavar="SIZE",
    help="Host memory over all workers of the node, in bytes or as 64GiB.",
)
@click.option(
    "--nvme",
    metavar="PATH",
    help="A directory on a local disk, absolute, for what host memory evicts.",
)
@click.option("--nvme-capacity", metavar="SIZE", help="Bytes that it may take there, as 2TiB.")
@click.option(
    "settings",
    "--set",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting; VALUE is JSON, or a string where it is not. May be given repeatedly.",
)
@click.option(
    "as_json",
    "--json-only/--shell",
    default=True,
    help="Print the JSON alone (default), or the quoted option, ready to paste after 'vllm serve'.",
)
def connector_config(
    cpu_bytes: str,
    nvme: str | None,
    nvme_capacity: str | None,
    settings: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print the JSON for vLLM's --kv-transfer-config.

    Every setting is checked by the code that reads it in the server.
    """
    extra_config = {"cpu_bytes_to_use": _value(cpu_bytes)} | dict(map(_setting, settings))
    if tier := _nvme_tier(nvme, nvme_capacity):
        if "secondary_tiers" in extra_config:
            raise click.UsageError("--nvme cannot be given with --set secondary_tiers")
        extra_config["secondary_tiers"] = [tier]
    TierCacheConfig.from_mapping(extra_config)
    transfer_config = CONNECTOR | {"kv_connector_extra_config": extra_config}
    if as_json:
        output.document(transfer_config)
    else:
        quoted = shlex.quote(output.dumps(transfer_config, compact=True))
        output.text(f"--kv-transfer-config {quoted}")


def _nvme_tier(path: str | None, capacity: str | None) -> dict[str, object] | None:
    if path is None and capacity is None:
        return None
    if path is None or capacity is None:
        raise click.UsageError("--nvme and --nvme-capacity need each other")
    return {"type": "nvme", "path": path, "capacity": _value(capacity)}


def _setting(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.UsageError(f"--set {text!r} is not KEY=VALUE")
    return key, _value(value)


def _value(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> NoReturn:
    """Python reads NaN and Infinity as JSON, which they are not."""
    raise ValueError(constant)
