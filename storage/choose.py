"""Choice of the store for an address: one client of each store and process, with the settings of the job."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from halofeed.storage.atomic_files import read_regular
from halofeed.storage.base import Files
from halofeed.storage.beam import BeamFiles, apply_options
from halofeed.storage.gcs import GcsObjects
from halofeed.storage.local import LocalDisk
from halofeed.system.addresses import (
    NO_QUERY,
    NO_USER,
    Address,
    address_of,
    is_remote,
    keep_secret,
    printable_cause,
)
from halofeed.system.console import human_bytes
from halofeed.system.errors import MissingExtraError, StoreError, UsageError, install_command, require_extra

_SECRET = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_SAME_SCHEME = {"s3a": "s3", "gcs": "gs"}
_WEB = ("http", "https")
_WEB_SECONDS = 60.0
"""Timeout for a file that an option names at a web server, all of it."""
_EXTRAS = {"gs": ("gcp", "google.cloud.storage"), "s3": ("aws", "boto3")}

_lock = threading.RLock()  # a signal handler may need it too
_stores: dict[str, Files] = {}
_settings: dict[str, Any] = {}


def _s3_client() -> Files:
    from halofeed.storage.s3 import S3Objects  # its http and ssl take 15 ms to import

    return S3Objects(_settings)


_CLIENTS: dict[str, Callable[[], Files]] = {"": LocalDisk, "s3": _s3_client, "gs": GcsObjects}
"""Clients by URL scheme; Beam serves other schemes."""


def for_workers(path: str) -> str:
    """Return a path that is valid in every working directory."""
    return path if is_remote(path) else os.path.abspath(path)


def use_options(options: Any) -> dict[str, Any]:
    """Apply Beam's `PipelineOptions` to this process; return the settings for `use_settings` in other processes."""
    settings = apply_options(options)
    use_settings(settings)
    return settings


def use_settings(settings: Mapping[str, Any]) -> None:
    """Use these arguments of boto3's client for S3 in this process from now on."""
    for name in _SECRET:
        keep_secret(str(settings.get(name, "")))
    with _lock:
        # A client keeps the settings with which it was made.
        if dict(settings) != _settings:
            _settings.clear()
            _settings.update(settings)
            _stores.clear()


def store_of(root: str) -> Files:
    """Return the files below a folder or address without secrets: one client for each scheme and process."""
    scheme = root.partition("://")[0] if is_remote(root) else ""
    with _lock:
        if scheme not in _stores:
            _stores[scheme] = _CLIENTS.get(scheme, BeamFiles)()
        return _stores[scheme].at(root.rstrip("/") if scheme else root)


def _forget_stores() -> None:
    """Start without clients and with a new lock, because a forked process may share neither with its parent."""
    global _lock
    _lock = threading.RLock()
    _stores.clear()


os.register_at_fork(after_in_child=_forget_stores)


def reader_of(address: Address) -> Files:
    """Return the files below an address, for reading.

    Raises:
        UsageError: no client reads such addresses, or the address has a user that the client does not use.
        MissingExtraError: the client's package is not installed.
    """
    from halofeed.storage.fsspec_files import FsspecFiles, has_settings
    from halofeed.storage.web import WebFiles

    scheme = _SAME_SCHEME.get(address.scheme, address.scheme)
    _refuse_user_and_query(f"{address}", address)
    # Settings of fsspec are those of the user, and our own clients do not know them.
    if not has_settings(address.scheme):
        if scheme in _EXTRAS:
            with require_extra("remote", "boto3", "botocore", "google", "requests"):
                return store_of(f"{scheme}://").at(str(address))
        if scheme in _WEB:
            return WebFiles(address)
    return FsspecFiles(address)


def check_reachable(flag: str, path: str) -> None:
    """Refuse an address of a folder whose scheme Beam does not know, or whose library is not installed.

    Raises:
        UsageError: names the known schemes, or the missing extra.
    """
    address = address_of(path)
    if address is None:
        return
    # The text of an `Address` has no secrets. `path` itself is never part of a message.
    scheme, place = address.scheme, str(address).partition("://")[2]
    # A path is meant; below it would be an unknown file system.
    if scheme == "file":
        raise UsageError(f"{flag} {address}: expected a path, got an address; write {flag} {place}")
    if scheme in _WEB:
        raise UsageError(
            f"{flag} {address}: a conversion uses no web addresses; download the files and name their folder, or name "
            "a bucket as gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"
        )
    # s3:///folder: a client would report an empty name of a bucket as a wrong request.
    if scheme in _EXTRAS and place.startswith("/"):
        raise UsageError(f"{flag} {address}: names no bucket; write {scheme}://BUCKET/{place.strip('/')}")
    _refuse_user_and_query(f"{flag} {address}", address)
    extra, module = _EXTRAS.get(scheme, ("", ""))
    # Beam reports a missing package as an unknown file system.
    if module and not _is_installed(module):
        raise MissingExtraError(
            f"{flag} {address}: {module} is not installed, which {scheme}:// needs; {install_command(extra)}"
        )
    if not BeamFiles().knows(address.full):
        raise UsageError(
            f"{flag} {address}: {scheme}:// is an unknown file system; expected a local path, or one of "
            f"{', '.join(f'{known}://' for known in _EXTRAS)}, hdfs://"
        )


def _refuse_user_and_query(where: str, address: Address) -> None:
    """Refuse a bucket's address with a user or a query: stores would take a query for a part of an object's name.

    They would also repeat it in their errors, which may be longer, quoted or encoded once more.
    """
    if _SAME_SCHEME.get(address.scheme, address.scheme) not in _EXTRAS:
        return
    if address.has_user or address.has_query:
        raise UsageError(f"{where}: {NO_USER if address.has_user else NO_QUERY}")


def read_option_file(flag: str, path: str, max_bytes: int) -> bytes:
    """Return the bytes of a file that an option names: a path, or an address of a web server or a store.

    Args:
        flag: the option, for messages.
        max_bytes: size above which the file is refused.

    Raises:
        UsageError: there is no such file, it cannot be read, or no client reads such addresses.
    """
    address = address_of(path)
    shown = f"{flag} {path if address is None else address}"
    try:
        if address is None:
            return read_regular(path, max_bytes)
        if address.scheme not in _WEB:
            check_reachable(flag, path)
        data = _read_address(address, max_bytes)
    except FileNotFoundError as error:
        raise UsageError(f"{shown}: no such file") from error
    except StoreError as error:
        raise UsageError(f"{flag} {error}") from printable_cause(error)
    except OSError as error:
        raise UsageError(f"{shown}: {error.strerror or error}; name a file that can be read") from error
    if len(data) > max_bytes:
        raise UsageError(f"{shown}: it holds more than {human_bytes(max_bytes)}, the most that is read")
    return data


def _read_address(address: Address, max_bytes: int) -> bytes:
    """Return the first `max_bytes` and one more byte of an object; raise FileNotFoundError or StoreError."""
    if address.scheme not in _WEB:
        return store_of(str(address)).read("", 0, max_bytes + 1)
    web = reader_of(address)
    # By its size, a range up to the bound would have hours for an answer.
    return bytes(web.retried("", lambda: web.read_once("", 0, max_bytes + 1, _WEB_SECONDS)))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the module's package
        return False
