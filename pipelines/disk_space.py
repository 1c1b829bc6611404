"""Is there room for what a conversion will write? Worked out before the first record, said, and refused where not."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from halofeed.errors import UsageError
from halofeed.pipelines.storage import is_remote
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.tasks import task_named
from halofeed.system.console import human_bytes, print_status

WORTH_SAYING_BYTES: Final = 1 << 30
_KEPT_FREE: Final = 0.02
"""A disk that is filled to the last block serves nobody."""


def record_bytes(recipe: Recipe, task: str, label_dtype: str) -> int | None:
    """The bytes of one record's image and label; None where its encoding decides.

    >>> record_bytes(Recipe(height=640, width=640), "detection", "uint8")
    1228800
    """
    shape = recipe.static_shape()
    if recipe.encoding != "raw" or shape is None:
        return None
    stored = np.dtype({"bfloat16": "uint16"}.get(recipe.dtype, recipe.dtype)).itemsize * recipe.channels
    label = np.dtype(label_dtype).itemsize if task_named(task).has_label_image else 0
    return math.prod(shape) * (stored + label)


def check_room(
    folder: str, records: int, each: int | None, present: Mapping[str, int], *, insist: bool
) -> None:
    """Say how much will be written, and refuse what the disk cannot hold.

    Args:
        folder: that is written to; nothing is known of the room of an object store.
        records: that will be written at least.
        each: bytes of a record, as `record_bytes` gives them.
        present: files that lie in the folder already and their bytes, of a run that goes on.
        insist: only say it.

    Raises:
        UsageError: there is not enough room; names the options that make records smaller.
    """
    if each is None or is_remote(folder):
        return
    needed = records * each - sum(size for name, size in present.items() if ".tfrecord-" in name)
    path = Path(folder).absolute()
    free = shutil.disk_usage(next(one for one in (path, *path.parents) if os.path.exists(one))).free
    text = f"{records:,} records of {human_bytes(each)} are {human_bytes(records * each)}"
    if needed > free * (1 - _KEPT_FREE):
        text += f", and {folder} has {human_bytes(free)} free"
        if not insist:
            raise UsageError(
                f"{text}; take smaller records (a smaller --height, --width or --max-dimension, of volumes --depth "
                "too), of pictures --encoding jpeg or png, another --out, or insist with --disk-check ignore"
            )
        text = f"warning: {text}"
    elif needed < WORTH_SAYING_BYTES:
        return
    print_status(f"halofeed convert: {text}")
