"""How do the objects of records fill rows of a batch, each list padded to the same length?

How one record fills one row of a batch: which arrays there are, their shapes, and what goes into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.loader.augment import (
    Augmentation,
    Combination,
    Example,
    Frame,
    PartnerSampler,
    augment,
    draw_uniforms,
)
from halofeed.loader.augment.view import Array, Made, Ranges, Shape, View, copy_view
from halofeed.loader.augment.windows import Windows, draw_windows_alone
from halofeed.loader.batch import COUNT, EPOCH, ID, LABELLED, SIZE, VALID, Batch, specify
from halofeed.loader.chunks import is_little_endian
from halofeed.loader.copy_plan import InMemory, moves_of
from halofeed.loader.decode import read_text, stored_dtype
from halofeed.loader.field_cache import KeptLists
from halofeed.loader.gather import Shards
from halofeed.loader.native import kernel
from halofeed.loader.reading import (
    AREA,
    BOXES,
    EXTENT,
    FOLLOWING,
    IMAGE,
    LABEL,
    PLACE,
    STATIC,
    Read,
    RecordReader,
    is_grid,
    joined_lists,
)
from halofeed.loader.record import StoredRecord
from halofeed.schemas.fields import Field, members
from halofeed.schemas.identity import mix
from halofeed.schemas.manifest import Manifest


def write_objects(
    batch: Batch,
    rows: NDArray[np.int64],
    fields: Sequence[Field],
    lists: KeptLists,
    windows: Windows,
    frame: Shape,
) -> None:
    """Write the objects of several rows.

    Args:
        batch: arrays [row, ...].
        rows: int64 [row], which.
        fields: the lists.
        lists: [object, ...] of all rows, as stored.
        windows: what each row shows, and which of the objects.
        frame: to which boxes are relative in the batch.
    """
    objects, of_row = windows.objects, windows.object_rows
    counts = np.bincount(of_row, minlength=len(rows))
    number = np.arange(len(of_row)) - np.repeat(np.cumsum(counts) - counts, counts)
    for field in fields:
        if field.name == BOXES:
            values: NDArray[Any] = scaled(objects.boxes, windows.shape[of_row], frame)
            batch[COUNT][rows] = np.minimum(counts, field.shape[0])
        else:
            values = objects.areas if field.name == AREA else lists[field.name][objects.kept]
        out = batch[field.name]
        out[rows] = _fill(field)
        fits = number < field.shape[0]
        out[rows[of_row[fits]], number[fits]] = values[fits]


def scaled(boxes: NDArray[Any], shown: NDArray[np.int64], frame: Shape) -> NDArray[np.float32]:
    """Boxes, [object, 4] relative to what is `shown`, [2] or [object, 2], as float32 relative to a frame."""
    scale = np.concatenate([shown, shown], axis=-1) / np.array(frame * 2)
    return np.asarray(boxes * scale, np.float32)


def pad(values: NDArray[Any], out: NDArray[Any], field: Field) -> None:
    """The first of `values` that fit, then the field's fill."""
    count = min(len(values), len(out))
    out[:count] = values[:count]
    out[count:] = _fill(field)


def _fill(field: Field) -> Any:
    return field.fill if len(field.fill) > 1 else field.fill[0]


_MOST_EPOCHS = 1 << 31
_ATTEMPTS = 3
"""How often a record is read whose shard is written to meanwhile."""

Find = Callable[[float], StoredRecord]
"""From a number drawn, 0 (inclusive) to 1 (exclusive), to a record that may be shown with others."""


