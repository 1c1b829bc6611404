"""Arguments of a `Loader`, in groups that check themselves: records, rows, order, reading.

What batches hold of each record is in `halofeed.loader.batch_content`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from halofeed.loader.sampler import DrawBy, Where
from halofeed.loader.store.dataset_store import Store
from halofeed.loader.store.open_store import CONCURRENT_READS, cached, open_store
from halofeed.loader.stream import check_hosts
from halofeed.schemas.manifest import Manifest
from halofeed.system.addresses import Address
from halofeed.system.arguments import truth_value, whole_number
from halofeed.system.errors import UsageError

ON_CORRUPT = {
    "fail": "an error that names file, offset and id",
    "skip": "another record takes its place, the same one each time; in evaluation the row is not valid",
}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Records of a data set: the split, as the user names it, and a choice within it.

    Args:
        split: name of the split, or several as train+validation.
        fold: number of a fold; "train" and "validation" are then splits of that fold.
        where: the chosen records; None is all.
    """

    split: str
    fold: int | None = None
    where: Where | None = None

    def stored_split(self, manifest: Manifest, place: str) -> str:
        """Return the name of the split in the manifest.

        Args:
            place: the data set's folder or address, for messages.

        Raises:
            UsageError: there is no such split, or it has no records.
        """
        split: object = self.split  # callers without type checks may pass a list
        if not isinstance(split, str):
            raise UsageError(f"split: expected the name of one split, such as 'train', got {split!r:.80}")
        if self.fold is not None:
            split = split_of_fold(manifest, whole_number("fold", self.fold, 0), split)
        if manifest.split(split).records == 0:
            filled = [name for name, other in manifest.splits.items() if other.records] or ["none"]
            raise UsageError(
                f"{place}: split {split!r} holds no records; splits with records: {', '.join(filled)}"
            )
        return split


def split_of_fold(manifest: Manifest, fold: int, split: str) -> str:
    """Return the stored splits that are "train" or "validation" for a fold; raise UsageError for another name."""
    train, validation = manifest.splits_of_fold(fold)
    names = {"train": train, "validation": validation, "val": validation}
    if split not in names:
        raise UsageError(
            f"split {split!r}: with fold={fold} expected 'train' or 'validation'; or leave fold out"
        )
    return names[split]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of each global batch, and those of this host.

    Args:
        batch_size: rows over all hosts.
        shard_index, shard_count: number of this host, and count of hosts.
    """

    batch_size: int
    shard_index: int = 0
    shard_count: int = 1

    @classmethod
    def of(cls, *, batch_size: object, shard_index: object, shard_count: object) -> Rows:
        """Return the rows that arguments ask for; raise UsageError where one is invalid."""
        rows = cls(
            batch_size=whole_number("batch_size", batch_size),
            shard_index=whole_number("shard_index", shard_index, 0),
            shard_count=whole_number("shard_count", shard_count, 1),
        )
        check_hosts(rows.batch_size, rows.shard_index, rows.shard_count)
        return rows


@dataclass(frozen=True, kw_only=True)
class Order:
    """Order of the records: shuffled, drawn by weights, or as stored; and how many epochs of them.

    Args:
        seed: 0 to 2**64 - 1.
        training: whether the order is for training; for evaluation, every record comes once, in stored order.
        shuffle: whether training permutes the records.
        num_epochs: number of epochs; None repeats forever.
        drop_remainder: whether every epoch is cut to whole batches.
        draw_by: weights of the records; None draws each once per epoch.
    """

    seed: int = 0
    training: bool = True
    shuffle: bool = True
    num_epochs: int | None = None
    drop_remainder: bool = False
    draw_by: DrawBy | None = None

    @classmethod
    def of(
        cls,
        *,
        seed: object,
        training: object,
        shuffle: object,
        num_epochs: object,
        drop_remainder: object,
        draw_by: DrawBy | None,
    ) -> Order:
        """Return the order that arguments ask for.

        Raises:
            UsageError: an argument is invalid, or contradicts evaluation.
        """
        shuffle = truth_value("shuffle", shuffle, "; all records are permuted, without a buffer")
        training = truth_value("training", training)
        drop_remainder = truth_value("drop_remainder", drop_remainder)
        seed = whole_number("seed", seed, 0)
        if training:
            epochs = None if num_epochs is None else whole_number("num_epochs", num_epochs, 1)
            return cls(
                seed=seed,
                shuffle=shuffle,
                num_epochs=epochs,
                drop_remainder=drop_remainder,
                draw_by=draw_by,
            )
        if num_epochs not in (None, 1):
            raise UsageError(f"num_epochs: evaluation (training=False) is one epoch, got {num_epochs}")
        if draw_by is not None:
            raise UsageError("draw_by: evaluation (training=False) gives every record once; leave it out")
        if drop_remainder:
            raise UsageError(
                "drop_remainder: evaluation (training=False) gives every record once and pads the last batch, whose "
                "`valid` says which rows are real; leave drop_remainder out"
            )
        return cls(seed=seed, training=False, shuffle=False, num_epochs=1)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Reading of bytes: the cache, the checks, and what happens where bytes are damaged.

    Args:
        cache: "memory", or "disk:" and a folder; None reads the original.
        cache_bytes: largest size of that folder; None is limited by the free space of the disk.
        concurrent_reads: number of concurrent requests to an address.
        verify: when checksums are computed: "first", "always" or "never".
        on_corrupt: "fail" or "skip".
    """

    cache: str | None = None
    cache_bytes: int | None = None
    concurrent_reads: int = CONCURRENT_READS
    verify: str = "first"
    on_corrupt: str = "fail"

    def __post_init__(self) -> None:
        if self.on_corrupt not in ON_CORRUPT:
            raise UsageError(f"on_corrupt: expected one of {', '.join(ON_CORRUPT)}, got {self.on_corrupt!r}")

    @property
    def skips(self) -> bool:
        """Return whether records that cannot be read are skipped."""
        return self.on_corrupt == "skip"

    def open(self, path: str | os.PathLike[str] | Address) -> Store:
        """Return the store of the original files."""
        return open_store(path, whole_number("concurrent_reads", self.concurrent_reads, CONCURRENT_READS))

    def cached(self, store: Store, manifest: Manifest, split: str) -> Store:
        """Return the store from which batches read; raise UsageError where the cache is invalid."""
        return cached(store, manifest, split, self.cache, self.cache_bytes)
