"""How one record fills one row of a batch: which arrays there are, their shapes, and what goes into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment import NO_OBJECTS, Augmentation, Frame, Objects, Scene, augment, to_view
from halofeed.loader.augment.view import Ranges, Shape, View
from halofeed.loader.decode import (
    array_dtype,
    decode_image,
    decode_label,
    decode_png,
    read_bytes,
    read_classes,
    read_numbers,
    read_text,
    stored_dtype,
)
from halofeed.loader.gather import StoredRecord
from halofeed.loader.pieces import StoredArray, is_little_endian
from halofeed.prep.geometry.resize import compose
from halofeed.schemas.class_sets import members
from halofeed.schemas.errors import CorruptFileError, UsageError
from halofeed.schemas.fields import Field
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded

IMAGE, LABEL, BOXES, AREA, ID = "image", "label", "boxes", "area", "id"
EXTENT, SIZE, COUNT, VALID = "extent", "size", "num_boxes", "valid"
LABELS, LABELLED = "labels", "labelled"
_UNPADDED = ("unpadded_height", "unpadded_width")
_PADDING_ID = -1
_ATTEMPTS = 3
"""How often a record is read whose shard is written to meanwhile."""

Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """What one array of a batch is: its static shape, its dtype, and what fills rows that are not valid."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: tuple[Any, ...] = (0,)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Shown:
    """One record's image as it is shown, planned.

    Args:
        stored: the shape of the pixels, padding included, without the channel.
        pixels: as stored; None if they are already where they belong.
        label: class indices, or sets of classes, on the image's grid as stored, of segmentation; None as `pixels`.
        view: what is shown of them.
        objects: those in the view; None if they are as stored.
    """

    stored: Shape
    pixels: StoredArray | NDArray[Any] | None
    label: StoredArray | NDArray[Any] | None
    view: View
    objects: Objects | None


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
        self._image = fields[IMAGE]
        self._label_ids = np.array(sorted(manifest.labels), np.int64)
        kind = manifest.kind
        self._pads_around = kind.pads_around
        optional = {field.name for field in manifest.fields if field.optional}
        # What lies within its padding says where in fields of its own.
        made = set() if self._pads_around else {SIZE}
        known = {*fields, *made}
        if isinstance(include, str) or (unknown := [name for name in include if name not in known]):
            names = include if isinstance(include, str) else ", ".join(unknown)
            raise UsageError(
                f"include {names!r}: expected a list of some of {', '.join(sorted(optional | made))}"
            )
        self._fields = [field for field in manifest.fields if not field.optional or field.name in include]
        self._label = next((field for field in self._fields if _is_grid(field)), None)
        self._has_boxes = BOXES in fields
        frame = Frame(shape=self._image.shape[:-1], kind=kind, has_label=self._label is not None)
        for augmentation in self._augmentations:
            frame = augmentation.frame(frame)
        self._frame = frame.shape
        self._sizes = [fields[name] for name in (EXTENT, *_UNPADDED) if name in fields]
        self._needs_sizes = bool(self._augmentations) or SIZE in include
        self.spec = self._specify(SIZE in include)
        wanted = [field for field in self._fields if field.name != ID and not field.is_raw]
        if self._needs_sizes:
            wanted += [field for field in self._sizes if field not in wanted]
        self._values = {field.name: field for field in wanted if field.encoding == "value"}
        self._has_only_values = len(self._values) == len(wanted)
        self._keys = frozenset(key for field in wanted for key in field.keys)
        # What is shown of every record where nothing is drawn and nobody asks for sizes.
        self._same_view = None
        if self._image.encoding == "raw" and not self._needs_sizes:
            self._same_view = View.whole(self._image.shape[:-1])
        # Raw fields that are shown as they are stored: read straight into the batch.
        self._as_stored = {
            field.name: field.keys[0]
            for field in (self._image, self._label)
            if field and field.encoding == "raw" and not self._augmentations and is_little_endian(field.dtype)
        }

    @cached_property
    def _padding(self) -> Batch:
        """Frames of padding to copy from: NumPy broadcasts three colors at 0.5 GB/s and copies at 10.

        What is shown of images that are padded around always fills the frame.
        """
        padding: Batch = {}
        for field in [] if self._pads_around else [self._image, *([self._label] if self._label else [])]:
            padding[field.name] = np.empty(self.spec[field.name].shape, self.spec[field.name].dtype)
            padding[field.name][...] = field.fill
        return padding

    def _specify(self, size: bool) -> dict[str, ArraySpec]:
        spec = {}
        for field in self._fields:
            dtype = array_dtype(field)
            shape = field.shape
            fill: tuple[Any, ...] = field.fill if field.encoding != "value" else (0,)
            if field.name == IMAGE:
                shape = (*self._frame, field.shape[-1])
            elif _is_grid(field):
                shape = (*self._frame, field.shape[-1]) if field.holds_sets else self._frame
            elif field.encoding == "png_list":
                shape = (self._max_boxes(), *self._frame)
            elif field.axes == self._image.axes[:1]:
                shape = self._frame[:1]
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
        for _ in range(_ATTEMPTS):
            values = self._write_once(batch, row, record, seed, epoch)
            if record.is_confirmed():
                record.keep(values)
                return
        raise record.changing()

    def _write_once(self, batch: Batch, row: int, record: StoredRecord, seed: int, epoch: int) -> Batch:
        """Write it, and give its values of static shape."""
        into = {key: batch[name][row].reshape(-1).view(np.uint8) for name, key in self._as_stored.items()}
        values, features = self._read(record, into)
        shown = self._show(record, values, features, batch[IMAGE][row], seed, epoch)
        if shown.pixels is not None:
            self._copy(IMAGE, shown.view, shown.pixels, batch[IMAGE][row])
        if shown.label is not None:
            self._write_label(shown.view, shown.label, batch[LABEL][row])
        for field in self._fields:
            if field.name == ID:
                batch[ID][row] = record.id
            elif field.name == BOXES:
                self._write_boxes(field, features, record, shown, batch, row)
            elif field.encoding == "classes":
                batch[field.name][row] = read_classes(field, features, record, self._label_ids)
            elif field.encoding == "list":
                self._write_list(field, features, record, shown, batch[field.name][row])
            elif field.encoding == "png_list":
                self._write_masks(field, features, record, shown, batch[field.name][row])
            elif field.encoding == "text":
                text = read_text(field, features, record)
                batch[field.name][row] = int(text) if batch[field.name].dtype.kind == "i" else text
            elif field.encoding == "value":
                value = values[field.name]
                follow = _FOLLOWING.get(field.name)
                batch[field.name][row] = value if follow is None else follow(value, shown.view)
        if SIZE in batch:
            batch[SIZE][row] = shown.view.shape
        batch[VALID][row] = True
        return values

    def _read(self, record: StoredRecord, into: Mapping[str, NDArray[np.uint8]]) -> tuple[Batch, Decoded]:
        """The fields' values of static shape, and all else of the record, which is not parsed for known values."""
        values = record.known(tuple(self._values))
        if values is not None and self._has_only_values:
            return values, record.features(frozenset(), into)
        features = record.features(self._keys, into)
        return {name: read_numbers(field, features, record) for name, field in self._values.items()}, features

    def _show(
        self,
        record: StoredRecord,
        values: Batch,
        features: Decoded,
        out: NDArray[Any],
        seed: int,
        epoch: int,
    ) -> _Shown:
        field = self._image
        pixels: StoredArray | NDArray[Any] | None = None
        if field.encoding == "raw":
            stored = field.shape[:-1]
            if IMAGE not in self._as_stored:
                pixels = self._stored_array(field, record)
        else:
            # Straight into the batch, unless it must be turned or cut on the way.
            file = _one_file(field, features, record)
            decoded = decode_image(file, field, record, None if self._augmentations else out)
            stored, pixels = decoded.shape[:-1], None if decoded is out else decoded
        label = None
        if self._label is not None and LABEL not in self._as_stored:
            label = self._read_label(self._label, stored, features, record)
        if self._same_view is not None:
            return _Shown(stored=stored, pixels=pixels, label=label, view=self._same_view, objects=None)
        extent = self._extent(values, stored, record)
        view = View.whole(stored if self._pads_around else [stop for _, stop in extent])
        objects = None
        if self._has_boxes and self._augmentations:
            objects = self._read_objects(features, record, stored, view.shape)
        scene = Scene(view=view, extent=extent, objects=objects or NO_OBJECTS, label=label)
        scene = augment(self._augmentations, scene, seed, epoch, record.id)
        return _Shown(
            stored=stored,
            pixels=pixels,
            label=label,
            view=scene.view,
            objects=None if objects is None else scene.objects,
        )

    def _stored_array(self, field: Field, record: StoredRecord) -> StoredArray:
        return StoredArray(record, field.keys[0], field.stored_shape, stored_dtype(field), len(self._frame))

    def _read_label(
        self, field: Field, stored: Shape, features: Decoded, record: StoredRecord
    ) -> StoredArray | NDArray[Any]:
        if field.is_raw:
            return self._stored_array(field, record)
        return decode_label(_one_file(field, features, record), field, stored, record)

    def _write_label(self, view: View, label: StoredArray | NDArray[Any], out: NDArray[Any]) -> None:
        """The label as it is shown; sets of classes are taken apart last: all before moves one number a voxel."""
        if self._label is None or not self._label.holds_sets:
            self._copy(LABEL, view, label, out)
            return
        sets = np.empty(out.shape[:-1], self._label.stored_dtype)
        self._copy(LABEL, view, label, sets)
        members(sets, out)

    def _extent(self, values: Batch, stored: Shape, record: StoredRecord) -> Ranges:
        """What shows the source, along the stored axes: all of it, where nobody asks."""
        whole = tuple((0, size) for size in stored)
        if not self._needs_sizes or not self._sizes:
            return whole
        sizes = [values[field.name] for field in self._sizes]
        if self._sizes[0].name == EXTENT:
            starts, stops = sizes[0].tolist()
            lowest = 0
        else:
            starts, stops = [0] * len(stored), [*stored[: -len(sizes)], *map(int, sizes)]
            lowest = 1
        extent = tuple(zip(starts, stops, strict=True))
        if any(
            not (0 <= low <= high - lowest and high <= size)
            for (low, high), size in zip(extent, stored, strict=True)
        ):
            raise CorruptFileError(
                f"{record.place}: an image of {starts} to {stops} does not fit in {stored}"
            )
        return extent

    def _read_objects(
        self, features: Decoded, record: StoredRecord, stored: Shape, picture: Shape
    ) -> Objects:
        by_name = {field.name: field for field in self._fields}
        boxes = to_view(read_numbers(by_name[BOXES], features, record), stored, picture)
        areas = np.zeros(len(boxes))
        if AREA in by_name:
            areas = self._of_all_boxes(by_name[AREA], features, record, len(boxes)).astype(np.float64)
        return Objects(boxes=boxes, areas=areas, kept=np.arange(len(boxes)))

    def _copy(self, name: str, view: View, source: StoredArray | NDArray[Any], out: NDArray[Any]) -> None:
        """What the view shows of an array, all of it without augmentations, and padding around it."""
        if self._pads_around:
            _copy_view(view, source, out)
            return
        if not self._augmentations:
            view = View.whole(source.shape[:2])
        height, width = view.shape
        _copy_view(view, source, out[:height, :width])
        out[height:] = self._padding[name][height:]
        out[:height, width:] = self._padding[name][:height, width:]

    def _write_boxes(
        self, field: Field, features: Decoded, record: StoredRecord, shown: _Shown, batch: Batch, row: int
    ) -> None:
        if shown.objects is not None:
            scale = np.array(shown.view.shape * 2) / np.array(self._frame * 2)
            boxes = (shown.objects.boxes * scale).astype(np.float32)
        else:
            boxes = read_numbers(field, features, record)
            if shown.stored != self._frame:
                boxes = (boxes * (np.array(shown.stored * 2) / np.array(self._frame * 2))).astype(np.float32)
        _pad(boxes, batch[field.name][row], field)
        batch[COUNT][row] = min(len(boxes), field.shape[0])

    def _write_list(
        self, field: Field, features: Decoded, record: StoredRecord, shown: _Shown, out: NDArray[Any]
    ) -> None:
        if not self._has_boxes:
            _pad(read_numbers(field, features, record), out, field)
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
        values = read_numbers(field, features, record)
        if len(values) != count:
            raise CorruptFileError(f"{record.place}: {len(values)} values of {field.name} for {count} boxes")
        return values

    def _write_masks(
        self, field: Field, features: Decoded, record: StoredRecord, shown: _Shown, out: NDArray[Any]
    ) -> None:
        files = read_bytes(field.keys[0], features, record)
        if len(files) != self._count(features):
            raise CorruptFileError(f"{record.place}: {len(files)} masks for {self._count(features)} boxes")
        kept = range(len(files)) if shown.objects is None else shown.objects.kept.tolist()
        out[...] = 0
        height, width = shown.view.shape
        for mask, index in zip(out, kept, strict=False):
            try:
                pixels = decode_png(files[index], (shown.stored[0], shown.stored[1]))
            except ValueError as error:
                raise CorruptFileError(f"{record.place}: mask {index} cannot be decoded: {error}") from error
            if pixels.shape != (*shown.stored, 1) or pixels.dtype != np.uint8:
                raise CorruptFileError(
                    f"{record.place}: mask {index}: expected uint8 {shown.stored}, got {pixels.dtype} {pixels.shape}"
                )
            shown.view.copy(pixels[..., 0], mask[:height, :width])


