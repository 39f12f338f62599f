# SPDX-License-Identifier: Apache-2.0
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from tests.tui.servers import Page
from tiercache.errors import ConfigError
from tiercache.tui import sources
from tiercache.tui.sources import MetricsSource, normal_url
from tiercache.tui.trouble import SourceError, Trouble


@contextmanager
def listener(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server that takes one connection and does with it what ``talk`` does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                talk(connection)

        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def failure(url: str, timeout: float = 5.0) -> SourceError:
    with pytest.raises(SourceError) as caught:
        MetricsSource(url, timeout).fetch()
    return caught.value


def test_a_page_is_fetched_again_each_time(page: Page, metrics_text: str) -> None:
    page.text = metrics_text
    source = MetricsSource(page.url)
    assert source.fetch().groups[0].slots.live == 2198
    page.text = metrics_text.replace("2198.0", "2199.0")
    assert source.fetch().groups[0].slots.live == 2199
    assert page.requests == 2


def test_nothing_listens(page: Page) -> None:
    page.close()
    assert failure(page.url).trouble is Trouble.UNREACHABLE
    assert str(failure(page.url)) == "connection refused"


@pytest.mark.parametrize(("status", "words"), [(404, "HTTP 404 Not Found"), (503, "HTTP 503")])
def test_an_http_error(page: Page, status: int, words: str) -> None:
    page.status = status
    assert failure(page.url).trouble is Trouble.BAD_ANSWER
    assert str(failure(page.url)).startswith(words)


def test_no_answer_in_time() -> None:
    with listener(lambda connection: connection.recv(1)) as url:
        silent = failure(url, timeout=0.1)
    assert silent.trouble is Trouble.NO_ANSWER
    assert str(silent) == "no answer within 0.1s"


def test_it_hangs_up() -> None:
    with listener(lambda connection: None) as url:
        assert failure(url).trouble is Trouble.UNREACHABLE


def test_it_does_not_speak_http() -> None:
    with listener(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as url:
        assert failure(url).trouble is Trouble.BAD_ANSWER


def test_it_promises_more_than_it_sends() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nvllm:"
    with listener(lambda connection: connection.sendall(answer)) as url:
        cut = failure(url)
    assert cut.trouble is Trouble.BAD_ANSWER
    assert str(cut) == "the page ends 995 bytes too early"


def test_it_ends_within_a_chunk() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\nvllm:"
    with listener(lambda connection: connection.sendall(answer)) as url:
        assert str(failure(url)) == "a broken answer (IncompleteRead)"


def test_an_endless_page_is_refused(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_PAGE_BYTES", 1000)
    page.text = "vllm:" * 1000
    assert failure(page.url).trouble is Trouble.BAD_ANSWER


def test_proxies_are_not_asked(
    page: Page, metrics_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    page.text = metrics_text
    assert MetricsSource(page.url).fetch().groups


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://host:8000", "http://host:8000/metrics"),
        ("http://host:8000/", "http://host:8000/metrics"),
        ("https://host/vllm/metrics", "https://host/vllm/metrics"),
        ("http://[::1]:8000/metrics?name[]=a", "http://[::1]:8000/metrics?name[]=a"),
    ],
)
def test_urls(url: str, normal: str) -> None:
    assert normal_url(url) == normal


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8000",
        "file:///etc/passwd",
        "http://",
        "http://host:port",
        "http://[::1",
        "http://h:0",
    ],
)
def test_what_is_no_http_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed: http://HOST:PORT/metrics"):
        normal_url(url)
