"""A proxy on the loopback before a store's server, through which some requests go wrong."""

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from tests.support.loopback import listening

Fault = Callable[[str, str], str]
"""What goes wrong with a request, by its method and path: one of `Proxy`'s words, or ""."""
_ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>on purpose</Message></Error>"
_CODES = {"500": "InternalError", "503": "SlowDown", "429": "TooManyRequests", "403": "ExpiredToken"}
_HOP = ("connection", "transfer-encoding", "keep-alive", "content-length")


@dataclass
class Proxy:
    """What went through it, and what goes wrong.

    Faults: a number of `_CODES` is answered so, "reset" before the server hears of the request, "lost" after it has
    answered, "cut" in the middle of the answer, and "stall" has all of it come `stall_seconds` later.
    """

    target: str
    endpoint: str = ""
    fault: Fault = lambda method, path: ""
    stall_seconds: float = 1.0
    asked: list[tuple[str, str]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def at_random(self, share: float, seed: int, kinds: tuple[str, ...]) -> None:
        """Have such a share of all requests go wrong, each in one of these ways."""
        generator, lock = random.Random(seed), threading.Lock()

        def fault(method: str, path: str) -> str:
            with lock:
                kind = generator.choice(kinds) if generator.random() < share else ""
            # fake-gcs-server takes the bytes of a part that is sent again for more of them.
            return "reset" if kind in ("lost", "cut") and method == "PUT" and "upload_id" in path else kind

        self.fault = fault


def _handler_of(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    target = urlsplit(proxy.target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.fault(self.command, self.path)
            proxy.asked.append((self.command, self.path))
            proxy.faults[fault] += bool(fault)
            if fault == "stall":
                time.sleep(proxy.stall_seconds)
            if fault == "reset":
                self.reset()
                return
            if fault in _CODES:
                self.give(int(fault), {}, _ERROR.format(_CODES[fault]).encode())
                return
            assert target.hostname is not None
            connection = http.client.HTTPConnection(target.hostname, target.port or 80, timeout=60)
            try:
                connection.request(self.command, self.path, body or None, dict(self.headers.items()))
                response = connection.getresponse()
                data = response.read()
            finally:
                connection.close()
            if fault == "lost":
                self.reset()
                return
            kept = {name: value for name, value in response.getheaders() if name.lower() not in _HOP}
            if "Location" in kept:
                kept["Location"] = kept["Location"].replace(proxy.target, proxy.endpoint)
            size = response.getheader("Content-Length") if self.command == "HEAD" else None
            self.give(response.status, kept, data, cut=fault == "cut", size=size)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 - as http.server calls them

        def give(self, status: int, headers: dict[str, str], data: bytes, *, cut=False, size=None) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", size or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                self.reset()

        def reset(self) -> None:
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

    return Handler


@contextmanager
def between(target: str) -> Iterator[Proxy]:
    """A proxy before an endpoint while the block runs."""
    proxy = Proxy(target)
    with listening(_handler_of(proxy)) as proxy.endpoint:
        yield proxy
