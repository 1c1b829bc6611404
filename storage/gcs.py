"""Client of Google Cloud Storage by its JSON API, over the connections that a process keeps open."""

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

from halofeed.errors import StoreError
from halofeed.storage.base import (
    ABSENT,
    ANY,
    CONNECT_SECONDS,
    SILENT_SECONDS,
    ObjectInfo,
    ObjectStore,
    age_seconds,
    read_body,
    split_url,
)
from halofeed.storage.retry import Fault, fault_of, retry_request
from halofeed.system.checksum import crc32c
from halofeed.system.wording import plural

_CONNECTIONS: Final = 64
_DELETED_AT_ONCE: Final = 16
_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_SERVICE: Final = "https://storage.googleapis.com"


class AnswerError(Exception):
    """Response that is no success, with its HTTP `status`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}".strip())
        self.status = status


class GcsObjects(ObjectStore):
    """Objects of Google Cloud Storage; STORAGE_EMULATOR_HOST names another server. See `ObjectStore`."""

    is_conditional = True

    def __init__(self) -> None:
        from google.auth.transport.requests import AuthorizedSession
        from requests.adapters import HTTPAdapter

        host = os.environ.get("STORAGE_EMULATOR_HOST", "")
        self._service = (host if "://" in host else f"http://{host}").rstrip("/") if host else _SERVICE
        self.endpoint = self._service
        self._session = AuthorizedSession(_credentials(anonymous=bool(host)))
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=_CONNECTIONS))

    def fault_of(self, error: Exception) -> Fault:
        return _fault_of(error)

    def read_once(self, address: str, start: int, stop: int | None) -> bytes:
        span = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"} if start or stop else {}
        place = self._object(address)
        with self.request("GET", place, params={"alt": "media"}, headers=span, stream=True) as answer:
            if answer.status_code == 416:
                return b""
            _check(answer)
            announced = answer.headers.get("Content-Length")
            encoded = "Content-Encoding" in answer.headers
            answer.raw.decode_content = True
            data = read_body(answer.raw, int(announced or 0))
            if announced is not None and not encoded and len(data) != int(announced):
                raise ConnectionError(
                    f"it was cut off after {len(data):,} of {plural(int(announced), 'byte')}"
                )
            return data

    def stat_once(self, address: str) -> ObjectInfo:
        answer = _check(
            self.request("GET", self._object(address), params={"fields": "size,generation,updated"})
        )
        found = answer.json()
        age = age_seconds(datetime.fromisoformat(found["updated"]), answer.headers.get("Date"))
        return ObjectInfo(size=int(found["size"]), version=str(found["generation"]), age_seconds=age)

    def write(self, address: str, data: bytes, expected: str = ANY) -> str:
        bucket, key = split_url(address)
        params = {"uploadType": "media", "name": key, **_condition(expected)}

        def post() -> str:
            answer = self.request("POST", self.uploads(bucket), params=params, data=data)
            return _check_arrived(_check(answer), len(data), crc32c(data))

        return retry_request(address, post, _fault_of_bucket)

    def start_upload(self, address: str, expected: str = ANY) -> _GcsUpload:
        return _GcsUpload(self, address, expected)

    def versions(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        for page in self._pages(prefix):
            yield from self._items(prefix, page)

    def list_dir(self, prefix: str) -> Iterator[tuple[str, int | None]]:
        for page in self._pages(prefix, delimiter="/"):
            for folder in page.get("prefixes", ()):
                yield f"gs://{split_url(prefix)[0]}/{folder}", None
            yield from ((address, size) for address, size, _ in self._items(prefix, page))

    def _items(self, prefix: str, page: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
        for item in page.get("items", ()):
            yield (
                f"gs://{split_url(prefix)[0]}/{item['name']}",
                int(item["size"]),
                str(item.get("generation")),
            )

    def _pages(self, prefix: str, **arguments: str) -> Iterator[Mapping[str, Any]]:
        bucket, key = split_url(prefix)
        params = {"prefix": key, "fields": "items(name,size,generation),prefixes,nextPageToken", **arguments}
        while True:
            page = retry_request(
                prefix,
                lambda: _check(self.request("GET", self._bucket(bucket), params=params)).json(),
                _fault_of_bucket,
            )
            yield page
            if "nextPageToken" not in page:
                return
            params["pageToken"] = page["nextPageToken"]

    def copy(self, source: str, target: str) -> None:
        bucket, key = split_url(target)
        place = f"{self._object(source)}/rewriteTo/b/{bucket}/o/{quote(key, safe='')}"
        token: dict[str, str] = {}
        while True:
            answer = self.retried(source, lambda: _check(self.request("POST", place, params=token)).json())
            if answer.get("done", True):
                return
            token["rewriteToken"] = answer["rewriteToken"]

    def delete(self, addresses: Iterable[str]) -> None:
        def one(address: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self.retried(address, lambda: _check(self.request("DELETE", self._object(address))))

        with ThreadPoolExecutor(_DELETED_AT_ONCE, "delete") as threads:
            list(threads.map(one, addresses))

    def abort_uploads(self, prefix: str) -> None:
        """Do nothing: unfinished uploads are invisible and free, and the store deletes them after a week."""

    def _bucket(self, bucket: str) -> str:
        return f"{self._service}/storage/v1/b/{bucket}/o"

    def uploads(self, bucket: str) -> str:
        """Return the URL for uploads into a bucket."""
        return f"{self._service}/upload/storage/v1/b/{bucket}/o"

    def _object(self, address: str) -> str:
        bucket, key = split_url(address)
        return f"{self._bucket(bucket)}/{quote(key, safe='')}"

    def request(self, method: str, place: str, **arguments: Any) -> Any:
        """Send a request and return its response."""
        return self._session.request(
            method, place, timeout=(CONNECT_SECONDS, SILENT_SECONDS), allow_redirects=False, **arguments
        )


class _GcsUpload:
    """A resumable upload; see `MultipartUpload`."""

    def __init__(self, store: GcsObjects, address: str, expected: str) -> None:
        self._store, self._address = store, address
        self._bytes, self._checksum = 0, 0
        bucket, key = split_url(address)
        params = {"uploadType": "resumable", "name": key, **_condition(expected)}
        begin = functools.partial(store.request, "POST", store.uploads(bucket), params=params, json={})
        self._upload = retry_request(address, lambda: _check(begin()), _fault_of_bucket).headers["Location"]

    def send(self, data: bytes) -> None:
        end = self._bytes + len(data)
        self._checksum = crc32c(data, self._checksum)
        while self._bytes < end:
            left = data[len(data) - (end - self._bytes) :]
            answer = self._send(left, f"{self._bytes}-{end - 1}/*")
            kept = answer.headers.get("Range", "")
            # The server may have kept only some of the bytes.
            self._bytes = int(kept.rpartition("-")[2]) + 1 if kept else self._bytes

    def finish(self, data: bytes) -> None:
        total = self._bytes + len(data)
        self._checksum = crc32c(data, self._checksum)
        place = f"{self._bytes}-{total - 1}/{total}" if data else f"*/{total}"
        _check_arrived(self._send(data, place), total, self._checksum)

    def _send(self, data: bytes, place: str) -> Any:
        span = {"Content-Range": f"bytes {place}"}
        send = functools.partial(self._store.request, "PUT", self._upload, data=data, headers=span)
        return self._store.retried(self._address, lambda: _check(send(), (308,)))

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # the store deletes it after a week anyway
            self._store.request("DELETE", self._upload)


def _credentials(*, anonymous: bool) -> Any:
    """Return the credentials of Google's default chain, or anonymous ones."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError

    if not anonymous:
        try:
            return google.auth.default(scopes=[_SCOPE])[0]
        except DefaultCredentialsError as error:
            if (file := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")) is not None:
                raise StoreError(
                    f"GOOGLE_APPLICATION_CREDENTIALS={file}: {str(error).rstrip('.')}; name a key file "
                    "that is there, or unset the variable and run `gcloud auth application-default login`"
                ) from error
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
    """Compare the size and checksum that the server reports with those sent, and return the version."""
    found = answer.json()
    expected = base64.b64encode(checksum.to_bytes(4, "big")).decode()
    if int(found.get("size", size)) != size or found.get("crc32c", expected) != expected:
        raise ConnectionError(f"{found.get('size')} bytes arrived where {size:,} were sent, or other ones")
    return str(found.get("generation", ""))


def _fault_of(error: Exception) -> Fault:
    named = {kind.__name__ for kind in type(error).__mro__}
    if "RefreshError" in named or "InvalidOperation" in named:
        return Fault.CREDENTIALS
    return fault_of(error, getattr(error, "status", 0))


def _fault_of_bucket(error: Exception) -> Fault:
    """Classify an error of a request for which a missing object means a missing bucket."""
    fault = _fault_of(error)
    return Fault.BUCKET if fault is Fault.ABSENT else fault
