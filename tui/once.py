# SPDX-License-Identifier: Apache-2.0
"""Reports without a terminal: once or a number of times, as text or as JSON.

Covers the looks, what is printed and the exit status; it loads no terminal toolkit.
"""

import shutil
import time
from collections.abc import Callable

from tiercache.cli import diagnostics, output
from tiercache.cli.diagnostics import ExitCode
from tiercache.tui import view
from tiercache.tui.document import document
from tiercache.tui.feed import Feed, State
from tiercache.tui.frame import Frame
from tiercache.tui.picture import picture
from tiercache.tui.settings import Settings
from tiercache.tui.sources import Source
from tiercache.tui.text import Glyphs
from tiercache.tui.trouble import SourceError, Trouble

#: Of a report that goes to a pipe; a terminal has its own.
REPORT_WIDTH = 100

#: Exit statuses of states; of ``WAITING`` it depends on what is waited for.
STATUS = {
    State.LIVE: ExitCode.OK,
    State.IDLE: ExitCode.OK,
    State.REPLAY: ExitCode.OK,
    State.GONE: ExitCode.NOT_RUNNING,
    State.CLOSED: ExitCode.NOT_RUNNING,
}
TROUBLES = {
    Trouble.NO_POOL: ExitCode.NO_POOL,
    Trouble.FORMAT: ExitCode.FORMAT,
    Trouble.UNREACHABLE: ExitCode.NOT_RUNNING,
    Trouble.NO_ANSWER: ExitCode.NOT_RUNNING,
}


def report(
    source: Source,
    settings: Settings,
    glyphs: Glyphs,
    sleep: Callable[[float], object] = time.sleep,
) -> ExitCode:
    """Print ``settings.count`` looks at ``source``; of a recording its end, or its beginning."""
    feed = Feed(time.time(), settings.interval, source.span)
    for number in range(settings.count or 1):
        if number and source.span is None:
            sleep(settings.interval)
        _look(source, feed, to_the_end=source.span is not None and settings.count is None)
        if number and feed.trouble is Trouble.ENDED:
            break
        if number and not settings.as_json:
            output.text("")
        _print(picture(source, feed, time.time(), ui=settings.ui, glyphs=glyphs), settings)
    if source.notice:
        diagnostics.warning(source.notice)
        return ExitCode.PROBLEM
    return exit_code(feed)


def exit_code(feed: Feed) -> ExitCode:
    """How a look ended."""
    state = feed.status(time.time()).state
    if state is State.WAITING and feed.trouble is not None:
        return TROUBLES.get(feed.trouble, ExitCode.PROBLEM)
    return STATUS.get(state, ExitCode.PROBLEM)


def _look(source: Source, feed: Feed, *, to_the_end: bool) -> None:
    while True:
        try:
            feed.accept(source.fetch(), time.time())
        except SourceError as failure:
            feed.fail(failure, time.time())
            return
        if not to_the_end:
            return


def _print(frame: Frame, settings: Settings) -> None:
    if settings.as_json:
        output.document(document(frame), compact=settings.count is not None)
    else:
        width = shutil.get_terminal_size((REPORT_WIDTH, 0)).columns
        output.styled(view.report(frame, width))
