# SPDX-License-Identifier: Apache-2.0
"""A process that is given hostile files, one after the other, and must come to an end by itself.

In a process of its own, so that what ends a process (a fault in LMDB, a file that shrinks under a
mapping, memory without end) is seen by the test, and takes nothing else along.
"""

import contextlib
import faulthandler
import io
import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.security.hostile import changed, changed_json, sweep
from tests.tiers.nvme.server_helpers import STORED, fill
from tests.tiers.nvme.tier_helpers import FINGERPRINT, SEGMENT_BYTES, Rig, keys
from tiercache.blocks import key_hash
from tiercache.cli.commands import import_
from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.main import main as tiercache
from tiercache.errors import TierCacheError
from tiercache.tiers.nvme.offline import OfflineNamespace, open_readonly
from tiercache.tiers.nvme.pages import (
    HASH_BYTES,
    PAGE_SLOTS,
    Entry,
    Location,
    edit,
    page_key,
)
from tiercache.tiers.nvme.writing import index_of
from tiercache.tui.app import main as top

__all__ = ["FINGERPRINT"]

ROOT = Path(__file__).parents[2]
#: Far more than a command needs, far less than a number out of a hostile file may ask for.
MEMORY_BYTES = 12 << 30
#: How long one process may take, far more than it does.
PATIENCE_S = 110
STATUSES = set(ExitCode)
#: What `serve` stores itself.
ADDED = keys(range(900, 902))
FIRST, SECOND = (f"g{key[-1]}:{key_hash(key).hex()}" for key in (STORED[0], STORED[-1]))
#: Each is asked of every hostile pool; the last ones try to put it right.
COMMANDS: Sequence[Sequence[str]] = (
    ("ls", "--pool", "POOL"),
    ("ls", "--pool", "POOL", "--json"),
    ("show", FIRST, "--pool", "POOL"),
    ("show", SECOND, "--pool", "POOL", "--hex"),
    ("export", "POOL"),
    ("prune", "POOL", "--until-free", "1000000TiB", "--dry-run", "--json"),
    ("prune", "POOL", "--keep", "50%", "--dry-run"),
    ("verify", "POOL", "--json"),
    ("drop", "POOL", "--all", "--dry-run"),
    ("compact", "POOL", "--dry-run"),
    ("verify", "POOL", "--data"),
    ("verify", "POOL", "--data", "--fix", "--yes"),
    ("drop", "POOL", "--all", "--yes"),
)
LOOKS: Sequence[Sequence[str]] = (
    ("stat", "--pool", "FILE"),
    ("groups", "--pool", "FILE"),
    ("tiers", "--pool", "FILE", "--json"),
    ("seq", "--pool", "FILE"),
    ("seq", "1", "--pool", "FILE"),
    ("next", "--pool", "FILE"),
    ("events", "--pool", "FILE"),
)


class Unexpected(Exception):  # noqa: N818 - what the test is about
    """Something that a hostile file must not bring about."""


