"""What a header says of the voxels of a file, and the bytes that hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from halofeed.prep.formats.volume.gzip_stream import MAGIC, ByteStream, GzipStream, PlainStream
from halofeed.prep.geometry.scan import Shape
from halofeed.schemas.errors import SourceError


@dataclass(frozen=True, kw_only=True)
class StoredVoxels:
    """How the voxels of a file are stored.

    Args:
        shape: (depth, height, width): the lengths of the axes k, j, i.
        channels: the length of the axis of time, of vectors or of colors.
        interleaved: the channels of a voxel lie side by side; otherwise one volume after the other.
        dtype: of one stored value, in the file's byte order.
        offset: where the first value stands in the content, in bytes.
        slope, inter: a value is `stored * slope + inter`.
    """

    shape: Shape
    channels: int
    interleaved: bool
    dtype: np.dtype[Any]
    offset: int
    slope: float = 1.0
    inter: float = 0.0

    @property
    def rescales(self) -> bool:
        """Whether any value is another than the stored one."""
        return (self.slope, self.inter) != (1.0, 0.0)

    @property
    def value_count(self) -> int:
        """Voxels times channels."""
        return math.prod(self.shape) * self.channels

    @property
    def voxel_bytes(self) -> int:
        """The bytes of all values."""
        return self.value_count * self.dtype.itemsize

    @property
    def slice_bytes(self) -> int:
        """The bytes of one slice of one channel: the least that is a sign of a wrong header if it is left over."""
        parts = self.channels if self.interleaved else 1
        return self.shape[1] * self.shape[2] * parts * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Content:
    """The bytes of a file, of which those from `start` on are voxels once they are unpacked."""

    data: bytes
    start: int = 0
    unpack: Callable[[bytes, int], ByteStream] = PlainStream

    def open(self) -> ByteStream:
        """The unpacked bytes from the first on."""
        return self.unpack(self.data, self.start)

    @property
    def is_plain(self) -> bool:
        """Whether the bytes are stored as they are."""
        return self.unpack is PlainStream

    @property
    def packed_bytes(self) -> int:
        """How many bytes hold the voxels."""
        return len(self.data) - self.start


def content_of(data: bytes) -> Content:
    """The content of a file, compressed if it begins as gzip does."""
    return Content(data=data, unpack=GzipStream if data.startswith(MAGIC) else PlainStream)


def damaged(detail: str) -> SourceError:
    """The error of a header that contradicts itself or the standard."""
    return SourceError("decode", "header is damaged", detail)


def check_voxel_count(lengths: Sequence[int], parts: int, max_voxels: int) -> None:
    """Refuse a header that claims too many values.

    Raises:
        SourceError: voxels of so many parts are more values than are allowed.
    """
    count = math.prod(lengths) * parts
    if count > max_voxels:
        claimed = f"{' x '.join(map(str, lengths))} voxels of {parts} values"
        detail = f"{claimed}; allowed are {max_voxels} in all; --max-voxels {count} allows it"
        raise SourceError("decode", "more voxels than allowed", detail)
