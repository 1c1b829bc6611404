"""Expected size of a data set, and the space of the disk that is to hold it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.packed.packed_layout import PackedLayout
from halofeed.schemas.tasks import task_named
from halofeed.system.addresses import is_remote
from halofeed.system.console import human_bytes, print_status
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural

_MIN_PRINTED_BYTES: Final = 1 << 30
"""Size of a data set from which a conversion prints its expected size."""
_SHARE_KEPT_FREE: Final = 0.02
"""Share of the disk that a conversion leaves free."""


@dataclass(frozen=True, kw_only=True)
class ExpectedSize:
    """Bytes of the image and the label of a record.

    Args:
        bytes: the number.
        is_limit: whether it is an upper bound: packed values take about half of it, and noise nearly all.
    """

    bytes: int
    is_limit: bool = False

    def describe(self, records: int) -> str:
        """Return the size of some records as text.

        >>> ExpectedSize(bytes=3_000_000).describe(1000), ExpectedSize(bytes=3_000_000, is_limit=True).describe(1)
        ('1,000 records of 3.00 MB are 3.00 GB', '1 record of at most 3.00 MB is at most 3.00 MB')
        """
        most, are = "at most " * self.is_limit, "is" if records == 1 else "are"
        return (
            f"{plural(records, 'record')} of {most}{human_bytes(self.bytes)} {are} "
            f"{most}{human_bytes(self.bytes * records)}"
        )


def size_of_record(recipe: Recipe, task: str, label_dtype: str) -> ExpectedSize | None:
    """Return the bytes of one record's image and label; None where they depend on the pictures alone.

    >>> size_of_record(Recipe(height=640, width=640), "detection", "uint8")
    ExpectedSize(bytes=1228800, is_limit=False)
    >>> size_of_record(Recipe(height=640, width=640, encoding="packed"), "detection", "uint8")
    ExpectedSize(bytes=1229004, is_limit=True)
    """
    shape, encoding = recipe.static_shape(), ENCODINGS[recipe.encoding]
    # JPEG and PNG files depend on the pictures, and so does the size of records without a static shape.
    if not encoding.is_array or shape is None:
        return None
    # NumPy has no bfloat16, which takes 2 bytes.
    dtype = {"bfloat16": "uint16"}.get(recipe.dtype, recipe.dtype)
    image = math.prod(shape) * np.dtype(dtype).itemsize * recipe.channels
    has_label = task_named(task).has_label_image
    label = math.prod(shape) * np.dtype(label_dtype).itemsize if has_label else 0
    if encoding.is_fixed_size and not encoding.holds_planes:
        return ExpectedSize(bytes=image + label)
    if has_label:
        label = PackedLayout.of((*shape, 1), label_dtype, axes=len(shape)).max_bytes
    if encoding.holds_planes:
        # Luma, and chroma of half the height and width. Their label maps are packed.
        return ExpectedSize(bytes=image // 2 + label, is_limit=has_label)
    image = PackedLayout.of((*shape, recipe.channels), dtype, axes=len(shape)).max_bytes
    return ExpectedSize(bytes=image + label, is_limit=True)


def free_bytes(folder: str) -> int:
    """Return the free bytes of the local disk that would hold a folder."""
    path = Path(folder).absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if os.path.exists(one))).free


def check_disk_space(
    folder: str, records: int, size: ExpectedSize | None, present: Mapping[str, int], *, refuse: bool
) -> None:
    """Print the expected bytes of a large data set, and refuse one that does not fit on the disk.

    Args:
        folder: output folder; the space of an object store is unknown.
        records: minimum number of records.
        size: result of `size_of_record`. A data set whose upper bound does not fit is not refused, because it may fit.
        present: names of existing files of an interrupted run, with their sizes; shards need no more space.
        refuse: raise an error where the space is too small; otherwise only print it.

    Raises:
        UsageError: there is too little space; names the options that make records smaller.
    """
    if size is None or is_remote(folder):
        return
    needed = records * size.bytes - sum(there for name, there in present.items() if ".tfrecord-" in name)
    free = free_bytes(folder)
    text = size.describe(records)
    if needed > free * (1 - _SHARE_KEPT_FREE):
        text += f", and {folder} has {human_bytes(free)} free"
        if size.is_limit:
            text += "; packed records usually take about half of the most, and a full disk loses no finished shard"
        elif refuse:
            raise UsageError(
                f"{text}; take smaller records (a smaller --height, --width or --max-dimension, for volumes also "
                "--depth), --encoding packed (about half of these bytes), for pictures --encoding jpeg or png, another "
                "--out, or insist with --disk-check ignore"
            )
        text = f"warning: {text}"
    elif needed < _MIN_PRINTED_BYTES:
        return
    print_status(f"halofeed convert: {text}")
