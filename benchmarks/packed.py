"""Measure packed arrays beside memcpy and other exact codecs on one core, in one run.

    pip install 'halofeed[all,peers]'
    python benchmarks/packed.py
    python benchmarks/packed.py --only photographs --codecs packed blosc2 --rounds 9
    python benchmarks/packed.py --photographs ~/pictures --scans ~/scans/table.csv

Photographs, CT scans and their labels are converted by `halofeed convert`, so that the arrays are those that it stores.
Every codec packs all arrays of a set once, and each value is compared with its array. Then the codecs take turns in
each round. A figure is the median of the rounds, in GB of the array per second of processor time of one thread, which
other work on the machine disturbs less than the clock; "clock" is the time of the clock as a multiple of it. "of
memcpy" is the median of the ratios in one round. Arrays, values and results rotate through more memory than the cache
holds. Results go into existing memory where the codec can write there.

"crop" decodes a window alone: 224 x 224 of a picture, 64^3 of a volume or what it has of that. A codec that cannot do
so decodes everything and copies the window. The figure is in GB of the window per second.

packed             halofeed's, without checksums, as batches are made after a record's first use
packed, verified   the same; every band's checksum is compared
deltas, ...        differences to the row above, green subtracted from red and blue, by NumPy; then that codec
blosc2 ...         NDArray with blocks of 32 rows (pictures) or bricks of 32 x 64 x 64 voxels, at its default level, 5
bitshuffle, lz4    the package bitshuffle, blocks of its default size
others             imagecodecs; volumes slice by slice, with the least value of a set subtracted from signed ones
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gather
import numpy as np

from halofeed.schemas.native import packing
from halofeed.schemas.packed.packed_arrays import pack, unpack
from halofeed.schemas.packed.packed_layout import PackedLayout

HERE = Path(__file__).resolve().parents[1]
RING_BYTES = 96 << 20
"""Bytes of arrays that are visited before one is visited again, so that the cache does not hold them."""
UNPACK_TARGET = 3.0

Array: TypeAlias = Any
"""[height, width, channel] or [depth, height, width, 1]; labels without the channel."""
Window: TypeAlias = tuple[slice, ...]


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """A set of arrays of one shape and dtype.

    Args:
        name: its name in the table.
        arrays: the arrays.
        axes: number of axes that are not channels.
        is_label: whether they are label maps.
        max_share: target of the packed size, as a share of the array's bytes; None without one.
    """

    name: str
    arrays: list[Array]
    axes: int
    is_label: bool = False
    max_share: float | None = None

    @property
    def first(self) -> Array:
        """One of them, for its shape and dtype."""
        return self.arrays[0]

    @property
    def is_color(self) -> bool:
        """Whether they are uint8 pictures with three channels."""
        return self.axes == 2 and self.first.shape[2:] == (3,) and self.first.dtype == np.uint8

    @property
    def crop_shape(self) -> tuple[int, ...]:
        """Shape of the windows, without channels."""
        side = {2: 224, 3: 64}[self.axes]
        return tuple(min(side, size) for size in self.first.shape[: self.axes])


class UnsuitedError(Exception):
    """The codec does not take such arrays."""


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How a codec packs the arrays of one set.

    Args:
        pack: returns a value of an array.
        size: bytes of a value.
        unpack: returns the array of a value; it may write it into the array that it is given.
        crop: returns a window of the array of a value; None if only everything can be decoded.
    """

    pack: Callable[[Array], Any]
    unpack: Callable[[Any, Array], Array]
    crop: Callable[[Any, Window, Array], Array] | None = None
    size: Callable[[Any], int] = len


# The codecs -----------------------------------------------------------------------------------------------


def copied(_arrays: Arrays) -> Codec:
    """NumPy's copy, which is memcpy for contiguous arrays."""

    def unpack_into(value: Array, out: Array) -> Array:
        np.copyto(out, value)
        return out

    def crop(value: Array, window: Window, out: Array) -> Array:
        np.copyto(out, value[window])
        return out

    return Codec(pack=np.copy, unpack=unpack_into, crop=crop, size=lambda value: int(value.nbytes))


