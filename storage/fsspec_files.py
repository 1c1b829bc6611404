"""Files of fsspec's file systems: other schemes, and those for which the user has settings of fsspec. Read only."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urljoin

from halofeed.storage.base import ANY, SILENT_SECONDS, Entry, FileInfo, Files
from halofeed.storage.retry import Fault, fault_of
from halofeed.storage.web import RefusedRedirectError, check_redirect
from halofeed.system.addresses import Address, printable_cause, redacted
from halofeed.system.errors import MissingExtraError, UsageError, install_command

_WEB = ("http", "https")


def has_settings(scheme: str) -> bool:
    """Return whether the user has settings of fsspec for a scheme, in its files or the environment."""
    try:
        from fsspec.config import conf
    except ImportError:
        return False
    return bool(conf.get(scheme))


class FsspecFiles(Files):
    """Files below an address, with the user's settings of fsspec; see `Files`.

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
        self.root, self._place, self._path = str(place), place, path.rstrip("/")
        logging.getLogger("fsspec.http").addFilter(_hide_secrets)
        self._files.invalidate_cache()
        # s3fs and gcsfs repeat requests themselves.
        if hasattr(self._files, "retries"):
            self._files.retries = 1
        self._is_web = place.scheme in _WEB
        self.lists_folders = not self._is_web  # fsspec would read the links of a page
        if self._is_web:
            _follow_allowed_redirects(self._files, place.redirects)

    def fault_of(self, error: Exception) -> Fault:
        if isinstance(error, RefusedRedirectError):
            return Fault.FINAL
        # aiohttp's errors have `status`, those of gcsfs `code`.
        status = getattr(error, "status", None) or vars(error).get("code")
        if isinstance(status, int):
            return fault_of(error, status)
        fault = fault_of(error)
        return Fault.TRANSIENT if fault is Fault.FINAL else fault  # errors of any library

    def read_once(self, path: str, start: int, stop: int | None, seconds: float | None = None) -> bytes:
        return bytes(self._call("cat_file", path, seconds or SILENT_SECONDS, start=start, end=stop))

    def stat_once(self, path: str) -> FileInfo | None:
        size = self._call("info", path, SILENT_SECONDS).get("size")
        return None if size is None else FileInfo(size=int(size), version=ANY, age_seconds=0)

    def entries_once(self, folder: str, page: str, *, deep: bool) -> tuple[Iterable[Entry], str]:
        try:
            found = self._call("ls", folder, SILENT_SECONDS, detail=True)
        except FileNotFoundError:
            found = []
        start = f"{folder}/" if folder else ""
        names = ((entry, entry["name"].rstrip("/").rpartition("/")[2]) for entry in found)
        return [
            Entry(start + name, None if entry.get("type") == "directory" else entry["size"])
            for entry, name in names
        ], ""

    def _call(self, method: str, below: str, seconds: float, **options: Any) -> Any:
        path = f"{self._path}/{below}" if below else self._path
        if self._is_web:
            path = (self._place / below if below else self._place).full
        try:
            # File systems without asyncio take no timeout.
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
