"""Client of S3 and compatible stores, by one boto3 client for each process."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

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
from halofeed.storage.retry import Fault, Result, fault_of, retry_request
from halofeed.storage.web import RangeReader, RefusedRedirectError, WebError

_CONNECTIONS: Final = 64
_DELETED_AT_ONCE: Final = 1000
_SIGNED_SECONDS: Final = 3600
_ABSENT: Final = ("NoSuchKey", "404")
_CREDENTIALS: Final = re.compile(r"Credential|Token|AccessDenied|AccessKey|Signature|Forbidden|Authori[sz]")
_TRANSIENT: Final = (
    "SlowDown",
    "RequestTimeout",
    "InternalError",
    "ServiceUnavailable",
    "RequestLimitExceeded",
)


class S3Objects(ObjectStore):
    """Objects of S3; see `ObjectStore`.

    Args:
        settings: arguments of boto3's client beyond its default chain: endpoint_url, aws_access_key_id, ...
    """

    is_conditional = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import boto3
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config: dict[str, Any] = {
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": SILENT_SECONDS,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"total_max_attempts": 1},  # retried here
        }
        try:
            core = botocore.session.get_session()
            session = boto3.session.Session(botocore_session=core)
            if "aws_access_key_id" not in settings and session.get_credentials() is None:
                config["signature_version"] = UNSIGNED
            self._client = session.client("s3", config=Config(**config), **settings)
            self.endpoint = self._client.meta.endpoint_url
            # AWS_CA_BUNDLE or ca_bundle in ~/.aws/config; an argument of the client wins over both. False means
            # that no certificate is checked.
            verify = settings.get("verify", core.get_config_variable("ca_bundle"))
            self._web = (
                None
                if verify is False
                else RangeReader(certificates=verify if isinstance(verify, str) else None)
            )
            self._signatures: dict[str, tuple[str, float]] = {}
            self._unsigned: set[str] = set()
        except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint without http://
            shown = ", ".join(
                f"{name}={os.environ[name]}"
                for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_CONFIG_FILE")
                if name in os.environ
            )
            raise StoreError(
                f"s3://: {error} ({shown or 'no setting of AWS'} in the environment); name a profile of "
                "~/.aws/config, and an endpoint as http://HOST:PORT or https://HOST, or unset the variable"
            ) from error

    def fault_of(self, error: Exception) -> Fault:
        return _fault_of(error)

    def read_once(self, address: str, start: int, stop: int | None) -> bytes:
        bucket, key = split_url(address)
        span = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"} if start or stop else {}
        try:
            answer = self._client.get_object(Bucket=bucket, Key=key, **span)
        except Exception as error:
            if _status(error) == 416:
                return b""
            raise
        with answer["Body"] as body:
            return read_body(body, answer["ContentLength"])

    def read_range_once(self, address: str, start: int, stop: int, seconds: float) -> bytes | bytearray:
        bucket, _ = split_url(address)
        signed = None if self._web is None or bucket in self._unsigned else self._signed(address)
        if signed is None or self._web is None:
            return self.read_once(address, start, stop)
        try:
            return self._web.get(signed, start, stop, seconds)
        except WebError as error:
            is_moved = isinstance(error, RefusedRedirectError)  # a bucket of another region
            if not (is_moved or error.status in (400, 401, 403)):
                raise
            self._unsigned.add(bucket)  # it requires more than a signature
        return self.read_once(address, start, stop)

    def _signed(self, address: str) -> str | None:
        """Return an address for plain requests, signed at most once in half an hour; None without a signature."""
        signed, until = self._signatures.get(address, ("", 0.0))
        if time.monotonic() > until:
            bucket, key = split_url(address)
            wanted = {"Bucket": bucket, "Key": key}
            try:
                signed = str(
                    self._client.generate_presigned_url("get_object", wanted, ExpiresIn=_SIGNED_SECONDS)
                )
            except Exception:
                self._unsigned.add(bucket)
                return None
            self._signatures[address] = signed, time.monotonic() + _SIGNED_SECONDS / 2
        return signed

    def stat_once(self, address: str) -> ObjectInfo:
        bucket, key = split_url(address)
        found = self._client.head_object(Bucket=bucket, Key=key)
        age = age_seconds(found["LastModified"], found["ResponseMetadata"]["HTTPHeaders"].get("date"))
        return ObjectInfo(size=found["ContentLength"], version=found["ETag"], age_seconds=age)

    def write(self, address: str, data: bytes, expected: str = ANY) -> str:
        bucket, key = split_url(address)
        arguments = {"Bucket": bucket, "Key": key, "Body": data, **_condition(expected)}
        return str(self.retried(address, lambda: self._client.put_object(**arguments))["ETag"])

    def start_upload(self, address: str, expected: str = ANY) -> _S3Upload:
        return _S3Upload(self, self._client, address, expected)

    def versions(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        for page in self._pages(prefix, "list_objects_v2"):
            yield from _items(prefix, page)

    def list_dir(self, prefix: str) -> Iterator[tuple[str, int | None]]:
        for page in self._pages(prefix, "list_objects_v2", Delimiter="/"):
            for folder in page.get("CommonPrefixes", ()):
                yield f"s3://{split_url(prefix)[0]}/{folder['Prefix']}", None
            yield from ((address, size) for address, size, _ in _items(prefix, page))

    def copy(self, source: str, target: str) -> None:
        (bucket, key), there = split_url(source), split_url(target)
        self.retried(source, lambda: self._client.copy({"Bucket": bucket, "Key": key}, *there))

    def delete(self, addresses: Iterable[str]) -> None:
        by_bucket: dict[str, list[str]] = {}
        for address in addresses:
            bucket, key = split_url(address)
            by_bucket.setdefault(bucket, []).append(key)
        for bucket, keys in by_bucket.items():
            for first in range(0, len(keys), _DELETED_AT_ONCE):
                self._delete(bucket, keys[first : first + _DELETED_AT_ONCE])

    def _delete(self, bucket: str, keys: list[str]) -> None:
        def act() -> None:
            answer = self._client.delete_objects(
                Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
            )
            for failed in answer.get("Errors", ()):
                from botocore.exceptions import ClientError

                raise ClientError({"Error": failed}, "DeleteObjects")

        self.retried(f"s3://{bucket}/{keys[0]}", act)

    def abort_uploads(self, prefix: str) -> None:
        for page in list(self._pages(prefix, "list_multipart_uploads")):
            for entry in page.get("Uploads", ()):
                self.abort(f"s3://{split_url(prefix)[0]}/{entry['Key']}", entry["UploadId"])

    def abort(self, address: str, upload: str) -> None:
        """Abort an upload; ignore one that has ended."""
        bucket, key = split_url(address)
        arguments = {"Bucket": bucket, "Key": key, "UploadId": upload}
        with contextlib.suppress(FileNotFoundError, UploadEndedError):
            self.retried(address, lambda: self._client.abort_multipart_upload(**arguments))

    def _pages(self, prefix: str, method: str, **given: str) -> Iterator[Mapping[str, Any]]:
        bucket, key = split_url(prefix)
        more: dict[str, str] = {}
        while True:
            call = functools.partial(
                getattr(self._client, method), Bucket=bucket, Prefix=key, **given, **more
            )
            answer = self.retried(prefix, call)
            yield answer
            if not answer.get("IsTruncated"):
                return
            names = {
                "ContinuationToken": "NextContinuationToken",
                "KeyMarker": "NextKeyMarker",
                "UploadIdMarker": "NextUploadIdMarker",
            }
            more = {name: answer[there] for name, there in names.items() if answer.get(there)}


def _items(prefix: str, page: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    bucket, _ = split_url(prefix)
    for entry in page.get("Contents", ()):
        yield (
            f"s3://{bucket}/{entry['Key']}",
            entry["Size"],
            f"{entry.get('ETag')} {entry.get('LastModified')}",
        )


class UploadEndedError(StoreError):
    """The upload does not exist any more: it was finished or aborted."""


class _S3Upload:
    """A multipart upload; see `MultipartUpload`."""

    def __init__(self, store: S3Objects, client: Any, address: str, expected: str) -> None:
        self._store, self._client, self._address, self._expected = store, client, address, expected
        bucket, key = split_url(address)
        self._upload_ids = {"Bucket": bucket, "Key": key}
        upload = self._request(lambda: client.create_multipart_upload(**self._upload_ids))
        self._upload_ids["UploadId"] = upload["UploadId"]
        self._sent: list[Mapping[str, Any]] = []
        self._bytes = 0

    def send(self, data: bytes) -> None:
        number = len(self._sent) + 1
        sent = self._request(
            lambda: self._client.upload_part(Body=data, PartNumber=number, **self._upload_ids)
        )
        self._sent.append({"ETag": sent["ETag"], "PartNumber": number})
        self._bytes += len(data)

    def finish(self, data: bytes) -> None:
        if data:
            self.send(data)
        try:
            self._request(
                lambda: self._client.complete_multipart_upload(
                    MultipartUpload={"Parts": self._sent}, **self._upload_ids, **_condition(self._expected)
                )
            )
        except UploadEndedError:
            # The store may have finished the upload and lost its response.
            current = self._store.stat(self._address)
            if (
                current is None
                or current.size != self._bytes
                or f'-{len(self._sent)}"' not in current.version
            ):
                raise

    def abort(self) -> None:
        self._store.abort(self._address, self._upload_ids["UploadId"])

    def _request(self, act: Callable[[], Result]) -> Result:
        return retry_request(self._address, act, self._fault_of)

    def _fault_of(self, error: Exception) -> Fault:
        if _code(error) == "NoSuchUpload":
            raise UploadEndedError(
                f"{self._address}: its upload was ended by another run that took over"
            ) from error
        return _fault_of(error)


def _condition(expected: str) -> dict[str, str]:
    if expected == ANY:
        return {}
    return {"IfNoneMatch": "*"} if expected == ABSENT else {"IfMatch": expected}


def _code(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _status(error: Exception) -> int:
    response = getattr(error, "response", None)
    known = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    return int(known.get("HTTPStatusCode", getattr(error, "status", 0)))


def _fault_of(error: Exception) -> Fault:
    code, status = _code(error), _status(error)
    if code in _ABSENT or code == "NoSuchBucket":
        return Fault.ABSENT if code in _ABSENT else Fault.BUCKET
    if status in (409, 412) or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return Fault.CHANGED
    if code in _TRANSIENT or code.startswith(("Throttl", "5")):
        return Fault.TRANSIENT
    if _CREDENTIALS.search(code or type(error).__name__):
        return Fault.CREDENTIALS
    return Fault.FINAL if code and status < 400 else fault_of(error, status)
