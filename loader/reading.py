"""Reader of records as examples: image, label, objects and the fields that follow the image's geometry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halofeed.loader.augment import NO_OBJECTS, Example, Objects, to_view
from halofeed.loader.augment.augmented_example import Windows
from halofeed.loader.augment.view import ImageShape, LabelArray, Ranges, SourceArray, View
from halofeed.loader.batch_content import BatchContent
from halofeed.loader.decode import (
    decode_image,
    decode_label,
    decode_png,
    read_bytes,
    read_classes,
    read_numbers,
    stored_dtype,
)
from halofeed.loader.mapped_records import NumberParser
from halofeed.loader.record import RecordArray, StoredRecord, record_array
from halofeed.loader.shards import ObjectLists
from halofeed.loader.stored_jpeg import StoredJpeg
from halofeed.prep.geometry.resize import compose_affines
from halofeed.schemas.fields import Field
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tasks import IGNORED_BOXES, REGION_FIELDS
from halofeed.schemas.tfexample import Decoded
from halofeed.system.errors import CorruptFileError
from halofeed.system.wording import plural

IMAGE, LABEL, BOXES, AREA, CORNERS = "image", "label", "boxes", "area", "corners"
EXTENT, SPACING = "extent", "spacing_mm"
_UNPADDED = ("unpadded_height", "unpadded_width")
STATIC = ("value", "classes")
"""Encodings of numbers of static shape."""
REGIONS: Final = IGNORED_BOXES
"""Field of ignored regions. In the lists of a record they follow its objects in all fields, with zeros for what they do
not have, and the list of this name tells which are regions."""
FILE_SPAN = "place in its record"
"""Cache key for the image file's start and stop in its record, its height and its width, int64 [4]."""


class StoredMask:
    """The mask of one object, decoded when it is used; see `halofeed.loader.augment.view.ArraySource`."""

    def __init__(self, record: StoredRecord, number: int, file: memoryview, shape: ImageShape) -> None:
        self._record, self._number, self._file = record, number, file
        self.shape, self.dtype = shape, np.dtype(np.uint8)

    @property
    def place(self) -> str:
        """Return the record's place, for messages."""
        return self._record.place

    def copy(self, view: View, out: NDArray[Any]) -> None:
        view.copy(self.decode(), out)

    def decode(self) -> NDArray[Any]:
        """Return the mask, uint8 of the shape; raise CorruptFileError if it is none."""
        try:
            pixels = decode_png(self._file, (self.shape[0], self.shape[1]))
        except ValueError as error:
            raise CorruptFileError(f"{self.place}: mask {self._number} cannot be decoded: {error}") from error
        if pixels.shape != (*self.shape, 1) or pixels.dtype != np.uint8:
            raise CorruptFileError(
                f"{self.place}: mask {self._number}: expected uint8 {self.shape}, got {pixels.dtype} {pixels.shape}"
            )
        return pixels[..., 0]


@dataclass(slots=True, eq=False)
class ReadExample:
    """One record as an example, before augmentation.

    Args:
        record: the record.
        features: the features that were parsed.
        values: its fields of static shape.
        example: its image, label and objects.
        stored: shape of the pixels, padding included, without the channel.
        lists: lists of all its objects, by the field's name.
        is_cached: whether values and lists came from the cache.
    """

    record: StoredRecord
    features: Decoded
    values: Mapping[str, NDArray[Any]]
    example: Example
    stored: ImageShape
    lists: ObjectLists
    is_cached: bool


