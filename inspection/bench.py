"""Measurement of the input pipeline on this host: each part alone, compared with copying memory."""

from __future__ import annotations

import importlib.util
import itertools
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from halofeed.inspection.dataset_files import open_files
from halofeed.inspection.stored_records import StoredShard
from halofeed.inspection.training_batches import TrainingBatches
from halofeed.loader import Loader
from halofeed.loader.augment import build_augmentations
from halofeed.loader.decode import decode_image, read_bytes
from halofeed.loader.device import AUGMENTATIONS, DeviceAugmentation, augment_on_device, device_keys
from halofeed.loader.store.dataset_store import Store
from halofeed.loader.store.open_store import open_store
from halofeed.schemas.manifest import Shard
from halofeed.schemas.native import kernel
from halofeed.schemas.packed.packed_arrays import unpack
from halofeed.system.console import human_bytes
from halofeed.system.errors import UsageError
from halofeed.system.threads import available_cores
from halofeed.system.wording import plural

_Part = Iterator[tuple[float, float]]
"""One part of the pipeline: each `next` runs it once and yields (images, bytes)."""
_ROUNDS = 3
_MAX_READ_BYTES = 1 << 30
_DECODED_RECORDS = 64
COPY, DISK, DECODE = "memory copy, one thread", "shards read in order", "decoding alone, all cores"
PLAIN, VERIFIED, AUGMENTED = "batches", "batches, checksums each time", "batches, augmented"
TENSORFLOW, TRANSFER = "dataset(), through tf.data", "onto this host's device"
ON_DEVICE = "augmented on this host's device"
_NO_KERNEL = (
    "NumPy copies raw records, about half as fast as halofeed's native code: there was no C compiler during the "
    "installation; install one (Debian: apt-get install gcc) and halofeed again"
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Throughput of one part: images and bytes of batches (of shards, for the disk) per second."""

    images: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Result of a measurement.

    Args:
        what: description of the data set, split and batch.
        rates: rate of each part, upper limits first.
    """

    what: str
    rates: Mapping[str, Rate]

    @property
    def stream(self) -> Rate:
        """Return the rate of batches as a trainer loads them, with augmentation if requested."""
        return self.rates.get(AUGMENTED, self.rates[PLAIN])

    @property
    def slowest(self) -> str:
        """Return a sentence on the part that takes the most time per image, and its share."""
        seconds = {name: 1 / rate.images for name, rate in self.rates.items()}
        plain, decoding = seconds[PLAIN], seconds.get(DECODE, 0.0)
        costs = {
            "finding, reading and copying": max(0.0, plain - decoding),
            "decoding": decoding,
            "augmentation": max(0.0, seconds.get(AUGMENTED, plain) - plain),
            "checksums": max(0.0, seconds[VERIFIED] - plain),
            "transfer to the device": seconds.get(TRANSFER, 0.0),
            "augmentation on the device": seconds.get(ON_DEVICE, 0.0),
        }
        name = max(costs, key=lambda part: costs[part])
        return f"slowest part per image: {name}, {costs[name] / sum(costs.values()):.0%} of the time"

    def __str__(self) -> str:
        copy = self.rates[COPY].bytes
        width = max(map(len, self.rates))
        lines = [self.what, f"{'':<{width}}  images/s     GB/s  of a copy"]
        lines += [
            f"{name:<{width}}  {rate.images:>8,.0f} {rate.bytes / 1e9:>8.2f} {rate.bytes / copy:>10.2f}"
            for name, rate in self.rates.items()
        ]
        return "\n".join([*lines, self.slowest, *([] if kernel.is_built() else [_NO_KERNEL])])

    def feeds(self, appetite: float) -> str:
        """Return a sentence on the number of accelerators that this host feeds at `appetite` images/s each."""
        return (
            f"this host feeds {self.stream.images / appetite:.1f} accelerators at {appetite:g} images/s each"
        )


def bench(
    folder: str | os.PathLike[str],
    batches: TrainingBatches,
    *,
    seconds: float = 1.0,
) -> Bench:
    """Measure each part of the pipeline from shards to a device: medians over several alternating rounds.

    Args:
        folder: folder or address of the data set.
        batches: training batches whose way is measured.
        seconds: duration of each part in each round.

    Raises:
        UsageError: as `Loader`, or `seconds` is out of range.
    """
    if not 0 < seconds < 3600:
        raise UsageError(f"seconds: expected more than 0 and less than an hour, got {seconds}")
    on_device = build_augmentations(batches.device_augment, AUGMENTATIONS, "device_augment")

    def loader(**options: object) -> Loader:
        return Loader(folder, split=batches.split, batch_size=batches.batch_size, **options)  # type: ignore[arg-type]

    plain, verified = loader(verify="never"), loader(verify="always")
    spec = plain.spec
    batch_bytes = sum(int(np.prod(one.shape)) * one.dtype.itemsize for one in spec.values())
    parts = {
        COPY: _copying(batches.batch_size, batch_bytes),
        DISK: _reading(open_store(folder), plain.manifest.split(batches.split).shards),
    }
    image = plain.manifest.field("image")
    # Raw pixels are copied, not decoded.
    if image.is_packed:
        parts[DECODE] = _unpacking(folder, plain, batches.split)
    elif image.is_file:
        parts[DECODE] = _decoding(plain)
    parts[PLAIN], parts[VERIFIED] = _batches(plain), _batches(verified)
    if batches.augment:
        parts[AUGMENTED] = _batches(loader(verify="never", augment=build_augmentations(batches.augment)))
    # TensorFlow and JAX are extras.
    if importlib.util.find_spec("tensorflow"):
        parts[TENSORFLOW] = _through_tensorflow(plain)
    if importlib.util.find_spec("jax"):
        parts[TRANSFER] = _onto_device(plain)
    if on_device:
        parts[ON_DEVICE] = _on_device(
            loader(verify="never", include=device_keys(plain.manifest)), on_device, batches.values
        )
    what = (
        f"{plain.manifest.name} {plain.manifest.version}, {batches.split}: {plural(plain.num_records, 'record')}, "
        f"{image.encoding}, batches "
        f"of {batches.batch_size} ({human_bytes(batch_bytes)}), {plural(available_cores(), 'core')}"
    )
    return Bench(what=what, rates=_measured(parts, seconds))


def _measured(parts: Mapping[str, _Part], seconds: float) -> dict[str, Rate]:
    """Return the median rate of each part."""
    found: dict[str, list[Rate]] = {name: [] for name in parts}
    for part in parts.values():  # the first run also sets up buffers, threads and compiled code
        next(part)
    for _ in range(_ROUNDS):
        for name, part in parts.items():
            images = amount = spent = 0.0
            while spent < seconds:
                began = time.perf_counter()
                more_images, more_bytes = next(part)
                spent += time.perf_counter() - began
                images, amount = images + more_images, amount + more_bytes
            found[name].append(Rate(images=images / spent, bytes=amount / spent))
    return {
        name: Rate(
            images=statistics.median(rate.images for rate in rates),
            bytes=statistics.median(rate.bytes for rate in rates),
        )
        for name, rates in found.items()
    }


def _copying(images: int, size: int) -> _Part:
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    while True:
        np.copyto(target, source)
        yield images, size


def _reading(store: Store, shards: Sequence[Shard]) -> _Part:
    for shard in itertools.cycle(shards):
        done = 0
        for piece in store.pieces(shard):
            done += len(piece)
            # The whole of a large shard would take longer than the measurement.
            if done >= _MAX_READ_BYTES:
                break
        yield shard.records * done / max(1, shard.bytes), done


def _decoding(loader: Loader) -> _Part:
    field = loader.manifest.field("image")
    keys = frozenset(field.keys)
    records = [loader.stored(number) for number in range(min(loader.num_records, _DECODED_RECORDS))]
    # Bytes of a record are valid until the next one is read, so they are copied.
    files = [
        (record, memoryview(bytes(read_bytes(field.keys[0], record.features(keys), record)[0])))
        for record in records
    ]
    pool = ThreadPoolExecutor(available_cores(), "halofeed-bench")
    while True:
        decoded = pool.map(lambda one: decode_image(one[1], field, one[0]).nbytes, files)
        yield len(files), float(sum(decoded))


def _unpacking(folder: str | os.PathLike[str], loader: Loader, split: str) -> _Part:
    """Unpack complete images; a batch unpacks only what it shows, in the same call as it copies."""
    image, layout = loader.manifest.field("image"), loader.manifest.field("image").packed_layout
    stored = [StoredShard(open_files(folder), shard) for shard in loader.manifest.split(split).shards]
    places = ((shard, row) for shard in stored for row in range(len(shard.index)))
    values = [
        shard.features(row)[image.keys[0]][0] for shard, row in itertools.islice(places, _DECODED_RECORDS)
    ]
    pool = ThreadPoolExecutor(available_cores(), "halofeed-bench")
    while True:
        unpacked = pool.map(lambda value: unpack(value, layout).nbytes, values)
        yield len(values), float(sum(unpacked))


def _batches(loader: Loader) -> _Part:
    for step in itertools.count():
        yield loader.batch_size, sum(array.nbytes for array in loader.batch(step).values())


def _through_tensorflow(loader: Loader) -> _Part:
    for batch in loader.dataset(repeat=True).as_numpy_iterator():
        yield loader.batch_size, sum(array.nbytes for array in batch.values())


def _onto_device(loader: Loader) -> _Part:
    from halofeed.loader.mesh_batches import put_on_device

    image = loader.batch(0)["image"]
    while True:
        put_on_device(image)
        yield loader.batch_size, image.nbytes


def _on_device(
    loader: Loader, augmentations: Sequence[DeviceAugmentation], values: tuple[float, float] | None
) -> _Part:
    """Augment one batch that is on the device already."""
    from halofeed.loader.mesh_batches import compile_on_device

    batch = loader.batch(0)
    needed = {key: batch[key] for key in ("image", "id", *device_keys(loader.manifest))}
    act = compile_on_device(
        lambda batch: augment_on_device(batch, augmentations, seed=0, values=values)["image"], needed
    )
    while True:
        act()
        yield loader.batch_size, batch["image"].nbytes
