# SPDX-License-Identifier: Apache-2.0
"""Begins to publish a cache, or leaves it alone.

Covers the start of a segment, and whatever keeps it from starting.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from tiercache import __version__
from tiercache.cache import TieredCache
from tiercache.probe.board import BUDGET_S, Board
from tiercache.probe.publisher import Publisher
from tiercache.stats import pools
from tiercache.stats.model import Phase, Pool
from tiercache.stats.writer import SegmentWriter

logger = logging.getLogger(__name__)

#: Set to 0, no segment is written, whatever the settings are.
STATS = "TIERCACHE_STATS"


def attach(
    cache: TieredCache,
    *,
    name: str,
    writer: str = "serve",
    workers: int = 1,
    directory: Path | None = None,
    rank: int = 0,
    clock: Callable[[], float] = time.time,
    budget_s: float = BUDGET_S,
) -> Publisher | None:
    """Publish ``cache`` from now on, with the tiers that it has; None if that is not to be.

    Args:
        cache: not observed by anybody else; its requests begin later.
        name: of the model or the workload.
        writer: ``serve``, ``replay`` or ``demo``.
        workers: workers of whose slots the cache keeps the books.
        directory: where segments are; None: where readers look for them.
        rank: tells apart several caches of one process.
        clock: seconds since the epoch.
        budget_s: seconds that victims, and sequences, of one publication may take, each.

    Raises: nothing; why there is no segment is logged.
    """
    if os.environ.get(STATS) == "0":
        return None
    try:
        board = Board(cache, workers, budget_s=budget_s)
        pool = Pool(
            name=name,
            pid=os.getpid(),
            host=socket.gethostname(),
            started=clock(),
            workers=workers,
            writer=writer,
            block_tokens=cache.primary.tokens_per_hash,
            policy=board.policy,
            tiercache=__version__,
            path="",
        )
        return _begin(cache, board, pool, directory or pools.directory(), rank, clock)
    except Exception as error:  # noqa: BLE001 - whatever it is, the cache goes on without
        logger.warning("no stats segment is written: %s", error)
        return None


def _begin(  # noqa: PLR0917 - called once, above
    cache: TieredCache,
    board: Board,
    pool: Pool,
    directory: Path,
    rank: int,
    clock: Callable[[], float],
) -> Publisher:
    pools.sweep(directory)
    writer = SegmentWriter.create(directory, pool, board.groups(), board.tier_rows(), rank=rank)
    try:
        publisher = Publisher(cache, writer, board, clock)
    except BaseException:
        writer.close(Phase.FAILED)
        raise
    publisher.changed()
    return publisher
