# SPDX-License-Identifier: Apache-2.0
"""fio as a contender in scripts/bench_nvme: what the disk gives who does nothing else.

Covers its command line and its answer. Direct I/O, libaio or else io_uring, one file, buffers in
huge pages where the kernel gives them on advice.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from lab.bench_nvme_contenders import DEPTH, Contender, Workload

ENGINES = ("libaio", "io_uring")
#: glibc then asks for huge pages under what fio allocates, which needs no privilege.
HUGE_PAGES = "glibc.malloc.hugetlb=1"
INSTALL = "fio is not installed: apt-get install fio, or dnf install fio"
#: More than any run takes: a hung disk should end a benchmark.
TIMEOUT_S = 300

Direction = Literal["read", "write"]


class Fio(Contender):
    """Reads or writes a file once, in blocks of the workload's size, ``depth`` of them at once.

    Every block goes through one of ``depth`` buffers: where these are small enough to stay in a
    processor's cache and the disk is another program's memory, it reaches what no cache can that
    moves each block to a place of its own.
    """

    name = "fio"
    memory = "its buffers, huge pages"

    def __init__(self, work: Workload, depth: int = DEPTH) -> None:
        super().__init__(work)
        self._depth = min(depth, work.blocks)

    def open(self, directory: Path) -> None:
        self._file = directory / "fio"

    def store(self, generation: int) -> float:
        """Into a new file, allocated before; later generations over it."""
        return self._run("write", overwrite=generation > 0)

    def load(self) -> float:
        return self._run("read", overwrite=True)

    def close(self) -> None:
        self._file.unlink(missing_ok=True)

    def _run(self, direction: Direction, *, overwrite: bool) -> float:
        failures = []
        for engine in ENGINES:
            line = self._command(direction, engine, overwrite=overwrite)
            ran = subprocess.run(
                line,
                env={**os.environ, "GLIBC_TUNABLES": HUGE_PAGES},
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
                cwd=self._file.parent,
            )
            if not ran.returncode:
                return self.work.nbytes / rate(ran.stdout, direction)
            failures.append(f"{engine}: {ran.stderr.strip() or ran.stdout.strip()}")
        raise RuntimeError("fio failed; " + "; ".join(failures))

    def _command(self, direction: Direction, engine: str, *, overwrite: bool) -> list[str]:
        return command(
            self._file, direction, self.work, engine, depth=self._depth, overwrite=overwrite
        )


def missing() -> str | None:
    """Why fio cannot take part; None if it can."""
    return None if shutil.which("fio") else INSTALL


def command(
    file: Path, direction: Direction, work: Workload, engine: str, *, depth: int, overwrite: bool
) -> list[str]:
    # As a mix of only reads, fio fills its buffers beforehand: else it is their first use that is
    # measured, and at 8 x 31 MiB reads at half the speed.
    pattern = ["--rw=write"] if direction == "write" else ["--rw=rw", "--rwmixread=100"]
    return [
        "fio",
        "--name=bench",
        f"--filename={file}",
        *pattern,
        f"--bs={work.block_bytes}",
        f"--size={work.nbytes}",
        f"--iodepth={depth}",
        f"--ioengine={engine}",
        f"--overwrite={int(overwrite)}",
        "--direct=1",
        "--fallocate=posix",
        "--iomem_align=2m",
        "--output-format=json",
    ]


def rate(output: str, direction: Direction) -> float:
    """Bytes per second, from fio's JSON, before which it may have put notes."""
    job = json.loads(output[output.index("{") :])["jobs"][0]
    return float(job[direction]["bw_bytes"])