def _copy_view(view: View, source: StoredArray | NDArray[Any], out: NDArray[Any]) -> None:
    if isinstance(source, StoredArray):
        source.copy(view, out)
    else:
        view.copy(source, out)


def _is_grid(field: Field) -> bool:
    """Whether a field is a label on the image's grid."""
    return field.name == LABEL and (field.is_raw or field.encoding == "png")


def _one_file(field: Field, features: Decoded, record: StoredRecord) -> memoryview:
    files = read_bytes(field.keys[0], features, record)
    if len(files) != 1:
        raise CorruptFileError(f"{record.place}: expected one {field.name}, got {len(files)}")
    return files[0]


def _follow_transform(value: NDArray[Any], view: View) -> NDArray[Any]:
    in_plane = view.to_stored(centers=False)[-3:-1, -3:]
    return compose(value.reshape(6), in_plane.reshape(6)).reshape(2, 3)


def _follow_affine(value: NDArray[Any], view: View) -> NDArray[Any]:
    return np.asarray(value.astype(np.float64) @ view.to_stored(centers=True))


def _follow_spacing(value: NDArray[Any], view: View) -> NDArray[Any]:
    return np.asarray(value[list(view.order)])


def _follow_times(value: NDArray[Any], view: View) -> NDArray[Any]:
    low, high = view.box[0]
    return np.asarray(value[low:high])


def _follow_extent(value: NDArray[Any], view: View) -> NDArray[Any]:
    return np.array(view.seen(tuple(zip(*value.tolist(), strict=True)))).T


_FOLLOWING: dict[str, Callable[[NDArray[Any], View], NDArray[Any]]] = {
    "transform": _follow_transform,
    "affine": _follow_affine,
    "spacing_mm": _follow_spacing,
    "extent": _follow_extent,
    "times_s": _follow_times,
}
"""Fields that say where an image's points are, and what becomes of them as seen."""


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