def run(attack: Callable[..., None], *arguments: object) -> None:
    """Run ``attack`` in a process of its own; fails with what that process says."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        f"from {attack.__module__} import {attack.__name__} as attack, limited\n"
        "limited(attack, sys.argv[1:])"
    )
    words = [sys.executable, "-X", "faulthandler", "-c", code, *map(str, arguments)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0, (ended.returncode, ended.stdout[-3000:], ended.stderr[-6000:])


def limited(attack: Callable[..., None], arguments: Sequence[str]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.dump_traceback_later(PATIENCE_S - 10, exit=True)
    logging.disable()
    for function in (open_readonly, OfflineNamespace.__init__):
        assert function.__kwdefaults__
        function.__kwdefaults__["segment_bytes"] = SEGMENT_BYTES
    attack(*arguments)


@contextlib.contextmanager
def named(what: object) -> Iterator[None]:
    """Say which attack it was, whatever goes wrong."""
    try:
        yield
    except BaseException:  # noqa: BLE001 - whatever it is, it ends the process
        sys.stderr.write(f"{what}\n{traceback.format_exc()}")
        sys.stderr.flush()
        os._exit(3)


def ask(program: Callable[[list[str]], object], words: Sequence[str], place: Path) -> str:
    """Run a command; what it says may be an error, but one of ours, and nothing for a terminal."""
    arguments = [str(place) if word in {"POOL", "FILE"} else word for word in words]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    status: object = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            program(arguments)
        except SystemExit as ended:
            status = ended.code
    said = "".join(read(stream) for stream in (out, err))
    if status not in STATUSES or "Traceback" in said:
        raise Unexpected(words, status, said[-2000:])
    if any(ord(char) < 32 and char not in "\n\t" for char in said):
        raise Unexpected(words, "control codes", said[-2000:])
    return said


def read(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def serve(path: Path, *, forged: bool = False) -> None:
    """Have the real tier open a pool: every byte that it serves is right, and it goes on.

    In an index that was ``forged`` there may be entries that nobody stored: they do not verify.
    """
    with Rig(path) as rig:
        try:
            tier = rig.open()
        except TierCacheError:
            return
        for group in tier._groups.values():
            found = list(group.table.slot_of)
            if not forged and not set(found) <= {*STORED, *ADDED}:
                raise Unexpected("an entry that nobody stored")
            if found:
                rig.loaded(tier, found, at_once=4)
        if new := tier.missing(ADDED):
            rig.store(tier, new)
        tier.close()


def attack_pool(
    path: Path, pristine: Path, harm: Callable[[Path], object], *, forged: bool = False
) -> None:
    """Look at, serve from, and put right the same hostile pool, anew each time it is changed."""
    for use in ("commands", "server"):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(pristine, path, symlinks=True)
        [directory] = path.iterdir()
        harm(directory)
        if use == "server":
            serve(path, forged=forged)
        else:
            for words in COMMANDS:
                ask(tiercache, words, path)


def pools(folder: str, kind: str, seed: str, rounds: str) -> None:
    """Hostile indexes or meta files, made at random."""
    path, pristine = Path(folder, "pool"), Path(folder, "pristine")
    fill(pristine)
    for number in range(int(rounds)):
        rng = random.Random(f"{kind} {seed} {number}")
        state = rng.getstate()

        def harm(
            directory: Path, rng: random.Random = rng, state: tuple[object, ...] = state
        ) -> None:
            rng.setstate(state)
            HARMS[kind](directory, rng)

        with named(f"{kind}, seed {seed}, round {number}"):
            attack_pool(path, pristine, harm, forged=kind == "entries")


def _harm_index(directory: Path, rng: random.Random) -> None:
    data = directory / "index" / "data.mdb"
    data.write_bytes(changed(data.read_bytes(), rng))


def _harm_entries(directory: Path, rng: random.Random) -> None:
    """Pages that are sealed as ours are, with entries that none of ours would make."""
    hashes = [*map(key_hash, STORED), b"\0", bytes(HASH_BYTES), b"\xff" * HASH_BYTES]
    numbers = (0, 1, 2**32, 2**63, 2**64 - 2, 2**64 - 1)
    slots = (0, 1, 7, 39, 40, 126, 127, 5000, 2**31, 2**32 - 1, PAGE_SLOTS * 2**32 - 1)
    with index_of(directory) as index:
        for _ in range(rng.randint(1, 12)):
            entry = Entry(rng.choice(hashes), rng.choice(numbers), rng.choice(numbers))
            place = Location(rng.choice((0, 1, 9, 65535)), rng.choice(slots))
            index.change({place: entry})
        if rng.random() < 0.5:
            key = page_key(rng.choice((0, 1)), rng.choice((0, 1, 2**32 - 1)))
            row = rng.randbytes(64)
            page = edit(key, None, [(at, row) for at in range(rng.randint(1, PAGE_SLOTS))])
            with index._environment.begin(write=True) as transaction:
                transaction.put(key, bytes(page))


def _harm_meta(directory: Path, rng: random.Random) -> None:
    meta = directory / "meta.json"
    meta.write_bytes(changed_json(meta.read_text(), rng))


def _harm_segments(directory: Path, rng: random.Random) -> None:
    for file in sorted(directory.glob("g*/*.seg")):
        if rng.random() < 0.5:
            file.write_bytes(changed(file.read_bytes(), rng))


def _harm_all(directory: Path, rng: random.Random) -> None:
    for harm in (_harm_index, _harm_meta, _harm_segments):
        if rng.random() < 0.6:
            harm(directory, rng)


HARMS: dict[str, Callable[[Path, random.Random], None]] = {
    "index": _harm_index,
    "entries": _harm_entries,
    "meta": _harm_meta,
    "segments": _harm_segments,
    "all": _harm_all,
}


def stats(folder: str, valid: str, seed: str, rounds: str) -> None:
    """Hostile files in the place of a server's numbers, shown by every command that shows them."""
    raw, file = Path(valid).read_bytes(), Path(folder, "demo.1.0.tcs")
    made = [raw, *sweep(raw, len(raw) // 8)]
    for number in range(int(rounds)):
        rng = random.Random(f"{seed} {number}")
        file.write_bytes(made[number] if number < len(made) else changed(raw, rng))
        with named(f"stats, seed {seed}, round {number}"):
            for words in LOOKS:
                ask(tiercache, words, file)
            ask(top, ("--once", "FILE"), file)
            ask(top, ("--json", "FILE"), file)


def _huge(file: Path) -> None:
    file.touch()
    os.truncate(file, 1 << 40)


STRANGE: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda file, _: os.mkfifo(file),
    "directory": lambda file, _: file.mkdir(),
    "nothing": lambda file, _: None,
    "empty file": lambda file, _: file.touch(),
    "huge file": lambda file, _: _huge(file),
    "link to a file": lambda file, victim: file.symlink_to(victim),
    "link to a directory": lambda file, victim: file.symlink_to(victim.parent),
    "link to nothing": lambda file, victim: file.symlink_to(victim.with_name("new")),
    "link to itself": lambda file, _: file.symlink_to(file),
    "link to a device": lambda file, _: file.symlink_to("/dev/zero"),
}
PLACES: Sequence[str] = (
    "meta.json",
    "meta.new",
    "lock",
    "index",
    "index/data.mdb",
    "index/lock.mdb",
    "index/compact",
    "g0",
    "g0/000001.seg",
    "g0/000003.seg.new",
)


def strange(folder: str, what: str) -> None:
    """Something else in the place of each file and directory of a pool, one at a time."""
    path, pristine, victim = (Path(folder, name) for name in ("pool", "pristine", "v/victim"))
    fill(pristine)
    victim.parent.mkdir()
    victim.write_bytes(b"precious" * 4096)

    for place in PLACES:

        def harm(directory: Path, place: str = place) -> None:
            file = directory / place
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
            STRANGE[what](file, victim)

        with named(f"{what} at {place}"):
            attack_pool(path, pristine, harm)
            if victim.read_bytes() != b"precious" * 4096:
                raise Unexpected("a file outside of the pool was changed")
            if [each.name for each in victim.parent.iterdir()] != ["victim"]:
                raise Unexpected("a file was made outside of the pool")


def imports(folder: str, pool: str, seed: str, rounds: str) -> None:
    """Hostile exports, with records and without, taken into a new pool and into one that is."""
    import_.MIN_FREE_BYTES = 0  # type: ignore[misc]
    lines, tar = Path(folder, "export.jsonl"), Path(folder, "export.tar")
    ask(tiercache, ("export", "POOL", "-o", str(lines), "--data", str(tar)), Path(pool))
    path, file = Path(folder, "target", "pool"), Path(folder, "hostile")
    for number in range(int(rounds)):
        rng = random.Random(f"{seed} {number}")
        raw = rng.choice((lines, tar)).read_bytes()
        head, line, rest = raw.partition(b"\n")
        if line and rng.random() < 0.5 and raw[:1] == b"{":
            file.write_bytes(changed_json(head.decode(), rng) + line + rest)
        else:
            file.write_bytes(changed(raw, rng))
        shutil.rmtree(path.parent, ignore_errors=True)
        path.mkdir(parents=True)
        with named(f"import, seed {seed}, round {number}"):
            ask(tiercache, ("import", "POOL", str(file), "--create", "--yes"), path)
            ask(tiercache, ("import", "POOL", str(file), "--dry-run", "--json"), Path(pool))
            serve(path)
            if [each.name for each in path.parent.iterdir()] != ["pool"]:
                raise Unexpected("a file was made outside of the pool")
