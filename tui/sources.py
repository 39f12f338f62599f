# SPDX-License-Identifier: Apache-2.0
"""Where snapshots come from, and one of the places: the metrics page of a vLLM server.

Covers fetching the page and every way in which that fails. Reading it is ``metrics``; when a
failure means that the server is gone is decided by ``feed``. Pools of this machine are ``pools``,
recordings ``record``.
"""

import http.client
import time
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import ProxyHandler, build_opener

from tiercache.errors import ConfigError
from tiercache.stats.model import Snapshot
from tiercache.tui.metrics import parse
from tiercache.tui.trouble import SourceError, Trouble

#: A busy API server answers late, as the page is made by the event loop that serves requests.
TIMEOUT_S = 5.0
#: A vLLM page is below 1 MiB; an endless answer must not fill the memory of the monitor.
MAX_PAGE_BYTES = 32 * 2**20


class Source(Protocol):
    """Anything that yields snapshots.

    Locking: none; one thread at a time uses it, and closes it.
    """

    @property
    def target(self) -> str:
        """What the reader is told to look at."""

    @property
    def span(self) -> tuple[float, float] | None:
        """When a recording begins and ends; None if this is no recording."""

    @property
    def notice(self) -> str:
        """What the reader should know beside the numbers; empty: nothing."""

    def fetch(self) -> Snapshot:
        """The numbers of now. May block.

        Raises:
            SourceError: if they cannot be had.
        """

    def close(self) -> None:
        """Let go of files; after this nothing is fetched."""


class MetricsSource:
    """The Prometheus page at an http address.

    Proxies of the environment are not asked: the server is on this host or near it.
    """

    span = None
    notice = ""

    def __init__(self, url: str, timeout: float = TIMEOUT_S) -> None:
        self.target = normal_url(url)
        self._timeout = timeout
        self._opener = build_opener(ProxyHandler({}))

    def fetch(self) -> Snapshot:
        return parse(self._page(), time.time())

    def close(self) -> None:
        self._opener.close()

    def _page(self) -> str:
        try:
            with self._opener.open(self.target, timeout=self._timeout) as answer:
                page: bytes = answer.read(MAX_PAGE_BYTES + 1)
                missing = answer.length
        except (OSError, http.client.HTTPException) as failure:
            raise self._explain(failure) from failure
        if len(page) > MAX_PAGE_BYTES:
            raise SourceError(Trouble.BAD_ANSWER, f"the page is over {MAX_PAGE_BYTES} bytes")
        if missing:
            raise SourceError(Trouble.BAD_ANSWER, f"the page ends {missing} bytes too early")
        return page.decode("utf-8", errors="replace")

    def _explain(self, failure: Exception) -> SourceError:
        if isinstance(failure, HTTPError):
            failure.close()
            return SourceError(Trouble.BAD_ANSWER, f"HTTP {failure.code} {failure.reason}")
        reason = failure.reason if isinstance(failure, URLError) else failure
        if isinstance(reason, TimeoutError):
            return SourceError(Trouble.NO_ANSWER, f"no answer within {self._timeout:g}s")
        if isinstance(reason, OSError):
            return SourceError(Trouble.UNREACHABLE, (reason.strerror or str(reason)).lower())
        return SourceError(Trouble.BAD_ANSWER, f"a broken answer ({type(reason).__name__})")


def normal_url(url: str) -> str:
    """``url`` with /metrics where it has no path.

    Raises:
        ConfigError: if it is not an http address.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError("url", url, "http://HOST:PORT/metrics")
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") or "/metrics"))