def packed(arrays: Arrays, *, verifies: bool) -> Codec:
    """Halofeed's packed arrays; without the kernel its NumPy reference, which is hundreds of times slower."""
    first, axes = arrays.first, arrays.axes
    layout = PackedLayout.of(first.shape, first.dtype, axes)

    def to_value(array: Array) -> Array:
        return np.frombuffer(pack(array, layout, patches=arrays.is_label), np.uint8)

    def window_of(value: Array, window: Window, out: Array) -> Array:
        start = [0] * (3 - axes) + [part.start for part in window]
        into = out.reshape(*(1,) * (3 - axes), *out.shape[:axes], -1)
        if not packing.unpack_window(value, layout, start, (False,) * 3, into, verifies=verifies):
            raise ValueError("a value is damaged")
        return out

    def slow_window(value: Array, window: Window, out: Array) -> Array:
        np.copyto(out, slow(value, out)[window])
        return out

    def slow(value: Array, _out: Array) -> Array:
        return unpack(value.data, layout).view(first.dtype).reshape(first.shape)

    if not packing.packs():
        return Codec(pack=to_value, unpack=slow, crop=slow_window)
    everything = tuple(slice(0, side) for side in first.shape[:axes])
    return Codec(pack=to_value, unpack=lambda value, out: window_of(value, everything, out), crop=window_of)


