"""Assembler of batch rows: the arrays of a batch, their shapes, and how one record or many fill them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment import (
    Combination,
    Example,
    Frame,
    Objects,
    PartnerSampler,
    augment,
    draw_uniforms,
)
from halofeed.loader.augment.augmented_example import Windows, draw_windows_alone
from halofeed.loader.augment.view import ImageShape, LazyArray, Ranges, SourceArray, View, copy_view
from halofeed.loader.batch import (
    COUNT,
    EPOCH,
    ID,
    LABELLED,
    OBJECT_MAP,
    SIZE,
    VALID,
    ArraySpec,
    Batch,
    array_specs,
    split_id,
)
from halofeed.loader.batch_content import BatchContent
from halofeed.loader.copy_plan import plan_copies
from halofeed.loader.decode import read_text, stored_dtype
from halofeed.loader.mapped_records import MappedRecords
from halofeed.loader.planes import (
    ColorPlane,
    check_even,
    check_unpadded,
    plane_scale,
    planes_of_field,
    scaled_slab,
    scaled_view,
)
from halofeed.loader.reading import (
    AREA,
    BOXES,
    CORNERS,
    EXTENT,
    FOLLOWING,
    FOLLOWING_WINDOWS,
    IMAGE,
    LABEL,
    REGIONS,
    STATIC,
    ReadExample,
    RecordReader,
    concatenate_lists,
    is_label_map,
)
from halofeed.loader.record import ColoredPlanes, StoredRecord, is_little_endian
from halofeed.loader.shards import Integers, ObjectLists, Shards
from halofeed.schemas.fields import Field, unpack_sets
from halofeed.schemas.identity import splitmix64
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.native import kernel, packing
from halofeed.schemas.tasks import REGION_FIELDS
from halofeed.system.errors import UsageError

_MAX_EPOCHS = 1 << 31
_ATTEMPTS = 3
"""How often a record is read while another process writes to its shard."""

Find = Callable[[float], StoredRecord]
"""Maps a sampled number, 0 (inclusive) to 1 (exclusive), to a record that may be combined with another."""


def _chosen_fields(manifest: Manifest, include: Sequence[str]) -> list[Field]:
    """Return the fields of batches; raise UsageError for a name in `include` that no field has."""
    # Kinds that pad around the image have a stored field for its extent.
    made = {EPOCH} if manifest.kind.pads_around else {EPOCH, SIZE}
    if any(field.encoding == "png_list" for field in manifest.fields):
        made.add(OBJECT_MAP)
    known = {field.name for field in manifest.fields} | made
    if unknown := [name for name in include if name not in known]:
        optional = {field.name for field in manifest.fields if field.optional}
        raise UsageError(
            f"include {', '.join(unknown)!r}: expected a list of some of {', '.join(sorted(optional | made))}"
        )
    return [field for field in manifest.fields if not field.optional or field.name in include]


def _further_fields(manifest: Manifest, fields: Sequence[Field], content: BatchContent) -> Iterator[Field]:
    """Yield the fields that augmentations use and batches do not have."""
    for field in manifest.fields:
        is_mask = field.encoding == "png_list" and OBJECT_MAP in content.include
        is_corners = field.name == CORNERS and content.uses_corners
        if (is_mask or is_corners) and field not in fields:
            yield field


def _keys_as_stored(grid: Sequence[Field]) -> dict[str, str]:
    """Return the key of each array field whose stored numbers are those of the batch, by the field's name."""
    return {
        field.name: field.keys[0]
        for field in grid
        if field.is_array
        and not (field.holds_sets or field.holds_planes or isinstance(field, ColorPlane))
        and is_little_endian(field.dtype)
    }


