"""Loader: a converted data set as a stream of batches."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.assemble import Assembler
from halofeed.loader.augment import Augmentation, Combination
from halofeed.loader.augment.view import Ranges
from halofeed.loader.batch import Batch, allocate, check_memory
from halofeed.loader.batch_content import BatchContent
from halofeed.loader.filling import Filler
from halofeed.loader.loader_options import Order, Reading, Rows, Selection
from halofeed.loader.record import (
    NEVER_SPLIT_BYTES,
    SPLIT_BYTES_FOR_CROPS,
    SPLIT_BYTES_FOR_SLABS,
    ChosenRecords,
    StoredRecord,
)
from halofeed.loader.sampler import DrawBy, Sampler, Where, id_of, plan_draws, selected_records, unknown_key
from halofeed.loader.shards import Shards
from halofeed.loader.store.open_store import CONCURRENT_READS
from halofeed.loader.stream import Stream, digest, fingerprint
from halofeed.schemas.manifest import Manifest
from halofeed.system.addresses import Address, address_of
from halofeed.system.arguments import explains_calls, path_text, whole_number
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.wording import plural


class Loader(Stream):
    """Batches of a converted data set, each a pure function of (data set, seed, step).

    A batch is a dict of NumPy arrays with the batch axis first, of the shapes in `spec`:
    - `image` [batch, height, width, channel], for volumes [batch, depth, height, width, channel]; bfloat16 is
      ml_dtypes' dtype.
    - classification: `label` int32 [batch]. If pictures may have several classes (--several-classes keep), `labels`
      uint8 [batch, class] instead: 1 for each class of the picture, in the order of the label map's ids.
    - segmentation: `label`, class indices on the image's grid, uint8 or uint16 as stored; `labelled` bool [batch],
      False if the source has no label, and `label` is then all 0. If classes overlap (`--class-overlap channels`),
      `label` is uint8 [batch, depth, height, width, class], 0 and 1: the manifest's `labels` except the background, in
      ascending order of id. A voxel may be 1 in several of them, or in none.
    - detection: `boxes` float32 [batch, max_boxes, 4], normalized ymin, xmin, ymax, xmax, with `classes` int32,
      `is_crowd` bool and `area` float32 [batch, max_boxes], and `num_boxes` int32 [batch]. If there are more than
      max_boxes boxes after crops, only the first max_boxes are returned, and `num_boxes` counts those.
      A data set with ignored regions also gives `ignored_boxes` float32 [batch, regions, 4], normalized like boxes:
      rectangles in which objects of any class may lack annotation. Rows beyond those of a picture are zeros.
      With include=["corners"] (`--keep corners`), `corners` float32 [batch, max_boxes, 8] has y and x of the four
      corners of each object in the order of the annotation, normalized like boxes and not clipped.
    - detection in volumes: `boxes` float32 [batch, max_boxes, 6], normalized zmin, ymin, xmin, zmax, ymax, xmax, with
      `classes`, `is_crowd` and `num_boxes`. `halofeed.boxes_to_mm` and `boxes_to_source` lead back.
    - `id` uint32 [batch, 2], high and low half, since JAX would cut int64; `halofeed.join_id(batch["id"])` is int64
      [batch]. `valid` bool [batch], False if a row is padding, which holds the fields' fill values and id -1.

    Memory: `batch.BATCHES_IN_FLIGHT` batches, the batches that the caller keeps, and as many recycled ones. The index
    uses 29 bytes per record, 8 more for each raw field and 5 for each started 64 KiB of it, 20 for each packed field
    and 1 for each band of 32 rows of it. Each thread uses 2 MiB of read buffer and one record's values that are not raw
    (packed ones, and for jpeg and png the file and the decoded picture). Label counts (RandomCrop's `foreground`) use
    4 MiB, and small values that each batch needs (labels, sizes) up to 64 MiB. Augmentations that resample or combine
    examples document their own memory. With an address, add the stored bytes of one batch, and of all batches in flight
    if batches are read in order.

    Files: shards on a local disk are mapped into memory if a fault cannot end the process; otherwise they are read
    with file offsets. A shard that is shortened or cannot be read raises an error. A mapping uses 2 MiB of page tables
    per GiB read, and the pages read count as the process' resident memory, which the system reclaims when needed.
    All loaders together hold at most 128 shards open, and at most an eighth of the files that the process may open
    (`ulimit -n`).

    The loader always reads the data that was in the folder when the loader was made. It compares a record's length
    and checksum in the shard with the index at every read, and the index with its checksum in the manifest. If a shard
    is replaced later (converted again or restored from another version), the loader keeps the old bytes as long as it
    has them open. Otherwise it raises CorruptFileError, with any value of `verify`.

    Args:
        path: the version's folder, such as data/cards/1.0.0; or its address, such as s3://bucket/cards/1.0.0, with
            gs://, s3://, http://, https:// or another scheme of fsspec's. Credentials are found as docs/stores.md says;
            settings of fsspec for a scheme are used where there are any. An `Address` also names the hosts to which a
            web server may redirect requests; by default that is only the server itself.
        split: name of the split, or several as train+validation.
        batch_size: rows of the global batch, over all hosts.
        seed: 0 to 2**64 - 1; determines the order and the augmentations.
        shuffle: permute all records exactly, differently in every epoch.
        training: False is evaluation: stored order, one epoch, the last batch padded.
        num_epochs: number of epochs; None is without end (training) or one (evaluation). The last batch of a finite
            stream is padded with rows that are not valid.
        drop_remainder: cut every epoch to floor(num_records / batch_size) batches; otherwise training batches
            straddle epochs. Not in evaluation.
        augment: augmentations of `halofeed.loader.augment`, applied in order, in evaluation too.
        shard_index, shard_count: number of this host, and count of hosts. The host gets the contiguous rows
            [shard_index, shard_index + 1) * batch_size / shard_count of every batch.
        cache: None; "memory": all shards of the split, read and checked when the loader is made, and shared with
            processes that are forked later; "disk:/a/folder": shards copied to that folder one after the other, for
            all processes of the machine and later runs. Until a shard is copied, batches read the original.
        cache_bytes: bound for everything in that folder, including other data sets; None: the disk's free space. The
            least recently used shards are deleted first, but none that a loader of this process uses. Shards that do
            not fit are read from their original place.
        verify: when to compute checksums of the data: "first", at the first read; "always"; or "never". For raw fields
            the index has a checksum per MiB, so that a crop reads only the MiBs that it touches. With an address,
            "first" means at every transfer.
        on_corrupt: what to do with a record that cannot be read. "fail" raises an error with file, offset and id.
            "skip" uses another record, the same one whenever this batch is made; in evaluation the row is not valid.
            `skipped` lists these records. More than one in a hundred (and more than one) always raise an error.
        include: names of optional fields of the manifest. `transform`, `masks`, `affine`, `spacing_mm` and `extent`
            follow flips, turns, crops and zooms. All others are returned as stored, including the unpadded and source
            sizes and `tile_origin`. `epoch`, int32 [batch], from which `halofeed.loader.device` draws, is the record's
            epoch, from 0; with `draw_by` each draw has its own number. For pictures also `size`, int32 [batch, 2]:
            height and width of the picture, which begins at the top left of `image`; the rest is padding. `transform`,
            float32 [batch, 2, 3], maps a point of `image` to its source: [y_source, x_source] = transform @ [y, x, 1],
            in pixels from the corner of the first pixel. `affine`, float32 [batch, 4, 4], maps a voxel's center to the
            patient in millimeters: [x, y, z, 1] = affine @ [depth, height, width, 1]. `extent`, int32 [batch, 2, 3], is
            the first voxel that shows the scan, and the one after the last; the rest of a volume or clip is padding.
            For objects with masks also `object_map`, uint16 [batch, height, width], which follows all augmentations:
            the number of the box, from 1, whose object a pixel shows, 0 for none. Where objects overlap, it is the one
            with fewer pixels. It takes 2 bytes a pixel, and `masks` one a pixel for each of `max_boxes`.
        concurrent_reads: number of concurrent requests to an address.
        decode: JPEG decoding: "accurate" uses libjpeg's slow integer transform and smooth upsampling. "fast" differs by
            some levels and decodes more images per second (docs/loading.md says how many).
        color: "planes" gives pictures of --encoding yuv420 as `luma` and `chroma` instead of `image`: half of the bytes
            for a device, on which `halofeed.loader.device.to_rgb` makes colors of them.
        where: use only these records: their ids or the keys of their sources, as for `find`; or a function from all
            ids, int64 [record], to a mask, bool [record]. The selected records are numbered from 0.
        draw_by: how often each record is drawn in training; None: once per epoch. "class": each class equally often,
            and within a class each record that holds it (classification: its class; detection: an object;
            segmentation: a pixel or voxel); or a share for each class by name or id, {"car": 3, "person": 1}, where
            "background" is records without objects or foreground. "foreground": records with any foreground as often as
            records without. `RepeatFactor(threshold=0.001)`: records of rare classes more often. Or a weight for each
            record, float [record] in stored order, or a function from all ids to these weights. An epoch has as many
            draws as there are records. Each record gets its share of an epoch,
            rounded down or up; over many epochs it is within a few draws of its share. Memory: 16 bytes per record, or
            per class of each record. For classes or foreground, making the loader reads each record's classes, for jpeg
            and png with the picture.
        fold: number of a fold that `halofeed convert --folds` made: split "train" is then all other folds, and
            "validation" this one.

    Raises:
        UsageError: an argument is invalid; the message lists the valid values.
        ManifestError: the conversion has not finished, or the manifest is wrong.
        CorruptFileError: a shard is missing or has another size. Reading may raise it later, with file, offset and id.
        StoreError: an address cannot be reached, or refuses access; reading may raise it later.
        SystemLimitError: when reading, the process may not open another file.

    >>> loader = halofeed.Loader("data/photos/1.0.0", batch_size=4, seed=7)
    >>> loader.batch(1234)["image"].shape
    (4, 16, 24, 3)
    """

    @explains_calls
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str = "train",
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        training: bool = True,
        num_epochs: int | None = None,
        drop_remainder: bool = False,
        augment: Sequence[Augmentation | Combination] = (),
        shard_index: int = 0,
        shard_count: int = 1,
        cache: str | None = None,
        cache_bytes: int | None = None,
        concurrent_reads: int = CONCURRENT_READS,
        verify: Literal["first", "always", "never"] = "first",
        on_corrupt: Literal["fail", "skip"] = "fail",
        decode: Literal["accurate", "fast"] = "accurate",
        color: Literal["rgb", "planes"] = "rgb",
        include: Sequence[str] = (),
        where: Where | None = None,
        draw_by: DrawBy | None = None,
        fold: int | None = None,
    ) -> None:
        path_text("path", path)
        path = address_of(path) or path  # an Address prints without its secrets
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self._reading = Reading(
            cache=cache,
            cache_bytes=cache_bytes,
            concurrent_reads=concurrent_reads,
            verify=verify,
            on_corrupt=on_corrupt,
        )
        self._content = BatchContent.of(include=include, augment=augment, decode=decode, color=color)
        self._order = Order.of(
            seed=seed,
            training=training,
            shuffle=shuffle,
            num_epochs=num_epochs,
            drop_remainder=drop_remainder,
            draw_by=draw_by,
        )
        # The text of a loader has Python's bool, also for 1 and np.True_.
        self._arguments["training"] = self._order.training
        rows = Rows.of(batch_size=batch_size, shard_index=shard_index, shard_count=shard_count)
        self._open(path, Selection(split=split, fold=fold, where=where), rows)

    def _open(self, path: str | os.PathLike[str] | Address, selection: Selection, rows: Rows) -> None:
        """Read the manifest, plan the arrays of a batch, open the shards and choose the records."""
        order, reading = self._order, self._reading
        store = reading.open(path)
        self.manifest: Manifest = store.manifest()
        self.split = selection.stored_split(self.manifest, store.place)
        self.seed, self.batch_size = order.seed, rows.batch_size
        self.shard_index, self.shard_count = rows.shard_index, rows.shard_count
        assembler = Assembler(self.manifest, self._content)
        self.row_spec, self.on_grid = assembler.spec, assembler.on_grid
        check_memory(self.spec, self.batch_size)
        self._shards = Shards(
            reading.cached(store, self.manifest, self.split), self.manifest, self.split, reading.verify
        )
        chosen = None
        if selection.where is not None:
            chosen = selected_records(selection.where, self._shards.all_ids(), self.split)
        self._records = ChosenRecords(self._shards, chosen)
        self._draws = None
        if order.draw_by is not None:
            self._draws = plan_draws(order.draw_by, self._records, self.manifest, skips=reading.skips)
        self._sampler = Sampler(
            records=len(self._records),
            batch_size=self.batch_size,
            seed=self.seed,
            shuffle=order.shuffle,
            num_epochs=order.num_epochs,
            drop_remainder=order.drop_remainder,
            draws=self._draws,
        )
        self.kind, self.steps = self.manifest.kind, self._sampler.steps
        # A skipped record's row stays empty in evaluation, which gives every record once.
        self.may_pad = self._sampler.has_padding or (reading.skips and not order.training)
        self._filler = self._filler_of(
            assembler, SPLIT_BYTES_FOR_CROPS if self._content.augmentations else NEVER_SPLIT_BYTES
        )

    def __reduce__(self) -> tuple[Any, ...]:
        made = functools.partial(Loader, **self._arguments)
        return functools.partial(_by_epoch, made) if self._sampler.pads_epochs else made, ()

    def __copy__(self) -> Loader:
        made = object.__new__(Loader)  # `__reduce__` would read everything again
        made.__dict__.update(self.__dict__)
        return made

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._arguments.items() if name != "path")
        return f"Loader({str(self._arguments['path'])!r}, {options})"

    @property
    def num_records(self) -> int:
        """Records of the split."""
        return self._sampler.records

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches that hold one epoch; the last one may belong to two epochs."""
        return -(-self._sampler.epoch_places // self.batch_size)

    @property
    def records(self) -> Records:
        """The records of the split in stored order, for torch's DataLoader and Grain's MapDataset."""
        return Records(self)

    def record(self, number: int) -> Batch:
        """Return one record by its number, 0 .. num_records-1: arrays without the batch axis, not augmented."""
        number = self._checked_number(number)
        plain = self._plain
        batch = allocate(plain.spec, 1, self._filler.pool)
        record = self.stored(number)
        plain.write(batch, 0, record, np.zeros((0, 8)), lambda _: record, seed=0, epoch=0)
        plain.write_epochs(batch, np.array([0]), [0])
        return {name: array[0] for name, array in batch.items()}

    def _checked_number(self, number: int) -> int:
        number = whole_number("record", number, 0)
        if not 0 <= number < self.num_records:
            raise IndexError(
                f"record {number}: split {self.split!r} has {plural(self.num_records, 'record')}, numbered from 0; "
                "`find` returns the number of an id or key"
            )
        return number

    def stored(self, number: int) -> StoredRecord:
        """Return the record of a number, 0 .. num_records-1, without reading it."""
        return self._records.record(number)

    def find(self, key: int | str) -> int:
        """Return the number of a record, for `loader.records[number]`.

        Args:
            key: the record's id as a number, or the key of its source: its path below the source folder, or its
                number in the annotations.

        Raises:
            UsageError: the split has no such record.
        """
        ids = self._records.ids()
        found = np.flatnonzero(ids == id_of(key))
        if not len(found):
            raise UsageError(f"{key!r}: split {self.split!r} has no such record; {unknown_key(key, ids)}")
        return int(found[0])

    @property
    def ignore_label(self) -> int | None:
        """The value of `label` for unknown pixels; it is not a class, and losses and metrics exclude it."""
        return self.manifest.ignore_label

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels, `class_names[label]`: 0 is the background if labels begin at 1."""
        return class_names_of(self.manifest)

    @property
    def skipped(self) -> dict[int, str]:
        """The error of each record that this loader has skipped so far, by the record's number."""
        return {number: str(error) for number, error in sorted(self._filler.skipped.items())}

    @property
    def retries(self) -> int:
        """Number of repeated requests so far to an address or a cache."""
        return self._shards.store.retries

    def _stream(self) -> dict[str, Any]:
        return {
            "name": self.manifest.name,
            "version": self.manifest.version,
            "split": self.split,
            "fingerprint": fingerprint(self.manifest, self.split),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "shuffle": self._sampler.shuffle,
            "training": self._order.training,
            "drop_remainder": self._sampler.drop_remainder,
            "augment": [repr(augmentation) for augmentation in self._content.augmentations],
            "where": None if self._records.subset is None else digest(self._records.subset),
            "draw_by": None if self._draws is None else digest(self._draws.numbers),
            "decode": "fast" if self._content.decodes_fast else None,
            "color": "planes" if self._content.holds_planes else None,
        }

    def fill(self, batch: Batch, rows: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Fill rows of a batch with the records at places of the training stream, counted in records.

        Raises:
            CorruptFileError: as `batch`.
        """
        self._filler.fill(batch, rows, self._sampler.at(places))

    @property
    def is_prefetching(self) -> bool:
        """Return whether `prefetch` currently has an effect."""
        return self._shards.store.is_prefetching

    def prefetch(self, places: NDArray[np.int64]) -> None:
        """Begin to fetch what `fill` of these places reads, if that is slow."""
        if self.is_prefetching:
            self._filler.prefetch(self._sampler.at(places))

    def _prefetch(self, step: int, start: int, stop: int) -> None:
        # `Stream` announces steps ahead without regard to the end.
        if self.is_prefetching and (self.steps is None or step < self.steps):
            self._filler.prefetch(self._sampler.rows(step, start, stop))

    def by_epoch(self) -> Loader:
        """Return the same stream with a new batch at the start of each epoch; see `Stream.by_epoch`."""
        sampler = dataclasses.replace(self._sampler, pads_epochs=True)
        if self.steps is not None or not sampler.has_padding:  # its epochs are complete batches already
            return self
        other = copy.copy(self)
        other._sampler, other.may_pad = sampler, True
        return other

    def can_include(self, name: str) -> bool:
        """Return whether batches hold an optional field, or can hold it with these augmentations."""
        if name in self.row_spec:
            return True
        content = dataclasses.replace(self._content, include=(*self._content.include, name))
        try:
            Assembler(self.manifest, content)
        except UsageError:
            return False
        return True

    def including(self, *names: str) -> Loader:
        """Return the same stream, whose batches also hold these optional fields.

        Raises:
            UsageError: the data set has no such field, or the augmentations leave none.
        """
        names = tuple(name for name in names if name not in self.row_spec)
        if not names:
            return self
        other = copy.copy(self)
        other.__dict__.pop("_plain", None)
        other._content = dataclasses.replace(self._content, include=(*self._content.include, *names))
        other._arguments = {**self._arguments, "include": other._content.include}
        assembler = Assembler(self.manifest, other._content)
        other.row_spec, other.on_grid = assembler.spec, assembler.on_grid
        check_memory(other.spec, other.batch_size)
        split_bytes = SPLIT_BYTES_FOR_CROPS if self._content.augmentations else NEVER_SPLIT_BYTES
        other._filler = other._filler_of(assembler, split_bytes, self._filler.skipped)
        return other

    def without_combinations(self) -> Loader:
        """Return the same stream, whose mosaics and mixes have a probability of 0: it shows single pictures."""
        changed = [
            dataclasses.replace(one, probability=0.0)  # type: ignore[type-var]
            if isinstance(one, Combination) and hasattr(one, "probability")
            else one
            for one in self._content.augmentations
        ]
        other = Loader(**{**self._arguments, "augment": changed})
        return other.by_epoch() if self._sampler.pads_epochs else other

    def of_slab(self, slab: Ranges) -> Loader:
        """Return the same stream with a part of each image and label; see `Stream.of_slab`."""
        assembler = Assembler(self.manifest, self._content, slab)
        if assembler.spec == self.row_spec:  # the slab is the complete image
            return self
        part = copy.copy(self)
        part.row_spec = assembler.spec
        part._filler = self._filler_of(assembler, SPLIT_BYTES_FOR_SLABS, self._filler.skipped)
        return part

    def _filler_of(
        self, assembler: Assembler, split_bytes: int, skipped: dict[int, CorruptFileError] | None = None
    ) -> Filler:
        return Filler(
            assembler,
            self._records,
            self.seed,
            skips=self._reading.skips,
            replaces=self._order.training,
            split_bytes=split_bytes,
            skipped=skipped,
        )

    def _rows(self, step: int, start: int, stop: int) -> Batch:
        return self._filler.batch(self._sampler.rows(step, start, stop))

    @functools.cached_property
    def _plain(self) -> Assembler:
        return Assembler(self.manifest, self._content.without_augmentations())


def _by_epoch(make: Callable[[], Loader]) -> Loader:
    return make().by_epoch()


class Records(Sequence[Batch]):
    """Records of a loader's split in stored order, arrays without the batch axis, not augmented; can be pickled.

    torch's DataLoader and Grain's MapDataset take it: `DataLoader(loader.records, batch_size=8, shuffle=True)`,
    `grain.MapDataset.source(loader.records)`.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.num_records

    def __repr__(self) -> str:
        return f"{self._loader!r}.records"

    @overload
    def __getitem__(self, number: int) -> Batch: ...
    @overload
    def __getitem__(self, number: slice) -> list[Batch]: ...
    def __getitem__(self, number: int | slice) -> Batch | list[Batch]:
        """Return one record by its number, which may be negative, or a list of records.

        Raises:
            IndexError: the split has no such record.
            CorruptFileError: as `Loader.batch`.
        """
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if isinstance(number, str):
            raise UsageError(
                f"records: expected a number, got {number!r}; loader.find({number!r}) returns it"
            )
        # Python's sequences count negative numbers from the end; torch's and Grain's samplers give none.
        count = len(self)
        number = whole_number("records", number, 0)
        return self._loader.record(number + count if -count <= number < 0 else number)


def class_names_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the labels by label: 0 is the background if labels begin at 1."""
    labels = manifest.labels
    return tuple(
        labels.get(label, f"class {label}" if label else "background")
        for label in range(max(labels, default=-1) + 1)
    )
