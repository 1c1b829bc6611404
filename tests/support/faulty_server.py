"""A web server on loopback that gives files by ranges, and misbehaves on request."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.support.loopback import listening

Fault = Callable[[str, int], str]
"""What goes wrong with a request, by the file's name and the request's number: one of `Server`'s words, or ""."""


@dataclass
class Server:
    """What was asked of it, and what goes wrong.

    Faults: "cut" ends the connection in the middle of the body, "503" answers so, "stall" waits for `stall_seconds`
    first, "short" gives and announces fewer bytes, "flip" a wrong bit, "whole" all of the file whatever was asked,
    "403" refuses, "close" ends the connection after a whole answer without saying so, "moved" sends elsewhere, and
    "to ADDRESS" to that address.
    """

    address: str
    fault: Fault = lambda name, number: ""
    stall_seconds: float = 5.0
    latency_seconds: float = 0.0
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    users: set[str | None] = field(default_factory=set)
    most_at_once: int = 0
    refuses_head: bool = False

    def __post_init__(self) -> None:
        self.lock, self.at_once = threading.Lock(), 0

    def faults(self, *kinds: str, every: int, only: str = "tfrecord") -> list[str]:
        """Have every so many requests for files of that name go wrong, one kind after the other.

        What went wrong goes right when it is asked for again.

        Returns:
            the kinds that occurred, which grows.
        """
        failed: set[tuple[str, int, int]] = set()
        occurred: list[str] = []

        def fault(name: str, number: int) -> str:
            if self.asked[-1] in failed:
                failed.remove(self.asked[-1])
                return ""
            if number % every or only not in name:
                return ""
            failed.add(self.asked[-1])
            occurred.append(kinds[number // every % len(kinds)])
            return occurred[-1]

        self.fault = fault
        return occurred


def handler_of(folder: Path, server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            with server.lock:
                server.at_once += 1
                server.most_at_once = max(server.most_at_once, server.at_once)
            self.answer()

        def answer(self) -> None:
            name = self.path.partition("?")[0].lstrip("/").removeprefix("moved/")
            path = folder / name
            if not path.is_file():
                self.send(404, b"")
                return
            if self.command == "HEAD" and server.refuses_head:
                self.send(405, b"")
                return
            server.users.add(self.headers.get("Authorization"))
            data, status = path.read_bytes(), 200
            self.size = len(data)
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            fault = ""
            if self.command == "GET":
                start, stop = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(data))
                with server.lock:
                    server.asked.append((name, start, stop))
                    fault = server.fault(self.path, len(server.asked))
                if asked and fault != "whole":
                    data, status = data[start:stop], 206
            time.sleep(server.latency_seconds)
            if fault in ("503", "403"):
                self.send(int(fault), b"not now")
                return
            if fault == "stall":
                time.sleep(server.stall_seconds)
            if fault == "short":
                data = data[: len(data) // 2]
            if fault == "flip":
                middle = len(data) // 2
                data = data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]
            if fault == "moved" or fault.startswith("to "):
                self.begin(302)
                self.send_header(
                    "Location", fault.removeprefix("to ") if fault != "moved" else f"/moved/{name}"
                )
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send(status, data, cut=fault == "cut")
            self.close_connection |= fault == "close"

        def begin(self, status: int) -> None:
            with server.lock:
                server.at_once -= 1  # before the client can know of the answer, and ask again
            self.send_response(status)

        def send(self, status: int, data: bytes, cut: bool = False) -> None:
            self.begin(status)
            self.send_header("Content-Length", str(len(data)))
            if status == 206:
                self.send_header("Content-Range", f"{self.headers['Range'].replace('=', ' ')}/{self.size}")
            self.end_headers()
            if self.command == "HEAD":
                return
            try:
                self.wfile.write(data[: len(data) // 2] if cut else data)
                self.wfile.flush()
            except OSError:
                self.close_connection = True
            if cut:
                self.connection.close()
                self.close_connection = True

    return Handler


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server of a folder's files while the block runs."""
    server = Server("")
    with listening(handler_of(folder, server)) as server.address:
        yield server
