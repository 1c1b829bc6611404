"""Client of Google Cloud Storage by its JSON API, over the connections that a process keeps open."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from halofeed.storage.base import (
    ABSENT,
    ANY,
    CONNECT_SECONDS,
    SILENT_SECONDS,
    Entry,
    FileInfo,
    Files,
    age_seconds,
    read_body,
    split_url,
)
from halofeed.storage.retry import Fault, fault_of
from halofeed.system.checksum import crc32c
from halofeed.system.errors import StoreError
from halofeed.system.wording import plural

_CONNECTIONS: Final = 64
_DELETED_AT_ONCE: Final = 16
_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_SERVICE: Final = "https://storage.googleapis.com"


class AnswerError(Exception):
    """Response that is no success, with its HTTP `status`; `of_bucket` if 404 means a missing bucket."""

    def __init__(self, status: int, text: str, *, of_bucket: bool = False) -> None:
        super().__init__(f"{status} {text}".strip())
        self.status, self.of_bucket = status, of_bucket


class GcsObjects(Files):
    """Objects of Google Cloud Storage; STORAGE_EMULATOR_HOST names another server. See `Files`."""

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
        named = {kind.__name__ for kind in type(error).__mro__}
        # google.auth's: refused credentials, and credentials without a project or a token.
        if "RefreshError" in named or "InvalidOperation" in named:
            return Fault.CREDENTIALS
        fault = fault_of(error, getattr(error, "status", 0))
        return Fault.BUCKET if fault is Fault.ABSENT and getattr(error, "of_bucket", False) else fault

    def read_once(self, path: str, start: int, stop: int | None, seconds: float | None = None) -> bytes:
        span = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"} if start or stop else {}
        place = self._object(self.address(path))
        with self.request("GET", place, params={"alt": "media"}, headers=span, stream=True) as answer:
            # A range that begins at the end of an object is refused.
            if answer.status_code == 416:
                return b""
            _check(answer)
            announced = answer.headers.get("Content-Length")
            # An object that is stored compressed comes decompressed, with another size than the announced one.
            encoded = "Content-Encoding" in answer.headers
            answer.raw.decode_content = True
            data = read_body(answer.raw, int(announced or 0))
            if announced is not None and not encoded and len(data) != int(announced):
                raise ConnectionError(
                    f"it was cut off after {len(data):,} of {plural(int(announced), 'byte')}"
                )
            return data

    def stat_once(self, path: str) -> FileInfo:
        fields = {"fields": "size,generation,updated"}
        answer = _check(self.request("GET", self._object(self.address(path)), params=fields))
        found = answer.json()
        age = age_seconds(datetime.fromisoformat(found["updated"]), answer.headers.get("Date"))
        return FileInfo(size=int(found["size"]), version=str(found["generation"]), age_seconds=age)

    def entries_once(self, folder: str, page: str, *, deep: bool) -> tuple[Iterable[Entry], str]:
        bucket, prefix = split_url(f"{self.address(folder)}/")
        params = {"prefix": prefix, "fields": "items(name,size,generation),prefixes,nextPageToken"}
        params |= ({} if deep else {"delimiter": "/"}) | ({"pageToken": page} if page else {})
        found = _check(self.request("GET", self._bucket(bucket), params=params), of_bucket=True).json()
        start = len(split_url(f"{self.root}/")[1])
        folders = [Entry(name[start:-1], None) for name in found.get("prefixes", ())]
        files = (
            Entry(one["name"][start:], int(one["size"]), str(one.get("generation")))
            for one in found.get("items", ())
        )
        return (*folders, *files), found.get("nextPageToken", "")

    def write(self, path: str, data: bytes, expected: str = ANY) -> str:
        bucket, key = split_url(self.address(path))
        params = {"uploadType": "media", "name": key, **_condition(expected)}

        def post() -> str:
            answer = self.request("POST", self.uploads(bucket), params=params, data=data)
            return _check_arrived(_check(answer, of_bucket=True), len(data), crc32c(data))

        return self.retried(path, post)

    def start_upload(self, path: str, expected: str = ANY) -> _GcsUpload:
        return _GcsUpload(self, path, expected)

    def copy_from(self, source: Files, source_path: str, path: str) -> None:
        bucket, key = split_url(self.address(path))
        place = f"{self._object(source.address(source_path))}/rewriteTo/b/{bucket}/o/{quote(key, safe='')}"
        token: dict[str, str] = {}
        # A copy of a large object takes several requests.
        while True:
            answer = source.retried(
                source_path, lambda: _check(self.request("POST", place, params=token)).json()
            )
            if answer.get("done", True):
                return
            token["rewriteToken"] = answer["rewriteToken"]

    def delete(self, paths: Iterable[str]) -> None:
        def one(path: str) -> None:
            place = self._object(self.address(path))
            with contextlib.suppress(FileNotFoundError):
                self.retried(path, lambda: _check(self.request("DELETE", place)))

        with ThreadPoolExecutor(_DELETED_AT_ONCE, "delete") as threads:
            list(threads.map(one, paths))

    def abort_uploads(self) -> None:
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

    def __init__(self, files: GcsObjects, path: str, expected: str) -> None:
        self._files, self._path = files, path
        self._bytes, self._checksum = 0, 0
        bucket, key = split_url(files.address(path))
        params = {"uploadType": "resumable", "name": key, **_condition(expected)}
        begin = functools.partial(files.request, "POST", files.uploads(bucket), params=params, json={})
        answer = files.retried(path, lambda: _check(begin(), of_bucket=True))
        self._upload = answer.headers["Location"]

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
        send = functools.partial(self._files.request, "PUT", self._upload, data=data, headers=span)
        return self._files.retried(self._path, lambda: _check(send(), (308,)))

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # the store deletes it after a week anyway
            self._files.request("DELETE", self._upload)


def _credentials(*, anonymous: bool) -> Any:
    """Return the credentials of Google's default chain, or anonymous ones."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError

    # The emulator takes no credentials, and looking for those of a machine takes seconds.
    if not anonymous:
        try:
            return google.auth.default(scopes=[_SCOPE])[0]
        except DefaultCredentialsError as error:
            # The user has named credentials. Without any, public buckets can still be read.
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


def _check(answer: Any, more: tuple[int, ...] = (), *, of_bucket: bool = False) -> Any:
    """Return an answer with a status of success, or one of `more`; raise AnswerError for any other."""
    if answer.status_code // 100 != 2 and answer.status_code not in more:
        text = answer.reason
        # Some errors have no JSON, such as those of proxies.
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = answer.json()["error"]["message"]
        raise AnswerError(answer.status_code, str(text), of_bucket=of_bucket)
    return answer


def _check_arrived(answer: Any, size: int, checksum: int) -> str:
    """Compare the size and checksum that the server reports with those sent, and return the version."""
    found = answer.json()
    expected = base64.b64encode(checksum.to_bytes(4, "big")).decode()
    if int(found.get("size", size)) != size or found.get("crc32c", expected) != expected:
        raise ConnectionError(f"{found.get('size')} bytes arrived where {size:,} were sent, or other ones")
    return str(found.get("generation", ""))
