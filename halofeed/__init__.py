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
    "ConvertedDataset",
    "Dataset",
    "convert",
    "diff",
    "dry_run",
    "evaluate",
    "export",
    "inspect",
    "open",
    "plan",
    "predict",
    "report",
    "review",
    "show",
    "subset",
    "train",
    "verify",
)
_AUGMENTATIONS = (
    *(
        "ElasticDeformation",
        "FlipDepth",
        "FlipLeftRight",
        "FlipUpDown",
        "MixUp",
        "Mosaic",
        "PadAndCrop",
        "RandAugmentMoves",
        "RandomCrop",
    ),
    *("RandomCropImage", "RandomResizedCrop", "RandomRotation", "Rotate90", "ScaleJitter", "SsdRandomCrop"),
)
_MODULES = {
    **dict.fromkeys(_API, "halofeed.api"),
    **dict.fromkeys(
        ("Loader", "Mixture", "RepeatFactor", "boxes_to_mm", "boxes_to_source", "join_id", *_AUGMENTATIONS),
        "halofeed.loader",
    ),
    **dict.fromkeys(("constrain", "make_mesh"), "halofeed.trainer.mesh"),
    "ConversionSummary": "halofeed.pipelines.run_counts",
    "keras_batches": "halofeed.loader.forms.keras_form",
    "keras_datasets": "halofeed.keras_data",
    "Partition": "halofeed.schemas.partition",
}
_SUBMODULES = ("torch",)
"""Modules that are imported when they are used first; `import halofeed.torch` works too."""


def __getattr__(name: str) -> _Any:
    if name in _SUBMODULES:
        return _importlib.import_module(f"halofeed.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'halofeed' has no attribute {name!r}{_likely_name(name)}")
    return getattr(_importlib.import_module(_MODULES[name]), name)


def _likely_name(name: str) -> str:
    """Return the name that a name may mean that this module has not, for a message."""
    if name.startswith("_"):
        return ""
    from halofeed.system.wording import nearest_name

    # Other libraries load or read a data set.
    near = "open" if name.startswith(("load", "read")) else nearest_name(name, _MODULES)
    return f"; did you mean halofeed.{near}?" if near else f"; it has {', '.join(_MODULES)}"


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_SUBMODULES})
