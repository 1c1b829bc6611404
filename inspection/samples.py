"""Which records does a report show, and what do they look like before and after the conversion?"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import mmap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.overlay import overlay
from halofeed.inspection.records import IMAGE_KEY, bytes_of, decode_stored, integer_of, text_of
from halofeed.inspection.segmentation import class_counts, extent_of, label_map, shown_classes, triple_of
from halofeed.prep.encode import encode_jpeg, encode_png
from halofeed.prep.readers import DecodedImage, ReadOptions, read_image
from halofeed.prep.readers.pixels import apply_orientation, scale_depth
from halofeed.prep.resize import apply_to_boxes, displayed_to_file
from halofeed.prep.sources import LocalFiles, SourceFiles
from halofeed.schemas.errors import CorruptFileError, HalofeedError, SourceError
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.layout import index_file
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.tfexample import Decoded, decode_example
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_record

CANDIDATES_PER_SPLIT = 1000
"""Records whose labels and sizes are looked at to choose from; evenly spread over the split."""

_JPEG_QUALITY = 84
_EXACT_PIXELS = 96 * 96
"""Pictures up to this many pixels are shown as PNG, since JPEG's blocks would be seen."""
_TURN_BACK = {6: 8, 8: 6}
_CORNERS = tuple(f"image/object/bbox/{corner}" for corner in ("ymin", "xmin", "ymax", "xmax"))
_SIDES = ("height", "width")
_CHOICE_KEYS = frozenset(
    {
        "image/class/label",
        "image/object/class/label",
        "image/transform",
        "image/labelled",
        "image/depth",
        "image/extent",
        "image/spacing_mm",
        *(f"image/{grid}{side}" for grid in ("", "unpadded/", "source/") for side in _SIDES),
    }
)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What is known of a record without decoding its picture.

    Args:
        split, number: as in `split:number`.
        shard, row: the file and the record's number within it.
        labels: of its boxes, or its class or classes.
        padding: share of the stored pixels that is padding.
        elongation: |log2(width / height)| of the source.
        orientation: the EXIF orientation between the annotations and the picture, 1 to 8.
        labelled: False where segmentation's record has no label.
        anisotropy: of a volume, its largest spacing over its smallest.
    """

    split: str
    number: int
    shard: Shard
    row: int
    labels: tuple[int, ...]
    padding: float
    elongation: float
    orientation: int
    labelled: bool = True
    anisotropy: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A thumbnail as a data: URI, the size in pixels (height, width) that it stands for, and boxes on it.

    `boxes` is float64 [box, 4], ymin, xmin, ymax, xmax as shares of the sides; `content` the (height, width)
    shares that are not padding. `mask` is a picture of the classes to lay over it, if it has one.
    """

    uri: str
    size: tuple[int, int]
    boxes: NDArray[np.float64]
    content: tuple[float, float] = (1.0, 1.0)
    mask: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One record to show; `before` is None where the source picture cannot be, and `trouble` says why."""

    candidate: Candidate
    reason: str | None
    source: str
    stored: Picture
    before: Picture | None
    trouble: str | None
    notes: tuple[str, ...]


def find_candidates(folder: Path, manifest: Manifest, limit: int = CANDIDATES_PER_SPLIT) -> list[Candidate]:
    """At most `limit` records of each split, evenly spread; only their small features are read."""
    found = []
    for split, content in manifest.splits.items():
        step = max(1, math.ceil(content.records / limit))
        first = 0
        for shard in content.shards:
            rows = range(-first % step, shard.records, step)
            for row, data in _records(folder, shard, rows, check=False):
                features = decode_example(data, _CHOICE_KEYS)
                found.append(_candidate(features, split, first + row, shard, row))
            first += shard.records
    return found


def choose(
    candidates: Sequence[Candidate], count: int, *, detection: bool
) -> list[tuple[Candidate, str | None]]:
    """Which records to show: ordinary ones over splits and classes, then up to half as many awkward ones.

    Args:
        candidates: in the data set's order.
        count: how many at most.
        detection: whether records have boxes, so that the most and none of them are of interest.

    Returns:
        each with what is awkward of it; None of the ordinary ones. The same for the same candidates.
    """
    awkward: dict[tuple[str, int], tuple[Candidate, str]] = {}
    for candidate, reason in _awkward(candidates, detection):
        if len(awkward) < count // 2:
            awkward.setdefault((candidate.split, candidate.number), (candidate, reason))
    left = [item for item in candidates if (item.split, item.number) not in awkward]
    splits: Counter[str] = Counter()
    labels: Counter[int] = Counter()
    ordinary: list[tuple[Candidate, str | None]] = []
    while left and len(ordinary) < count - len(awkward):
        best = min(
            range(len(left)),
            key=lambda at: (
                splits[left[at].split],
                min((labels[label] for label in left[at].labels), default=len(ordinary)),
                -len(set(left[at].labels) - set(labels)),
                at,
            ),
        )
        chosen = left.pop(best)
        splits[chosen.split] += 1
        labels.update(set(chosen.labels))
        ordinary.append((chosen, None))
    return [*ordinary, *awkward.values()]


def _awkward(candidates: Sequence[Candidate], detection: bool) -> Iterator[tuple[Candidate, str]]:
    if not candidates:
        return
    if detection:
        most = max(candidates, key=lambda item: len(item.labels))
        yield most, f"most boxes: {len(most.labels)}"
    for candidate in candidates:
        if candidate.orientation != 1:
            yield candidate, f"EXIF orientation {candidate.orientation}"
            break
    padded = max(candidates, key=lambda item: item.padding)
    if padded.padding >= 0.05:
        yield padded, f"most padding: {100 * padded.padding:.0f} %"
    longest = max(candidates, key=lambda item: item.elongation)
    if longest.elongation >= 1:
        yield longest, f"longest sides: {2**longest.elongation:.1f} to 1"
    if unlabelled := next((item for item in candidates if not item.labelled), None):
        yield unlabelled, "no label: for prediction"
    flattest = max(candidates, key=lambda item: item.anisotropy)
    if flattest.anisotropy >= 3:
        yield flattest, f"thickest slices: {flattest.anisotropy:.1f} times the spacing within"
    if detection and (empty := next((item for item in candidates if not item.labels), None)):
        yield empty, "no boxes"
    seen = {1}
    for candidate in candidates:
        if candidate.orientation not in seen:
            seen.add(candidate.orientation)
            yield candidate, f"EXIF orientation {candidate.orientation}"


def open_sources(manifest: Manifest, source: str | None) -> tuple[SourceFiles | None, str]:
    """The folder of the source pictures, if it is there, and its name.

    Raises:
        UsageError: the caller named a folder that is not there.
    """
    if source is not None:
        return LocalFiles(source), source
    root = str(manifest.inputs.get("images", ""))
    if not root or not Path(root).is_dir():
        return None, root
    return LocalFiles(root), root


def load_sample(
    folder: Path,
    manifest: Manifest,
    chosen: tuple[Candidate, str | None],
    sources: SourceFiles | None,
    side: int,
    ranks: Mapping[int, int] | None = None,
) -> Sample:
    """Read one record whole, and its source picture.

    Args:
        ranks: of segmentation's classes, which colour each has.
        side: the longer side of the thumbnails, in pixels.

    Raises:
        CorruptFileError: the record is not what was written.
    """
    candidate, reason = chosen
    index = _index(folder, candidate.shard)
    features = read_candidate(folder, candidate)
    source = text_of(features, "image/filename") or ""
    boxes = np.array([features.get(key, []) for key in _CORNERS], np.float64).reshape(4, -1).T
    pixels = _stored_pixels(features, manifest)
    size = (pixels.shape[0], pixels.shape[1])
    label = label_map(features, manifest) if candidate.labelled else None
    labels = (
        tuple(value for value in class_counts(label, manifest).voxels if value)
        if label is not None
        else candidate.labels
    )
    unpadded = [integer_of(features, f"image/unpadded/{name}") or size[at] for at, name in enumerate(_SIDES)]
    stored = Picture(
        uri=_thumbnail(pixels, side),
        size=size,
        boxes=boxes,
        content=(unpadded[0] / size[0], unpadded[1] / size[1]),
        mask=None
        if label is None
        else overlay(shown_classes(label, manifest), ranks or {}, thumbnail_size(size, side)),
    )
    before, trouble = None, None
    notes: tuple[str, ...] = ()
    if sources is not None:
        try:
            image, trouble = _read_source(sources, source, index.inputs.get(source), manifest, side)
            before = _before(image, features, boxes * np.array([*size, *size]), candidate.orientation, side)
            notes = image.notes
        except SourceError as error:
            trouble = f"the source picture cannot be shown: {error}"
    return Sample(
        candidate=dataclasses.replace(candidate, labels=labels),
        reason=reason,
        source=source,
        stored=stored,
        before=before,
        trouble=trouble,
        notes=notes,
    )


def read_candidate(folder: Path, candidate: Candidate) -> Decoded:
    """The whole record, its checksum compared; large values stay in the mapped file.

    Raises:
        CorruptFileError: the record is not what was written.
    """
    ((_, data),) = _records(folder, candidate.shard, [candidate.row], check=True)
    return decode_example(data)


def _index(folder: Path, shard: Shard) -> ShardIndex:
    file = folder / index_file(shard.file)
    try:
        return ShardIndex.from_bytes(file.read_bytes(), str(file))
    except OSError as error:
        raise CorruptFileError(f"{file}: cannot be read: {error.strerror or error}") from error


def _records(
    folder: Path, shard: Shard, rows: Sequence[int], *, check: bool
) -> Iterator[tuple[int, memoryview]]:
    """The given records of a shard, in order; the file is mapped, so that pictures nobody looks at stay on disk."""
    if not rows:
        return
    file, index = folder / shard.file, _index(folder, shard)
    try:
        with file.open("rb") as stream:
            whole = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{file}: cannot be read: {error}") from error
    for row in rows:
        place = f"{file}: record {row}"
        try:
            if row >= len(index):
                raise CorruptFileError(f"the index holds {len(index)} records")
            offset, length = int(index.offsets[row]), int(index.lengths[row])
            start = offset + HEADER_BYTES
            if offset < 0 or length < 0 or start + length + FOOTER_BYTES > len(whole):
                raise CorruptFileError("the file ends before it")
            yield row, check_record(whole, offset, place) if check else whole[start : start + length]
        except HalofeedError as error:
            raise CorruptFileError(f"{place}: {error}; run `halofeed verify {folder}`") from error


def _candidate(features: Decoded, split: str, number: int, shard: Shard, row: int) -> Candidate:
    sizes = {
        grid: [integer_of(features, f"image/{grid}{side}") or 1 for side in _SIDES]
        for grid in ("", "unpadded/", "source/")
    }
    objects = features.get("image/object/class/label")
    labels = features.get("image/class/label", []) if objects is None else objects
    padding = 1 - math.prod(sizes["unpadded/"]) / math.prod(sizes[""])
    elongation = abs(math.log2(sizes["source/"][1] / sizes["source/"][0]))
    extent, spacing = extent_of(features), triple_of(features, "image/spacing_mm")
    if extent is not None:
        depth = integer_of(features, "image/depth") or 1
        padding = 1 - math.prod((extent[1] - extent[0]).tolist()) / (depth * math.prod(sizes[""]))
    return Candidate(
        split=split,
        number=number,
        shard=shard,
        row=row,
        labels=tuple(int(label) for label in labels) if isinstance(labels, np.ndarray) else (),
        padding=padding,
        elongation=elongation,
        orientation=_orientation_of(features.get("image/transform")),
        labelled=integer_of(features, "image/labelled") != 0,
        anisotropy=1.0 if spacing is None else float(spacing.max() / spacing.min()),
    )


def _orientation_of(transform: Any) -> int:
    """The EXIF orientation whose turn a stored transform holds; the signs of its matrix are different for each."""
    if isinstance(transform, np.ndarray) and transform.shape == (6,):
        for orientation in range(1, 9):
            turn = displayed_to_file(orientation, (1, 1))
            if (np.sign(transform.reshape(2, 3)[:, :2]) == turn.reshape(2, 3)[:, :2]).all():
                return orientation
    return 1


def _stored_pixels(features: Decoded, manifest: Manifest) -> NDArray[Any]:
    field = next(field for field in manifest.fields if IMAGE_KEY in field.keys)
    data = bytes_of(features, IMAGE_KEY) or memoryview(b"")
    if field.encoding == "raw":
        return np.frombuffer(data, np.dtype(field.dtype).newbyteorder("<")).reshape(field.shape)
    pixels = decode_stored(data)
    if pixels is None:
        raise CorruptFileError(
            f"{text_of(features, 'image/filename')}: image/encoded is no {field.encoding} picture"
        )
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(pixels.shape[2])
    return pixels if order is None else pixels[..., order]


def _read_source(
    sources: SourceFiles, path: str, digest: str | None, manifest: Manifest, side: int
) -> tuple[DecodedImage, str | None]:
    data = sources.read(path)
    changed = digest not in (None, "", hashlib.sha256(data).hexdigest())

    def enough(height: int, width: int) -> tuple[int, int]:
        scale = min(1.0, side / max(height, width))
        return max(1, round(height * scale)), max(1, round(width * scale))

    options = ReadOptions(
        channels=4, max_pixels=int(manifest.recipe.get("max_pixels", ReadOptions.max_pixels))
    )
    image = read_image(data, options, enough)
    # What this reading alone did is no note of the conversion.
    own = [
        "opaque alpha added",
        "decoded at",
        *(["16 bit scaled"] if manifest.recipe.get("store") == "uint16" else []),
    ]
    notes = tuple(note for note in image.notes if not note.startswith(tuple(own)))
    image = DecodedImage(**{**vars(image), "notes": notes})
    return image, "the source file has changed since the conversion" if changed else None


def _before(
    image: DecodedImage, features: Decoded, boxes: NDArray[np.float64], orientation: int, side: int
) -> Picture:
    """The picture in the grid that its annotations speak of, and the stored boxes (in pixels) mapped back to it."""
    pixels = apply_orientation(image.pixels, _TURN_BACK.get(orientation, orientation))
    height, width = (integer_of(features, f"image/source/{name}") or 1 for name in _SIDES)
    transform = features.get("image/transform")
    mapped = apply_to_boxes(np.asarray(transform, np.float64), boxes) if len(boxes) else boxes
    return Picture(
        uri=_thumbnail(pixels, side),
        size=(height, width),
        boxes=mapped / np.array([height, width, height, width], np.float64),
    )


def _thumbnail(pixels: NDArray[Any], side: int) -> str:
    """Pixels [height, width, 1, 3 or 4] as a data: URI whose longer side is at most `side`."""
    channels = pixels.shape[2]
    small = scale_depth(np.ascontiguousarray(pixels), "uint8")
    size = thumbnail_size((pixels.shape[0], pixels.shape[1]), side)
    if size != pixels.shape[:2]:
        small = cv2.resize(small, size[::-1], interpolation=cv2.INTER_AREA).reshape(*size, channels)
    if channels == 4:
        small = _over_checks(small)
    return picture_uri(small)


def thumbnail_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    """The (height, width) of a thumbnail whose longer side is at most `side`."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def picture_uri(small: NDArray[np.uint8]) -> str:
    """uint8 pixels [height, width, 1 or 3] as a data: URI."""
    if small.shape[0] * small.shape[1] <= _EXACT_PIXELS:
        kind, data = "png", bytes(encode_png(small, 0))
    else:
        kind, data = "jpeg", bytes(encode_jpeg(small, _JPEG_QUALITY))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _over_checks(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Colours with alpha over a grey chequered ground."""
    rows, columns = (np.arange(length) // 8 for length in pixels.shape[:2])
    ground = np.where((rows[:, None] + columns) % 2, 205, 235)[..., None]
    alpha = pixels[..., 3:].astype(np.uint32)
    blended = (pixels[..., :3] * alpha + ground * (255 - alpha) + 127) // 255
    return np.ascontiguousarray(blended, np.uint8)
