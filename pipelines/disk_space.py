"""Expected size of a data set, and the space of the disk that is to hold it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.tasks import task_named
from halofeed.system.addresses import is_remote
from halofeed.system.console import human_bytes, print_status
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural

_MIN_PRINTED_BYTES: Final = 1 << 30
"""Size of a data set from which a conversion prints its expected size."""
_SHARE_KEPT_FREE: Final = 0.02
"""Share of the disk that a conversion leaves free."""


def bytes_per_record(recipe: Recipe, task: str, label_dtype: str) -> int | None:
    """Return the bytes of one record's image and label; None where they depend on the encoding.

    >>> bytes_per_record(Recipe(height=640, width=640), "detection", "uint8")
    1228800
    """
    shape = recipe.static_shape()
    # Other encodings depend on the pictures, and so does the size of records without a static shape.
    if not ENCODINGS[recipe.encoding].is_fixed_size or shape is None:
        return None
    # NumPy has no bfloat16, which takes 2 bytes.
    stored = np.dtype({"bfloat16": "uint16"}.get(recipe.dtype, recipe.dtype)).itemsize * recipe.channels
    label = np.dtype(label_dtype).itemsize if task_named(task).has_label_image else 0
    if ENCODINGS[recipe.encoding].holds_planes:
        # Their label maps are packed.
        return None if label else math.prod(shape) * stored // 2
    return math.prod(shape) * (stored + label)


def free_bytes(folder: str) -> int:
    """Return the free bytes of the local disk that would hold a folder."""
    path = Path(folder).absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if os.path.exists(one))).free


def check_disk_space(
    folder: str, records: int, record_bytes: int | None, present: Mapping[str, int], *, refuse: bool
) -> None:
    """Print the expected bytes of a large data set, and refuse one that does not fit on the disk.

    Args:
        folder: output folder; the space of an object store is unknown.
        records: minimum number of records.
        record_bytes: result of `bytes_per_record`.
        present: names of existing files of an interrupted run, with their sizes; shards need no more space.
        refuse: raise an error where the space is too small; otherwise only print it.

    Raises:
        UsageError: there is too little space; names the options that make records smaller.
    """
    if record_bytes is None or is_remote(folder):
        return
    needed = records * record_bytes - sum(size for name, size in present.items() if ".tfrecord-" in name)
    free = free_bytes(folder)
    text = f"{plural(records, 'record')} of {human_bytes(record_bytes)} are {human_bytes(records * record_bytes)}"
    if needed > free * (1 - _SHARE_KEPT_FREE):
        text += f", and {folder} has {human_bytes(free)} free"
        if refuse:
            raise UsageError(
                f"{text}; take smaller records (a smaller --height, --width or --max-dimension, for volumes also "
                "--depth), --encoding packed (about half of these bytes), for pictures --encoding jpeg or png, another "
                "--out, or insist with --disk-check ignore"
            )
        text = f"warning: {text}"
    elif needed < _MIN_PRINTED_BYTES:
        return
    print_status(f"halofeed convert: {text}")
