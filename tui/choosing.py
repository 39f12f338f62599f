# SPDX-License-Identifier: Apache-2.0
"""Opens the source that a command line asks for.

Covers which one, and what is hopeless from the start: several pools of which none was named, or
a file of another version. What may still come, like a pool that has not been started, is waited
for by the feed.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from tiercache.errors import FormatError, NoPoolError
from tiercache.stats import pools
from tiercache.tui.demo import demo
from tiercache.tui.record import Recorder, Recording
from tiercache.tui.segments import SegmentSource
from tiercache.tui.settings import Settings
from tiercache.tui.sources import MetricsSource, Source
from tiercache.tui.trouble import SourceError, Trouble


@contextmanager
def opened(settings: Settings) -> Iterator[Source]:
    """The source of a run. Whoever fetches from it closes it; what it needs ends with the block.

    Raises:
        TierCacheError: if nothing can come of it.
    """
    with ExitStack() as stack:
        source = _source(settings, stack)
        if settings.record is not None:
            source = Recorder(source, settings.record, settings.interval)
        yield source


def _source(settings: Settings, stack: ExitStack) -> Source:
    if settings.replay is not None:
        return Recording(settings.replay)
    if settings.url is not None:
        return MetricsSource(settings.url)
    if settings.demo:
        return stack.enter_context(demo())
    source = SegmentSource(lambda: pools.resolve(settings.pool))
    _refuse_hopeless(settings, source)
    return source


def _refuse_hopeless(settings: Settings, source: SegmentSource) -> None:
    """An error instead of a screen that could never show more than that error.

    Raises:
        TierCacheError: NoPoolError if several are meant, FormatError if it cannot be read.
    """
    try:
        with closing(source):
            source.fetch()
    except SourceError as failure:
        if failure.trouble is Trouble.FORMAT:
            raise FormatError(str(failure)) from failure
        if failure.trouble is Trouble.NO_POOL and _are_several(settings.pool):
            raise NoPoolError(str(failure)) from failure


def _are_several(which: str | None) -> bool:
    running = [pool for pool in pools.found(pools.directory()) if pool.runs]
    return sum(which in (None, pool.name, str(pool.pid)) for pool in running) > 1
