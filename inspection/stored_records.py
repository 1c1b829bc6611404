"""Readers of stored records: shards by index or in order, and the values of a decoded record.

Most functions on values return None for one that is missing or malformed, because data sets may come from strangers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_files import DatasetFiles, open_files
from halofeed.inspection.stored_values import stored_array
from halofeed.prep.convert.tallies import count_labels
from halofeed.schemas import keys
from halofeed.schemas.fields import Field, count_set_members, ids_of_field, top_classes, unknown_bits
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.limits import INDEX_BYTES
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfexample import MAX_EXAMPLE_BYTES, Decoded, decode_example, decode_small
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_header, check_record, footer_of
from halofeed.system.checksum import crc32c
from halofeed.system.errors import CorruptFileError, HalofeedError
from halofeed.system.wording import plural


class StoredShard:
    """Random access to the records of a shard through its index.

    Raises:
        CorruptFileError: the index is missing or damaged, or belongs to another shard.
    """

    def __init__(self, folder: Path | DatasetFiles, shard: Shard) -> None:
        self._files, self._shard = open_files(folder), shard
        name = shard.index
        path = self._files.path(name)
        data = self._files.index(name, min(shard.index_bytes, INDEX_BYTES))
        if crc32c(data) != shard.index_crc32c:
            raise CorruptFileError(f"{path}: its checksum is not the manifest's; {self._fix}")
        self.index = ShardIndex.from_bytes(data, path)
        if len(self.index) != shard.records:
            raise CorruptFileError(
                f"{path}: holds {plural(len(self.index), 'record')}, the manifest says {shard.records}; {self._fix}"
            )
        self._file = self._files.source(shard)

    @property
    def _fix(self) -> str:
        return f"run `halofeed verify {self._files}`"

    def byte_range(self, row: int) -> tuple[int, int]:
        """Return the byte at which a record begins, and the bytes of its data.

        Raises:
            CorruptFileError: the range is outside of the file.
        """
        offset, length = int(self.index.offsets[row]), int(self.index.lengths[row])
        end = offset + HEADER_BYTES + length + FOOTER_BYTES
        # An index may come from a stranger.
        if offset < 0 or length < 0 or end > self._file.open().bytes:
            raise self._error(row, "the file ends inside the record, or before it")
        return offset, length

    def features(self, row: int) -> Decoded:
        """Read all values of a record and compare its checksums; bytes values are views of one new buffer.

        Raises:
            CorruptFileError: the record is not what was written.
        """
        frame = self.frame(row)
        try:
            return decode_example(frame[HEADER_BYTES:-FOOTER_BYTES])
        except CorruptFileError as error:
            raise self._error(row, str(error)) from error

    def frame(self, row: int) -> memoryview:
        """Return the bytes of a record with its header and footer, after a comparison of its checksums.

        Raises:
            CorruptFileError: the record is not what was written.
        """
        offset, length = self.byte_range(row)
        data = self._file.open().read(offset, HEADER_BYTES + length + FOOTER_BYTES)
        try:
            record = check_record(data, self._shard.file)
            if len(record) != length or footer_of(data) != self.index.checksums[row]:
                raise self._error(row, "it is another record than the index says")
            return data
        except CorruptFileError as error:
            what = str(error).removeprefix(f"{self._shard.file}: record at byte 0: ")
            raise self._error(row, what) from error

    def small_features(self, row: int, keys: Collection[str]) -> Decoded:
        """Read only the values of some keys, which should be small, without comparing the checksum.

        Raises:
            CorruptFileError: the record is not a `tf.train.Example`.
        """
        offset, length = self.byte_range(row)
        opened = self._file.open()
        try:
            return decode_small(lambda at, size: opened.read(offset + HEADER_BYTES + at, size), length, keys)
        except CorruptFileError as error:
            raise self._error(row, str(error)) from error

    def _error(self, row: int, what: str) -> CorruptFileError:
        path = self._files.path(self._shard.file)
        place = f"{path}: record {row} at byte {int(self.index.offsets[row]):,}: "
        return CorruptFileError(what if what.startswith(path) else f"{place}{what}; {self._fix}")


_CHUNK_BYTES = 1 << 20


class SequentialShard:
    """Reader of the records in the first `size` bytes of a file, with one record in memory at a time.

    Attributes:
        footer: stored masked CRC32C of the record read last.
    """

    def __init__(self, file: OpenFile, size: int) -> None:
        self._file = file
        self.name, self.bytes = file.name, size
        self._memory = np.empty(0, np.uint8)
        self._checksum, self._summed, self.footer = 0, 0, 0

    def record(self, offset: int) -> memoryview:
        """Read the data of the record at a byte offset; it is valid until the next read. CorruptFileError."""
        place = f"{self.name}: record at byte {offset:,}"
        size = HEADER_BYTES + check_header(self.read(offset, HEADER_BYTES), place) + FOOTER_BYTES
        # If the stated length cannot be right, only the header is read, and `check_record` reports it.
        fits = size <= min(self.bytes - offset, HEADER_BYTES + MAX_EXAMPLE_BYTES + FOOTER_BYTES)
        frame = self.read(offset, size if fits else HEADER_BYTES)
        data = check_record(frame, self.name, offset)
        self.footer = footer_of(frame)
        # Records that follow each other are summed while they are in memory, so that the file is read once.
        if offset == self._summed:
            self._checksum = crc32c(frame, self._checksum)
            self._summed += len(frame)
        return data

    def records(self, index: ShardIndex | None) -> Iterator[tuple[int, memoryview | CorruptFileError]]:
        """Yield the offset of each record, and its data or its error; without an index, stop at the first error."""
        if index is not None:
            frame = HEADER_BYTES + FOOTER_BYTES
            for number, (offset, length) in enumerate(
                zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
            ):
                try:
                    yield offset, self.record(offset)
                except HalofeedError as error:
                    # All records after the end of a cut file are missing, which is one problem and not one for each.
                    cut_off = len(index) - number - 1 if offset + length + frame > self.bytes else 0
                    also = f"; the {plural(cut_off, 'record')} after it are missing too" if cut_off else ""
                    yield offset, CorruptFileError(f"{error}{also}")
                    if cut_off:
                        return
            return
        offset = 0
        while offset < self.bytes:
            try:
                data = self.record(offset)
            except CorruptFileError as error:
                yield offset, error
                return
            yield offset, data
            offset += HEADER_BYTES + len(data) + FOOTER_BYTES

    def checksum(self) -> int:
        """Return the CRC32C of the file; only bytes after the records read in order are read again."""
        while self._summed < self.bytes:
            self._checksum = crc32c(piece := self.read(self._summed, _CHUNK_BYTES), self._checksum)
            self._summed += len(piece)
        return self._checksum

    def read(self, offset: int, size: int) -> memoryview:
        """Read up to `size` bytes at an offset, valid until the next read; fewer at the end of the file."""
        size = min(size, max(0, self.bytes - offset))
        if size > len(self._memory):
            self._memory = np.empty(size, np.uint8)
        view = self._memory[:size].data
        if size:
            self._file.read_into((view,), offset, size)
        return view


def integer_of(features: Decoded, key: str) -> int | None:
    """Return the single integer of a key, or None."""
    value = features.get(key)
    return (
        int(value[0])
        if isinstance(value, np.ndarray) and value.dtype == np.int64 and len(value) == 1
        else None
    )


def bytes_of(features: Decoded, key: str) -> memoryview | None:
    """Return the single bytes value of a key, or None."""
    value = features.get(key)
    return value[0] if isinstance(value, list) and len(value) == 1 else None


def text_of(features: Decoded, key: str) -> str | None:
    """Return the single text of a key, or None; bytes that are not UTF-8 become lone surrogates."""
    value = bytes_of(features, key)
    return None if value is None else str(value, "utf-8", "surrogateescape")


VOLUME_AXES = ("depth", "height", "width")
DIRECTIONS = (("left", "right"), ("posterior", "anterior"), ("inferior", "superior"))
"""For the patient's axes x, y, z: the direction at the low end, and the direction at the high end."""
CANONICAL = (2, 1, 0)
"""The patient's axes along which depth, height and width run."""
CHUNK_VALUES = 1 << 22


