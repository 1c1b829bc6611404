"""How fast can this host feed a trainer from a data set, beside what it can do at best, and what holds it up?"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from halofeed.loader import Loader
from halofeed.loader.augment import build_augmentations
from halofeed.loader.decode import decode_image, read_bytes
from halofeed.loader.device import AUGMENTATIONS, DeviceAugmentation, augment_on_device, device_keys
from halofeed.loader.native import kernel
from halofeed.loader.store.base import Store
from halofeed.loader.store.choose import open_store
from halofeed.schemas.errors import UsageError
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.sizes import human_bytes

_ROUNDS = 3
_MOST_READ_BYTES = 1 << 30
_DECODED_RECORDS = 64
COPY, DISK, DECODE = "memory copy, one thread", "shards read in order", "decoding alone, all cores"
PLAIN, VERIFIED, AUGMENTED = "batches", "batches, checksums each time", "batches, augmented"
TENSORFLOW, TRANSFER = "dataset(), through tf.data", "onto this host's device"
ON_DEVICE = "augmented on this host's device"
_NO_KERNEL = (
    "raw records are copied by NumPy, about half as fast as by halofeed's code: there was no C compiler when it was "
    "installed; install one (Debian: apt-get install gcc) and halofeed again"
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How much one way of doing gives: images and bytes of batches (of shards, for the disk) a second."""

    images: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What was measured.

    Args:
        what: the data set, split and batch, in words.
        rates: by name, the ceilings first.
        slowest: which part of the way costs most, with its share, in words.
        stream: the rate of the stream that a trainer takes: augmented where that was asked for.
    """

    what: str
    rates: Mapping[str, Rate]
    slowest: str
    stream: Rate

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
        """How many accelerators that take so many images a second this host feeds, in words."""
        return f"at {appetite:g} images/s each it feeds {self.stream.images / appetite:.1f} accelerators by itself"


def bench(
    folder: str | os.PathLike[str],
    *,
    split: str = "train",
    batch_size: int = 32,
    augment: Sequence[Mapping[str, object]] = (),
    device_augment: Sequence[Mapping[str, object]] = (),
    values: tuple[float, float] | None = None,
    seconds: float = 1.0,
) -> Bench:
    """Measure the parts of the way from shards to a device, in turn, several rounds; medians.

    Args:
        folder: the version's.
        split, batch_size: as of a `Loader`.
        augment, device_augment: tables of augmentations, as in a training recipe.
        values: of `augment_on_device`.
        seconds: how long each part is measured in each round.

    Raises:
        UsageError: as `Loader`, or no time to measure.
    """
    if not 0 < seconds < 3600:
        raise UsageError(f"seconds: expected more than 0 and less than an hour, got {seconds}")

    on_device = build_augmentations(device_augment, AUGMENTATIONS, "device_augment")

    def loader(**options: object) -> Loader:
        return Loader(folder, split=split, batch_size=batch_size, **options)  # type: ignore[arg-type]

    plain, verified = loader(verify="never"), loader(verify="always")
    spec = plain.spec
    batch_bytes = sum(int(np.prod(one.shape)) * one.dtype.itemsize for one in spec.values())
    parts: dict[str, Callable[[int], tuple[float, float]]] = {
        COPY: _copying(batch_size, batch_bytes),
        DISK: _reading(open_store(folder), plain.manifest, split),
    }
    encoding = next(field.encoding for field in plain.manifest.fields if field.name == "image")
    if encoding != "raw":
        parts[DECODE] = _decoding(plain)
    parts[PLAIN], parts[VERIFIED] = _batches(plain), _batches(verified)
    stream = PLAIN
    if augment:
        stream = AUGMENTED
        parts[AUGMENTED] = _batches(loader(verify="never", augment=build_augmentations(augment)))
    if importlib.util.find_spec("tensorflow"):
        parts[TENSORFLOW] = _through_tensorflow(plain)
    if importlib.util.find_spec("jax"):
        parts[TRANSFER] = _onto_device(plain)
    if on_device:
        parts[ON_DEVICE] = _on_device(
            loader(verify="never", include=device_keys(plain.manifest)), on_device, values
        )
    rates = _measured(parts, seconds)
    head = (
        f"{plain.manifest.name} {plain.manifest.version}, {split}: {plain.num_records:,} records, {encoding}, batches "
        f"of {batch_size} ({human_bytes(batch_bytes)}), {_cores()} cores"
    )
    return Bench(what=head, rates=rates, slowest=_slowest(rates), stream=rates[stream])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _measured(parts: Mapping[str, Callable[[int], tuple[float, float]]], seconds: float) -> dict[str, Rate]:
    """The median rate of each part; a part is called with a number of its own each time."""
    found: dict[str, list[Rate]] = {name: [] for name in parts}
    calls = dict.fromkeys(parts, 1)
    for part in parts.values():  # what is made at the first time is not measured
        part(0)
    for _ in range(_ROUNDS):
        for name, part in parts.items():
            images = amount = spent = 0.0
            while spent < seconds:
                began = time.perf_counter()
                more_images, more_bytes = part(calls[name])
                spent += time.perf_counter() - began
                images, amount = images + more_images, amount + more_bytes
                calls[name] += 1
            found[name].append(Rate(images=images / spent, bytes=amount / spent))
    return {
        name: Rate(
            images=statistics.median(rate.images for rate in rates),
            bytes=statistics.median(rate.bytes for rate in rates),
        )
        for name, rates in found.items()
    }


def _copying(images: int, size: int) -> Callable[[int], tuple[float, float]]:
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)

    def copy(_: int) -> tuple[float, float]:
        np.copyto(target, source)
        return images, size

    return copy


def _reading(store: Store, manifest: Manifest, split: str) -> Callable[[int], tuple[float, float]]:
    shards = manifest.split(split).shards

    def read(call: int) -> tuple[float, float]:
        shard = shards[call % len(shards)]
        done = 0
        for piece in store.pieces(shard):
            done += len(piece)
            if done >= _MOST_READ_BYTES:
                break
        return shard.records * done / max(1, shard.bytes), done

    return read


def _decoding(loader: Loader) -> Callable[[int], tuple[float, float]]:
    field = next(field for field in loader.manifest.fields if field.name == "image")
    keys = frozenset(field.keys)
    records = [loader.stored(number) for number in range(min(loader.num_records, _DECODED_RECORDS))]
    # What a record gives holds until the next is read.
    files = [
        (record, memoryview(bytes(read_bytes(field.keys[0], record.features(keys), record)[0])))
        for record in records
    ]
    pool = ThreadPoolExecutor(_cores(), "halofeed-bench")

    def decode(_: int) -> tuple[float, float]:
        decoded = pool.map(lambda one: decode_image(one[1], field, one[0]).nbytes, files)
        return len(files), float(sum(decoded))

    return decode


def _batches(loader: Loader) -> Callable[[int], tuple[float, float]]:
    def make(step: int) -> tuple[float, float]:
        batch = loader.batch(step)
        return loader.batch_size, sum(array.nbytes for array in batch.values())

    return make


def _through_tensorflow(loader: Loader) -> Callable[[int], tuple[float, float]]:
    elements = iter(loader.dataset().as_numpy_iterator())

    def take(_: int) -> tuple[float, float]:
        return loader.batch_size, sum(array.nbytes for array in next(elements).values())

    return take


def _onto_device(loader: Loader) -> Callable[[int], tuple[float, float]]:
    from halofeed.loader.mesh import put_on_device

    image = loader.batch(0)["image"]

    def place(_: int) -> tuple[float, float]:
        put_on_device(image)
        return loader.batch_size, image.nbytes

    return place


def _on_device(
    loader: Loader, augmentations: Sequence[DeviceAugmentation], values: tuple[float, float] | None
) -> Callable[[int], tuple[float, float]]:
    """What is done within the step to a batch that is there already."""
    from halofeed.loader.mesh import on_device

    batch = loader.batch(0)
    needed = {key: batch[key] for key in ("image", "id", *device_keys(loader.manifest))}
    act = on_device(
        lambda batch: augment_on_device(batch, augmentations, seed=0, values=values)["image"], needed
    )

    def augment(_: int) -> tuple[float, float]:
        act()
        return loader.batch_size, batch["image"].nbytes

    return augment


def _slowest(rates: Mapping[str, Rate]) -> str:
    """Which part of an image's way takes longest, by what it adds to a batch."""
    each = {name: 1 / rate.images for name, rate in rates.items()}
    costs = {"finding, reading and copying": each[PLAIN]}
    if DECODE in each:
        costs["decoding"] = each[DECODE]
        costs["finding, reading and copying"] = max(0.0, each[PLAIN] - each[DECODE])
    if AUGMENTED in each:
        costs["augmentation"] = max(0.0, each[AUGMENTED] - each[PLAIN])
    costs["checksums"] = max(0.0, each[VERIFIED] - each[PLAIN])
    if TRANSFER in each:
        costs["the way onto the device"] = each[TRANSFER]
    if ON_DEVICE in each:
        costs["augmentation on the device"] = each[ON_DEVICE]
    name = max(costs, key=lambda part: costs[part])
    return f"what takes longest of an image's way: {name}, {costs[name] / sum(costs.values()):.0%} of it"
