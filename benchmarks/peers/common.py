"""What the peers share: the cases, the examples that each writes, crops and flips, and how a round is measured."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

SHAPES = {"pictures": (640, 640, 3), "photographs": (640, 640, 3), "blocks": (128, 128, 128, 1)}
Example = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What is measured: of which data, in which batches; with random crops to a size, and flips along all axes of it.

    Pictures are flipped left-right only.
    """

    title: str
    data: str
    batch_size: int
    crop: tuple[int, ...] = ()

    @property
    def has_labels(self) -> bool:
        """Whether a label lies on the image's grid."""
        return self.data == "blocks"

    @property
    def is_encoded(self) -> bool:
        """Whether records are JPEG files."""
        return self.data == "photographs"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the image as stored, channels last."""
        return SHAPES[self.data]

    @property
    def dtype(self) -> str:
        """Of the image."""
        return "int16" if self.has_labels else "uint8"

    @property
    def shown(self) -> tuple[int, ...]:
        """Of the image in a batch."""
        return (*self.crop, self.shape[-1]) if self.crop else self.shape

    @property
    def row_bytes(self) -> int:
        """That a row of a batch holds, whatever a peer makes of them."""
        voxels = int(np.prod(self.shown[:-1]))
        return voxels * self.shape[-1] * np.dtype(self.dtype).itemsize + voxels * self.has_labels


CASES = {
    "raw": Case("raw 640x640x3 uint8", "pictures", 64),
    "raw-crop": Case("raw 640x640x3 uint8, random crop 512 and flip", "pictures", 64, (512, 512)),
    "volumes": Case("raw 128^3 int16 volumes with uint8 labels", "blocks", 8),
    "volumes-crop": Case("raw 128^3 volumes, random crop 64^3 and flips", "blocks", 64, (64, 64, 64)),
    "jpeg": Case("JPEG 640 px, quality 95", "photographs", 64),
}


class Source:
    """The examples that all loaders are given, as they stand in halofeed's data set.

    A folder with `image.npy`, or `jpeg.bin` and `jpeg_ends.npy`; with `label.npy` for volumes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_encoded = (folder / "jpeg.bin").exists()
        if self.is_encoded:
            self._ends = np.load(folder / "jpeg_ends.npy")
            self._jpeg = np.memmap(folder / "jpeg.bin", np.uint8, "r")
        else:
            self._image = np.load(folder / "image.npy", mmap_mode="r")
        path = folder / "label.npy"
        self._label = np.load(path, mmap_mode="r") if path.exists() else None

    def __len__(self) -> int:
        return len(self._ends) - 1 if self.is_encoded else len(self._image)

    def __getitem__(self, number: int) -> Example:
        """`image`, bytes of a JPEG file or an array, `label` of volumes, and `number`."""
        if self.is_encoded:
            image: Any = self._jpeg[self._ends[number] : self._ends[number + 1]].tobytes()
        else:
            image = self._image[number]
        example = {"image": image, "number": number}
        return example if self._label is None else {**example, "label": self._label[number]}


# What loaders of single records do with each --------------------------------------------------------------


def pack(example: Example) -> bytes:
    """An example as one record, for formats that know bytes only."""
    parts = [np.int64(example["number"]).tobytes(), bytes(np.ascontiguousarray(example.get("label", ())))]
    image = example["image"]
    parts.insert(1, image if isinstance(image, bytes) else image.tobytes())
    return b"".join(parts)


def unpack(record: bytes, case: Case) -> Example:
    """The example of such a record; its arrays are views of it."""
    example: Example = {"number": int(np.frombuffer(record, np.int64, 1)[0])}
    if case.is_encoded:
        return {**example, "image": memoryview(record)[8:]}
    count = int(np.prod(case.shape))
    example["image"] = np.frombuffer(record, case.dtype, count, 8).reshape(case.shape)
    if case.has_labels:
        example["label"] = np.frombuffer(record, np.uint8, offset=8 + example["image"].nbytes).reshape(
            case.shape[:-1]
        )
    return example


