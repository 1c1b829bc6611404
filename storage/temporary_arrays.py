"""Arrays in temporary files: the system writes their pages to disk when memory is short."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from halofeed.storage.paths import temporary_stream


def temporary_array(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros in a file that is deleted with the array.

    >>> int(temporary_array((2, 3), np.uint8).sum())
    0
    """
    # NumPy keeps the mapping, so that the file may be closed.
    with temporary_stream() as stream:
        return np.memmap(stream, dtype, "w+", shape=shape)
