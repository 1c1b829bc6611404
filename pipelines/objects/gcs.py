"""Objects of Google Cloud Storage by its JSON interface, over connections that a process keeps."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote

from halofeed.pipelines.objects.base import (
    ABSENT,
    ANY,
    CONNECT_SECONDS,
    SILENT_SECONDS,
    Fault,
    Result,
    Stored,
    divided,
    repeated,
    whole,
)
from halofeed.schemas.checksum import crc32c
from halofeed.schemas.repeating import is_final

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
            with self._request(
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

        return self._asked(address, get)

    def stat(self, address: str) -> Stored | None:
        def get() -> Stored:
            answer = _check(
                self._request("GET", self._object(address), params={"fields": "size,generation,updated"})
            )
            found, now = answer.json(), answer.headers.get("Date")
            written = datetime.fromisoformat(found["updated"])
            age = (parsedate_to_datetime(now) if now else datetime.now(UTC)) - written
            return Stored(
                size=int(found["size"]), version=str(found["generation"]), age_seconds=age.total_seconds()
            )

        try:
            return self._asked(address, get)
        except FileNotFoundError:
            return None

    def write(self, address: str, data: bytes, expected: str = ANY) -> str:
        bucket, key = divided(address)
        asked = {"uploadType": "media", "name": key, **_condition(expected)}

        def post() -> str:
            answer = self._request("POST", self._uploads(bucket), params=asked, data=data)
            return _check_arrived(_check(answer), len(data), crc32c(data))

        return self._asked(address, post, _fault_of_bucket)

    def parts(self, address: str, expected: str = ANY) -> _GcsParts:
        return _GcsParts(self, address, expected)

    def listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        for page in self._pages(prefix):
            yield from self._items(prefix, page)

    def straight(self, prefix: str) -> Iterator[tuple[str, int | None]]:
        for page in self._pages(prefix, delimiter="/"):
            for folder in page.get("prefixes", ()):
                yield f"gs://{divided(prefix)[0]}/{folder}", None
            yield from self._items(prefix, page)

    def _items(self, prefix: str, page: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
        for item in page.get("items", ()):
            yield f"gs://{divided(prefix)[0]}/{item['name']}", int(item["size"])

    def _pages(self, prefix: str, **arguments: str) -> Iterator[Mapping[str, Any]]:
        bucket, key = divided(prefix)
        asked = {"prefix": key, "fields": "items(name,size),prefixes,nextPageToken", **arguments}
        while True:
            page = self._asked(
                prefix,
                lambda: _check(self._request("GET", self._bucket(bucket), params=asked)).json(),
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
            answer = self._asked(
                source, lambda: _check(self._request("POST", place, params=dict(token))).json()
            )
            if answer.get("done", True):
                return
            token["rewriteToken"] = answer["rewriteToken"]

    def delete(self, addresses: Iterable[str]) -> None:
        def one(address: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._asked(address, lambda: _check(self._request("DELETE", self._object(address))))

        wanted = list(addresses)
        if len(wanted) < 2:
            for address in wanted:
                one(address)
            return
        with ThreadPoolExecutor(min(_DELETED_AT_ONCE, len(wanted)), "delete") as threads:
            list(threads.map(one, wanted))

    def abort_uploads(self, prefix: str) -> None:
        """None: what was sent of them cannot be seen, costs nothing, and is gone after a week."""

    def begin(self, address: str, expected: str) -> str:
        """The address that takes the parts of an upload."""
        bucket, key = divided(address)
        asked = {"uploadType": "resumable", "name": key, **_condition(expected)}
        answer = self._asked(
            address,
            lambda: _check(self._request("POST", self._uploads(bucket), params=asked, json={})),
            _fault_of_bucket,
        )
        return str(answer.headers["Location"])

    def send(self, address: str, upload: str, data: bytes, place: str) -> Any:
        """Send bytes of an upload; what the server answers."""
        span = {"Content-Range": f"bytes {place}"}
        return self._asked(
            address, lambda: _check(self._request("PUT", upload, data=data, headers=span), (308,))
        )

    def abort(self, upload: str) -> None:
        """End an upload; whether that succeeds matters to nobody."""
        try:
            self._request("DELETE", upload)
        except Exception as error:
            if not isinstance(error, OSError):
                raise

    def _bucket(self, bucket: str) -> str:
        return f"{self._service}/storage/v1/b/{bucket}/o"

    def _uploads(self, bucket: str) -> str:
        return f"{self._service}/upload/storage/v1/b/{bucket}/o"

    def _object(self, address: str) -> str:
        bucket, key = divided(address)
        return f"{self._bucket(bucket)}/{quote(key, safe='')}"

    def _request(self, method: str, place: str, **arguments: Any) -> Any:
        return self._session.request(
            method, place, timeout=(CONNECT_SECONDS, SILENT_SECONDS), allow_redirects=False, **arguments
        )

    def _asked(
        self, address: str, act: Callable[[], Result], fault_of: Callable[[Exception], Fault] | None = None
    ) -> Result:
        return repeated(address, act, fault_of or _fault_of)


class _GcsParts:
    """See `halofeed.pipelines.objects.base.Parts`: a resumable upload."""

    def __init__(self, store: GcsObjects, address: str, expected: str) -> None:
        self._store, self._address = store, address
        self._upload = store.begin(address, expected)
        self._bytes, self._checksum = 0, 0

    def send(self, data: bytes) -> None:
        end = self._bytes + len(data)
        self._checksum = crc32c(data, self._checksum)
        while self._bytes < end:
            left = data[len(data) - (end - self._bytes) :]
            answer = self._store.send(self._address, self._upload, left, f"{self._bytes}-{end - 1}/*")
            kept = answer.headers.get("Range", "")
            # The server may have kept fewer bytes than came.
            self._bytes = int(kept.rpartition("-")[2]) + 1 if kept else self._bytes

    def finish(self, data: bytes) -> None:
        total = self._bytes + len(data)
        self._checksum = crc32c(data, self._checksum)
        place = f"{self._bytes}-{total - 1}/{total}" if data else f"*/{total}"
        answer = self._store.send(self._address, self._upload, data, place)
        _check_arrived(answer, total, self._checksum)

    def abort(self) -> None:
        self._store.abort(self._upload)


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
    if status == 404 or status == 410:
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
