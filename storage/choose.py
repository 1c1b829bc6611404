"""Choice of the store for an address: one client of each store and process, with the settings of the job."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from halofeed.errors import MissingExtraError, UsageError, install_command, require_extra
from halofeed.storage.base import ObjectStore
from halofeed.storage.beam import BeamFiles, apply_options
from halofeed.storage.gcs import GcsObjects
from halofeed.storage.local import LocalDisk
from halofeed.system.addresses import NO_USER, Address, is_remote, keep_secret

_SECRET = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_SAME_SCHEME = {"s3a": "s3", "gcs": "gs"}
_EXTRAS = {"gs": ("gcp", "google.cloud.storage"), "s3": ("aws", "boto3")}

_lock = threading.RLock()  # a signal handler may need it too
_stores: dict[str, ObjectStore] = {}
_settings: dict[str, Any] = {}


def _s3_client() -> ObjectStore:
    from halofeed.storage.s3 import S3Objects  # its http and ssl take 15 ms to import

    return S3Objects(_settings)


_CLIENTS: dict[str, Callable[[], ObjectStore]] = {"": LocalDisk, "s3": _s3_client, "gs": GcsObjects}
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
        if dict(settings) != _settings:
            _settings.clear()
            _settings.update(settings)
            _stores.clear()


def store_of(address: str) -> ObjectStore:
    """Return the store of a path or address: one client for each scheme and process."""
    scheme = address.partition("://")[0] if is_remote(address) else ""
    with _lock:
        if scheme not in _stores:
            _stores[scheme] = _CLIENTS.get(scheme, BeamFiles)()
        return _stores[scheme]


def _forget_stores() -> None:
    """Start without clients and with a new lock, because a forked process may share neither with its parent."""
    global _lock
    _lock = threading.RLock()
    _stores.clear()


os.register_at_fork(after_in_child=_forget_stores)


def reader_of(address: Address) -> ObjectStore:
    """Return the store that reads the files below an address, by `stat_once`, `read_range_once` and `list_dir`.

    Raises:
        UsageError: no client reads such addresses, or the address has a user that the client does not use.
        MissingExtraError: the client's package is not installed.
    """
    from halofeed.storage.fsspec_files import FsspecFiles, has_settings
    from halofeed.storage.web import WebFiles

    scheme = _SAME_SCHEME.get(address.scheme, address.scheme)
    if scheme in _EXTRAS and address.has_user:
        raise UsageError(f"{address}: {NO_USER}")
    if not has_settings(address.scheme):
        if scheme in _EXTRAS:
            with require_extra("remote", "boto3", "botocore", "google", "requests"):
                return store_of(f"{scheme}://")
        if scheme in ("http", "https"):
            return WebFiles(address.redirects)
    return FsspecFiles(address)


def check_reachable(flag: str, path: str) -> None:
    """Refuse an address whose scheme Beam does not know, or whose library is not installed.

    Raises:
        UsageError: names the known schemes, or the missing extra.
    """
    scheme, mark, rest = path.partition("://")
    if not mark:
        return
    if scheme == "file":
        raise UsageError(f"{flag} {path}: expected a path, got an address; write {flag} {rest}")
    if scheme in ("http", "https"):
        raise UsageError(
            f"{flag} {path}: a conversion uses no web addresses; download the files and name their folder, or name "
            "a bucket as gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"
        )
    if rest.startswith("/") and scheme in _EXTRAS:
        raise UsageError(f"{flag} {path}: names no bucket; write {scheme}://BUCKET/{rest.strip('/')}")
    extra, module = _EXTRAS.get(scheme, ("", ""))
    if module and not _is_installed(module):
        raise MissingExtraError(
            f"{flag} {path}: {module} is not installed, which {scheme}:// needs; {install_command(extra)}"
        )
    if not BeamFiles().knows(path):
        raise UsageError(
            f"{flag} {path}: {scheme}:// is an unknown file system; expected a local path, or one of "
            f"{', '.join(f'{known}://' for known in _EXTRAS)}, hdfs://"
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the module's package
        return False