def _shown_frame(manifest: Manifest, image: Field, label: Field | None, content: BatchContent) -> ImageShape:
    """Return the shape of what is shown of each image.

    Raises:
        UsageError: an augmentation cannot be applied, or a field that maps points to the source has no value after it.
    """
    frame = Frame(
        shape=image.shape[:-1],
        kind=manifest.kind,
        has_label=label is not None,
        has_boxes=any(field.name == BOXES for field in manifest.fields),
        dtype=image.dtype,
    )
    for augmentation in content.augmentations:
        frame = augmentation.frame(frame)
    # A bent volume keeps the spacing of its grid; a picture may have been scaled before it was bent or combined.
    lost = ("transform", "affine") if manifest.kind.pads_around else ("transform", "spacing_mm")
    if frame.lost and (points := [name for name in lost if name in content.include]):
        raise UsageError(
            f"include {points[0]!r}: after {frame.lost} no affine says where a point comes from; leave it out"
        )
    return frame.shape


def _combined_pictures(content: BatchContent) -> int:
    """Return the largest number of records that a row shows: the product over all combinations."""
    # The random numbers 0 are below every probability above 0, so each combination asks for its partners.
    partners = (one.partners(np.zeros(8)) for one in content.augmentations if isinstance(one, Combination))
    return math.prod(1 + count for count in partners)


