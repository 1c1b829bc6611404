"""Web servers: byte ranges and sizes of files, with one plain request each on a reused connection.

The stores' own libraries wrap every request, which takes longer than the transfer for ranges of a megabyte. So `s3.py`
signs an address once per object, and this module requests its ranges.

It uses http.client: urllib3 takes 1.5 times as long for ranges of 128 KiB (32 threads on loopback,
`python benchmarks/range_clients.py`).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from halofeed.storage.base import ANY, SILENT_SECONDS, FileInfo, Files, seconds_for
from halofeed.storage.retry import Fault, fault_of
from halofeed.system.addresses import Address
from halofeed.system.errors import UsageError

_MAX_REDIRECTS = 5
_PIECE_BYTES = 1 << 20
"""Read of a body whose size is unknown."""
_PORTS = {"http": 80, "https": 443}
_UNRESERVED = "%/:=&?~#+!$,;'@()*[]"
_REDIRECTS, _ABSENT, _NO_SUCH_RANGE = (301, 302, 303, 307, 308), (404, 410), 416


class WebError(OSError):
    """An answer of a server without bytes; `status` is its number."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status


class RefusedRedirectError(WebError):
    """A redirect to a server that is not allowed."""


def check_redirect(status: int, origin: str, target: str, allowed: Sequence[str]) -> None:
    """Refuse redirects to other servers, so that a data set's server cannot make this machine read internal hosts.

    Args:
        status: status of the answer.
        origin: the requested address.
        target: the address that the server redirects to.
        allowed: other hosts, as of an `Address`.

    Raises:
        RefusedRedirectError: the target is another host or port that is not allowed, or is not encrypted any more.

    >>> check_redirect(302, "http://host/a", "https://host/b", ())
    >>> check_redirect(302, "http://host/a", "http://cdn/b", ("cdn",))
    """
    before, after = urlsplit(origin), urlsplit(target)
    if after.scheme not in _PORTS or after.hostname is None:
        raise RefusedRedirectError(
            status, f"the server redirects to {Address(target)}, which is not a web address"
        )
    if before.scheme == "https" and after.scheme == "http":
        raise RefusedRedirectError(
            status, f"the server redirects from https to {Address(target)}, which is not encrypted"
        )
    host, port = after.hostname, _port(after)
    if _is_same_server(before, after) or not {"*", host, f"{host}:{port}"}.isdisjoint(allowed):
        return
    named = host if after.port is None else f"{host}:{after.port}"
    raise RefusedRedirectError(
        status,
        f"the server sends to another host, {named}; if that is meant, allow it: --redirects {named}, or in Python "
        f"Loader(Address(..., redirects=({named!r},)))",
    )


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def _is_same_server(before: SplitResult, after: SplitResult) -> bool:
    """Return whether host and port are the same, or change only from http to https at their usual ports."""
    ports = _port(before), _port(after)
    return before.hostname == after.hostname and (ports[0] == ports[1] or ports == (80, 443))