class RecordReader:
    """Reader of records as examples, for one manifest.

    Args:
        manifest: the data set's manifest.
        fields: the fields of a batch, the image first.
        content: what batches hold of each record.
        parsed: the fields to parse.
        as_stored: the fields that are read directly into the batch.
        needs_extent: whether the position of the image in its padding is needed.

    Attributes:
        cached_names: names under which values of static shape are cached.
        lists: the fields of objects.
        numbers: parser of the values of many records; None if each record is parsed alone.
        caches_all: whether cached values make parsing unnecessary.
    """

    def __init__(
        self,
        manifest: Manifest,
        fields: Sequence[Field],
        content: BatchContent,
        *,
        parsed: Sequence[Field],
        as_stored: Collection[str],
        needs_extent: bool,
    ) -> None:
        known = {field.name: field for field in manifest.fields}
        self._image, self._axes = known[IMAGE], len(manifest.kind.axes)
        self.label = next((field for field in fields if is_label_map(field)), None)
        self._label_ids = np.array(sorted(manifest.labels), np.int64)
        # An object map needs masks that the batch may not hold.
        self._masks = next((field for field in parsed if field.encoding == "png_list"), None)
        self._augments, self._as_stored = bool(content.augmentations), as_stored
        # A partner's bytes must outlive the read of the next one; see `StoredRecord.features`.
        self._outlives, self._decodes_fast = content.combines, content.decodes_fast
        self._pads_around = manifest.kind.pads_around
        self._extent_fields = [known[name] for name in (EXTENT, *_UNPADDED) if needs_extent and name in known]
        # Voxels turn and bend in millimeters, pixels in pixels.
        self._spacing = known.get(SPACING) if self._augments and self._pads_around else None
        extra = [*self._extent_fields, *([self._spacing] if self._spacing else [])]
        parsed = [*parsed, *(field for field in extra if field not in parsed)]
        self._keys = frozenset(key for field in parsed for key in field.keys)
        self._values = [field for field in parsed if field.encoding in STATIC]
        self.lists = [field for field in parsed if field.encoding == "list"]
        self.cached_names, self.caches_all = self._cacheable(manifest, parsed)
        # The kernel parses the numbers of many records at once, if there is nothing else to parse.
        self.numbers = None if self.lists or not self.caches_all else NumberParser.of(self._values)
        # Without augmentations and sizes, every array of an image is the same example.
        self._unchanged_example = None
        if self._image.is_array and not needs_extent:
            self._unchanged_example = Example.whole(self._image.shape[:-1])

    def _cacheable(self, manifest: Manifest, parsed: Sequence[Field]) -> tuple[tuple[str, ...], bool]:
        """Return the names under which values are cached, and whether nothing else needs parsing."""
        names = tuple(field.name for field in self._values)
        others = [field for field in parsed if field.encoding not in (*STATIC, "list")]
        # The place of an image's file is cached too, so that the next read of the record parses nothing.
        if others == [self._image] and not any(field.is_array for field in manifest.fields):
            return (*names, FILE_SPAN), True
        return names, not others

    def read_planned(
        self, record: StoredRecord, out: NDArray[Any] | None
    ) -> tuple[SourceArray | None, LabelArray | None] | None:
        """Return image and label of a record whose values are cached, after `features`.

        Args:
            record: the record.
            out: memory for a picture that is used as it is stored.

        Returns:
            Each array, or None if the batch has it already; None for both if the picture's size is not the cached one.
        """
        if self._image.is_array:
            return self._stored_unless_direct(self._image, record), self._stored_unless_direct(
                self.label, record
            )
        cached = record.cached_fields((FILE_SPAN,))
        if cached is None:
            return None
        start, stop, *size = cached[FILE_SPAN].tolist()
        file = record.frame_part(start, stop)
        picture = self._picture(file, record, out)
        return (None if picture is out else picture, None) if list(picture.shape[:2]) == size else None

    def read(
        self, record: StoredRecord, into: Mapping[str, NDArray[np.uint8]], out: NDArray[Any] | None
    ) -> ReadExample:
        """Read a record, and parse only what is not cached.

        Args:
            record: the record.
            into: as in `StoredRecord.features`.
            out: memory for a picture that is used as it is stored.

        Raises:
            CorruptFileError: names file, offset and id.
        """
        cached = record.cached_fields(self.cached_names)
        lists = record.cached_objects() if self.lists else {}
        is_cached = cached is not None and lists is not None
        features = self._features(record, into, cached if is_cached else None)
        values = self._read_values(features, record) if cached is None else cached
        pixels, stored = self._read_image(features, record, out)
        if FILE_SPAN in self.cached_names and not is_cached:
            span = record.span_of(one_file(self._image, features, record))
            values = {**values, FILE_SPAN: np.array([*span, *stored])}
        label = self._read_label(features, record, stored)
        if lists is None:
            lists = self._read_lists(features, record)
        masks = self._read_masks(features, record, stored, _count_objects(lists))
        example = self._unchanged_example or self._example_of(values, stored, record)
        objects = self._objects(lists, masks, stored, example.view.shape)
        example = replace(example, objects=objects, pixels=pixels, label=label)
        return ReadExample(record, features, values, example, stored, lists, is_cached)

    def _features(
        self,
        record: StoredRecord,
        into: Mapping[str, NDArray[np.uint8]],
        cached: Mapping[str, NDArray[Any]] | None,
    ) -> Decoded:
        """Return the parsed features; without parsing the image's file alone, if all else is cached.

        Args:
            record, into: as in `read`.
            cached: the cached values, if all that can be cached is.
        """
        keys = self._keys if cached is None or not self.caches_all else frozenset()
        features = record.features(keys, into, outlives=self._outlives)
        if cached is not None and FILE_SPAN in cached:
            start, stop, *_ = cached[FILE_SPAN].tolist()
            return {self._image.keys[0]: [record.frame_part(start, stop)]}
        return features

    def _read_image(
        self, features: Decoded, record: StoredRecord, out: NDArray[Any] | None
    ) -> tuple[SourceArray | None, ImageShape]:
        """Return the pixels, or None if the batch has them already, and their shape without the channel."""
        field = self._image
        if field.is_array:
            return self._stored_unless_direct(field, record), field.shape[:-1]
        file = one_file(field, features, record)
        picture = self._picture(file, record, out)
        return None if picture is out else picture, picture.shape[:-1]

    def _picture(self, file: memoryview, record: StoredRecord, out: NDArray[Any] | None) -> SourceArray:
        """Return a picture of a file: `out` if it was decoded into it, else one that may be decoded when it is used."""
        if self._image.encoding != "jpeg":
            return decode_image(file, self._image, record)
        picture = StoredJpeg(record, self._image, file, fast=self._decodes_fast)
        if out is None or out.shape != picture.shape:
            return picture
        picture.copy(View.whole(out.shape[:2]), out)
        return out

    def _read_label(self, features: Decoded, record: StoredRecord, stored: ImageShape) -> LabelArray | None:
        """Return the label on the image's grid; None if there is none, or the batch has it already."""
        if self.label is None or self.label.is_array:
            return self._stored_unless_direct(self.label, record)
        return decode_label(one_file(self.label, features, record), self.label, stored, record)

    def _example_of(
        self, values: Mapping[str, NDArray[Any]], stored: ImageShape, record: StoredRecord
    ) -> Example:
        """Return the example before augmentation, without its arrays and objects."""
        extent = self._extent(values, stored, record)
        return Example(
            # A volume's view begins as the complete volume; that of a picture never shows padding.
            view=View.whole(stored if self._pads_around else [stop for _, stop in extent]),
            extent=extent,
            spacing_mm=() if self._spacing is None else tuple(values[SPACING].tolist()),
            fill=None if self._pads_around else self._image.fill,
            ignored=0 if self.label is None else int(self.label.fill[0]),
        )

    def _stored_unless_direct(self, field: Field | None, record: StoredRecord) -> RecordArray | None:
        """Return a field's array, without reading it; None if the batch has it already, or it is a file."""
        if field is None or not field.is_array or field.name in self._as_stored:
            return None
        return record_array(record, field, stored_dtype(field), self._axes)

    def _read_values(self, features: Decoded, record: StoredRecord) -> dict[str, NDArray[Any]]:
        return {
            field.name: read_numbers(field, features, record)
            if field.encoding == "value"
            else read_classes(field, features, record, self._label_ids)
            for field in self._values
        }

    def _read_lists(self, features: Decoded, record: StoredRecord) -> dict[str, NDArray[Any]]:
        lists = {field.name: read_numbers(field, features, record) for field in self.lists}
        of_regions: dict[str, NDArray[Any]] = {
            name: lists.pop(name) for name in REGION_FIELDS if name in lists
        }
        count = len(lists.get(BOXES, ()))
        for name, values in lists.items():
            if len(values) != count:
                raise CorruptFileError(
                    f"{record.place}: {plural(len(values), 'value')} of {name} for {plural(count, 'box', 'boxes')}"
                )
        return _with_regions(lists, of_regions) if REGIONS in of_regions else lists

    def _read_masks(
        self, features: Decoded, record: StoredRecord, stored: ImageShape, count: int
    ) -> tuple[StoredMask, ...]:
        if self._masks is None:
            return ()
        files = read_bytes(self._masks.keys[0], features, record)
        if len(files) != count:
            raise CorruptFileError(
                f"{record.place}: {plural(len(files), 'mask')} for {plural(count, 'box', 'boxes')}"
            )
        return tuple(StoredMask(record, number, file, stored) for number, file in enumerate(files))

    def _extent(self, values: Mapping[str, NDArray[Any]], stored: ImageShape, record: StoredRecord) -> Ranges:
        """Return the part of the stored image that shows the source, per axis; all of it if nobody needs it."""
        complete = tuple((0, size) for size in stored)
        if not self._extent_fields:
            return complete
        sizes = [values[field.name] for field in self._extent_fields]
        if self._extent_fields[0].name == EXTENT:
            starts, stops = sizes[0].tolist()
            lowest = 0  # a tile may show nothing of the scan
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

    def windows(
        self,
        values: Mapping[str, NDArray[Any]],
        rows: int,
        objects: tuple[ObjectLists, NDArray[np.int64]] | None,
    ) -> Windows:
        """Return the windows of several images before augmentation.

        Args:
            values: cached values of static shape, [row, ...].
            rows: number of rows.
            objects: the objects of all rows, one row after the other, and the object count of each row.
        """
        stored, low, high = self._ranges(values, rows)
        windows = Windows.whole(stored if self._pads_around else high, low, high)
        if objects is not None:
            lists, counts = objects
            windows.of_row = of_row = np.repeat(np.arange(rows), counts)
            windows.objects = self._objects_of(lists, stored[of_row], windows.shape[of_row])
        return windows

    def stored_shapes(self, values: Mapping[str, NDArray[Any]], rows: int) -> NDArray[np.int64]:
        """Return the sizes of stored images, int64 [row, axis]; the arguments are those of `windows`."""
        return self._ranges(values, rows)[0]

    def extents_fit(self, values: Mapping[str, NDArray[Any]], rows: int) -> NDArray[np.bool_]:
        """Return for which images `windows` has valid ranges, bool [row]; `read` reports the others."""
        stored, low, high = self._ranges(values, rows)
        lowest = 0 if self._has_extent else 1  # a tile may show nothing of the scan
        return np.asarray(((low >= 0) & (low <= high - lowest) & (high <= stored)).all(axis=1))

    @property
    def _has_extent(self) -> bool:
        return bool(self._extent_fields) and self._extent_fields[0].name == EXTENT

    def _ranges(
        self, values: Mapping[str, NDArray[Any]], rows: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the size of stored images, and where the part that shows the source begins and ends.

        Args:
            values, rows: as in `windows`.

        Returns:
            int64 [row, axis] each.
        """
        stored = np.tile(np.array(self._image.shape[:-1], np.int64), (rows, 1))
        if FILE_SPAN in values:
            stored = values[FILE_SPAN][:, 2:]
        low, high = np.zeros_like(stored), stored.copy()
        # A stored extent, or the unpadded size of a picture, which begins at the top left.
        if self._has_extent:
            low, high = np.moveaxis(values[EXTENT].astype(np.int64), 1, 0)
        elif self._extent_fields:
            high[:, -len(self._extent_fields) :] = np.stack(
                [values[field.name] for field in self._extent_fields], axis=-1
            )
        return stored, low, high

    def _objects(
        self, lists: ObjectLists, masks: tuple[StoredMask, ...], stored: ImageShape, picture: ImageShape
    ) -> Objects:
        return self._objects_of(lists, stored, picture, masks) if BOXES in lists else NO_OBJECTS

    def _objects_of(
        self,
        lists: ObjectLists,
        stored: ArrayLike,
        picture: ArrayLike,
        masks: tuple[StoredMask, ...] = (),
    ) -> Objects:
        """Return objects whose boxes and corners are normalized to what is shown of each image before augmentation.

        Without augmentations, padding is shown too, and the stored numbers stay as they are.

        Args:
            lists: the stored lists of the objects.
            stored, picture: sizes of the images with and without padding, as in `to_view`.
            masks: masks of the objects.
        """
        shown = {
            name: to_view(lists[name], stored, picture) if self._augments else lists[name]
            for name in (BOXES, CORNERS)
            if name in lists
        }
        boxes = shown[BOXES]
        return Objects(
            boxes=boxes,
            areas=lists[AREA].astype(np.float64) if AREA in lists else np.zeros(len(boxes)),
            kept=np.arange(len(boxes)),
            masks=masks,
            corners=shown[CORNERS].reshape(-1, 4, 2) if CORNERS in shown else None,
            regions=lists.get(REGIONS),
        )


def _with_regions(lists: ObjectLists, of_regions: ObjectLists) -> dict[str, NDArray[Any]]:
    """Return a record's lists followed by its ignored regions; see `REGIONS`.

    Args:
        lists: lists of the objects.
        of_regions: sides of the regions, float32 [region, 4], by field.
    """
    regions, count = of_regions[REGIONS], len(lists[BOXES])
    own = {BOXES: regions, CORNERS: regions[:, [0, 1, 0, 3, 2, 3, 2, 1]]}
    joined = {}
    for name, values in lists.items():
        missing = np.zeros((len(regions), *values.shape[1:]), values.dtype)
        joined[name] = np.concatenate([values, own.get(name, missing).astype(values.dtype)])
    for name, sides in of_regions.items():
        joined[name] = np.pad(sides, ((count, 0), (0, 0)))
    joined[REGIONS] = np.arange(count + len(regions)) >= count
    return joined


def _count_objects(lists: ObjectLists) -> int:
    """Return the number of objects in a record's lists, without its ignored regions."""
    regions = int(np.count_nonzero(lists[REGIONS])) if REGIONS in lists else 0
    return len(lists.get(BOXES, ())) - regions


def concatenate_lists(reads: Sequence[ReadExample]) -> Mapping[str, NDArray[Any]]:
    """Concatenate the object lists of several records."""
    if len(reads) == 1:
        return reads[0].lists
    return {name: np.concatenate([one.lists[name] for one in reads]) for name in reads[0].lists}


def is_label_map(field: Field) -> bool:
    """Return whether a field is a label on the image's grid."""
    return field.name == LABEL and (field.is_array or field.encoding == "png")


def one_file(field: Field, features: Decoded, record: StoredRecord) -> memoryview:
    """Return the only file of a field; CorruptFileError if there is not exactly one."""
    files = read_bytes(field.keys[0], features, record)
    if len(files) != 1:
        raise CorruptFileError(f"{record.place}: expected one {field.name}, got {len(files)}")
    return files[0]


# Fields that say where an image's points are ------------------------------------------------------------


def _follow_transform(value: NDArray[Any], example: Example) -> NDArray[Any]:
    in_plane = example.stored_points(centers=False)[-3:-1, -3:]
    return compose_affines(value.reshape(6), in_plane.reshape(6)).reshape(2, 3)


def _follow_affine(value: NDArray[Any], example: Example) -> NDArray[Any]:
    return np.asarray(value.astype(np.float64) @ example.stored_points(centers=True))


def _follow_spacing(value: NDArray[Any], example: Example) -> NDArray[Any]:
    if len(value) == len(_UNPADDED):
        # The lengths of a step along the rows and the columns that are shown, on the stored pixels.
        steps = example.stored_points(centers=False)[-3:-1, -3:-1]
        return np.asarray(np.linalg.norm(value[:, None] * steps, axis=0))
    return value if example.spacing_mm == () else np.array(example.shown_spacing_mm())


def _follow_times(value: NDArray[Any], example: Example) -> NDArray[Any]:
    low, high = example.view.box[0]
    return np.asarray(value[low:high])


def _follow_extent(value: NDArray[Any], example: Example) -> NDArray[Any]:
    return np.array(example.view.seen(example.extent)).T


FOLLOWING: dict[str, Callable[[NDArray[Any], Example], NDArray[Any]]] = {
    "transform": _follow_transform,
    "affine": _follow_affine,
    "spacing_mm": _follow_spacing,
    "extent": _follow_extent,
    "times_s": _follow_times,
}
"""Functions that adapt a field's value to what an augmented example shows."""


def _follow_transforms(values: NDArray[Any], windows: Windows) -> NDArray[Any]:
    # Along each axis, a point of the window is counted from its start, or backwards from its end.
    sign = np.where(windows.backwards, -1, 1)[:, -2:]
    origin = (windows.start + np.where(windows.backwards, windows.shape, 0))[:, -2:]
    matrices = values.astype(np.float64)
    moved = matrices.copy()
    moved[..., :2] *= sign[:, None]
    moved[..., 2] += (matrices[..., :2] * origin[:, None]).sum(-1)
    return moved


FOLLOWING_WINDOWS: dict[str, Callable[[NDArray[Any], Windows], NDArray[Any]]] = {
    "transform": _follow_transforms,
    "spacing_mm": lambda values, windows: values,
}
"""Functions that do the same for all rows of a batch at once, [row, ...], where only windows are planned."""
