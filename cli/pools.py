# SPDX-License-Identifier: Apache-2.0
"""Which pool a command looks at, what it says, and how old that is.

Covers ``--pool``, the snapshot of a stats segment, and the line or object that says where numbers
come from. How a pool is found is ``tiercache.stats.pools``; what lies on disk is
``tiercache.cli.cold``.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.table import clean, duration
from tiercache.errors import TierCacheError
from tiercache.stats.files import FileName
from tiercache.stats.model import SEQUENCE_DIGITS, Phase, Snapshot

if TYPE_CHECKING:
    from tiercache.stats.reader import SegmentReader


#: A running server writes four times per second; what is older than this is worth saying.
QUIET_S: Final = 2.0
#: More than clocks of two processes on one machine differ.
AHEAD_S: Final = 1.0
ENDED: Final = {
    Phase.CLOSED: "closed in order",
    Phase.FAILED: "published nothing after a fault",
}


class NotRunning(click.ClickException):
    """A command waits for what comes, and nothing comes any more."""

    exit_code = ExitCode.NOT_RUNNING

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(f"the server has ended; {trailer(snapshot)}")


def option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--pool``; the command gets a ``pool``, None if it is not given."""
    return click.option(
        "--pool",
        metavar="NAME|PID|PATH",
        shell_complete=_complete_pools,
        help="A server's pool.  [$TIERCACHE_POOL, or the only one that runs]",
    )(command)


@contextmanager
def reading(pool: str | None) -> Iterator["SegmentReader"]:
    """The reader of a pool's segment, whether its process runs or not.

    Raises: NoPoolError, FormatError, and TierCacheError if there are several.
    """
    from tiercache.stats import pools
    from tiercache.stats.reader import SegmentReader

    reader = SegmentReader(pools.resolve(pool))
    try:
        yield reader
    finally:
        reader.close()


def look(pool: str | None) -> Snapshot:
    """What a pool says now. Raises as ``reading`` does."""
    with reading(pool) as reader:
        return reader.snapshot(now=now())


def runs(snapshot: Snapshot) -> bool:
    """Whether anything may still come."""
    return snapshot.alive and snapshot.phase in (Phase.INIT, Phase.RUN)


def now() -> float:
    """Seconds since the epoch."""
    return time.time()


def pause(seconds: float) -> None:
    """Let a server go on before it is asked again."""
    time.sleep(seconds)


def source(snapshot: Snapshot) -> dict[str, object]:
    """For programs: where numbers come from, and whether somebody still writes there."""
    pool = snapshot.pool
    return {
        "kind": snapshot.source,
        "path": None if pool is None else pool.path,
        "pool": None if pool is None else pool.name,
        "pid": None if pool is None else pool.pid,
        "rank": rank(snapshot),
        "alive": snapshot.alive,
        "phase": snapshot.phase.name.lower(),
        "taken": snapshot.taken,
        "heartbeat": snapshot.heartbeat,
        "torn": snapshot.torn,
    }


def trailer(snapshot: Snapshot) -> str:
    """For people: ``source: segment pid 41712 rank 0, 0.3s old``."""
    pool = snapshot.pool
    who = "" if pool is None else f" pid {pool.pid} rank {rank(snapshot)}"
    torn = "; it died in the middle of a change, so numbers may not fit together"
    return f"source: {snapshot.source}{who}, {freshness(snapshot)}{torn * snapshot.torn}"


def freshness(snapshot: Snapshot) -> str:
    """How far the numbers can be believed, in words."""
    age = max(snapshot.taken - snapshot.heartbeat, 0.0)
    old = duration(age)
    if is_ahead(snapshot):
        state = ENDED.get(snapshot.phase, "running" if snapshot.alive else "ended")
        return f"{state}; times are those of a replay"
    if snapshot.phase in ENDED:
        return f"{ENDED[snapshot.phase]} {old} ago; ages are as of then"
    if not snapshot.alive:
        return f"ended without closing, last written {old} ago; ages are as of then"
    if snapshot.phase is Phase.INIT:
        return f"still starting, {old} old"
    if age <= QUIET_S:
        return f"{old} old"
    return f"idle for {old}" if snapshot.running == 0 else f"{old} old: it is busy, or hangs"


def is_ahead(snapshot: Snapshot) -> bool:
    """Whether the writer has a clock of its own, as a replay has."""
    return snapshot.heartbeat - snapshot.taken > AHEAD_S


def moment(snapshot: Snapshot) -> float:
    """When the numbers are of, by the writer's clock: now, or when it ended."""
    if runs(snapshot) and not is_ahead(snapshot):
        return snapshot.taken
    return snapshot.heartbeat


def rank(snapshot: Snapshot) -> int | None:
    """Which of several engines wrote the segment; the file's name says."""
    name = None if snapshot.pool is None else FileName.parse(Path(snapshot.pool.path).name)
    return None if name is None else name.rank


def since(moment: float | None, at: float) -> float | None:
    """Seconds that have passed, to the millisecond; clocks of two processes may differ a little."""
    return None if moment is None else max(round(at - moment, 3), 0.0)


def number(sequence: int) -> str:
    """A sequence as it is called: ``c7f3a1``."""
    return f"{sequence:0{SEQUENCE_DIGITS}x}"


def chosen_group(snapshot: Snapshot, name: str) -> str:
    """A group by its name. Raises click.UsageError, which names those that there are."""
    names = [group.name for group in snapshot.groups]
    if name not in names:
        known = ", ".join(map(clean, names)) or "none yet"
        raise click.UsageError(f"there is no group {name!r}; there are: {known}")
    return name


def chosen_sequence(snapshot: Snapshot, prefix: str) -> int:
    """A sequence by the digits that its number begins with.

    Raises: TierCacheError if there is none, click.UsageError if there are several.
    """
    found = [s.number for s in snapshot.sequences if number(s.number).startswith(prefix.lower())]
    if not found:
        raise TierCacheError(f"there is no sequence {prefix!r}; 'tiercache seq' lists them")
    if len(found) > 1:
        names = ", ".join(map(number, found[:8]))
        raise click.UsageError(f"{prefix!r} is not unique: {names}{', …' * (len(found) > 8)}")
    return found[0]


def complete_groups(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return _completed(ctx, incomplete, lambda seen: [(g.name, g.kind) for g in seen.groups])


def complete_sequences(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return _completed(
        ctx,
        incomplete,
        lambda seen: [(number(s.number), f"{s.turns} turns") for s in seen.sequences],
    )


def _complete_pools(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from tiercache.stats import pools

    try:
        found = pools.found(pools.directory())
    except (OSError, TierCacheError):
        return []
    return [
        CompletionItem(each.name, help=f"pid {each.pid}")
        for each in found
        if each.alive and each.name.startswith(incomplete)
    ]


def _completed(
    ctx: click.Context, incomplete: str, names: Callable[[Snapshot], list[tuple[str, str]]]
) -> list[CompletionItem]:
    """Never says what is wrong: the shell is in the middle of a line."""
    try:
        seen = look(ctx.params.get("pool"))
    except (OSError, TierCacheError):
        return []
    return [CompletionItem(n, help=text) for n, text in names(seen) if n.startswith(incomplete)]