def array_of(features: Decoded, key: str, kind: str = "f") -> NDArray[Any] | None:
    """Return the numbers of a key, or None if it is missing or has another NumPy kind."""
    value = features.get(key)
    return value if isinstance(value, np.ndarray) and value.dtype.kind == kind else None


def spacing_of(features: Decoded) -> NDArray[np.float32] | None:
    """Return the millimeters between voxels along each axis, or None unless there are three finite numbers."""
    spacing = array_of(features, keys.SPACING_MM)
    return spacing if spacing is not None and spacing.shape == (3,) and np.isfinite(spacing).all() else None


def extent_of(features: Decoded) -> NDArray[np.int64] | None:
    """Return int64 [2, axis], the first index and the one after the last of the part without padding, or None."""
    extent = array_of(features, keys.EXTENT, "i")
    return extent.reshape(2, 3) if extent is not None and extent.shape == (6,) else None


def affine_of(features: Decoded, key: str = keys.AFFINE) -> NDArray[np.float64] | None:
    """Return the affine of a key as float64 [4, 4], or None."""
    value = array_of(features, key)
    return value.reshape(4, 4).astype(np.float64) if value is not None and value.shape == (16,) else None


def orientation_of(affine: NDArray[np.float64]) -> tuple[tuple[str, str], ...]:
    """Return, for each axis, the patient's directions at its low end and at its high end.

    >>> orientation_of(np.array([[0, 0, 2], [0, 2, 0], [-3, 0, 0]]))[0]
    ('superior', 'inferior')
    """
    cosines = direction_cosines(affine[:3, :3])
    return tuple(
        DIRECTIONS[row] if cosines[row, axis] >= 0 else DIRECTIONS[row][::-1]
        for axis, row in enumerate(_nearest_patient_axes(cosines))
    )


