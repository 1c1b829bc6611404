"""Class indices of a picture's label images in bands of rows, with the rules of `label_image` for complete files.

A large label image is read twice. The first time gives the distinct stored samples. A file of one row with these
samples goes through `read_label_image`, so its rules about palettes, colors and gray forms see what they would see in
the complete file. The second time, each sample is looked up in the table that this gives:

    samples of the file      0 0 5 5 9 ...        distinct   0 5 9
    classes of the tiles     0 0 1 1 2 ... <───── classes    0 1 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.label_image import (
    DrawnPixels,
    check_label_file,
    decoder_of,
    merged_labels,
    read_label_image,
    read_picture_labels,
)
from halofeed.prep.formats.picture.sample_bands import SampleBands, Samples, open_bands
from halofeed.prep.geometry.resize import Size
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.label_volumes import merge_class_masks
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory

HELD_PIXELS: Final = 1 << 25
"""Pixels of a label image up to which it is decoded once and held: 32 MiB of class indices of 8 bits."""

Classes = NDArray[Any]
"""Class indices [row, column]."""


class LabelRows(Protocol):
    """Merged class indices of a picture's label images, on the grid of their files.

    Args:
        overlapped: pixels that several files claim, as far as rows were read.
        classes: class ids in the rows read so far.
    """

    overlapped: int
    classes: frozenset[int]

    @property
    def size(self) -> Size:
        """Size as (height, width)."""

    @property
    def held_bytes(self) -> int:
        """Maximum memory that this takes."""

    def rows(self, top: int, bottom: int) -> Classes:
        """Return rows; `top` is not above that of an earlier call."""


@dataclass(kw_only=True, eq=False)
class HeldRows:
    """Class indices that are all in memory."""

    labels: Classes
    overlapped: int
    classes: frozenset[int]

    @property
    def size(self) -> Size:
        """Size as (height, width)."""
        return self.labels.shape[0], self.labels.shape[1]

    @property
    def held_bytes(self) -> int:
        """Bytes of the class indices."""
        return self.labels.nbytes

    def rows(self, top: int, bottom: int) -> Classes:
        """Return rows."""
        return self.labels[top:bottom]


class BandRows:
    """Class indices that are read band by band, of which those that are still needed are held."""

    def __init__(
        self, size: Size, bands: Iterator[tuple[Classes, int, frozenset[int]]], held_bytes: int
    ) -> None:
        self._size, self._held_bytes = size, held_bytes
        self.overlapped, self.classes = 0, frozenset[int]()
        self._bands = bands
        self._held: list[Classes] = []
        self._top = self._bottom = 0

    @property
    def size(self) -> Size:
        """Size as (height, width)."""
        return self._size

    @property
    def held_bytes(self) -> int:
        """Memory of reading the files, and of the bands that are held."""
        return self._held_bytes

    def rows(self, top: int, bottom: int) -> Classes:
        """Return rows; rows above `top` are not held any longer."""
        while self._bottom < bottom:
            band, overlapped, classes = next(self._bands)
            self._held.append(band)
            self._bottom += len(band)
            self.overlapped += overlapped
            self.classes |= classes
            self._drop(top)
        self._drop(top)
        together = self._held[0] if len(self._held) == 1 else np.concatenate(self._held)
        self._held = [together]
        return together[top - self._top : bottom - self._top]

    def _drop(self, top: int) -> None:
        """Drop the bands that are completely above a row."""
        while len(self._held) > 1 and self._top + len(self._held[0]) <= top:
            self._top += len(self._held.pop(0))


def open_label_rows(
    recipe: Recipe,
    labels: LabelMap,
    reference: SourceExample,
    files: SourceFiles,
    reserve: ReserveMemory,
    *,
    in_order: bool = True,
) -> LabelRows | None:
    """Open the label images of a picture; None where it has none.

    Args:
        reserve: called with the number of bytes before pixels are decoded.
        in_order: whether rows are asked for from top to bottom; else all class indices are held.

    Raises:
        SourceError: as `read_picture_labels`; where labels are read in bands, an overlap of classes that the recipe
            refuses is found when its rows are read.
    """
    if not reference.is_labelled:
        return None
    # Run lengths have no bands, and their label is drawn whole.
    drawn = reference.class_runs is not None
    opened = None if drawn else _open_files(recipe, labels, reference, files, reserve)
    if opened is None:
        label, notes, classes = read_picture_labels(recipe, labels, reference, files, reserve)
        assert label is not None
        return HeldRows(labels=label, overlapped=len(notes), classes=classes)
    rows = opened.rows()
    if in_order:
        return rows
    reserve(rows.held_bytes + rows.size[0] * rows.size[1] * np.dtype(labels.dtype).itemsize)
    held = np.empty(rows.size, labels.dtype)
    step = max(1, HELD_PIXELS // rows.size[1])
    for top in range(0, rows.size[0], step):
        bottom = min(rows.size[0], top + step)
        held[top:bottom] = rows.rows(top, bottom)
    return HeldRows(labels=held, overlapped=rows.overlapped, classes=rows.classes)


def _open_files(
    recipe: Recipe, labels: LabelMap, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory
) -> _LabelFiles | None:
    """Return the label files as bands; None where they are small, or where one of them has no bands."""
    found: dict[str, SampleBands] = {}
    held_bytes = 0
    for path in reference.mask_paths:
        file_bytes = files.size(path) or 0
        reserve(held_bytes + file_bytes)
        data = files.read(path)
        bands = open_bands(data)
        if bands is None or bands.size[0] * bands.size[1] <= HELD_PIXELS:
            return None
        check_label_file(data, bands.first_part())
        found[path] = bands
        held_bytes += len(data) + 2 * bands.held_bytes
        reserve(held_bytes)
    sizes = {bands.size for bands in found.values()}
    if len(sizes) > 1:
        listed = " and ".join(f"{height} x {width}" for height, width in sorted(sizes))
        raise SourceError(
            "annotation", "masks of one picture differ in size", f"{listed} pixels (height x width)"
        )
    tables = {path: _table(bands, _reader(recipe, labels, reference)) for path, bands in found.items()}
    opened = _LabelFiles(
        recipe=recipe, labels=labels, reference=reference, files=found, tables=tables, held_bytes=held_bytes
    )
    opened.check()
    return opened


def _reader(recipe: Recipe, labels: LabelMap, reference: SourceExample) -> Callable[[bytes], Classes]:
    """Return the function from a file to its class values, as `read_picture_labels` reads complete files."""
    decode_colors = decoder_of(recipe.label_coding(), reference.segments)
    return partial(read_label_image, max_pixels=1 << 31, decode_colors=decode_colors, labels=labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Table:
    """Class value of each distinct sample of a file, sorted by the sample's code."""

    codes: NDArray[np.int64]
    values: NDArray[Any]

    def values_of(self, samples: Samples) -> Classes:
        """Return the class values [row, column] of samples [row, column, sample]."""
        codes = _codes(samples)
        # Samples of 16 bits and less index a table faster than they are searched.
        if self.codes[-1] <= 1 << 16 and self.codes[0] >= 0:
            table = np.zeros(int(self.codes[-1]) + 1, self.values.dtype)
            table[self.codes] = self.values
            return np.asarray(table[codes])
        return np.asarray(self.values[np.searchsorted(self.codes, codes)])