class Assembler:
    """Assembler of rows, for one manifest and one choice of fields and augmentations.

    Args:
        manifest: the data set's manifest.
        content: the fields and augmentations.
        slab: the part of each image, and of each label on its grid, to put into the batch, as (start, stop) per axis
            of what is shown; None is all.

    Attributes:
        spec: shape (without the batch axis) and dtype of each array.
        on_grid: names of the arrays on the image's grid, each with the pixels along an axis that have one number.
        decodes: whether some of them are files in their records.
    """

    def __init__(self, manifest: Manifest, content: BatchContent, slab: Ranges | None = None) -> None:
        self._augmentations = content.augmentations
        # A partner is read before the first record is copied, so its bytes must not be in the scratch.
        self._combines = content.combines
        self._pads_around = manifest.kind.pads_around
        self._fields = _chosen_fields(manifest, content.include)
        self._image = next(field for field in self._fields if field.name == IMAGE)
        self._label = next((field for field in self._fields if is_label_map(field)), None)
        self._frame = _shown_frame(manifest, self._image, self._label, content)
        complete = tuple((0, size) for size in self._frame)
        self._slab, self._is_complete = slab or complete, slab in (None, complete)
        self._planes = self._chosen_planes(manifest, content)
        pixels: Sequence[Field] = self._planes or [self._image]
        self._grid = [*pixels, *([self._label] if self._label else [])]
        self.on_grid = {field.name: plane_scale(field) for field in self._grid}
        # The complete image goes directly into the batch: raw fields as stored, files as decoded.
        self._is_direct = self._is_complete and not self._augmentations
        self._as_stored = _keys_as_stored(self._grid) if self._is_direct else {}
        further = [*_further_fields(manifest, self._fields, content)]
        self._reader = RecordReader(
            manifest,
            self._fields,
            content,
            # The id is in the index, and raw values are read or copied as bytes.
            parsed=[
                *(field for field in self._fields if field.name != ID and not field.is_array),
                *further,
            ],
            as_stored=self._as_stored,
            needs_extent=bool(self._augmentations) or not {SIZE, EXTENT}.isdisjoint(content.include),
        )
        self.spec = self._array_specs(content)
        self.decodes = any(not field.is_array for field in self._grid)
        self._can_plan = self._finds_all_in_caches()

    def _chosen_planes(self, manifest: Manifest, content: BatchContent) -> Sequence[ColorPlane]:
        """Return the planes that batches hold in place of the image; none if they hold the image.

        Raises:
            UsageError: the image is not stored as planes, or an augmentation, the padding or the slab has no exact
                place on their halved grid.
        """
        if not content.holds_planes:
            return ()
        planes = planes_of_field(self._image, IMAGE)
        check_unpadded(manifest, content.augmentations)
        check_even(content.augmentations, self._slab, self._frame)
        return planes

    def _array_specs(self, content: BatchContent) -> dict[str, ArraySpec]:
        """Return shape and dtype of each array; planes stand first, in place of the image."""
        shown = tuple(stop - start for start, stop in self._slab)
        specs = array_specs(self._fields, content.include, shown=shown, frame=self._frame)
        for name in specs.keys() & set(REGION_FIELDS):
            count, sides = specs[name].shape
            # A row has all regions of combined pictures, because losing one makes background of it.
            specs[name] = replace(specs[name], shape=(count * _combined_pictures(content), sides))
        if not self._planes:
            return specs
        planes = array_specs([*self._planes, self._image], (), shown=shown, frame=self._frame)
        del specs[IMAGE]
        return {plane.name: planes[plane.name] for plane in self._planes} | specs

    def _finds_all_in_caches(self) -> bool:
        """Return whether windows and cached values are all that a row needs besides its pixels.

        Raw values in another byte order are converted row by row. Fields that follow the image are made from an
        `Example`, except those of `FOLLOWING_WINDOWS`.
        """
        return (
            self._reader.caches_all
            and (self.decodes or not self._is_direct or all(map(self._is_in_order, self._grid)))
            and all(field.name in FOLLOWING_WINDOWS or field.name not in FOLLOWING for field in self._fields)
        )

    def _is_in_order(self, field: Field) -> bool:
        """Return whether a field's numbers are stored in this machine's byte order, one for each of the batch's."""
        is_plane = field.holds_planes or isinstance(field, ColorPlane)
        return is_plane or field.name in self._as_stored

    @cached_property
    def _padding(self) -> Batch:
        """Rows of padding to copy from: NumPy broadcasts three colors at 0.5 GB/s and copies at 10 GB/s.

        Images that are padded around always fill the row.
        """
        padding: Batch = {}
        for field in [] if self._pads_around else self._grid:
            padding[field.name] = np.empty(self.spec[field.name].shape, self.spec[field.name].dtype)
            padding[field.name][...] = field.fill
        return padding

    def write_padding(self, batch: Batch, row: int) -> None:
        """Fill a row with padding: the fields' fill values, id -1, `valid` False."""
        for name, spec in self.spec.items():
            fill = spec.fill if len(spec.fill) > 1 else spec.fill[0]
            batch[name][row] = self._padding.get(name, fill)

    def write_epochs(self, batch: Batch, rows: Integers, epochs: Sequence[int]) -> None:
        """Write the epochs of rows, if the batch has them."""
        if EPOCH in batch:
            # With weighted sampling an epoch number has more than 32 bits, but devices hold 32.
            batch[EPOCH][rows] = [
                epoch if epoch < _MAX_EPOCHS else splitmix64(epoch) % _MAX_EPOCHS for epoch in epochs
            ]

    def draw(self, seed: int, epochs: Integers, ids: Integers) -> NDArray[np.float64]:
        """Return the random numbers of the examples' augmentations, float64 [example, augmentation, 8]."""
        return draw_uniforms(seed, epochs, ids, len(self._augmentations))

    def cache_values(self, numbers: Integers, shards: Shards) -> None:
        """Parse and cache the values of records that were not read yet, if `plan` then finds all that it needs.

        Args:
            numbers: numbers of the records, int64 [record].
            shards: the split's shards.

        Raises:
            CorruptFileError, SystemLimitError: as `MappedRecords.of`.
        """
        parser, names = self._reader.numbers, self._reader.cached_names
        if parser is None or not (self.verifies_windows and self._can_plan) or shards.verify == "always":
            return
        left = np.unique(numbers[shards.fields.missing(names, numbers)])
        records = MappedRecords.of(shards, left) if len(left) else None
        if records is None:
            return
        right = records.verify_rests()
        parsed, values = parser.parse(records)
        right &= parsed & records.are_unchanged()
        # A row whose numbers contradict each other is read by itself, which names the record.
        right &= self._reader.extents_fit(values, len(left))
        if right.any():
            for name in names:
                shards.fields.put_all(name, left[right], values[name][right])

    def plan(
        self,
        batch: Batch,
        rows: Integers,
        numbers: Integers,
        shards: Shards,
        uniforms: NDArray[np.float64],
    ) -> Windows | None:
        """Plan the windows of all rows at once, and write everything but the pixels.

        Args:
            batch: arrays [row, ...] of `spec`.
            rows: rows of the batch, int64 [row].
            numbers: numbers of their records, int64 [row].
            shards: the split's shards.
            uniforms: the result of `draw`.

        Returns:
            The windows that `move_planned` takes for all rows, and `write_planned` for one; None if each row needs
            `write`.
        """
        augmentations = self._augmentations
        if not (self._can_plan and draw_windows_alone(augmentations)):
            return None
        # Some record was not read yet, or its values did not fit into the cache.
        values, lists = shards.cached_fields(numbers, self._reader.cached_names), self._reader.lists
        objects = shards.cached_objects(numbers) if lists else None
        if values is None or (lists and objects is None):
            return None
        windows = self._reader.windows(values, len(rows), objects)
        # Without augmentations a picture's stored padding is shown too, and its boxes stay relative to it.
        stored = self._reader.stored_shapes(values, len(rows))
        for number, augmentation in enumerate(augmentations):
            augmentation.plan(windows, uniforms[:, number])
        if objects is not None:
            shown = windows.shape if augmentations else stored
            self._write_objects(batch, rows, objects[0], windows, shown)
        batch[ID][rows] = split_id(shards.ids_of(numbers))
        batch[VALID][rows] = True
        for field in self._fields:
            if field.encoding in STATIC:
                value = values[field.name]
                follow = FOLLOWING_WINDOWS.get(field.name)
                batch[field.name][rows] = value if follow is None else follow(value, windows)
        if SIZE in batch:
            batch[SIZE][rows] = windows.shape
        if not augmentations:
            windows.shape = stored
        return windows

    @property
    def moves_rows(self) -> bool:
        """Return whether the kernel can copy planned rows: it is built, and pixels need no decoding or conversion."""
        return (
            not self.decodes
            and kernel.is_built()
            and (packing.packs() or not any(field.is_packed for field in self._grid))
            and not any(
                field.holds_sets or stored_dtype(field) != self.spec[field.name].dtype for field in self._grid
            )
        )

    @property
    def verifies_windows(self) -> bool:
        """Return whether the kernel can verify planned rows while it copies them.

        Complete raw arrays are read and verified by `VerifiedReads`.
        """
        reads_all = bool(self._as_stored) and all(field.is_raw for field in self._grid)
        return self.moves_rows and kernel.reads() and not reads_all

    @property
    def array_keys(self) -> tuple[str, ...]:
        """Keys of planned rows' arrays."""
        return tuple(field.keys[0] for field in self._grid)

    def move_planned(
        self,
        batch: Batch,
        rows: Integers,
        records: MappedRecords,
        windows: Windows,
        run_in_threads: Callable[[Callable[[], None]], None],
    ) -> NDArray[np.bool_]:
        """Copy the pixels of all planned rows at once by the kernel, if `moves_rows`.

        Args:
            batch, rows: as in `plan`.
            records: the rows' records.
            windows: the result of `plan`.
            run_in_threads: as in `halofeed.schemas.native.kernel.run_table`.

        Returns:
            Which rows were copied, bool [row]: those whose record has a valid frame.
        """
        fields, slab = self._grid, None if self._is_complete else self._slab
        plan = plan_copies(fields, batch, self._padding, rows, windows, slab, records)
        return plan.run(run_in_threads, (batch, self._padding, records))

    def write_planned(self, batch: Batch, row: int, record: StoredRecord, view: View) -> bool:
        """Write a planned row's pixels; False if the row needs `write`.

        Raises:
            CorruptFileError: as `write`.
        """
        record.features(frozenset(), self._raw_targets(batch, row))
        arrays = self._reader.read_planned(record, self._picture_target(batch, row))
        if arrays is None:
            return False
        self._write_arrays(batch, row, view, *arrays)
        return record.is_unchanged()

    def write(
        self,
        batch: Batch,
        row: int,
        record: StoredRecord,
        uniforms: NDArray[np.float64],
        find: Find,
        *,
        seed: int,
        epoch: int,
    ) -> None:
        """Write one record into a row.

        Args:
            batch: arrays [row, ...] of `spec`.
            row: row of the batch.
            record: the record to write.
            uniforms: the record's random numbers of `draw`, [augmentation, 8].
            find: returns the records that are combined with it.
            seed, epoch: the random key for these records, together with the record's id.

        Raises:
            CorruptFileError: names file, offset and id.
        """
        for _ in range(_ATTEMPTS):
            reads = self._write_once(batch, row, record, uniforms, find, seed, epoch)
            changed = next((read.record for read in reads if not read.record.is_unchanged()), None)
            if changed is None:
                for read in reads:
                    if not read.is_cached:
                        read.record.cache(read.values, read.lists)
                return
        raise (changed or record).changed_error()

    def _write_once(
        self,
        batch: Batch,
        row: int,
        record: StoredRecord,
        uniforms: NDArray[np.float64],
        find: Find,
        seed: int,
        epoch: int,
    ) -> list[ReadExample]:
        """Write the record, and return it and its partners."""
        read = self._reader.read(record, self._raw_targets(batch, row), self._picture_target(batch, row))
        reads = [read]

        def read_partner(position: float) -> Example:
            partner = self._reader.read(find(position), {}, None)
            objects = partner.example.objects
            counted = sum(len(one.lists.get(BOXES, ())) for one in reads)
            reads.append(partner)
            return replace(partner.example, objects=objects.numbered_from(counted))

        partners = None
        if self._combines:
            partners = PartnerSampler(seed=seed, epoch=epoch, identity=record.id, find=read_partner)
        example = augment(self._augmentations, read.example, uniforms, partners)
        self._write_arrays(batch, row, example.view, example.pixels, example.label)
        self._write_fields(batch, row, example, reads)
        if SIZE in batch:
            batch[SIZE][row] = example.view.shape
        if OBJECT_MAP in batch:
            _write_object_map(example, _are_regions(concatenate_lists(reads), example.objects), batch, row)
        batch[VALID][row] = True
        return reads

    def _write_fields(self, batch: Batch, row: int, example: Example, reads: Sequence[ReadExample]) -> None:
        """Write every field but the image and a label on its grid, by how each is encoded.

        Args:
            example: the augmented example.
            reads: the record as it was read, then its partners.
        """
        read, lists = reads[0], concatenate_lists(reads)
        for field in self._fields:
            if field.name == ID:
                batch[ID][row] = split_id(read.record.id)
            elif field.encoding == "list":
                # Without augmentations, stored boxes keep their float32 values, relative to the padded picture.
                shown = np.array(example.view.shape if self._augmentations else read.stored)
                values = self._object_values(field, lists, example.objects, shown)
                values = values[_are_regions(lists, example.objects) == (field.name in REGION_FIELDS)]
                self._write_list(batch, row, field, values)
            elif field.encoding == "png_list":
                self._write_masks(example, batch[field.name][row])
            elif field.encoding == "text":
                text = read_text(field, read.features, read.record)
                batch[field.name][row] = int(text) if batch[field.name].dtype.kind == "i" else text
            elif field.encoding in STATIC:
                batch[field.name][row] = self._static_value(field, example, reads)

    def _write_list(self, batch: Batch, row: int, field: Field, values: NDArray[Any]) -> None:
        """Write one value per object, as many as there is room for, and fill the rest."""
        out = batch[field.name][row]
        count = min(len(values), len(out))
        out[:count], out[count:] = values[:count], _fill(field)
        if field.name == BOXES:
            batch[COUNT][row] = count

    def _static_value(self, field: Field, example: Example, reads: Sequence[ReadExample]) -> NDArray[Any]:
        """Return a field's value of static shape, adapted to what is shown."""
        value = reads[0].values[field.name]
        if field.name == LABELLED and len(reads) > 1:
            # A combined label is known only if every part of it is.
            value = np.asarray(np.all([one.values[LABELLED] for one in reads], axis=0))
        follow = FOLLOWING.get(field.name)
        return value if follow is None else follow(value, example)

    def _raw_targets(self, batch: Batch, row: int) -> dict[str, NDArray[np.uint8]]:
        """Return a row's memory for raw values that are used as stored, by their keys."""
        return {key: batch[name][row].reshape(-1).view(np.uint8) for name, key in self._as_stored.items()}

    def _picture_target(self, batch: Batch, row: int) -> NDArray[Any] | None:
        """Return a row's memory for a picture that is used as it is decoded."""
        return batch[IMAGE][row] if self._is_direct and not self._planes else None

    def addresses(self, batch: Batch, rows: Integers) -> dict[str, Integers]:
        """Return the memory addresses of rows for raw values that are used as stored, int64 [row], by key."""
        return {
            key: batch[name].ctypes.data + rows * batch[name].strides[0]
            for name, key in self._as_stored.items()
        }

    def _write_objects(
        self, batch: Batch, rows: Integers, lists: ObjectLists, windows: Windows, shown: Integers
    ) -> None:
        """Write the objects of several rows, each list padded to the same length.

        Args:
            batch: arrays [row, ...].
            rows: rows of the batch, int64 [row].
            lists: the stored lists of all rows, [object, ...].
            windows: what each row shows, and its objects.
            shown: sizes to which the objects are relative, int64 [row, axis].
        """
        objects, of_row = windows.objects, windows.object_rows
        is_region = _are_regions(lists, objects)
        places = {kind: _positions(of_row[is_region == kind], len(rows)) for kind in (False, True)}
        for field in (field for field in self._reader.lists if field.name in batch):
            is_of_field = is_region == (field.name in REGION_FIELDS)
            counts, position = places[field.name in REGION_FIELDS]
            values, out = (
                self._object_values(field, lists, objects, shown[of_row])[is_of_field],
                batch[field.name],
            )
            if field.name == BOXES:
                batch[COUNT][rows] = np.minimum(counts, field.shape[0])
            out[rows] = _fill(field)
            fits = position < out.shape[1]
            out[rows[of_row[is_of_field][fits]], position[fits]] = values[fits]

    def _object_values(
        self, field: Field, lists: ObjectLists, objects: Objects, shown: Integers
    ) -> NDArray[Any]:
        """Return the objects' values of a list field; positions are rescaled from what is `shown` to the frame."""
        if field.name in (BOXES, REGIONS):
            scale = np.concatenate([shown, shown], axis=-1) / np.array(self._frame * 2)
            return np.asarray(objects.boxes * scale, np.float32)
        if field.name == CORNERS and objects.corners is not None:
            scale = np.tile(shown, 4) / np.array(self._frame * 4)
            return np.asarray(objects.corners.reshape(-1, 8) * scale, np.float32)
        return objects.areas if field.name == AREA else lists[field.name][objects.kept]

    def _write_arrays(
        self, batch: Batch, row: int, view: View, pixels: SourceArray | None, label: SourceArray | None
    ) -> None:
        """Copy image and label as shown; None is in the row already."""
        for plane in self._planes:
            assert isinstance(pixels, ColoredPlanes)
            # Without augmentations a picture's padding is shown too.
            shown = view if self._augmentations else View.whole(pixels.shape[:2])
            part = scaled_view(shown, plane.scale)
            self._copy(plane.name, part, pixels.plane(plane), batch[plane.name][row], plane.scale)
        if pixels is not None and not self._planes:
            self._copy(IMAGE, view, pixels, batch[IMAGE][row])
        if label is not None:
            self._write_label(view, label, batch[LABEL][row])

    def _write_label(self, view: View, label: SourceArray, out: NDArray[Any]) -> None:
        """Copy the label as shown; class sets are expanded last, because one number per voxel is cheaper to copy."""
        if self._label is None or not self._label.holds_sets:
            self._copy(LABEL, view, label, out)
            return
        sets = np.empty(out.shape[:-1], self._label.stored_dtype)
        self._copy(LABEL, view, label, sets)
        unpack_sets(sets, out)

    def _copy(self, name: str, view: View, source: SourceArray, out: NDArray[Any], scale: int = 1) -> None:
        """Copy what the view shows of an array within the slab, and pad around it.

        Args:
            scale: pixels of the slab per pixel of the array, along each axis.
        """
        # Without augmentations a picture's stored padding is shown too, as its boxes are relative to it.
        if not (self._augmentations or self._pads_around):
            view = View.whole(source.shape[:2])
        if not self._is_complete:
            view, source = self._crop_to_slab(view, source, scaled_slab(self._slab, scale))
        if self._pads_around:
            copy_view(view, source, out)
            return
        height, width = view.shape
        if height and width:  # a slab may hold nothing of a small picture
            copy_view(view, source, out[:height, :width])
        out[height:] = self._padding[name][height:]
        out[:height, width:] = self._padding[name][:height, width:]

    def _crop_to_slab(self, view: View, source: SourceArray, slab: Ranges) -> tuple[View, SourceArray]:
        """Return the view of the slab only, and the array that it shows."""
        if isinstance(source, LazyArray):
            # If a lazy array is computed in parts, a pixel may differ in its last bit.
            complete = np.empty((*view.shape, *source.shape[len(view.shape) :]), source.dtype)
            source.copy(view, complete)
            view, source = View.whole(view.shape), complete
        inside = [
            (min(low, size), min(high, size)) for (low, high), size in zip(slab, view.shape, strict=True)
        ]
        return view.crop([low for low, _ in inside], [high - low for low, high in inside]), source

    def _write_masks(self, example: Example, out: NDArray[Any]) -> None:
        out[...] = 0
        height, width = example.view.shape
        for mask, source in zip(out, example.objects.masks, strict=False):
            copy_view(example.view, source, mask[:height, :width])


