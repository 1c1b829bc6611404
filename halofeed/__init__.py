"""From camera and scanner files to spatially partitioned training steps.

This module imports nothing heavy; its names are imported when they are used first.

>>> import halofeed
>>> halofeed.Partition(cores_per_replica=4).cores_per_replica
4
"""

from __future__ import annotations

import importlib as _importlib
from typing import Any as _Any

__version__ = "0.1.0"
_API = (
    "Dataset",
    "convert",
    "dry_run",
    "evaluate",
    "export",
    "inspect",
    "open",
    "plan",
    "predict",
    "report",
    "show",
    "train",
    "verify",
)
_MODULES = {
    **dict.fromkeys(_API, "halofeed.api"),
    **dict.fromkeys(("Loader", "Mixture"), "halofeed.loader"),
    **dict.fromkeys(("constrain", "make_mesh"), "halofeed.trainer.mesh"),
    "Partition": "halofeed.schemas.partition",
}


def __getattr__(name: str) -> _Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'halofeed' has no attribute {name!r}")
    return getattr(_importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