def _codes(samples: Samples) -> NDArray[Any]:
    """Return one number for all samples of a pixel: [row, column]."""
    if samples.shape[2] == 1:
        return samples[..., 0]
    code = samples[..., 0].astype(np.int64)
    for band in range(1, samples.shape[2]):
        code = code << 16 | samples[..., band]
    return code


def _samples_of(codes: NDArray[np.int64], samples: int) -> Samples:
    """Return the samples [column, sample] of codes; the inverse of `_codes`."""
    if samples == 1:
        return codes[:, None]
    return np.stack([codes >> 16 * (samples - 1 - band) & 0xFFFF for band in range(samples)], axis=1)


def _table(bands: SampleBands, read: Callable[[bytes], Classes]) -> _Table:
    """Return the classes of a file's samples."""
    found: NDArray[np.int64] = np.zeros(0, np.int64)
    count = 1
    for samples in bands.bands():
        count = samples.shape[2]
        codes = _codes(samples)
        distinct = (
            np.flatnonzero(np.bincount(codes.reshape(-1), minlength=256))
            if codes.dtype in (np.uint8, np.uint16)
            else np.unique(codes)
        )
        found = np.union1d(found, distinct.astype(np.int64))
    return _Table(codes=found, values=read(bands.sample_file(_samples_of(found, count)))[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class _LabelFiles:
    """Label files of one picture with the classes of their samples."""

    recipe: Recipe
    labels: LabelMap
    reference: SourceExample
    files: Mapping[str, SampleBands]
    tables: Mapping[str, _Table]
    held_bytes: int

    @property
    def size(self) -> Size:
        """Size of each file as (height, width)."""
        return next(iter(self.files.values())).size

    def check(self) -> None:
        """Check the values of each complete file; raise SourceError as `merged_labels`."""
        for name, path in self.reference.class_masks:
            values = self.tables[path].values[None, None]
            merge_class_masks([(self.labels.id_of(name), values)], "last")
        for path in self.reference.masks:
            table = self.tables[path]
            self.labels.ids_of_values(np.unique(table.values).tolist())
            if self.labels.is_open and self.labels.ignore is None:
                self._check_drawn(path)

    def _check_drawn(self, path: str) -> None:
        """Refuse a label whose values nobody drew, as `check_drawn` refuses a complete one."""
        table, drawn = self.tables[path], DrawnPixels()
        if len(np.unique(table.values)) <= drawn.MAX_SINGLE:
            return
        above: Classes | None = None
        bands = (table.values_of(samples) for samples in self.files[path].bands())
        band: Classes | None = next(bands)
        while band is not None:
            below = next(bands, None)
            drawn.add(band, above, None if below is None else below[0])
            above, band = band[-1], below
        drawn.check(path)

    def rows(self) -> BandRows:
        """Return the merged class ids of all rows."""
        return BandRows(self.size, self._bands(), self.held_bytes)

    def _bands(self) -> Iterator[tuple[Classes, int, frozenset[int]]]:
        """Yield each band with its overlapped pixels and its class ids."""
        values = {path: self._values(path) for path in self.files}
        step = max(1, HELD_PIXELS // 4 // self.size[1])
        for top in range(0, self.size[0], step):
            read = partial(_take, values, min(step, self.size[0] - top))
            found, overlapped, classes = merged_labels(
                self.recipe, self.labels, self.reference, read, lambda *_: None
            )
            assert found is not None
            yield found.astype(self.labels.dtype, copy=False), overlapped, classes

    def _values(self, path: str) -> Callable[[int], Classes]:
        """Return the function that gives the class values of the next rows of a file."""
        bands, table = self.files[path].bands(), self.tables[path]
        held: list[Samples] = []

        def take(rows: int) -> Classes:
            while sum(map(len, held)) < rows:
                held.append(next(bands))
            together = np.concatenate(held) if len(held) > 1 else held[0]
            held[:] = [together[rows:]]
            return table.values_of(together[:rows])

        return take


def _take(values: Mapping[str, Callable[[int], Classes]], rows: int, path: str) -> Classes:
    return values[path](rows)
