"""Which store has an address? One client of each for a process, with the settings of the job."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, S3Options

from halofeed.pipelines.objects.base import ObjectStore
from halofeed.pipelines.objects.beam import BeamObjects
from halofeed.pipelines.objects.gcs import GcsObjects
from halofeed.pipelines.objects.s3 import S3Objects
from halofeed.system.addresses import keep_secret

_ARGUMENTS = {
    "s3_access_key_id": "aws_access_key_id",
    "s3_secret_access_key": "aws_secret_access_key",
    "s3_session_token": "aws_session_token",
    "s3_endpoint_url": "endpoint_url",
    "s3_region_name": "region_name",
    "s3_api_version": "api_version",
    "s3_verify": "verify",
}
"""Beam's options, and what they are called as arguments of boto3's client."""
_SECRET = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")

_making = threading.RLock()  # a signal's handler may ask too
_stores: dict[tuple[int, str], ObjectStore] = {}
_settings: dict[str, Any] = {}
_KINDS: dict[str, Callable[[], ObjectStore]] = {"s3": lambda: S3Objects(_settings), "gs": GcsObjects}


def use_options(options: PipelineOptions) -> dict[str, Any]:
    """Have this process reach stores as the options after `--` say; what `use_settings` takes elsewhere."""
    FileSystems.set_options(options)
    given = options.view_as(S3Options).get_all_options(drop_default=True)
    settings = {argument: given[name] for name, argument in _ARGUMENTS.items() if given.get(name) is not None}
    if given.get("s3_disable_ssl"):
        settings["use_ssl"] = False
    use_settings(settings)
    return settings


def use_settings(settings: Mapping[str, Any]) -> None:
    """Have this process reach S3 with these arguments of boto3's client from now on."""
    for name in _SECRET:
        keep_secret(str(settings.get(name, "")))
    with _making:
        if dict(settings) != _settings:
            _settings.clear()
            _settings.update(settings)
            _stores.clear()


def store_of(address: str) -> ObjectStore:
    """The store of an address, the same one each time that this process asks."""
    scheme = address.partition("://")[0]
    with _making:
        known = (os.getpid(), scheme)
        if known not in _stores:
            _stores[known] = _KINDS.get(scheme, BeamObjects)()
        return _stores[known]
