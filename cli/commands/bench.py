# SPDX-License-Identifier: Apache-2.0
"""``tiercache bench``: how fast memory and a disk are here, through the code that serves."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tiercache.cli import output
from tiercache.cli.caring import Progress, attempting, json_option, progress_option
from tiercache.cli.parameters import Count, Size
from tiercache.cli.table import size as sized
from tiercache.cli.table import table
from tiercache.errors import ConfigError

if TYPE_CHECKING:
    from tiercache.cli.benching import Result

SCHEMA: Final = "tiercache.bench-run/1"
ALIGNMENT: Final = 4096

EXAMPLES = """\b
What it says:
  Rates are medians over the rounds, in 10^9 bytes per second. A tier's rates are those of
  direct I/O with checksums; nothing is flushed, so a drive may still hold it in memory.

\b
Examples:
  tiercache bench ram
  tiercache bench nvme /mnt/nvme
  tiercache bench nvme /mnt/nvme --bytes 8GiB --size 7MiB --rounds 5 --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("what", type=click.Choice(["ram", "nvme"]))
@click.argument("directory", type=click.Path(path_type=Path), required=False, metavar="[DIR]")
@click.option(
    "--bytes",
    "nbytes",
    type=Size(),
    default="256MiB",
    show_default=True,
    metavar="SIZE",
    help="Of each operation.",
)
@click.option(
    "--size",
    "unit",
    type=Size(),
    default="4MiB",
    show_default=True,
    metavar="SIZE",
    help="Of a block.",
)
@click.option("--rounds", type=Count(), default=3, show_default=True, metavar="N")
@click.option(
    "--queue-depth", type=Count(), default=8, show_default=True, metavar="N", help="With nvme."
)
@json_option
@progress_option
def bench(
    *,
    what: str,
    directory: Path | None,
    nbytes: int,
    unit: int,
    rounds: int,
    queue_depth: int,
    as_json: bool,
    progress: bool,
) -> None:
    """Measure copies in memory and to a GPU (ram), or a tier's loads and stores in DIR (nvme).

    DIR gets a directory with --bytes of data, which is removed at the end. A pool that lies there
    is not touched.
    """
    if (what == "nvme") != (directory is not None):
        raise click.UsageError("nvme needs DIR, and ram has none")
    if unit % ALIGNMENT or unit > nbytes:
        raise ConfigError("--size", unit, f"a multiple of {ALIGNMENT} up to --bytes")
    from tiercache.cli import benching

    shown = Progress("measuring", as_json=as_json, wanted=progress, unit="steps")
    if directory is None:
        results = benching.memory(nbytes, unit, rounds, shown)
    else:
        with attempting(f"{directory} cannot be measured"):
            results = benching.nvme(
                directory, nbytes, unit, rounds, queue_depth=queue_depth, progress=shown
            )
    shown.end()
    if as_json:
        output.document(_document(what, directory, results))
        return
    rows = [_row(result) for result in results]
    for line in table(("operation", "block", "GB/s", "slowest", "fastest"), rows):
        output.text(line)


def _row(result: "Result") -> tuple[str, ...]:
    rates = (result.median, min(result.rates), max(result.rates))
    return (result.operation, sized(result.unit_bytes), *(f"{rate / 1e9:.2f}" for rate in rates))


def _document(what: str, directory: Path | None, results: "Sequence[Result]") -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "what": what,
        "path": None if directory is None else str(directory.absolute()),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(directory),
        "data": [
            {
                "operation": result.operation,
                "block_bytes": result.unit_bytes,
                "bytes": result.nbytes,
                "bytes_per_s": [round(rate) for rate in result.rates],
                "median_bytes_per_s": round(result.median),
            }
            for result in results
        ],
    }


def machine(directory: Path | None) -> dict[str, Any]:
    """What rates depend on, as far as the system tells."""
    from tiercache.hostmem import available_bytes

    facts: dict[str, Any] = {
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_available_bytes": available_bytes(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load": os.getloadavg()[0],
    }
    return facts if directory is None else {**facts, **_disk(directory)}


def _disk(directory: Path) -> dict[str, Any]:
    from tiercache.cli.diskcheck import LOCAL
    from tiercache.tiers.nvme.namespace import file_system

    device = directory.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    whole = block if (block / "queue").is_dir() else block.parent  # a partition's disk is above it
    magic = file_system(directory)
    return {
        "file_system": LOCAL.get(magic, f"{magic:#x}"),
        "device": whole.name if (whole / "queue").is_dir() else None,
        "device_model": _read(str(whole / "device/model")),
        "rotational": _read(str(whole / "queue/rotational")) == "1",
    }


def _read(file: str) -> str | None:
    try:
        return Path(file).read_text().strip()
    except OSError:
        return None


def _cpu() -> str:
    lines = (_read("/proc/cpuinfo") or "").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