class Assembler:
    """Turns records into rows, for one manifest and one choice of fields and augmentations.

    Args:
        manifest: of the data set.
        include: names of optional fields.
        augmentations: in order.
        slab: what is made of each image, and of each label on its grid, along the axes of what is shown; None is all.
        decodes_fast: whether pixels of JPEG may differ a little, for speed.

    Attributes:
        spec: per array its shape (without the batch) and dtype.
        on_grid: the arrays on the image's grid.
        decodes: whether some of them are files in their records.
    """

    def __init__(
        self,
        manifest: Manifest,
        include: Sequence[str],
        augmentations: Sequence[Augmentation | Combination],
        slab: Ranges | None = None,
        *,
        decodes_fast: bool = False,
    ) -> None:
        self._augmentations = tuple(augmentations)
        # Another record is read while one is shown, whose bytes must outlive the scratch they were read into.
        self._combines = any(isinstance(one, Combination) for one in self._augmentations)
        fields = {field.name: field for field in manifest.fields}
        self._image = fields[IMAGE]
        kind = manifest.kind
        self._pads_around = kind.pads_around
        optional = {field.name for field in manifest.fields if field.optional}
        # What lies within its padding says where in fields of its own.
        made = {EPOCH} if self._pads_around else {EPOCH, SIZE}
        known = {*fields, *made}
        if isinstance(include, str) or (unknown := [name for name in include if name not in known]):
            names = include if isinstance(include, str) else ", ".join(unknown)
            raise UsageError(
                f"include {names!r}: expected a list of some of {', '.join(sorted(optional | made))}"
            )
        self._fields = [field for field in manifest.fields if not field.optional or field.name in include]
        self._label = next((field for field in self._fields if is_grid(field)), None)
        frame = Frame(
            shape=self._image.shape[:-1],
            kind=kind,
            has_label=self._label is not None,
            has_boxes=BOXES in fields,
            dtype=self._image.dtype,
        )
        for augmentation in self._augmentations:
            frame = augmentation.frame(frame)
        self._frame = frame.shape
        if frame.lost and (points := [name for name in ("transform", "affine") if name in include]):
            raise UsageError(
                f"include {points[0]!r}: after {frame.lost} no affine says where a point comes from; leave it out"
            )
        whole = tuple((0, size) for size in self._frame)
        self._slab, self._is_whole = slab or whole, slab in (None, whole)
        self._grid = [field for field in (self._image, self._label) if field]
        self.on_grid = tuple(field.name for field in self._grid)
        # All and no more of the image goes straight into the batch: raw fields as they are stored, files as decoded.
        self._is_straight = self._is_whole and not self._augmentations
        self._as_stored = {
            field.name: field.keys[0]
            for field in self._grid
            if field.encoding == "raw" and self._is_straight and is_little_endian(field.dtype)
        }
        moves = bool(self._augmentations)
        self._reader = RecordReader(
            manifest,
            self._fields,
            parsed=[field for field in self._fields if field.name != ID and not field.is_raw],
            moves=moves,
            sizes=moves or not {SIZE, EXTENT}.isdisjoint(include),
            as_stored=self._as_stored,
            outlives=self._combines,
            decodes_fast=decodes_fast,
        )
        shown = tuple(stop - start for start, stop in self._slab)
        self.spec = specify(self._fields, include, shown=shown, frame=self._frame)
        self.decodes = any(not field.is_raw for field in self._grid)
        self._plans = (
            self._reader.keeps_all
            and (self.decodes or not self._is_straight or len(self._as_stored) == len(self._grid))
            and FOLLOWING.keys().isdisjoint(field.name for field in self._fields)
            and SIZE not in self.spec
        )

    @cached_property
    def _padding(self) -> Batch:
        """Frames of padding to copy from: NumPy broadcasts three colors at 0.5 GB/s and copies at 10.

        What is shown of images that are padded around always fills the frame.
        """
        padding: Batch = {}
        for field in [] if self._pads_around else self._grid:
            padding[field.name] = np.empty(self.spec[field.name].shape, self.spec[field.name].dtype)
            padding[field.name][...] = field.fill
        return padding

    def fill(self, batch: Batch, row: int) -> None:
        """Make a row of padding: the fields' fill values, id -1, `valid` False."""
        for name, spec in self.spec.items():
            fill = spec.fill if len(spec.fill) > 1 else spec.fill[0]
            batch[name][row] = self._padding.get(name, fill)

    def write_epochs(self, batch: Batch, rows: NDArray[np.int64], epochs: Sequence[int]) -> None:
        """Write the epochs of rows, where the batch has them."""
        if EPOCH in batch:
            # Of drawn records one is longer than 32 bits, which is all that devices hold.
            batch[EPOCH][rows] = [
                epoch if epoch < _MOST_EPOCHS else mix(epoch) % _MOST_EPOCHS for epoch in epochs
            ]

    def draw(self, seed: int, epochs: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """What the augmentations of examples are drawn from, float64 [example, augmentation, 8]."""
        return draw_uniforms(seed, epochs, ids, len(self._augmentations))

    def plan(
        self,
        batch: Batch,
        rows: NDArray[np.int64],
        numbers: NDArray[np.int64],
        shards: Shards,
        drawn: NDArray[np.float64],
    ) -> Windows | None:
        """What rows show, where that can be said of all of them at once, with all of them written but their pixels.

        Args:
            batch: arrays [row, ...] of `spec`.
            rows: int64 [row], which.
            numbers: int64 [row], of the records in them.
            shards: that hold these.
            drawn: of `draw`.

        Returns:
            what `move_planned` takes, and of each row `write_planned` and `copy_planned`; rows that are decoded are
            left to `write_planned`. None where each is to be written by itself.
        """
        augmentations = self._augmentations
        if not (self._plans and draw_windows_alone(augmentations)):
            return None
        values, lists = shards.known(numbers, self._reader.known), self._reader.lists
        objects = shards.known_lists(numbers) if lists else None
        if values is None or (lists and objects is None):
            return None
        windows = self._reader.windows(values, len(rows), objects)
        for number, augmentation in enumerate(augmentations):
            augmentation.plan(windows, drawn[:, number])
        if objects is not None:
            write_objects(batch, rows, lists, objects[0], windows, self._frame)
        batch[ID][rows] = shards.ids_of(numbers)
        batch[VALID][rows] = True
        for field in self._fields:
            if field.encoding in STATIC:
                batch[field.name][rows] = values[field.name]
        return windows

    @property
    def moves_rows(self) -> bool:
        """Whether planned rows' pixels may be moved as they are stored, and by a kernel; else each is copied."""
        return kernel.is_built() and not any(
            field.holds_sets or stored_dtype(field) != self.spec[field.name].dtype for field in self._grid
        )

    @property
    def raw_keys(self) -> tuple[str, ...]:
        """Of planned rows' pixels."""
        return tuple(field.keys[0] for field in self._grid)

    def move_planned(
        self,
        batch: Batch,
        rows: NDArray[np.int64],
        memory: InMemory,
        windows: Windows,
        together: Callable[[Callable[[], None]], None],
    ) -> NDArray[np.bool_]:
        """Copy planned rows' pixels, those of all of them at once, where `moves_rows`.

        Args:
            batch, rows: as of `plan`.
            memory: where their records lie.
            windows: of `plan`.
            together: as of `halofeed.loader.native.kernel.move`.

        Returns:
            bool [row], which were copied: all whose frames are as they should be.
        """
        fields, slab = self._grid, None if self._is_whole else self._slab
        moves = moves_of(fields, batch, self._padding, rows, windows, slab, memory)
        moved = kernel.move(moves, together, (batch, self._padding, memory))[: len(fields) * len(rows)]
        return np.asarray(moved.reshape(len(fields), len(rows)).all(axis=0))

    def copy_planned(self, batch: Batch, row: int, memory: InMemory, at: int, view: View) -> bool:
        """Write a planned row's pixels from record `at` of those in memory; False where its frame is another."""
        if not memory.has(at):
            return False
        if self._is_straight:
            for field in self._grid:
                batch[field.name][row] = memory.array(at, field)
        else:
            self._copy_stored(batch, row, partial(memory.array, at), view)
        return True

    def write_planned(self, batch: Batch, row: int, record: StoredRecord, view: View) -> bool:
        """Write a planned row's pixels; False where it is to be written by itself.

        Raises:
            CorruptFileError: as `write`.
        """
        record.features(frozenset(), self._into(batch, row))
        if self.decodes:
            return self._is_decoded(batch, row, record, view) and record.is_confirmed()
        if not self._is_straight:
            self._copy_stored(batch, row, lambda field: self._reader.stored_array(field, record), view)
        return record.is_confirmed()

    def _copy_stored(self, batch: Batch, row: int, stored: Callable[[Field], Array], view: View) -> None:
        self._copy(IMAGE, view, stored(self._image), batch[IMAGE][row])
        if self._label is not None:
            self._write_label(view, stored(self._label), batch[LABEL][row])

    def _is_decoded(self, batch: Batch, row: int, record: StoredRecord, view: View) -> bool:
        """Whether a planned row's picture was as it is known to be, and is in the batch."""
        known, out = record.known((PLACE,)), batch[IMAGE][row]
        if known is None:
            return False
        pixels = self._reader.decode(record, known[PLACE].tolist(), out if self._is_straight else None)
        if pixels is not None and pixels is not out:
            self._copy(IMAGE, view, pixels, out)
        return pixels is not None

    def write(
        self,
        batch: Batch,
        row: int,
        record: StoredRecord,
        drawn: NDArray[np.float64],
        find: Find,
        *,
        seed: int,
        epoch: int,
    ) -> None:
        """Write one record into a row.

        Args:
            batch: arrays [row, ...] of `spec`.
            row: which one.
            record: what is written.
            drawn: of `draw`, its own [augmentation, 8].
            find: gives the records that are shown with it.
            seed, epoch: what those are drawn from, beside the record's id.

        Raises:
            CorruptFileError: names file, offset and id.
        """
        for _ in range(_ATTEMPTS):
            reads = self._write_once(batch, row, record, drawn, find, seed, epoch)
            changed = next((read.record for read in reads if not read.record.is_confirmed()), None)
            if changed is None:
                for read in reads:
                    if not read.is_kept:
                        read.record.keep(read.values, read.lists)
                return
        raise (changed or record).changing()

    def _write_once(
        self,
        batch: Batch,
        row: int,
        record: StoredRecord,
        drawn: NDArray[np.float64],
        find: Find,
        seed: int,
        epoch: int,
    ) -> list[Read]:
        """Write it, and give all that was read."""
        out = batch[IMAGE][row] if self._is_straight else None
        read = self._reader.read(record, self._into(batch, row), out)
        scene, reads = read.scene, [read]

        def another(where: float) -> Example:
            other = self._reader.read(find(where), {}, None)
            objects = other.scene.objects
            counted = sum(len(one.lists.get(BOXES, ())) for one in reads)
            reads.append(other)
            return replace(other.scene, objects=replace(objects, kept=objects.kept + counted))

        others = None
        if self._combines:
            others = PartnerSampler(seed=seed, epoch=epoch, identity=record.id, find=another)
        scene = augment(self._augmentations, scene, drawn, others)
        lists, objects = joined_lists(reads), scene.objects
        if scene.pixels is not None:
            self._copy(IMAGE, scene.view, scene.pixels, batch[IMAGE][row])
        if scene.label is not None:
            self._write_label(scene.view, scene.label, batch[LABEL][row])
        for field in self._fields:
            if field.name == ID:
                batch[ID][row] = record.id
            elif field.name == BOXES:
                shown = np.array(scene.view.shape if self._augmentations else read.stored)
                pad(scaled(objects.boxes, shown, self._frame), batch[BOXES][row], field)
                batch[COUNT][row] = min(len(objects.boxes), field.shape[0])
            elif field.encoding == "list":
                values = objects.areas if field.name == AREA else lists[field.name][objects.kept]
                pad(values, batch[field.name][row], field)
            elif field.encoding == "png_list":
                self._write_masks(scene, batch[field.name][row])
            elif field.encoding == "text":
                text = read_text(field, read.features, record)
                batch[field.name][row] = int(text) if batch[field.name].dtype.kind == "i" else text
            elif field.encoding in STATIC:
                value = read.values[field.name]
                if field.name == LABELLED and len(reads) > 1:
                    value = np.all([one.values[LABELLED] for one in reads], axis=0)
                follow = FOLLOWING.get(field.name)
                batch[field.name][row] = value if follow is None else follow(value, scene)
        if SIZE in batch:
            batch[SIZE][row] = scene.view.shape
        batch[VALID][row] = True
        return reads

    def _into(self, batch: Batch, row: int) -> dict[str, NDArray[np.uint8]]:
        """Where raw values go that are shown as they are stored, by their keys."""
        return {key: batch[name][row].reshape(-1).view(np.uint8) for name, key in self._as_stored.items()}

    def addresses(self, batch: Batch, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """As `_into`, of rows in one piece: the addresses of their memory, int64 [row]."""
        return {
            key: batch[name].ctypes.data + rows * batch[name].strides[0]
            for name, key in self._as_stored.items()
        }

    def _write_label(self, view: View, label: Array, out: NDArray[Any]) -> None:
        """The label as it is shown; sets of classes are taken apart last: all before moves one number a voxel."""
        if self._label is None or not self._label.holds_sets:
            self._copy(LABEL, view, label, out)
            return
        sets = np.empty(out.shape[:-1], self._label.stored_dtype)
        self._copy(LABEL, view, label, sets)
        members(sets, out)

    def _copy(self, name: str, view: View, source: Array, out: NDArray[Any]) -> None:
        """What the view shows of an array within the slab, all of it without augmentations, and padding around it."""
        if not (self._augmentations or self._pads_around):
            view = View.whole(source.shape[:2])
        if not self._is_whole:
            view, source = self._of_slab(view, source)
        if self._pads_around:
            copy_view(view, source, out)
            return
        height, width = view.shape
        if height and width:
            copy_view(view, source, out[:height, :width])
        out[height:] = self._padding[name][height:]
        out[:height, width:] = self._padding[name][:height, width:]

    def _of_slab(self, view: View, source: Array) -> tuple[View, Array]:
        """What shows the slab of what a view shows, and of which array."""
        if isinstance(source, Made):
            # Made by parts, a pixel may differ in its last bit from that of the whole.
            whole = np.empty((*view.shape, *source.shape[len(view.shape) :]), source.dtype)
            source.copy(view, whole)
            view, source = View.whole(view.shape), whole
        inside = [
            (min(low, size), min(high, size))
            for (low, high), size in zip(self._slab, view.shape, strict=True)
        ]
        return view.crop([low for low, _ in inside], [high - low for low, high in inside]), source

    def _write_masks(self, scene: Example, out: NDArray[Any]) -> None:
        out[...] = 0
        height, width = scene.view.shape
        for mask, source in zip(out, scene.objects.masks, strict=False):
            copy_view(scene.view, source, mask[:height, :width])
