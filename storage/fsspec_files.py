"""Files of fsspec's file systems: other schemes, and those for which the user has settings of fsspec. Read only."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urljoin

from halofeed.errors import MissingExtraError, UsageError, install_command
from halofeed.storage.base import ANY, SILENT_SECONDS, ObjectInfo, ObjectStore
from halofeed.storage.retry import Fault, fault_of
from halofeed.storage.web import RefusedRedirectError, check_redirect
from halofeed.system.addresses import Address, printable_cause, redacted

_WEB = ("http", "https")


def has_settings(scheme: str) -> bool:
    """Return whether the user has settings of fsspec for a scheme, in its files or the environment."""
    try:
        from fsspec.config import conf
    except ImportError:
        return False
    return bool(conf.get(scheme))


class FsspecFiles(ObjectStore):
    """Files below an address, with the user's settings of fsspec; see `ObjectStore`.

    Raises:
        MissingExtraError: a package is not installed.
        UsageError: fsspec does not know the scheme, or needs settings.
    """

    def __init__(self, place: Address) -> None:
        # The web's file system is modified below, so it must not be shared with other users of fsspec.
        options = {"skip_instance_cache": True} if place.scheme in _WEB else {}
        try:
            import fsspec

            self._files, path = fsspec.core.url_to_fs(place.full, **options)
        except ImportError as error:
            if error.name == "fsspec":
                raise MissingExtraError(f"fsspec is not installed; {install_command('remote')}") from error
            raise MissingExtraError(f"{place}: {error}") from error  # fsspec names the package to install
        except (TypeError, ValueError) as error:  # TypeError: a file system that needs settings of its own
            raise UsageError(
                f"{place}: {error}; expected a local folder, gs://, s3://, http:// or https://"
            ) from printable_cause(error)
        except OSError as error:
            # A client that is missing, such as libhdfs, whose error lists each place where it was searched.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(
                f"{place}: fsspec's client for {place.scheme}:// cannot start: {reason}; install what it needs, or "
                "copy the data set to local disk, and name the copy"
            ) from printable_cause(error)
        self._root, self._path = place.full.rstrip("/"), path.rstrip("/")
        logging.getLogger("fsspec.http").addFilter(_hide_secrets)
        self._files.invalidate_cache()
        if hasattr(self._files, "retries"):
            self._files.retries = 1  # repeated by halofeed
        self._is_web = place.scheme in _WEB
        if self._is_web:
            _follow_allowed_redirects(self._files, place.redirects)

    def fault_of(self, error: Exception) -> Fault:
        if isinstance(error, RefusedRedirectError):
            return Fault.FINAL
        status = getattr(error, "status", None) or vars(error).get("code")
        if isinstance(status, int):
            return fault_of(error, status)
        fault = fault_of(error)
        return Fault.TRANSIENT if fault is Fault.FINAL else fault  # errors of any library

    def read_range_once(self, address: str, start: int, stop: int, seconds: float) -> bytes:
        return bytes(self._call("cat_file", address, seconds, start=start, end=stop))

    def stat_once(self, address: str) -> ObjectInfo | None:
        size = self._call("info", address, SILENT_SECONDS).get("size")
        return None if size is None else ObjectInfo(size=int(size), version=ANY, age_seconds=0)

    def list_dir(self, prefix: str) -> Iterator[tuple[str, int | None]] | None:
        if self._is_web:
            return None
        try:
            entries = self._call("ls", prefix.rstrip("/"), SILENT_SECONDS, detail=True)
        except FileNotFoundError:
            entries = []
        return ((prefix + entry["name"].rpartition("/")[2], entry["size"]) for entry in entries)

    def _call(self, method: str, address: str, seconds: float, **options: Any) -> Any:
        path = address if self._is_web else f"{self._path}{address[len(self._root) :]}"
        try:
            if not self._files.async_impl:
                return getattr(self._files, method)(path, **options)
            from fsspec.asyn import sync

            return sync(
                self._files.loop, getattr(self._files, f"_{method}"), path, timeout=seconds, **options
            )
        except FileNotFoundError as error:
            # fsspec also reports a web server that refuses or does not answer as a missing file.
            cause = error.__cause__
            if isinstance(cause, Exception) and getattr(cause, "status", 0) != 404:
                raise cause from None
            raise


def _hide_secrets(record: logging.LogRecord) -> bool:
    """Remove secrets of addresses from fsspec's log messages."""
    lines = [record.getMessage()]
    if record.exc_info:
        lines += traceback.format_exception(record.exc_info[1])
    record.msg, record.args, record.exc_info = redacted("\n".join(lines).strip()), None, None
    return True


def _follow_allowed_redirects(files: Any, redirects: Sequence[str]) -> None:
    """Make fsspec follow only those web redirects that `check_redirect` permits."""
    import aiohttp

    async def check(session: object, context: object, redirect: Any) -> None:
        response = redirect.response
        target = response.headers.get("Location") or response.headers.get("URI", "")
        check_redirect(response.status, str(response.url), urljoin(str(response.url), target), redirects)

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(check)
    files.client_kwargs = {
        **files.client_kwargs,
        "trace_configs": [*files.client_kwargs.get("trace_configs", ()), trace],
    }