def oblique_degrees(affine: NDArray[np.float64]) -> float:
    """Return the largest angle between an axis and its nearest patient axis."""
    cosines = np.abs(direction_cosines(affine[:3, :3]))
    least = min(float(cosines[row, axis]) for axis, row in enumerate(_nearest_patient_axes(cosines)))
    return math.degrees(math.acos(min(1.0, least)))


def direction_cosines(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale each column of a matrix [3, 3] to length 1; columns of zeros stay."""
    lengths = np.linalg.norm(linear, axis=0)
    return np.asarray(linear / np.where(lengths, lengths, 1))


def _nearest_patient_axes(cosines: NDArray[np.float64]) -> tuple[int, ...]:
    """Return the patient's axis nearest to each axis, by the best match of all three together."""
    return max(permutations(range(3)), key=lambda rows: alignment(cosines, rows))


def alignment(cosines: NDArray[np.float64], rows: tuple[int, ...]) -> float:
    """Return the sum of the absolute cosines between each axis and the patient's axis assigned to it."""
    return sum(abs(float(cosines[row, axis])) for axis, row in enumerate(rows))


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """Pixel or voxel counts of a label map.

    Args:
        voxels: count by class id, without zeros; 0 is the background. A voxel of several classes counts for each.
        foreground: number of voxels of any class, each counted once.
        unknown: count by description of each value that the manifest has no class for.
    """

    voxels: Mapping[int, int] = field(default_factory=dict)
    foreground: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)


def label_field(manifest: Manifest) -> Field | None:
    """Return the field of the class indices, or None if the data set has none."""
    return next((field for field in manifest.fields if keys.LABEL in field.keys), None)


def is_volumetric(manifest: Manifest) -> bool:
    """Return whether records hold volumes."""
    return "depth" in manifest.kind.axes


def label_map(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    """Return the stored label of each pixel or voxel, or None; a view where the encoding allows it.

    A label is a class index, or a set of classes if classes overlap: see `shown_classes` and `class_counts`.
    """
    field, data = label_field(manifest), bytes_of(features, keys.LABEL)
    return None if field is None or data is None else stored_array(data, field)


def class_channels(manifest: Manifest) -> tuple[int, ...]:
    """Return the class id of each channel if classes overlap, else ()."""
    field = label_field(manifest)
    return () if field is None else ids_of_field(field, manifest.labels)


def shown_classes(label: NDArray[Any], manifest: Manifest) -> NDArray[Any]:
    """Return the class to draw for each pixel or voxel of a `label_map`: that of the highest id.

    Ignored pixels are drawn as background.
    """
    channels = class_channels(manifest)
    # Sets of classes have no ignored voxels.
    if manifest.ignore_label is not None:
        return np.where(label == manifest.ignore_label, 0, label)
    return top_classes(label, channels) if channels else label


def class_counts(label: NDArray[Any], manifest: Manifest) -> ClassCounts:
    """Count the classes of a `label_map`."""
    counts, channels = count_classes(label), class_channels(manifest)
    if channels:
        voxels = count_set_members(counts, channels)
        unknown = {
            f"in bit {bit} of its sets": count for bit, count in unknown_bits(counts, len(channels)).items()
        }
    else:
        # Ignored pixels are of no class.
        counts.pop(-1 if manifest.ignore_label is None else manifest.ignore_label, None)
        voxels = counts
        unknown = {
            f"of value {value}": count for value, count in counts.items() if value not in manifest.labels
        }
    return ClassCounts(voxels=voxels, foreground=sum(counts.values()) - counts.get(0, 0), unknown=unknown)


def count_classes(label: NDArray[Any]) -> dict[int, int]:
    """Count each stored value of a label map, in chunks to bound the memory."""
    flat = label.reshape(-1)
    counts: Counter[int] = Counter()
    for start in range(0, len(flat), CHUNK_VALUES):
        counts.update(count_labels(flat[start : start + CHUNK_VALUES]))
    return dict(sorted(counts.items()))


def stored_image(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    """Return the image of a record as stored, [(depth,) height, width, channel], or None.

    It is a view where the encoding allows it.

    bfloat16 is returned as its bits in uint16, see `halofeed.prep.voxels.intensity.as_numbers`.
    """
    field, data = manifest.field("image"), bytes_of(features, keys.ENCODED)
    return None if data is None else stored_array(data, field)
