"""HTTP server of a data set's records, for the user of this machine alone.

It listens on loopback only. Other users and web pages of other sites can connect to loopback too, therefore every
address begins with a token that is drawn anew, and the Host header must name this server: a page of another site whose
name was rebound to 127.0.0.1 sends its own name (DNS rebinding). Records are named by numbers, never by paths.
"""

from __future__ import annotations

import hmac
import secrets
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from halofeed.inspection.serve.served_set import ServedSet, number_in, parse_query, words_of
from halofeed.system.errors import UsageError

_HOST = "127.0.0.1"
_TOKEN_BYTES = 24
_MAX_FIELDS = 20
_TIMEOUT_S, _STRANGER_TIMEOUT_S = 60, 5
"""Seconds that a connection may be silent, after and before it sent the token."""
_CONNECTIONS = 64
"""Connections at the same time, each a thread; more are closed at once. A browser opens 6 to one server."""
_PORTS = 65_535
_METHODS = ("HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
_HTML = "text/html; charset=utf-8"


class RecordServer(socketserver.ThreadingTCPServer):
    """Server of a data set's records on loopback.

    It is no `http.server.HTTPServer`, which looks up the name of the machine when it binds: that may take seconds.

    Args:
        served: pages to send.
        port: port to listen on; 0 for any free one.

    Raises:
        UsageError: the port is no port, or is in use.
    """

    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False

    def __init__(self, served: ServedSet, port: int = 0) -> None:
        if not 0 <= port <= _PORTS:
            raise UsageError(f"--port {port}: expected 0 to {_PORTS}; 0 takes a free one")
        self.served = served
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        try:
            super().__init__((_HOST, port), _RecordHandler)
        except OSError as error:
            raise UsageError(
                f"--port {port}: cannot be used: {error.strerror or error}; leave --port away to take a free one"
            ) from error
        self.hosts = hosts_of(self.server_address[1])
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._stop, self._is_reading = threading.Event(), threading.Event()
        self._reader = threading.Thread(target=served.prepare, args=(self._stop,), daemon=True)

    @property
    def address(self) -> str:
        """Return the address of the first page, with the token."""
        return f"http://{_HOST}:{self.server_address[1]}/{self.token}/"

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Read what is searched in a thread, and answer requests until `shutdown`."""
        self._reader.start()
        self._is_reading.set()
        try:
            super().serve_forever(poll_interval)
        finally:
            self._stop.set()

    def wait_until_read(self) -> None:
        """Return when all records were read and reviewed; `serve_forever` must run in another thread."""
        self._is_reading.wait()
        self._reader.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread; close it if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection until it is closed."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that closed its connection."""


def hosts_of(port: int) -> frozenset[str]:
    """Return the Host headers that name a server of this machine.

    A browser leaves the default port of HTTP away (RFC 9110 4.2.1, 7.2).

    >>> sorted(hosts_of(80))
    ['127.0.0.1', '127.0.0.1:80', 'localhost', 'localhost:80']
    """
    names = (_HOST, "localhost")
    return frozenset(f"{name}:{port}" for name in names) | frozenset(names if port == HTTP_PORT else ())


class _RecordHandler(BaseHTTPRequestHandler):
    server: RecordServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "halofeed", ""
    timeout = _STRANGER_TIMEOUT_S
    # One write for the head and the body: two wait for each other's acknowledgment (RFC 896, RFC 1122 4.2.3.2).
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a request."""
        if self.headers.get_all("Host", []) not in ([host] for host in self.server.hosts):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This server answers by its own name only.")
            return
        parts = urlsplit(self.path)
        token, _, place = parts.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "Open the address that `halofeed report --serve` printed.")
            return
        self.connection.settimeout(_TIMEOUT_S)
        try:
            fields = dict(parse_qsl(parts.query, max_num_fields=_MAX_FIELDS))
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "Too many fields.")
            return
        try:
            with self.server.served.answering():
                answer = self._answer(place, fields)
        except Exception as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, words_of(error))
            return
        if answer is None:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            self._send(*answer)

    def _answer(self, place: str, fields: dict[str, str]) -> tuple[str, bytes] | None:
        """Return the media type and the bytes of a page or a picture; None if there is none at its place."""
        served = self.server.served
        if place in ("", "records"):
            page = number_in(fields.get("page", "")) or 1
            return _HTML, served.records(parse_query(fields), page).encode()
        kind, _, name = place.partition("/")
        number = number_in(name)
        if kind not in _PLACES or number is None or number >= len(served):
            return None
        return _PLACES[kind](served, number)

    def __getattr__(self, name: str) -> Any:
        # http.server calls do_METHOD.
        if name.removeprefix("do_") in _METHODS:
            return self._refuse_method
        raise AttributeError(name)

    def _refuse_method(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered.")

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        # The rest of the connection may be the body of the request.
        self.close_connection = True
        self._send("text/plain; charset=utf-8", f"{words}\n".encode("utf-8", "backslashreplace"), status)

    def _send(self, kind: str, content: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": self.server.served.policy,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store"
            if status != HTTPStatus.OK or kind == _HTML
            else "private, max-age=600",
        }
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET"
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a request's address holds the token."""


_PLACES: dict[str, Callable[[ServedSet, int], tuple[str, bytes]]] = {
    "record": lambda served, number: (_HTML, served.record(number).encode()),
    "thumbnail": lambda served, number: served.picture(number, mask=False),
    "mask": lambda served, number: served.picture(number, mask=True),
}
"""Function that returns the media type and the bytes of what belongs to a record, by the first part of its address."""