def shown(example: Example, case: Case) -> Example:
    """The example as it goes into a batch: decoded, or cropped and flipped where the case says so."""
    if case.is_encoded:
        import simplejpeg

        return {**example, "image": simplejpeg.decode_jpeg(bytes(example["image"]))}
    if not case.crop:
        return example
    rng = np.random.default_rng()
    axes = len(case.crop)
    starts = [int(rng.integers(full - size + 1)) for full, size in zip(case.shape, case.crop, strict=False)]
    window = tuple(slice(low, low + size) for low, size in zip(starts, case.crop, strict=True))
    mirrored = [axis for axis in range(axes) if (axes == 3 or axis == 1) and rng.random() < 0.5]
    keys = [key for key in ("image", "label") if key in example]
    cut = {key: np.ascontiguousarray(np.flip(example[key][window], mirrored)) for key in keys}
    return {**example, **cut}


# A round --------------------------------------------------------------------------------------------------


def difference(batch: Mapping[str, Any], case: Case, source: Source) -> int:
    """By how many levels pixels of a batch differ from the source's at most; SystemExit where the shape is wrong."""
    rows = case.batch_size
    image = np.asarray(batch["image"])
    if image.shape != (rows, *case.shown):
        raise ValueError(f"expected {(rows, *case.shown)}, got {image.shape}")
    if case.crop:
        return 0
    most = 0
    for found, number in zip(image[:4], np.asarray(batch["number"]).tolist(), strict=False):
        expected = shown(source[number], case)["image"].astype(np.int64)
        if found.dtype.kind == "f" and case.dtype == "uint8":
            found = np.rint(found * 255)
        most = max(most, int(np.abs(found.astype(np.int64) - expected).max()))
    return most


def serve(arguments: list[str]) -> None:
    """Write a peer's data where there is none yet, and answer each setting on standard input with a round's rate."""
    module_name, case_name, source_folder, folder, packages, warm = arguments
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print what they like
    sys.stdout = sys.stderr
    case, source, place = CASES[case_name], Source(Path(source_folder)), Path(folder)
    try:
        module = import_module(f"peers.{module_name}")
        if not place.exists():
            (unfinished := place.with_suffix(".unfinished")).mkdir()
            module.write(source, unfinished)
            unfinished.rename(place)
        found = {name: version_of(name) for name in packages.split(",")}
    except BaseException as error:
        say(answers, error=f"{type(error).__name__}: {error}")
        raise
    say(answers, versions=found)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            stream = module.batches(place, case, **asked["setting"])
            say(answers, **one_round(stream, case, source, asked["seconds"], int(warm)))
        except Exception as error:  # another setting may do
            traceback.print_exc()
            say(answers, rows=0.0, reason=f"{type(error).__name__}: {error}")


def say(stream: Any, **answer: Any) -> None:
    """One line of JSON."""
    print(json.dumps(answer), file=stream, flush=True)


def version_of(package: str) -> str:
    """Of an installed distribution; of this checkout, where halofeed is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        if package != "halofeed":
            raise
        return str(import_module("halofeed").__version__)


def one_round(
    stream: Iterator[Mapping[str, Any]], case: Case, source: Source, seconds: float, warm: int
) -> dict[str, float]:
    """Rows a second over at least `seconds` and four batches, once `warm` batches were taken."""
    apart = 0
    for number in range(warm):
        if (batch := next(stream, None)) is None:
            raise ValueError(f"the stream ends after {number} batches, before anything is measured")
        if number == 0:
            apart = difference(batch, case, source)
        del batch
    batches, started = 0, time.perf_counter()
    while batches < 4 or time.perf_counter() - started < seconds:
        if next(stream, None) is None:
            break
        batches += 1
    spent = time.perf_counter() - started
    if (close := getattr(stream, "close", None)) is not None:
        close()
    return {"rows": batches * case.batch_size / spent, "difference": apart}