class RangeReader:
    """Reader of byte ranges on reused connections; safe to use from several threads of one process.

    Args:
        redirects: allowed hosts, as of an `Address`.
        certificates: file or folder of the trusted certificates; None: those of the system, or of SSL_CERT_FILE.
    """

    def __init__(self, redirects: Sequence[str] = (), certificates: str | None = None) -> None:
        self._redirects = redirects
        self._idle: defaultdict[tuple[str, str], deque[http.client.HTTPConnection]] = defaultdict(deque)
        is_folder = certificates is not None and os.path.isdir(certificates)
        self._context = ssl.create_default_context(
            cafile=None if is_folder else certificates, capath=certificates if is_folder else None
        )

    def __del__(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()

    def get(self, address: str, start: int, stop: int, seconds: float) -> bytearray:
        """Return the bytes of an object from `start` to before `stop`; fewer if it ends earlier.

        Raises:
            FileNotFoundError: the object does not exist.
            WebError: the server refuses, or does not support ranges.
            OSError, http.client.HTTPException: the server does not answer in time, or ends the connection.
        """
        deadline = time.monotonic() + seconds
        span = {"Range": f"bytes={start}-{stop - 1}"}
        with self._answer("GET", address, span, deadline) as (connection, response):
            return _body(connection, response, start, stop, deadline)

    def size(self, address: str, seconds: float) -> int | None:
        """Return the size of an object in bytes; None if the server does not say it. Errors are those of `get`."""
        deadline = time.monotonic() + seconds
        with self._answer("HEAD", address, {}, deadline) as (_, response):
            if response.status in _ABSENT:
                raise FileNotFoundError(response.reason)
            size = _size_in(response) if response.status == 200 else None
            response.read()
        if size is not None:
            return size
        # Some servers refuse HEAD, and signed addresses are often valid for GET only.
        with self._answer("GET", address, {"Range": "bytes=0-0"}, deadline) as (_, response):
            _check(response, (200, 206, _NO_SUCH_RANGE))
            return _size_in(response)

    @contextlib.contextmanager
    def _answer(
        self, method: str, address: str, headers: Mapping[str, str], deadline: float
    ) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
        """Provide the response to a request, whose redirects are followed."""
        user = _authorization(urlsplit(address))
        for _ in range(_MAX_REDIRECTS):
            parts = urlsplit(address)
            place = parts.scheme, parts.netloc.rpartition("@")[2]
            connection = self._connection(*place)
            try:
                response = _request(connection, method, parts, {**headers, **user}, deadline)
                if response.status in _REDIRECTS:
                    # The user and the password are sent to another server only if the address of the redirect has them.
                    target = urljoin(address, response.getheader("Location", ""))
                    check_redirect(response.status, address, target, self._redirects)
                    after = urlsplit(target)
                    is_same = place == (after.scheme, after.netloc.rpartition("@")[2])
                    user = _authorization(after) or (user if is_same else {})
                    address = target
                    connection.close()
                    continue
                yield connection, response
            except BaseException:
                connection.close()
                raise
            # A connection can be used again once its response was read to the end.
            if response.isclosed():
                self._idle[place].append(connection)
            else:
                connection.close()
            return
        raise WebError(310, "too many redirects")

    def _connection(self, scheme: str, host: str) -> http.client.HTTPConnection:
        with contextlib.suppress(IndexError):
            return self._idle[scheme, host].pop()
        proxy = _proxy_of(scheme, host)
        if scheme == "https":
            connection = http.client.HTTPSConnection(
                host if proxy is None else proxy.place, context=self._context
            )
            if proxy is not None:
                connection.set_tunnel(host, headers=dict(proxy.headers))
            return connection
        return http.client.HTTPConnection(host) if proxy is None else _ProxiedConnection(proxy, host)


@dataclass(frozen=True, kw_only=True)
class _Proxy:
    """HTTP proxy: its host and port, and the headers that it asks for."""

    place: str
    headers: Mapping[str, str]


def _proxy_of(scheme: str, host: str) -> _Proxy | None:
    """Return the proxy for a server by HTTP_PROXY, HTTPS_PROXY and NO_PROXY; None without one.

    Raises:
        UsageError: the proxy is not one of HTTP, such as socks5://.
    """
    address = getproxies().get(scheme, "")
    if not address or proxy_bypass(host):
        return None
    # curl and requests also accept a proxy without http://.
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme != "http" or parts.hostname is None:
        raise UsageError(
            f"{scheme.upper()}_PROXY={Address(address)}: expected a proxy as http://HOST:PORT; set that, or add "
            f"{host.partition(':')[0]} to NO_PROXY"
        )
    user = _authorization(parts)
    headers = {"Proxy-Authorization": user["Authorization"]} if user else {}
    return _Proxy(place=parts.netloc.rpartition("@")[2], headers=headers)


class _ProxiedConnection(http.client.HTTPConnection):
    """Connection to a proxy that requests plain HTTP by complete addresses (RFC 9112, section 3.2.2)."""

    def __init__(self, proxy: _Proxy, host: str) -> None:
        super().__init__(proxy.place)
        self._prefix, self._headers = f"http://{host}", proxy.headers

    def putrequest(self, method: str, url: str, *arguments: Any, **more: Any) -> None:
        super().putrequest(method, f"{self._prefix}{url}", *arguments, **more)
        for name, value in self._headers.items():
            self.putheader(name, value)


class WebFiles(Files):
    """Files of a web server, which can be read by ranges and not listed; see `Files`.

    Args:
        place: the address, whose user, password and query go with every request.
    """

    lists_folders = False

    def __init__(self, place: Address) -> None:
        self.root, self._place = str(place), place
        self._reader = RangeReader(place.redirects)

    def fault_of(self, error: Exception) -> Fault:
        if isinstance(error, RefusedRedirectError):
            return Fault.FINAL
        return fault_of(error, getattr(error, "status", 0))

    def read_once(self, path: str, start: int, stop: int | None, seconds: float | None = None) -> bytearray:
        if stop is None:
            raise ValueError("web servers are read by ranges")
        return self._reader.get(self._full(path), start, stop, seconds or seconds_for(stop - start))

    def stat_once(self, path: str) -> FileInfo | None:
        size = self._reader.size(self._full(path), SILENT_SECONDS)
        return None if size is None else FileInfo(size=size, version=ANY, age_seconds=0)

    def _full(self, path: str) -> str:
        return (self._place / path if path else self._place).full


def _authorization(parts: SplitResult) -> dict[str, str]:
    """Return the header for the user and password of an address."""
    user, mark, _ = parts.netloc.rpartition("@")
    if not mark:
        return {}
    name, _, password = map(unquote, user.partition(":"))
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def _size_in(response: http.client.HTTPResponse) -> int | None:
    """Return the size of the complete object by the headers of a response."""
    found = response.getheader("Content-Length", "")
    if response.status != 200:  # 206 and 416 state the range, as "bytes 0-0/1234" (RFC 9110, section 14.4)
        found = response.getheader("Content-Range", "").rpartition("/")[2]
    # The length of a compressed response is not that of the file.
    elif response.getheader("Content-Encoding", "identity") != "identity":
        return None
    return int(found) if found.isdecimal() else None


def _check(response: http.client.HTTPResponse, allowed: tuple[int, ...]) -> None:
    """Raise FileNotFoundError or WebError for any other status."""
    if response.status in _ABSENT:
        raise FileNotFoundError(response.reason)
    if response.status not in allowed:
        raise WebError(response.status, response.reason)


def _request(
    connection: http.client.HTTPConnection,
    method: str,
    parts: SplitResult,
    headers: Mapping[str, str],
    deadline: float,
) -> http.client.HTTPResponse:
    target = quote(parts.path or "/", _UNRESERVED) + (f"?{parts.query}" if parts.query else "")
    while True:
        is_kept = connection.sock is not None
        try:
            _wait_until(connection, deadline)
            connection.request(method, target, headers={"Accept-Encoding": "identity", **headers})
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            # The server may have closed a reused connection in the meantime.
            if not is_kept or isinstance(error, TimeoutError):
                raise


def _body(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    start: int,
    stop: int,
    deadline: float,
) -> bytearray:
    _check(response, (200, 206, _NO_SUCH_RANGE))
    if response.status == _NO_SUCH_RANGE:  # it begins at or after the file's end
        return bytearray()
    size = stop - start
    # A server without ranges answers 200 with the whole file (RFC 9110, section 14.2), which may be very large.
    if (response.status == 200 and start) or (response.length or 0) > size:
        raise WebError(
            400, "the server does not give ranges; use one that does, or copy the data set to local disk"
        )
    if response.length is None:  # a chunked response ends without having stated its size
        return _unsized_body(connection, response, size, deadline)
    # The range may be far larger than the file, such as that of an option's file, whose bound is the machine's memory.
    size = min(size, response.length)
    data = bytearray(size)
    left = memoryview(data)
    while left:
        _wait_until(connection, deadline)
        got = response.readinto(left)
        if not got:
            break
        left = left[got:]
    else:
        # An empty body has not been read, and only a read frees the connection.
        with contextlib.suppress(OSError, http.client.HTTPException):
            response.read(0)
        return data
    done = size - len(left)
    left.release()
    del data[done:]
    return data


def _unsized_body(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    size: int,
    deadline: float,
) -> bytearray:
    """Return the first `size` bytes of a response that does not state its length, fewer at its end."""
    data = bytearray()
    while len(data) < size:
        _wait_until(connection, deadline)
        piece = response.read(min(_PIECE_BYTES, size - len(data)))
        if not piece:
            return data
        data += piece
    # The last bytes of a chunked response follow the data, and only their read frees the connection.
    with contextlib.suppress(OSError, http.client.HTTPException):
        response.read(0)
    return data


def _wait_until(connection: http.client.HTTPConnection, deadline: float) -> None:
    """Set the connection's timeout so that the next operation ends by the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    connection.timeout = left
    if connection.sock is not None:
        connection.sock.settimeout(left)