def deltas(arrays: Arrays, *, coder: str) -> Codec:
    """Differences to the row above, green subtracted from red and blue, in Zstandard or in bit planes and LZ4."""
    encode, decode = _CODERS[coder]()
    first, axes = arrays.first, arrays.axes
    number = np.dtype(f"u{first.dtype.itemsize}")

    def rows_of(array: Array) -> Array:
        """The rows of all planes, [row, plane, ...], as a view."""
        return np.moveaxis(array, axes - 2, 0)

    def to_value(array: Array) -> Any:
        numbers = array.view(number)
        deltas = numbers.copy()
        rows_of(deltas)[1:] -= rows_of(numbers)[:-1]
        if arrays.is_color:
            for channel in (0, 2):
                deltas[..., channel] -= deltas[..., 1]
        return encode(deltas)

    def from_value(value: Any, out: Array) -> Array:
        deltas = decode(value, first.nbytes // number.itemsize, number).reshape(first.shape)
        if arrays.is_color:
            for channel in (0, 2):
                deltas[..., channel] += deltas[..., 1]
        # Row by row, because that is five times as fast as np.cumsum.
        above, sums = None, rows_of(out.view(number))
        for into, row in zip(sums, rows_of(deltas), strict=True):
            np.copyto(into, row) if above is None else np.add(above, row, out=into)
            above = into
        return out

    return Codec(pack=to_value, unpack=from_value)


def zstd_coder() -> tuple[Callable[[Array], Any], Callable[[Any, int, Any], Array]]:
    """Zstandard, level 1: functions that encode an array, and that decode so many numbers of a dtype."""
    zstandard = import_module("zstandard")
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    return compressor.compress, lambda value, count, number: np.frombuffer(
        bytearray(decompressor.decompress(value)), number, count
    )


def bitshuffle_coder() -> tuple[Callable[[Array], Any], Callable[[Any, int, Any], Array]]:
    """The same by the package bitshuffle."""
    package = import_module("bitshuffle")
    return (
        lambda array: package.compress_lz4(array.reshape(-1)),
        lambda value, count, number: package.decompress_lz4(value, (count,), number),
    )


_CODERS = {"zstd": zstd_coder, "bitshuffle": bitshuffle_coder}


def plain_lz4(arrays: Arrays) -> Codec:
    """LZ4 of the bytes as they are."""
    codecs = import_module("imagecodecs")

    def from_value(value: bytes, out: Array) -> Array:
        codecs.lz4_decode(value, header=True, out=out.reshape(-1).view(np.uint8))
        return out

    return Codec(pack=lambda array: codecs.lz4_encode(array, header=True), unpack=from_value)


def bitshuffled(arrays: Arrays) -> Codec:
    """Bit planes of each channel in blocks, and LZ4 of each block, by the package bitshuffle."""
    package = import_module("bitshuffle")
    first = arrays.first
    element = np.dtype("V3") if arrays.is_color else first.dtype

    def from_value(value: Array, _out: Array) -> Array:
        found = package.decompress_lz4(value, (first.nbytes // element.itemsize,), element)
        return found.view(first.dtype).reshape(first.shape)

    return Codec(pack=lambda array: package.compress_lz4(array.view(element).reshape(-1)), unpack=from_value)


def blosc2_blocks(arrays: Arrays, *, codec: str, filters: Sequence[str]) -> Codec:
    """Blosc2's NDArray, of one chunk, with blocks of which a window decodes those that it touches."""
    blosc2 = import_module("blosc2")
    blosc2.set_nthreads(1)
    first, axes = arrays.first, arrays.axes
    element = np.dtype("V3") if arrays.is_color else first.dtype
    shape = first.shape[:axes]
    blocks = (32, shape[1]) if axes == 2 else tuple(map(min, (32, 64, 64), shape))
    steps = [getattr(blosc2.Filter, name) for name in filters]
    settings = {
        "codec": getattr(blosc2.Codec, codec), "clevel": 5, "typesize": element.itemsize, "nthreads": 1,
        "filters": steps, "filters_meta": [element.itemsize if name == "BYTEDELTA" else 0 for name in filters],
    }  # fmt: skip

    def to_value(array: Array) -> bytes:
        made = blosc2.asarray(
            array.view(element).reshape(shape), chunks=shape, blocks=blocks, cparams=settings
        )
        return bytes(made.to_cframe())

    opened: dict[int, Any] = {}

    def of(value: bytes) -> Any:
        # An NDArray is opened once, as from a file of them.
        if id(value) not in opened:
            opened[id(value)] = blosc2.ndarray_from_cframe(value)
            opened[id(value)].schunk.dparams = blosc2.DParams(nthreads=1)
        return opened[id(value)]

    def crop(value: bytes, window: Window, _out: Array) -> Array:
        found = of(value)[window]
        return found.view(first.dtype).reshape(*found.shape, *first.shape[axes:])

    return Codec(pack=to_value, unpack=lambda value, out: crop(value, (slice(None),) * axes, out), crop=crop)


def codecs_with(codec: str) -> Any:
    """The package imagecodecs, if it was built with a codec."""
    codecs = import_module("imagecodecs")
    if not getattr(codecs, codec.upper()).available:
        raise ModuleNotFoundError(f"imagecodecs has no {codec}")
    return codecs


def pictures_of(arrays: Arrays, *, codec: str, color: bool = False, room: int = 0, **options: Any) -> Codec:
    """A codec of imagecodecs for pictures; a volume is a list of its slices.

    Args:
        arrays: what is packed.
        codec: name of the codec.
        color: whether it takes pictures in color only.
        room: bytes of memory for the result, as a multiple of the picture's; 0 leaves it to the codec.
        options: of its encoder.
    """
    codecs = codecs_with(codec)
    first = arrays.first
    if color and not arrays.is_color:
        raise UnsuitedError("color of 8 bits only")
    if first.dtype.kind == "f":
        raise UnsuitedError("integers only")
    encode, decode = getattr(codecs, f"{codec}_encode"), getattr(codecs, f"{codec}_decode")
    unsigned = np.dtype(f"u{first.dtype.itemsize}")
    least = min(int(array.min()) for array in arrays.arrays) if first.dtype.kind == "i" else 0
    planes = first.shape[0] if arrays.axes == 3 else 1
    side = first.shape[arrays.axes - 2 :] if arrays.is_color else first.shape[arrays.axes - 2 : arrays.axes]

    def to_value(array: Array) -> list[bytes]:
        numbers = (array - first.dtype.type(least)).view(unsigned) if least else array.view(unsigned)
        into = {"out": room * numbers.nbytes // planes} if room else {}
        return [bytes(encode(plane, **into, **options)) for plane in numbers.reshape(planes, *side)]

    def from_value(value: list[bytes], out: Array) -> Array:
        for plane, into in zip(value, out.reshape(planes, *side).view(unsigned), strict=True):
            decode(plane, out=into)
        if least:
            out += first.dtype.type(least)
        return out

    return Codec(pack=to_value, unpack=from_value, size=lambda value: sum(map(len, value)))


_FILTERS = {
    "shuffle": ("SHUFFLE",),
    "bitshuffle": ("BITSHUFFLE",),
    "bytedelta": ("SHUFFLE", "BYTEDELTA"),
}
CODECS: dict[str, Callable[[Arrays], Codec]] = {
    "memcpy": copied,
    "packed": partial(packed, verifies=False),
    "packed, verified": partial(packed, verifies=True),
    "deltas, zstd-1": partial(deltas, coder="zstd"),
    "deltas, bitshuffle, lz4": partial(deltas, coder="bitshuffle"),
    "lz4": plain_lz4,
    "bitshuffle, lz4": bitshuffled,
    **{
        f"blosc2 {codec.lower()}, {name}": partial(blosc2_blocks, codec=codec, filters=filters)
        for codec in ("BLOSCLZ", "LZ4", "ZSTD")
        for name, filters in _FILTERS.items()
    },
    "QOI": partial(pictures_of, codec="qoi", color=True),
    "PNG": partial(pictures_of, codec="png"),
    "WebP, method 0": partial(pictures_of, codec="webp", color=True, lossless=True, method=0),
    # CharLS expects that a picture becomes smaller, and refuses noise in the memory that it takes then.
    "JPEG-LS": partial(pictures_of, codec="jpegls", room=2),
    "HTJ2K": partial(pictures_of, codec="htj2k", reversible=True),
    "JPEG XL, effort 1": partial(pictures_of, codec="jpegxl", lossless=True, effort=1),
    "JPEG XL, effort 3": partial(pictures_of, codec="jpegxl", lossless=True, effort=3),
}
PACKAGES = ("numpy", "blosc2", "bitshuffle", "imagecodecs", "zstandard")


# The arrays -----------------------------------------------------------------------------------------------


def stored(folder: Path, key: str, count: int) -> list[Array]:
    """The arrays of the first records of a raw data set."""
    from halofeed.loader import Loader

    loader = Loader(folder, batch_size=1)
    return [np.array(loader.records[number][key]) for number in range(min(count, loader.num_records))]


def photographs(folder: Path, count: int, scratch: Path) -> list[Array]:
    """Photographs below a folder, evenly chosen, stretched to 640 x 640; drawn pictures if there are none."""
    name = f"of-{folder.name}"
    found = gather.jpeg_files(folder)
    chosen = found[:: max(1, len(found) // count)][:count]
    for number, path in enumerate(chosen):
        link = scratch / name / f"class_{number % 2}" / f"{number:05d}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    if not chosen:
        gather.draw_pictures(scratch / name, count, different=count, noise=12)
    out = scratch / f"converted-{name}"
    gather.convert_one("photographs", scratch / name, out, HERE, shards=1)
    return stored(out / "photographs/1.0.0", "image", count)


def outlines(folder: Path, count: int) -> list[Array]:
    """Label maps of the outlines in the folder's COCO file `instances.json`; drawn polygons if it has none."""
    import cv2

    side, path = gather.SIDE, folder / "instances.json"
    if not path.is_file():
        return drawn_scenes(count)
    document = json.loads(path.read_text())
    sizes = {image["id"]: (image["width"], image["height"]) for image in document["images"]}
    maps = {number: np.zeros((side, side), np.uint8) for number in list(sizes)[:count]}
    # Larger objects first, so that they do not cover what is in front of them.
    for item in sorted(document["annotations"], key=lambda item: -item["area"]):
        if item["image_id"] in maps and isinstance(item["segmentation"], list):
            scale = side / np.array(sizes[item["image_id"]])
            for ring in item["segmentation"]:
                corners = np.rint(np.reshape(ring, (-1, 2)) * scale).astype(np.int32)
                cv2.fillPoly(maps[item["image_id"]], [corners], int(item["category_id"]))
    return list(maps.values())


def drawn_scenes(count: int) -> list[Array]:
    """Label maps of 40 polygons of 20 classes each."""
    import cv2

    rng, side = np.random.default_rng(0), gather.SIDE
    scenes = []
    for _ in range(count):
        scene = np.zeros((side, side), np.uint8)
        for _ in range(40):
            angles = np.sort(rng.uniform(0, 2 * np.pi, 24))
            radii = rng.uniform(10, 120) * rng.uniform(0.7, 1.3, 24)
            corners = rng.uniform(0, side, 2) + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
            cv2.fillPoly(scene, [np.rint(corners).astype(np.int32)], int(rng.integers(1, 21)))
        scenes.append(scene)
    return scenes


def shared_scans(folder: Path) -> Path:
    """Write a table of the scans of our collection of test data; of a drawn scan if they are not there."""
    folder.mkdir()
    volumes = gather.SHARED / "volumes/totalsegmentator"
    series, sides = (
        gather.SHARED / "dicom/totalsegmentator_jpeg2000",
        "id,image,label,depth,height,width,spacing_mm",
    )
    if series.is_dir() and volumes.is_dir():
        (folder / "ct512").mkdir()
        for path in series.glob("CT*"):
            (folder / "ct512" / path.name).symlink_to(path.resolve())
        for name in ("example_ct", "example_seg_dicom", "spine_report/totalseg"):
            (folder / f"{Path(name).name}.nii.gz").symlink_to((volumes / f"{name}.nii.gz").resolve())
        rows = [
            "ct 512x512,ct512,example_seg_dicom.nii.gz,20,512,512,",
            "ct 1.5 mm,ct512,example_seg_dicom.nii.gz,27,336,336,1.5",
            "ct 3 mm,example_ct.nii.gz,totalseg.nii.gz,112,101,122,",
        ]
    else:
        gather.draw_scans(folder / "drawn", (32, 256, 256), 1)
        rows = ["drawn noise,drawn/image.nii,drawn/label.nii,32,256,256,"]
    (folder / "table.csv").write_text("\n".join([sides, *rows]) + "\n")
    return folder / "table.csv"


def scans(table: Path, scratch: Path) -> list[tuple[str, Array, Array | None]]:
    """Name, voxels and label of each row of a table, as `halofeed convert` stores them."""
    found = []
    with table.open() as stream:
        rows = list(csv.DictReader(stream))
    for number, row in enumerate(rows):
        has_label = bool(row.get("label"))
        one = scratch / f"row-{number}.csv"
        label = (table.parent / row["label"]).resolve() if has_label else ""
        image = table.parent / row["image"]
        one.write_text(f"id,image,label\n{number},{image.resolve() if image.is_file() else image},{label}\n")
        sides = [part for key in ("depth", "height", "width") for part in (f"--{key}", row[key])]
        if spacing := row.get("spacing_mm"):
            sides += ["--spacing-mm", ",".join([spacing] * 3)]
        task = ["--task", "segmentation"] if has_label else []
        options = ["--layout", "csv", "--source", str(one), *task, *sides]
        out = scratch / f"scan-{number}"
        gather.convert_one("scan", one, out, HERE, shards=1, options=options)
        voxels = stored(out / "scan/1.0.0", "image", 1)[0]
        found.append((row["id"], voxels, stored(out / "scan/1.0.0", "label", 1)[0] if has_label else None))
    return found


def all_sets(given: argparse.Namespace, scratch: Path) -> list[Arrays]:
    """The sets of arrays that are measured: those with targets, and worse ones."""
    sets = []
    for folder in given.photographs:
        if is_wanted(name := f"photographs {folder.name}", given.only):
            made = photographs(folder, given.pictures, scratch)
            sets.append(Arrays(name=name, arrays=made, axes=2, max_share=0.55))
    # Scans may have any name, so they are converted unless only pictures are wanted.
    if not given.only or not all(text in "photographs noise" for text in given.only):
        sets += sets_of_scans(scans(given.scans or shared_scans(scratch / "scans"), scratch))
    drawn = {
        "outlines": outlines(given.photographs[0], given.pictures),
        "polygons": drawn_scenes(given.pictures),
    }
    for what, made in drawn.items():
        sets.append(Arrays(name=f"labels of {what}", arrays=made, axes=2, is_label=True, max_share=0.05))
    noise = np.random.default_rng(0).integers(0, 256, (4, gather.SIDE, gather.SIDE, 3), np.uint8)
    sets.append(Arrays(name="noise, uint8", arrays=list(noise), axes=2))
    return [made for made in sets if is_wanted(made.name, given.only)]


def sets_of_scans(volumes: list[tuple[str, Array, Array | None]]) -> list[Arrays]:
    """The scans, their labels, and the first scan with standardized values."""
    sets = [
        Arrays(name=f"{name}, {voxels.dtype}", arrays=[voxels], axes=3, max_share=0.5)
        for name, voxels, _ in volumes
    ]
    for name, _, label in volumes:
        if label is not None:
            sets.append(
                Arrays(name=f"labels of {name}", arrays=[label], axes=3, is_label=True, max_share=0.05)
            )
    name, voxels = volumes[0][0], volumes[0][1].astype(np.float32)
    standardized = (voxels - voxels.mean()) / voxels.std()
    return [*sets, Arrays(name=f"{name} standardized, float32", arrays=[standardized], axes=3)]


def is_wanted(name: str, only: Sequence[str]) -> bool:
    """Whether a set or a codec was asked for."""
    return not only or any(text in name for text in only)


# The measurement ------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Measured:
    """A codec's values of a set, and its rates."""

    codec: Codec
    values: list[Any]
    share: float
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Processor seconds per array of each round, by what was done."""
    clock: list[float] = field(default_factory=list)

    def median(self, act: str) -> float:
        """Median of an act's seconds."""
        return statistics.median(self.seconds[act])


class Ring:
    """A set's arrays and results in more memory than the cache holds."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        count = max(len(arrays.arrays), -(-RING_BYTES // arrays.first.nbytes))
        self.sources = [arrays.arrays[number % len(arrays.arrays)].copy() for number in range(count)]
        self.targets = [np.ones_like(array) for array in self.sources]
        rng = np.random.default_rng(0)
        room = np.array(arrays.first.shape[: arrays.axes], np.int64) - np.array(arrays.crop_shape)
        self.windows: list[Window] = [
            window_at(rng.integers(room + 1).tolist(), arrays.crop_shape) for _ in range(count)
        ]
        shape = (*arrays.crop_shape, *arrays.first.shape[arrays.axes :])
        self.crops = [np.ones(shape, arrays.first.dtype) for _ in range(count)]

    def make(self, codec: Codec) -> Measured:
        """Pack all arrays, and compare what is unpacked with them.

        Raises:
            ValueError: the codec gives other arrays back.
        """
        values = [codec.pack(array) for array in self.arrays.arrays]
        for array, value in zip(self.arrays.arrays, values, strict=True):
            if not np.array_equal(codec.unpack(value, np.zeros_like(array)), array):
                raise ValueError("what it unpacks is not what was packed")
        packed_bytes = sum(map(codec.size, values))
        share = packed_bytes / sum(array.nbytes for array in self.arrays.arrays)
        # Copies, so that they are not read from the cache either.
        ring = [copy_of(values[number % len(values)]) for number in range(len(self.sources))]
        return Measured(codec=codec, values=ring, share=share)

    def acts(self, measured: Measured) -> dict[str, Callable[[int], Any]]:
        """What is timed, each a function of an array's number."""
        codec, values = measured.codec, measured.values

        def crop(number: int) -> Any:
            window, out = self.windows[number], self.crops[number]
            if codec.crop:
                return codec.crop(values[number], window, out)
            everything = codec.unpack(values[number], self.targets[number])
            np.copyto(out, everything[window])
            return out

        return {
            "unpack": lambda number: codec.unpack(values[number], self.targets[number]),
            "crop": crop,
            "pack": lambda number: codec.pack(self.sources[number]),
        }


def window_at(start: Sequence[int], shape: Sequence[int]) -> Window:
    """The window of a shape that begins there."""
    return tuple(slice(low, low + side) for low, side in zip(start, shape, strict=True))


def copy_of(value: Any) -> Any:
    """A copy of a value in other memory."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return [copy_of(part) for part in value] if isinstance(value, list) else bytes(bytearray(value))


def time_act(act: Callable[[int], Any], count: int, seconds: float) -> tuple[float, float]:
    """Processor seconds and seconds of the clock per call, over calls for at least so long."""
    calls, started, busy = 0, time.perf_counter(), time.thread_time()
    while calls == 0 or time.perf_counter() - started < seconds:
        act(calls % count)
        calls += 1
    return (time.thread_time() - busy) / calls, (time.perf_counter() - started) / calls


def measure(arrays: Arrays, given: argparse.Namespace) -> tuple[dict[str, Measured], dict[str, str]]:
    """The codecs that take such arrays, with their rates, and why others do not."""
    ring, measured, missing = Ring(arrays), {}, {}
    for name, make in CODECS.items():
        if name == "memcpy" or is_wanted(name, given.codecs):
            print(f"  {arrays.name}: {name}", file=sys.stderr, flush=True)
            try:
                measured[name] = ring.make(make(arrays))
            except (ImportError, UnsuitedError, ValueError, RuntimeError) as error:
                missing[name] = f"{type(error).__name__.removesuffix('Error')}: {error}".splitlines()[0]
    for number in range(given.rounds):
        for name in list(measured) if number % 2 == 0 else reversed(measured):
            one = measured[name]
            for what, act in ring.acts(one).items():
                busy, clock = time_act(act, len(ring.sources), given.seconds)
                one.seconds.setdefault(what, []).append(busy)
                one.clock.append(clock / busy)
    return measured, missing


def print_set(arrays: Arrays, measured: dict[str, Measured], missing: dict[str, str]) -> None:
    """The set's part of the table."""
    first, copy = arrays.first, measured["memcpy"].seconds["unpack"]
    crop = "x".join(map(str, arrays.crop_shape))
    pixels = int(np.prod(arrays.crop_shape)) * (first.nbytes / np.prod(first.shape[: arrays.axes]))
    shape = "x".join(map(str, first.shape))
    print(f"\n{arrays.name}: {len(arrays.arrays)} of {shape} {first.dtype}; crops {crop}; GB/s of one core")
    print(
        f"{'':<26}{'size of raw':>11}{'pack':>8}{'unpack':>8}{'of memcpy':>11}{'crop':>8}{'crop us':>9}{'clock':>7}"
    )
    for name in CODECS:
        if name in missing:
            print(f"{name:<26}{'-':>11}  {missing[name][:80]}")
        if name not in measured:
            continue
        one = measured[name]
        ratio = statistics.median(a / b for a, b in zip(copy, one.seconds["unpack"], strict=True))
        rates = {act: first.nbytes / one.median(act) / 1e9 for act in ("pack", "unpack")}
        print(
            f"{name:<26}{one.share:>11.3f} {rates['pack']:>7.2f} {rates['unpack']:>7.2f} {ratio:>10.2f} "
            f"{pixels / one.median('crop') / 1e9:>7.2f} {one.median('crop') * 1e6:>8.0f} "
            f"{statistics.median(one.clock):>6.2f}{targets(name, one.share, rates['unpack'], arrays)}"
        )


def targets(name: str, share: float, rate: float, arrays: Arrays) -> str:
    """What is demanded of packed arrays, and whether it is reached."""
    if name != "packed" or arrays.max_share is None:
        return ""
    return (
        f"  size <= {arrays.max_share}: {'yes' if share <= arrays.max_share else 'no'}; "
        f"unpack >= {UNPACK_TARGET:g}: {'yes' if rate >= UNPACK_TARGET else 'no'}"
    )


def print_versions() -> None:
    """What was measured, and on what."""
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"{package} is not installed")
    instructions = ("plain C", "AVX2 or NEON", "AVX-512")
    kernel = instructions[packing.use_instructions()] if packing.packs() else "not built, NumPy instead"
    print(f"\nPython {sys.version.split()[0]}; {', '.join(found)}; kernel: {kernel}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--photographs",
        type=Path,
        nargs="+",
        default=[gather.PHOTOGRAPH_FOLDER, gather.SHARED / "images/clothing"],
        help="folders of JPEG files; drawn pictures where there are none",
    )
    parser.add_argument(
        "--scans", type=Path, help="table with the columns id,image,label,depth,height,width,spacing_mm"
    )
    parser.add_argument("--pictures", type=int, default=24, help="of each folder (default 24)")
    parser.add_argument("--only", nargs="*", default=[], help="sets whose names hold one of these texts")
    parser.add_argument("--codecs", nargs="*", default=[], help="codecs whose names hold one of these texts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each act in a round, at least")
    parser.add_argument("--scratch", type=Path, help="folder for the converted files, some 200 MB")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        # The conversions may use all cores.
        sets = all_sets(given, Path(scratch))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for arrays in sets:
        print_set(arrays, *measure(arrays, given))
        sys.stdout.flush()
    print_versions()


if __name__ == "__main__":
    main()