def _write_object_map(example: Example, is_region: NDArray[np.bool_], batch: Batch, row: int) -> None:
    """Write the number of the box, from 1, whose object each pixel shows; 0 is the background.

    Where objects overlap, the one with fewer pixels is shown, the first of equal ones. A larger one would hide it, as
    the plate hides a fork. Objects beyond the last box of the batch are left out, as their boxes are.
    """
    out = batch[OBJECT_MAP][row]
    out[...] = 0
    height, width = example.view.shape
    shown, scratch = out[:height, :width], np.empty((height, width), np.uint8)
    # Pixels of the object that is shown; every object has fewer than the background.
    pixels = [math.inf]
    masks = [mask for mask, left_out in zip(example.objects.masks, is_region, strict=False) if not left_out]
    for number, mask in enumerate(masks[: len(batch[BOXES][row])], 1):
        copy_view(example.view, mask, scratch)
        rows, columns = _bounds_of(scratch)
        inside, part = scratch[rows, columns] > 0, shown[rows, columns]
        pixels.append(float(np.count_nonzero(inside)))
        part[inside & (np.array(pixels)[part] > pixels[-1])] = number


def _bounds_of(mask: NDArray[np.uint8]) -> tuple[slice, slice]:
    """Return the rows and columns of a mask that are not all 0."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    if not len(rows):
        return slice(0), slice(0)
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _are_regions(lists: ObjectLists, objects: Objects) -> NDArray[np.bool_]:
    """Return which objects are ignored regions, bool [object].

    The lists decide, since augmentations of a user may make `Objects` without `Objects.regions`.
    """
    return lists[REGIONS][objects.kept] if REGIONS in lists else np.zeros(len(objects.kept), np.bool_)


def _positions(of_row: Integers, rows: int) -> tuple[Integers, Integers]:
    """Return the number of objects of each row, int64 [row], and the position of each object among those of its row.

    Args:
        of_row: row of each object, ascending.
        rows: number of rows.
    """
    counts = np.bincount(of_row, minlength=rows)
    return counts, np.arange(len(of_row)) - np.repeat(np.cumsum(counts) - counts, counts)


def _fill(field: Field) -> Any:
    return field.fill if len(field.fill) > 1 else field.fill[0]
