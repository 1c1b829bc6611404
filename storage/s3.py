"""Client of S3 and compatible stores, by one boto3 client for each process."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

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
from halofeed.storage.retry import Fault, Result, fault_of, retry_request
from halofeed.storage.web import RangeReader, RefusedRedirectError, WebError
from halofeed.system.errors import StoreError

_CONNECTIONS: Final = 64
_DELETED_AT_ONCE: Final = 1000
_SIGNED_SECONDS: Final = 3600
_CREDENTIALS: Final = re.compile(r"Credential|Token|AccessDenied|AccessKey|Signature|Forbidden|Authori[sz]")
_FAULTS: Final = {
    "NoSuchKey": Fault.ABSENT,
    "404": Fault.ABSENT,  # HEAD has no body with a code
    "NoSuchBucket": Fault.BUCKET,
    "PreconditionFailed": Fault.CHANGED,
    "ConditionalRequestConflict": Fault.CHANGED,
    **dict.fromkeys(("SlowDown", "RequestTimeout", "InternalError"), Fault.TRANSIENT),
    **dict.fromkeys(("ServiceUnavailable", "RequestLimitExceeded"), Fault.TRANSIENT),
}
"""Faults by S3's error codes (docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html)."""


class S3Objects(Files):
    """Objects of S3; see `Files`.

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
            # Public buckets can be read without credentials; boto3 alone would raise NoCredentialsError.
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

    def _place(self, path: str) -> dict[str, str]:
        """Return the arguments of boto3 for an object."""
        bucket, key = split_url(self.address(path))
        return {"Bucket": bucket, "Key": key}

    def read_once(
        self, path: str, start: int, stop: int | None, seconds: float | None = None
    ) -> bytes | bytearray:
        if seconds and stop is not None:
            data = self._read_signed(path, start, stop, seconds)
            if data is not None:
                return data
        span = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"} if start or stop else {}
        try:
            answer = self._client.get_object(**self._place(path), **span)
        except Exception as error:
            # A range that begins at the end of an object: S3 refuses it, and other stores give no bytes.
            if _status(error) == 416:
                return b""
            raise
        with answer["Body"] as body:
            return read_body(body, answer["ContentLength"])

    def _read_signed(self, path: str, start: int, stop: int, seconds: float) -> bytearray | None:
        """Read a range by a plain request; None where the bucket requires more than a signed address."""
        bucket, _ = split_url(self.root)
        if self._web is None or bucket in self._unsigned or not (signed := self._signed(path)):
            return None
        try:
            return self._web.get(signed, start, stop, seconds)
        except WebError as error:
            is_moved = isinstance(error, RefusedRedirectError)  # a bucket of another region
            if not (is_moved or error.status in (400, 401, 403)):
                raise
            self._unsigned.add(bucket)
            return None

    def _signed(self, path: str) -> str | None:
        """Return an address for plain requests, signed at most once in half an hour; None without a signature."""
        place = self._place(path)
        signed, until = self._signatures.get(address := self.address(path), ("", 0.0))
        if time.monotonic() > until:
            try:
                signed = str(
                    self._client.generate_presigned_url("get_object", place, ExpiresIn=_SIGNED_SECONDS)
                )
            except Exception:  # of any kind of credentials: boto3's own request then raises the error
                self._unsigned.add(place["Bucket"])
                return None
            self._signatures[address] = signed, time.monotonic() + _SIGNED_SECONDS / 2
        return signed

    def stat_once(self, path: str) -> FileInfo:
        found = self._client.head_object(**self._place(path))
        age = age_seconds(found["LastModified"], found["ResponseMetadata"]["HTTPHeaders"].get("date"))
        return FileInfo(size=found["ContentLength"], version=found["ETag"], age_seconds=age)

    def entries_once(self, folder: str, page: str, *, deep: bool) -> tuple[Iterable[Entry], str]:
        bucket, prefix = split_url(f"{self.address(folder)}/")
        more = ({} if deep else {"Delimiter": "/"}) | ({"ContinuationToken": page} if page else {})
        answer = self._client.list_objects_v2(Bucket=bucket, Prefix=prefix, **more)
        start = len(split_url(f"{self.root}/")[1])
        folders = [Entry(one["Prefix"][start:-1], None) for one in answer.get("CommonPrefixes", ())]
        files = (
            Entry(one["Key"][start:], one["Size"], f"{one.get('ETag')} {one.get('LastModified')}")
            for one in answer.get("Contents", ())
        )
        return (*folders, *files), answer.get("NextContinuationToken", "")

    def write(self, path: str, data: bytes, expected: str = ANY) -> str:
        arguments = {**self._place(path), "Body": data, **_condition(expected)}
        return str(self.retried(path, lambda: self._client.put_object(**arguments))["ETag"])

    def start_upload(self, path: str, expected: str = ANY) -> _S3Upload:
        return _S3Upload(self, self._client, path, expected)

    def copy_from(self, source: Files, source_path: str, path: str) -> None:
        bucket, key = split_url(source.address(source_path))
        there = self._place(path)
        source.retried(
            source_path, lambda: self._client.copy({"Bucket": bucket, "Key": key}, *there.values())
        )

    def delete(self, paths: Iterable[str]) -> None:
        keys = [self._place(path)["Key"] for path in paths]
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            self._delete(keys[first : first + _DELETED_AT_ONCE])

    def _delete(self, keys: list[str]) -> None:
        bucket, _ = split_url(self.root)

        def act() -> None:
            answer = self._client.delete_objects(
                Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
            )
            # Single objects may fail, although the response has status 200.
            for failed in answer.get("Errors", ()):
                from botocore.exceptions import ClientError

                raise ClientError({"Error": failed}, "DeleteObjects")

        retry_request(f"s3://{bucket}/{keys[0]}", act, self.fault_of)

    def abort_uploads(self) -> None:
        for entry in list(self._uploads()):
            self.abort(
                {"Bucket": split_url(self.root)[0], "Key": entry["Key"], "UploadId": entry["UploadId"]}
            )

    def abort(self, upload: Mapping[str, str]) -> None:
        """Abort an upload; ignore one that has ended."""
        address = f"s3://{upload['Bucket']}/{upload['Key']}"
        with contextlib.suppress(FileNotFoundError, UploadEndedError):
            retry_request(address, lambda: self._client.abort_multipart_upload(**upload), self.fault_of)

    def _uploads(self) -> Iterator[Mapping[str, str]]:
        """Yield the unfinished uploads below the root."""
        bucket, prefix = split_url(f"{self.root}/")
        more: dict[str, str] = {}
        while True:
            call = functools.partial(
                self._client.list_multipart_uploads, Bucket=bucket, Prefix=prefix, **more
            )
            answer = self.retried("", call)
            yield from answer.get("Uploads", ())
            if not answer.get("IsTruncated"):
                return
            more = {name: answer[f"Next{name}"] for name in ("KeyMarker", "UploadIdMarker")}


class UploadEndedError(StoreError):
    """The upload does not exist any more: it was finished or aborted."""


class _S3Upload:
    """A multipart upload; see `MultipartUpload`."""

    def __init__(self, files: S3Objects, client: Any, path: str, expected: str) -> None:
        self._files, self._client, self._path, self._expected = files, client, path, expected
        bucket, key = split_url(files.address(path))
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
            current = self._files.stat(self._path)
            if (
                current is None
                or current.size != self._bytes
                or f'-{len(self._sent)}"' not in current.version
            ):
                raise

    def abort(self) -> None:
        self._files.abort(self._upload_ids)

    def _request(self, act: Callable[[], Result]) -> Result:
        return retry_request(self._files.address(self._path), act, self._fault_of)

    def _fault_of(self, error: Exception) -> Fault:
        # The upload no longer exists. A retry cannot succeed, and the object is not what is missing.
        if _code(error) == "NoSuchUpload":
            raise UploadEndedError(
                f"{self._files.address(self._path)}: its upload was ended by another run that took over"
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
    if code in _FAULTS:
        return _FAULTS[code]
    # 409: two conditional writes at the same time.
    if status in (409, 412):
        return Fault.CHANGED
    # ThrottlingException and the like; compatible stores give the status of a server error as the code.
    if code.startswith(("Throttl", "5")):
        return Fault.TRANSIENT
    # Errors of boto3's credential chain have no code.
    if _CREDENTIALS.search(code or type(error).__name__):
        return Fault.CREDENTIALS
    # A code in an answer with status 200, such as one object of a batch that could not be deleted.
    return Fault.FINAL if code and status < 400 else fault_of(error, status)
