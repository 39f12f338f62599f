# SPDX-License-Identifier: Apache-2.0
"""The NVMe tier beside fio, vLLM's fs tier and LMCache's local disk, on one disk in one run.

Stores blocks into fresh segments, loads them, and stores as many others over them. In each round
every contender does each of these in turn; then all of it again beside a Python thread that never
rests. GB/s (10^9 bytes), medians over the rounds; ratios are medians of each round's ratio. Then
`lookup`, a prefix of keys in a tier with many entries (ms), and `restart`, opening that tier (s).
"""

import argparse
import logging
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from lab import bench_nvme_fio as fio
from lab import bench_nvme_rivals as rivals
from lab.bench_nvme_contenders import (
    DEPTH,
    Contender,
    Ours,
    Workload,
    busy,
    opened,
    switching,
)
from lab.bench_nvme_index import Large
from lab.bench_nvme_report import Case, Figures, Row, document, single, table
from lab.program import add_path, block_size, block_sizes, positive, say

RIVALS: dict[str, type[Contender]] = {
    "fio": fio.Fio,
    "vllm_fs": rivals.VllmFs,
    "lmcache": rivals.LMCache,
}
Maker = Callable[[Workload], Contender]
OPERATIONS = ("store", "load", "steady_store")
LOOKUP_KEYS = 10_000

EPILOG = """\
Nobody is helped by the page cache: all contenders use direct I/O (LMCache is set to it, the others
do so by themselves), which the file system of --path must take; the index is dropped from the page
cache before each restart. What is loaded is compared. Nothing is flushed: a store has ended when
the disk took the bytes. vLLM never removes a file, so its old ones are, out of the measured time.

examples:
  scripts/bench_nvme                                     a table, in a few minutes
  scripts/bench_nvme --json --path /mnt/nvme             one JSON document on stdout
  scripts/bench_nvme --sizes 1MiB --bytes 4GiB --rounds 9 --against fio

Exit code 0: measured. 1: a contender failed. 2: wrong arguments.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    _prepare_process()
    with tempfile.TemporaryDirectory(prefix="bench_nvme-", dir=options.path) as name:
        directory = Path(name)
        if not takes_direct(directory):
            say(f"bench_nvme: no direct I/O in {options.path}: choose another --path")
            return 2
        makers = [Ours, *present(options.against, options.fio_depth)]
        notes: list[str] = []
        rows = [
            *transfers(directory, options, makers, notes),
            *lookups(directory, options.entries, options.rounds),
        ]
    print(document(rows) if options.json else table(rows, notes))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_nvme",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_path(parser)
    add("--bytes", type=block_size, default="1GiB", help="of each operation (default: %(default)s)")
    add(
        "--sizes",
        type=block_sizes,
        default="1MiB,7MiB,31MiB",
        help="of blocks (default: %(default)s)",
    )
    add("--rounds", type=positive, default=5, metavar="N", help="(default: %(default)s)")
    add("--entries", type=positive, default=1_000_000, metavar="N", help="of the large tier")
    add(
        "--fio-depth",
        type=positive,
        default=DEPTH,
        metavar="N",
        help="blocks that fio moves at once (default: %(default)s, as many as the tier's jobs)",
    )
    add(
        "--against",
        type=_names,
        default=",".join(RIVALS),
        metavar="NAMES",
        help="some of %(default)s, or none; what is not installed is left out",
    )
    add("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    if unknown := [name for name in names if name not in RIVALS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(RIVALS)}")
    return names


def _prepare_process() -> None:
    """End in order when told to, have enough descriptors, and keep stdout for the result."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")


def takes_direct(directory: Path) -> bool:
    try:
        os.close(os.open(directory / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        (directory / "probe").unlink(missing_ok=True)
    return True


def present(names: Sequence[str], fio_depth: int) -> list[Maker]:
    """The rivals that can take part; says why the others cannot."""
    found: list[Maker] = []
    for name in names:
        kind = RIVALS[name]
        reason = fio.missing() if kind is fio.Fio else rivals.missing(kind)
        if reason:
            say(f"without {name}: {reason}")
        else:
            found.append(partial(fio.Fio, depth=fio_depth) if kind is fio.Fio else kind)
    return found


def transfers(
    directory: Path, options: argparse.Namespace, makers: Sequence[Maker], notes: list[str]
) -> list[Row]:
    figures = Figures()
    for size in options.sizes:
        work = Workload.of(size, options.bytes)
        say(f"{size / 2**20:g} MiB: {work.blocks} blocks; preparing memory")
        with contest(work, makers) as contenders:
            for number in range(options.rounds):
                for spins in (False, True):
                    say(f"  round {number + 1} of {options.rounds}{', busy' * spins}")
                    play(directory, contenders, figures, number, spins=spins)
            memory = (f"{contender.name} {contender.memory}" for contender in contenders)
            notes[:] = [f"{DEPTH} operations at once. Memory: {'; '.join(memory)}."]
    return figures.rows()


@contextmanager
def contest(work: Workload, makers: Sequence[Maker]) -> Iterator[list[Contender]]:
    with ExitStack() as undo:
        contenders: list[Contender] = []
        for make in makers:
            contender = make(work)
            undo.callback(contender.release)
            contenders.append(contender)
        yield contenders


def play(
    directory: Path, contenders: list[Contender], figures: Figures, number: int, *, spins: bool
) -> None:
    """A round; who begins changes from one to the next."""
    first = number % len(contenders)
    turns = contenders[first:] + contenders[:first]
    with opened(contenders, directory):
        for name in OPERATIONS:
            for contender in turns:
                if name == "steady_store":
                    contender.recycle()
                os.sync()  # nobody pays for what another left to be written
                with busy(spins=spins), switching(contender.switch_interval):
                    seconds = operate(contender, name)
                case = Case(name, contender.work.block_bytes, spins)
                figures.add(case, contender.name, contender.work.nbytes, seconds)


def operate(contender: Contender, name: str) -> float:
    if name == "load":
        return contender.load()
    return contender.store(generation=OPERATIONS.index(name) // 2)


def lookups(directory: Path, entries: int, rounds: int) -> list[Row]:
    path = directory / "large"
    path.mkdir(mode=0o700)
    large = Large(path, entries)
    say(f"a tier with {entries:,} entries")
    large.make()
    found = large.lookups(min(LOOKUP_KEYS, entries), rounds)
    return [single("lookup", found), single("restart", [large.restart() for _ in range(rounds)])]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except RuntimeError as error:
        say(f"bench_nvme: {error}")
        sys.exit(1)
