"""How one record fills one row of a batch: which arrays there are, their shapes, and what goes into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment import Augmentation, Objects, Size, View, augment, to_view
from halofeed.loader.decode import array_dtype, decode_image, decode_png, read_bytes, read_numbers, read_text
from halofeed.loader.gather import StoredRecord
from halofeed.prep.resize import compose
from halofeed.schemas.errors import CorruptFileError, UsageError
from halofeed.schemas.fields import Field
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded, decode_example

IMAGE, BOXES, AREA, MASKS, ID, TRANSFORM = "image", "boxes", "area", "masks", "id", "transform"
SIZE, COUNT, VALID = "size", "num_boxes", "valid"
_UNPADDED = ("unpadded_height", "unpadded_width")
_PADDING_ID = -1

Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """What one array of a batch is: its static shape, its dtype, and what fills rows that are not valid."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: tuple[Any, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """One record's picture as it is shown: pixels as stored, the view of them, the objects in it, all as planned.

    `stored` and `picture` are (height, width) of the pixels with and without their padding.
    """

    pixels: NDArray[Any]
    stored: Size
    view: View
    objects: Objects | None
    in_place: bool


class Assembler:
    """Turns records into rows, for one manifest and one choice of fields and augmentations.

    Attributes:
        spec: per array its shape (without the batch) and dtype.
    """

    def __init__(
        self, manifest: Manifest, include: Sequence[str], augmentations: Sequence[Augmentation]
    ) -> None:
        self._augmentations = tuple(augmentations)
        fields = {field.name: field for field in manifest.fields}
        optional = [field.name for field in manifest.fields if field.optional]
        known = {*fields, SIZE}
        if isinstance(include, str) or (unknown := [name for name in include if name not in known]):
            names = include if isinstance(include, str) else ", ".join(unknown)
            raise UsageError(
                f"include {names!r}: expected a list of some of {', '.join(sorted({*optional, SIZE}))}"
            )
        self._fields = [field for field in manifest.fields if not field.optional or field.name in include]
        self._image = manifest.field(IMAGE)
        self._has_boxes = BOXES in fields
        self._frame: Size = (self._image.shape[0], self._image.shape[1])
        for augmentation in self._augmentations:
            self._frame = augmentation.frame(self._frame)
        self._unpadded = [fields[name] for name in _UNPADDED if name in fields]
        self._needs_unpadded = bool(self._augmentations) or SIZE in include
        self.spec = self._specify(SIZE in include)
        # One frame of padding to copy from: NumPy broadcasts three colours at 0.5 GB/s and copies at 10.
        self._padding = np.empty(self.spec[IMAGE].shape, self.spec[IMAGE].dtype)
        self._padding[...] = self._image.fill
        self._keys = self._wanted_keys()

    def _specify(self, size: bool) -> dict[str, ArraySpec]:
        spec = {}
        for field in self._fields:
            dtype = array_dtype(field)
            shape = field.shape
            fill: tuple[Any, ...] = field.fill if field.encoding != "value" else (0,)
            if field.name == IMAGE:
                shape = (*self._frame, field.shape[2])
            elif field.encoding == "png_list":
                shape = (self._max_boxes(), *self._frame)
            elif field.encoding == "text":
                fill = (_PADDING_ID,) if field.name == ID else (0,) if dtype.kind == "i" else ("",)
            spec[field.name] = ArraySpec(shape=shape, dtype=dtype, fill=fill)
            if field.name == BOXES:
                spec[COUNT] = ArraySpec(shape=(), dtype=np.dtype(np.int32))
        if size:
            spec[SIZE] = ArraySpec(shape=(2,), dtype=np.dtype(np.int32))
        spec[VALID] = ArraySpec(shape=(), dtype=np.dtype(np.bool_))
        return spec

    def _max_boxes(self) -> int:
        return next(field.shape[0] for field in self._fields if field.name == BOXES)

    def _wanted_keys(self) -> frozenset[str]:
        fields = [field for field in self._fields if field.name != ID and field.encoding != "raw"]
        if self._needs_unpadded:
            fields += self._unpadded
        return frozenset(key for field in fields for key in field.keys)

    def fill(self, batch: Batch, row: int) -> None:
        """Make a row of padding: the fields' fill values, id -1, `valid` False."""
        for name, spec in self.spec.items():
            batch[name][row] = spec.fill if len(spec.fill) > 1 else spec.fill[0]

    def write(self, batch: Batch, row: int, record: StoredRecord, *, seed: int, epoch: int) -> None:
        """Write one record into a row.

        Args:
            batch: arrays [row, ...] of `spec`.
            row: which one.
            record: what is written.
            seed, epoch: what augmentations are drawn from, beside the record's id.

        Raises:
            CorruptFileError: names file, offset and id.
        """
        try:
            features = decode_example(record.data, self._keys) if self._keys else {}
        except CorruptFileError as error:
            raise CorruptFileError(f"{record.place}: {error}") from error
        shown = self._show(record, features, batch[IMAGE][row], seed, epoch)
        self._write_pixels(shown, batch[IMAGE][row])
        for field in self._fields:
            if field.name == ID:
                batch[ID][row] = record.id
            elif field.name == BOXES:
                self._write_boxes(field, features, record, shown, batch, row)
            elif field.encoding == "list":
                self._write_list(field, features, record, shown, batch[field.name][row])
            elif field.encoding == "png_list":
                self._write_masks(field, features, record, shown, batch[field.name][row])
            elif field.encoding == "text":
                text = read_text(field, features, record.place)
                batch[field.name][row] = int(text) if batch[field.name].dtype.kind == "i" else text
            elif field.encoding == "value":
                value = read_numbers(field, features, record.place)
                if field.name == TRANSFORM:
                    value = compose(value.reshape(6), shown.view.to_stored()).reshape(field.shape)
                batch[field.name][row] = value
        if SIZE in batch:
            batch[SIZE][row] = shown.view.size
        batch[VALID][row] = True

    def _show(
        self, record: StoredRecord, features: Decoded, out: NDArray[Any], seed: int, epoch: int
    ) -> _Shown:
        field = self._image
        if field.encoding == "raw":
            dtype = np.dtype(field.dtype).newbyteorder("<")
            size = int(np.prod(field.shape)) * dtype.itemsize
            pixels = np.frombuffer(record.raw(field.keys[0], size), dtype).reshape(field.shape)
        else:
            files = read_bytes(field.keys[0], features, record.place)
            if len(files) != 1:
                raise CorruptFileError(f"{record.place}: expected one image, got {len(files)}")
            # Straight into the batch, unless it must be turned or cut on the way.
            pixels = decode_image(files[0], field, record.place, None if self._augmentations else out)
        stored = (pixels.shape[0], pixels.shape[1])
        height, width = self._picture_size(features, stored, record) if self._needs_unpadded else stored
        view = View(top=0, left=0, height=height, width=width)
        objects = None
        if self._has_boxes and self._augmentations:
            objects = self._read_objects(features, record, stored, (height, width))
        nothing = Objects(boxes=np.zeros((0, 4)), areas=np.zeros(0), kept=np.zeros(0, np.int64))
        view, seen = augment(self._augmentations, view, objects or nothing, seed, epoch, record.id)
        return _Shown(
            pixels=pixels,
            stored=stored,
            view=view,
            objects=None if objects is None else seen,
            in_place=pixels is out,
        )

    def _picture_size(self, features: Decoded, stored: Size, record: StoredRecord) -> Size:
        if len(self._unpadded) != len(_UNPADDED):
            return stored
        height, width = (int(read_numbers(field, features, record.place)) for field in self._unpadded)
        if not (1 <= height <= stored[0] and 1 <= width <= stored[1]):
            raise CorruptFileError(
                f"{record.place}: a picture of {height} x {width} does not fit in {stored}"
            )
        return height, width

    def _read_objects(self, features: Decoded, record: StoredRecord, stored: Size, picture: Size) -> Objects:
        by_name = {field.name: field for field in self._fields}
        boxes = to_view(read_numbers(by_name[BOXES], features, record.place), stored, picture)
        areas = np.zeros(len(boxes))
        if AREA in by_name:
            areas = self._of_all_boxes(by_name[AREA], features, record, len(boxes)).astype(np.float64)
        return Objects(boxes=boxes, areas=areas, kept=np.arange(len(boxes)))

    def _write_pixels(self, shown: _Shown, out: NDArray[Any]) -> None:
        if shown.in_place:
            return
        if not self._augmentations:
            height, width = shown.stored
            out[:height, :width] = shown.pixels
        else:
            height, width = shown.view.size
            shown.view.copy(shown.pixels, out[:height, :width])
        out[height:] = self._padding[height:]
        out[:height, width:] = self._padding[:height, width:]

    def _write_boxes(
        self, field: Field, features: Decoded, record: StoredRecord, shown: _Shown, batch: Batch, row: int
    ) -> None:
        if shown.objects is not None:
            scale = np.array(shown.view.size * 2) / np.array(self._frame * 2)
            boxes = (shown.objects.boxes * scale).astype(np.float32)
        else:
            boxes = read_numbers(field, features, record.place)
            if shown.stored != self._frame:
                boxes = (boxes * (np.array(shown.stored * 2) / np.array(self._frame * 2))).astype(np.float32)
        _pad(boxes, batch[field.name][row], field)
        batch[COUNT][row] = min(len(boxes), field.shape[0])

    def _write_list(
        self, field: Field, features: Decoded, record: StoredRecord, shown: _Shown, out: NDArray[Any]
    ) -> None:
        if not self._has_boxes:
            _pad(read_numbers(field, features, record.place), out, field)
            return
        count = self._count(features)
        values = self._of_all_boxes(field, features, record, count)
        if shown.objects is not None:
            values = shown.objects.areas if field.name == AREA else values[shown.objects.kept]
        _pad(values, out, field)

    def _count(self, features: Decoded) -> int:
        field = next(field for field in self._fields if field.name == BOXES)
        return len(features.get(field.keys[0], ()))

    @staticmethod
    def _of_all_boxes(field: Field, features: Decoded, record: StoredRecord, count: int) -> NDArray[Any]:
        values = read_numbers(field, features, record.place)
        if len(values) != count:
            raise CorruptFileError(f"{record.place}: {len(values)} values of {field.name} for {count} boxes")
        return values

    def _write_masks(
        self, field: Field, features: Decoded, record: StoredRecord, shown: _Shown, out: NDArray[Any]
    ) -> None:
        files = read_bytes(field.keys[0], features, record.place)
        if len(files) != self._count(features):
            raise CorruptFileError(f"{record.place}: {len(files)} masks for {self._count(features)} boxes")
        kept = range(len(files)) if shown.objects is None else shown.objects.kept.tolist()
        out[...] = 0
        height, width = shown.view.size
        for mask, index in zip(out, kept, strict=False):
            try:
                pixels = decode_png(files[index])
            except ValueError as error:
                raise CorruptFileError(f"{record.place}: mask {index} cannot be decoded: {error}") from error
            if pixels.shape != (*shown.stored, 1) or pixels.dtype != np.uint8:
                raise CorruptFileError(
                    f"{record.place}: mask {index}: expected uint8 {shown.stored}, got {pixels.dtype} {pixels.shape}"
                )
            shown.view.copy(pixels[..., 0], mask[:height, :width])


def _pad(values: NDArray[Any], out: NDArray[Any], field: Field) -> None:
    """The first of `values` that fit, then the field's fill."""
    count = min(len(values), len(out))
    out[:count] = values[:count]
    out[count:] = field.fill if len(field.fill) > 1 else field.fill[0]


def allocate(spec: Mapping[str, ArraySpec], rows: int, pool: Any) -> Batch:
    """Arrays [row, ...] of undefined content, from the pool; text has none to offer."""
    return {
        name: np.empty((rows, *array.shape), object)
        if array.dtype.hasobject
        else pool.empty((rows, *array.shape), array.dtype)
        for name, array in spec.items()
    }
