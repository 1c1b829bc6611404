"""How a converted data set becomes a stream of batches: `Loader`."""

from __future__ import annotations

import copy
import functools
import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError, UsageError
from halofeed.loader.assemble import Assembler
from halofeed.loader.augment import Augmentation, Combination, check_augmentations
from halofeed.loader.augment.view import Ranges
from halofeed.loader.batch import Batch, allocate, check_memory
from halofeed.loader.decode import DECODE
from halofeed.loader.filling import ON_CORRUPT, Filler
from halofeed.loader.gather import Shards
from halofeed.loader.record import WHOLE, WHOLE_FOR_CROPS, WHOLE_FOR_SLABS, StoredRecord
from halofeed.loader.sampler import Sampler, Where, id_of, subset
from halofeed.loader.store.choose import CONCURRENT_READS, cached, open_store
from halofeed.loader.stream import Stream, check_hosts, digest, fingerprint
from halofeed.loader.weighted_sampling import DrawBy, plan_draws
from halofeed.schemas.manifest import Manifest
from halofeed.system.addresses import address_of


class Loader(Stream):
    """Batches of a converted data set, each a pure function of (data set, seed, step).

    A batch is a dict of NumPy arrays with the batch axis first, of the shapes in `spec`:
    - `image` [batch, height, width, channel], of volumes [batch, depth, height, width, channel]; bfloat16 is that of
      ml_dtypes.
    - classification: `label` int32 [batch]; where a picture may have several classes (--several-classes keep) `labels`
      uint8 [batch, class], 1 for each that it has, in the order of the label map's ids.
    - segmentation: `label`, class indices on the image's grid, uint8 or uint16 as stored; `labelled` bool [batch],
      False where the source has no label and it is 0 throughout. Of a data set whose classes overlap (`--class-overlap
      channels`) `label` is uint8 [batch, depth, height, width, class], 0 and 1: the manifest's `labels` but the
      background, in ascending order of id; a voxel may be 1 in several of them, or in none.
    - detection: `boxes` float32 [batch, max_boxes, 4], normalized ymin, xmin, ymax, xmax, with `classes` int32,
      `is_crowd` bool and `area` float32 [batch, max_boxes], and `num_boxes` int32 [batch]. Of more than max_boxes
      boxes the first max_boxes are given (after crops), and `num_boxes` counts those.
    - `id` int64 [batch]; `valid` bool [batch], False where a row is padding, which holds the fields' fill values and
      id -1.

    Memory: `buffers.BATCHES_IN_FLIGHT` batches, beside them what the caller keeps, and as many recycled ones. Of the
    index 29 bytes a record, 8 more for each raw field and 5 for each started MiB of it. In each thread 2 MiB to read
    into, and what one record holds beside raw values (of jpeg and png its file, and the decoded picture). 4 MiB for
    what was counted of labels (RandomCrop's `foreground`), and up to 64 MiB for numbers of records that each batch
    needs (labels, sizes). Augmentations that resample, or show several examples in one, say what they take besides. Of
    an address the stored bytes of one batch, and of those in flight where batches are read in order.

    Files: shards on a local disk are mapped into memory where a fault of them cannot end the process, else read by
    place; one that is shortened or cannot be read is an error. A map takes 2 MiB of page tables for each GiB that was
    looked at, and what was looked at counts as resident memory of the process, which the system takes back when it
    needs it. Of all loaders together at most 128 shards are open, and no more than an eighth of the files that the
    process may have open (`ulimit -n`).

    What stands in the folder when the loader is made decides for all its life. A record's length and checksum, as they
    stand in the shard, are compared with the index's at every read, and the index with the manifest's checksum of it;
    where the shard was replaced since, converted again or restored from another version, the loader keeps the old
    bytes as long as it has them open, or raises CorruptFileError, whatever `verify` says.

    Args:
        path: the version's folder, such as data/cards/1.0.0; or its address, such as s3://bucket/cards/1.0.0, with
            gs://, s3://, http://, https:// or another scheme of fsspec's, whose settings say by whom and how it is
            reached. See `halofeed.loader.store.remote`. An `Address` also says to which hosts a web server may send
            requests on; the server's own is the only one by default.
        split: its name.
        batch_size: rows of the global batch, over all hosts.
        seed: 0 to 2**64 - 1; decides the order and the augmentations.
        shuffle: an exact permutation of all records, another in every epoch.
        training: False is evaluation: in stored order, one epoch, the last batch padded.
        num_epochs: None is without end (training) or one (evaluation). The last batch of a finite stream is
            padded with rows that are not valid.
        drop_remainder: cut every epoch to floor(num_records / batch_size) batches; else training batches
            straddle epochs. Not in evaluation.
        augment: from `halofeed.loader.augment`, applied in order, in evaluation too.
        shard_index, shard_count: which of how many hosts this is; it gets the contiguous rows
            [shard_index, shard_index + 1) * batch_size / shard_count of every batch.
        cache: None; "memory": all shards of the split, read and checked when the loader is made, and shared with
            the processes that are forked afterwards; "disk:/a/folder": shards staged there, one after the other
            while the first batches are read from where they are, for all processes of the machine and later runs.
        cache_bytes: of all that is staged in that folder, of other data sets too; None: as much as the disk takes.
            Beyond it go the shards used longest ago, but none that a loader of this process uses; what has no room
            is read from where it is.
        verify: whether the checksums of what is read are computed: "first" when it is first read, "always" or "never".
            Of raw fields these are the index's of each MiB, so that of a crop no more is read than the MiBs it lies in.
            Of what is fetched from an address, "first" means with every transfer.
        on_corrupt: what becomes of a record that cannot be read: "fail" with an error that names file, offset and id;
            or "skip": another record takes its place, the same one whenever this batch is made; in evaluation its row
            is not valid. `skipped` tells them. More than one in a hundred (and more than one) are an error in any case.
        include: names of optional fields of the manifest. `transform`, `masks`, `affine`, `spacing_mm` and `extent`
            follow flips, turns and crops; all others come as they are stored, the unpadded and source sizes and
            `tile_origin` too. `epoch`, int32 [batch], from which `halofeed.loader.device` draws, is the record's, from
            0; with `draw_by` a number of each draw's own. Of pictures also `size`, int32 [batch, 2]: the height and
            width of the picture, which begins at the top left of `image`; the rest is padding. `transform` is float32
            [batch, 2, 3]: a point of `image` is [y_source, x_source] = transform @ [y, x, 1] in its source, in pixels
            from the corner of the first one. `affine` is float32 [batch, 4, 4]: a voxel's center is [x, y, z, 1] =
            affine @ [depth, height, width, 1] in the patient, in millimeters. `extent` is int32 [batch, 2, 3]: the
            first voxel that shows the scan, and the one after the last; the rest of a volume, or of a clip, is padding.
        concurrent_reads: how many requests are made at a time of an address.
        decode: of JPEG: "accurate", pixels as libjpeg's slow integer transform and smooth upsampling give them; or
            "fast", whose pixels differ by some levels, for more images a second (docs/loading.md says how many).
        where: only these records: their ids or the keys of their sources, as of `find`; or a function from all ids,
            int64 [record], to whether each is taken, bool [record]. They are numbered from 0.
        draw_by: how often each record is drawn in training; None: once an epoch. "class": each class equally often, and
            of a class each record that holds it (classification: that is of it; detection: an object; segmentation: a
            pixel or voxel); or a share for each class by name or id, {"car": 3, "person": 1}, where "background" is
            records with no object and no foreground at all. "foreground": records with any as often as records without.
            Or a weight for each record, float [record] in stored order, or a function from all ids to that. An epoch is
            as many draws as there are records: each has its share of it, rounded down or up, and over many epochs is
            within a few draws of it. Memory: 16 bytes a record, or for each class of each record. By class or
            foreground, making the loader reads each record's classes, of jpeg and png with the picture.

    Raises:
        UsageError: an argument that cannot be; says which are possible.
        ManifestError: the conversion has not finished, or the manifest is wrong.
        CorruptFileError: a shard is missing or of another size. Reading may raise it later, with file,
            offset and id.
        StoreError: an address cannot be reached, or refuses; reading may raise it later.
        SystemLimitError: when reading, the process may not open another file.
    """

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
        verify: str = "first",
        on_corrupt: str = "fail",
        decode: str = "accurate",
        include: Sequence[str] = (),
        where: Where | None = None,
        draw_by: DrawBy | None = None,
    ) -> None:
        path = address_of(path) or path  # which prints itself without its secrets
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        if on_corrupt not in ON_CORRUPT:
            raise UsageError(f"on_corrupt: expected one of {', '.join(ON_CORRUPT)}, got {on_corrupt!r}")
        if decode not in DECODE:
            raise UsageError(f"decode: expected one of {', '.join(DECODE)}, got {decode!r}")
        store = open_store(path, concurrent_reads)
        self.manifest: Manifest = store.manifest()
        stored = self.manifest.split(split)
        if stored.records == 0:
            filled = [name for name, other in self.manifest.splits.items() if other.records] or ["none"]
            raise UsageError(
                f"{store.place}: split {split!r} holds no records; splits with records: {', '.join(filled)}"
            )
        if not training and num_epochs not in (None, 1):
            raise UsageError(f"num_epochs: evaluation (training=False) is one epoch, got {num_epochs}")
        if not training and draw_by is not None:
            raise UsageError("draw_by: evaluation (training=False) gives every record once; leave it out")
        if not training and drop_remainder:
            raise UsageError(
                "drop_remainder: evaluation (training=False) gives every record once and pads the last batch, whose "
                "`valid` says which rows are real; leave drop_remainder out"
            )
        self.split = split
        self.batch_size = _integer("batch_size", batch_size)
        self.seed = _integer("seed", seed)
        self.shard_index = _integer("shard_index", shard_index)
        self.shard_count = _integer("shard_count", shard_count)
        check_hosts(self.batch_size, self.shard_index, self.shard_count)
        self._augmentations = check_augmentations(augment)
        self._include, self._decodes_fast = tuple(include), decode == "fast"
        assembler = self._assembler_of(self._augmentations)
        self.row_spec, self.on_grid = assembler.spec, assembler.on_grid
        check_memory(self.spec, self.batch_size)
        store = cached(store, self.manifest, split, cache, cache_bytes)
        self._shards = Shards(store, self.manifest, split, verify)
        self._chosen = None if where is None else subset(where, self._shards.all_ids(), split)
        self._draws = None
        if draw_by is not None:
            numbers = np.arange(stored.records) if self._chosen is None else self._chosen
            self._draws = plan_draws(
                draw_by, self._shards, numbers, self.manifest, skips=on_corrupt == "skip"
            )
        if training and num_epochs is not None:
            num_epochs = _integer("num_epochs", num_epochs)
        self._sampler = Sampler(
            records=stored.records if self._chosen is None else len(self._chosen),
            batch_size=self.batch_size,
            seed=self.seed,
            shuffle=shuffle and training,
            num_epochs=num_epochs if training else 1,
            drop_remainder=drop_remainder,
            draws=self._draws,
        )
        self.kind, self.steps, self.may_pad = (
            self.manifest.kind,
            self._sampler.steps,
            self._sampler.has_padding,
        )
        self._filler = self._filler_of(assembler, WHOLE_FOR_CROPS if self._augmentations else WHOLE)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Loader, **self._arguments), ()

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
        """Batches that hold one epoch, the last one perhaps in part."""
        return -(-self._sampler.epoch_places // self.batch_size)

    def __getitem__(self, number: int) -> Batch:
        """One record by its number in stored order: arrays without the batch axis, as stored and not augmented.

        Raises:
            IndexError: the split has no such record.
        """
        number = operator.index(number)
        if not -self.num_records <= number < self.num_records:
            raise IndexError(f"record {number}: split {self.split!r} has {self.num_records}")
        plain = self._plain
        batch = allocate(plain.spec, 1, self._filler.pool)
        record = self.stored(number % self.num_records)
        plain.write(batch, 0, record, np.zeros((0, 8)), lambda _: record, seed=0, epoch=0)
        plain.write_epochs(batch, np.array([0]), [0])
        return {name: array[0] for name, array in batch.items()}

    def stored(self, number: int) -> StoredRecord:
        """The record of that number, 0 .. num_records-1, of which no byte is read yet."""
        return self._shards.record(number if self._chosen is None else int(self._chosen[number]))

    def find(self, key: int | str) -> int:
        """The number of a record, for `loader[number]`.

        Args:
            key: the record's `id`, or the key of its source: its path below the source folder, or its number in the
                annotations.

        Raises:
            UsageError: the split has no such record.
        """
        ids = self._shards.all_ids() if self._chosen is None else self._shards.all_ids()[self._chosen]
        found = np.flatnonzero(ids == id_of(key))
        if not len(found):
            raise UsageError(f"{key!r}: split {self.split!r} has no such record")
        return int(found[0])

    @property
    def ignore_label(self) -> int | None:
        """The value of `label` where nothing is known, which is no class: losses and metrics leave it out."""
        return self.manifest.ignore_label

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each label, `class_names[label]`: 0 is the background where labels begin at 1."""
        labels = self.manifest.labels
        return tuple(
            labels.get(label, f"class {label}" if label else "background")
            for label in range(max(labels, default=-1) + 1)
        )

    @property
    def skipped(self) -> dict[int, str]:
        """Why each record could not be read that this loader has skipped so far, by its number."""
        return {number: str(error) for number, error in sorted(self._filler.skipped.items())}

    @property
    def retries(self) -> int:
        """How often something had to be asked for again so far, of an address or a cache."""
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
            "training": bool(self._arguments["training"]),
            "drop_remainder": self._sampler.drop_remainder,
            "augment": [repr(augmentation) for augmentation in self._augmentations],
            "where": None if self._chosen is None else digest(self._chosen),
            "draw_by": None if self._draws is None else digest(self._draws.numbers),
            "decode": "fast" if self._decodes_fast else None,
        }

    def fill(self, batch: Batch, rows: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Fill rows of a batch with what stands at these places of the training stream, counted in records.

        Raises:
            CorruptFileError: as `batch`.
        """
        self._filler.fill(batch, rows, self._sampler.at(places))

    @property
    def reads_ahead(self) -> bool:
        """Whether `expect` does anything at present."""
        return self._shards.store.reads_ahead

    def expect(self, places: NDArray[np.int64]) -> None:
        """Begin to fetch what `fill` of these places reads, where that takes long."""
        if self.reads_ahead:
            self._filler.expect(self._sampler.at(places))

    def _expect(self, step: int, start: int, stop: int) -> None:
        if self.reads_ahead and (self.steps is None or step < self.steps):
            self._filler.expect(self._sampler.rows(step, start, stop))

    def of_slab(self, slab: Ranges) -> Loader:
        """The same stream with a part of each image and label; see `Stream.of_slab`."""
        assembler = self._assembler_of(self._augmentations, slab)
        if assembler.spec == self.row_spec:
            return self
        part = copy.copy(self)
        part.row_spec = assembler.spec
        part._filler = self._filler_of(assembler, WHOLE_FOR_SLABS, skipped=self._filler.skipped)
        return part

    def _filler_of(
        self, assembler: Assembler, whole_bytes: int, skipped: dict[int, CorruptFileError] | None = None
    ) -> Filler:
        return Filler(
            assembler,
            self._shards,
            self.seed,
            chosen=self._chosen,
            skips=self._arguments["on_corrupt"] == "skip",
            replaces=bool(self._arguments["training"]),
            whole_bytes=whole_bytes,
            skipped=skipped,
        )

    def _rows(self, step: int, start: int, stop: int) -> Batch:
        return self._filler.batch(self._sampler.rows(step, start, stop))

    @functools.cached_property
    def _plain(self) -> Assembler:
        return self._assembler_of(())

    def _assembler_of(
        self, augmentations: Sequence[Augmentation | Combination], slab: Ranges | None = None
    ) -> Assembler:
        return Assembler(self.manifest, self._include, augmentations, slab, decodes_fast=self._decodes_fast)


def _integer(name: str, value: int) -> int:
    """The value as Python's int, whose products do not overflow as NumPy's do."""
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name}: expected a whole number, got {value!r}") from None
