"""Objects of Google Cloud Storage by its JSON interface, over connections that a process keeps."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from halofeed.pipelines.objects.base import (
    ABSENT,
    ANY,
    CONNECT_SECONDS,
    SILENT_SECONDS,
    Fault,
    Stored,
    age_seconds,
    divided,
    repeated,
    whole,
)
from halofeed.system.checksum import crc32c
from halofeed.system.retry import is_final

_CONNECTIONS: Final = 64
_DELETED_AT_ONCE: Final = 16
_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_SERVICE: Final = "https://storage.googleapis.com"


class AnswerError(Exception):
    """An answer that is no success; `status` is its number."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}".strip())
        self.status = status


class GcsObjects:
    """See `halofeed.pipelines.objects.base.ObjectStore`; STORAGE_EMULATOR_HOST names another server."""

    def __init__(self) -> None:
        from google.auth.transport.requests import AuthorizedSession
        from requests.adapters import HTTPAdapter

        host = os.environ.get("STORAGE_EMULATOR_HOST", "")
        self._service = (host if "://" in host else f"http://{host}").rstrip("/") if host else _SERVICE
        self._session = AuthorizedSession(_credentials(anonymous=bool(host)))
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=_CONNECTIONS))

    def read(self, address: str, start: int = 0, stop: int | None = None) -> bytes:
        if stop is not None and stop <= start:
            return b""
        span = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"} if start or stop else {}

        def get() -> bytes:
            with self.request(
                "GET", self._object(address), params={"alt": "media"}, headers=span, stream=True
            ) as answer:
                if answer.status_code == 416:
                    return b""
                _check(answer)
                announced = answer.headers.get("Content-Length")
                encoded = "Content-Encoding" in answer.headers
                answer.raw.decode_content = True
                data = whole(answer.raw, int(announced or 0))
                if announced is not None and not encoded and len(data) != int(announced):
                    raise ConnectionError(f"it was cut off after {len(data):,} of {int(announced):,} bytes")
                return data

        return repeated(address, get, _fault_of)

    def stat(self, address: str) -> Stored | None:
        def get() -> Stored:
            answer = _check(
                self.request("GET", self._object(address), params={"fields": "size,generation,updated"})
            )
            found = answer.json()
            age = age_seconds(datetime.fromisoformat(found["updated"]), answer.headers.get("Date"))
            return Stored(size=int(found["size"]), version=str(found["generation"]), age_seconds=age)

        try:
            return repeated(address, get, _fault_of)
        except FileNotFoundError:
            return None

    def write(self, address: str, data: bytes, expected: str = ANY) -> str:
        bucket, key = divided(address)
        asked = {"uploadType": "media", "name": key, **_condition(expected)}

        def post() -> str:
            answer = self.request("POST", self.uploads(bucket), params=asked, data=data)
            return _check_arrived(_check(answer), len(data), crc32c(data))

        return repeated(address, post, _fault_of_bucket)

    def parts(self, address: str, expected: str = ANY) -> _GcsParts:
        return _GcsParts(self, address, expected)

    def listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        return ((address, size) for address, size, _ in self.versions(prefix))

    def versions(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        for page in self._pages(prefix):
            yield from self._items(prefix, page)

    def straight(self, prefix: str) -> Iterator[tuple[str, int | None]]:
        for page in self._pages(prefix, delimiter="/"):
            for folder in page.get("prefixes", ()):
                yield f"gs://{divided(prefix)[0]}/{folder}", None
            yield from ((address, size) for address, size, _ in self._items(prefix, page))

    def _items(self, prefix: str, page: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
        for item in page.get("items", ()):
            yield f"gs://{divided(prefix)[0]}/{item['name']}", int(item["size"]), str(item.get("generation"))

    def _pages(self, prefix: str, **arguments: str) -> Iterator[Mapping[str, Any]]:
        bucket, key = divided(prefix)
        asked = {"prefix": key, "fields": "items(name,size,generation),prefixes,nextPageToken", **arguments}
        while True:
            page = repeated(
                prefix,
                lambda: _check(self.request("GET", self._bucket(bucket), params=asked)).json(),
                _fault_of_bucket,
            )
            yield page
            if "nextPageToken" not in page:
                return
            asked["pageToken"] = page["nextPageToken"]

    def copy(self, source: str, target: str) -> None:
        bucket, key = divided(target)
        place = f"{self._object(source)}/rewriteTo/b/{bucket}/o/{quote(key, safe='')}"
        token: dict[str, str] = {}
        while True:
            answer = repeated(
                source, lambda: _check(self.request("POST", place, params=token)).json(), _fault_of
            )
            if answer.get("done", True):
                return
            token["rewriteToken"] = answer["rewriteToken"]

    def delete(self, addresses: Iterable[str]) -> None:
        def one(address: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                repeated(address, lambda: _check(self.request("DELETE", self._object(address))), _fault_of)

        with ThreadPoolExecutor(_DELETED_AT_ONCE, "delete") as threads:
            list(threads.map(one, addresses))

    def abort_uploads(self, prefix: str) -> None:
        """None: what was sent of them cannot be seen, costs nothing, and is gone after a week."""

    def _bucket(self, bucket: str) -> str:
        return f"{self._service}/storage/v1/b/{bucket}/o"

    def uploads(self, bucket: str) -> str:
        """Where objects of a bucket are sent to."""
        return f"{self._service}/upload/storage/v1/b/{bucket}/o"

    def _object(self, address: str) -> str:
        bucket, key = divided(address)
        return f"{self._bucket(bucket)}/{quote(key, safe='')}"

    def request(self, method: str, place: str, **arguments: Any) -> Any:
        """What the server answers."""
        return self._session.request(
            method, place, timeout=(CONNECT_SECONDS, SILENT_SECONDS), allow_redirects=False, **arguments
        )


class _GcsParts:
    """See `halofeed.pipelines.objects.base.Parts`: a resumable upload."""

    def __init__(self, store: GcsObjects, address: str, expected: str) -> None:
        self._store, self._address = store, address
        self._bytes, self._checksum = 0, 0
        bucket, key = divided(address)
        asked = {"uploadType": "resumable", "name": key, **_condition(expected)}
        begin = functools.partial(store.request, "POST", store.uploads(bucket), params=asked, json={})
        self._upload = repeated(address, lambda: _check(begin()), _fault_of_bucket).headers["Location"]

    def send(self, data: bytes) -> None:
        end = self._bytes + len(data)
        self._checksum = crc32c(data, self._checksum)
        while self._bytes < end:
            left = data[len(data) - (end - self._bytes) :]
            answer = self._send(left, f"{self._bytes}-{end - 1}/*")
            kept = answer.headers.get("Range", "")
            # The server may have kept fewer bytes than came.
            self._bytes = int(kept.rpartition("-")[2]) + 1 if kept else self._bytes

    def finish(self, data: bytes) -> None:
        total = self._bytes + len(data)
        self._checksum = crc32c(data, self._checksum)
        place = f"{self._bytes}-{total - 1}/{total}" if data else f"*/{total}"
        _check_arrived(self._send(data, place), total, self._checksum)

    def _send(self, data: bytes, place: str) -> Any:
        span = {"Content-Range": f"bytes {place}"}
        send = functools.partial(self._store.request, "PUT", self._upload, data=data, headers=span)
        return repeated(self._address, lambda: _check(send(), (308,)), _fault_of)

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # whether that succeeds matters to nobody
            self._store.request("DELETE", self._upload)


def _credentials(*, anonymous: bool) -> Any:
    """What the usual chain finds; those of nobody where it finds none."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError

    if not anonymous:
        try:
            return google.auth.default(scopes=[_SCOPE])[0]
        except DefaultCredentialsError:
            pass
    return AnonymousCredentials()


def _condition(expected: str) -> dict[str, str]:
    if expected == ANY:
        return {}
    return {"ifGenerationMatch": "0" if expected == ABSENT else expected}


def _check(answer: Any, more: tuple[int, ...] = ()) -> Any:
    if answer.status_code // 100 != 2 and answer.status_code not in more:
        text = answer.reason
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = answer.json()["error"]["message"]
        raise AnswerError(answer.status_code, str(text))
    return answer


def _check_arrived(answer: Any, size: int, checksum: int) -> str:
    """Compare what the server says that it has with what was sent; its version."""
    found = answer.json()
    expected = base64.b64encode(checksum.to_bytes(4, "big")).decode()
    if int(found.get("size", size)) != size or found.get("crc32c", expected) != expected:
        raise ConnectionError(f"{found.get('size')} bytes arrived where {size:,} were sent, or other ones")
    return str(found.get("generation", ""))


def _fault_of(error: Exception) -> Fault:
    status = getattr(error, "status", 0)
    if status in (404, 410):
        return Fault.ABSENT
    if status == 412:
        return Fault.CHANGED
    named = {kind.__name__ for kind in type(error).__mro__}
    if status in (401, 403) or "RefreshError" in named or "InvalidOperation" in named:
        return Fault.CREDENTIALS
    if status:
        return Fault.FINAL if is_final(status) else Fault.PASSING
    return Fault.PASSING if named & {"OSError", "HTTPError", "TransportError"} else Fault.FINAL


def _fault_of_bucket(error: Exception) -> Fault:
    """Of a request that names no object, or one that need not be there."""
    fault = _fault_of(error)
    return Fault.BUCKET if fault is Fault.ABSENT else fault
