"""What do records look like before and after the conversion?"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.facts.candidates import MOST_OBJECTS, Candidate, side_of
from halofeed.inspection.pictures.overlay import overlay
from halofeed.inspection.pictures.source_sheet import source_sheet
from halofeed.inspection.stored.features import integer_of, text_of
from halofeed.inspection.stored.labels import class_counts, label_map, shown_classes, stored_image
from halofeed.inspection.stored.place import Place
from halofeed.inspection.stored.shard import StoredShard
from halofeed.loader.sheet import sheet_of_classes, sheet_of_frames
from halofeed.prep.formats.picture import DecodedImage, ReadOptions, read_image
from halofeed.prep.formats.picture.pixels import apply_orientation, scale_depth
from halofeed.prep.geometry.resize import apply_to_boxes
from halofeed.prep.sources.files import LocalFiles, SourceFiles
from halofeed.prep.voxels.encode import encode_jpeg, encode_png
from halofeed.schemas import keys
from halofeed.schemas.errors import CorruptFileError, SourceError, UsageError
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.origin import Origin
from halofeed.schemas.tfexample import Decoded

_JPEG_QUALITY = 84
_LONGEST_NAME = 4096
_COLORS = 3
_EXACT_PIXELS = 96 * 96
"""Pictures up to this many pixels are shown as PNG, since JPEG's blocks would be seen."""
_TURN_BACK = {6: 8, 8: 6}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A thumbnail as a data: URI, the size in pixels (height, width) that it stands for, and boxes on it.

    `boxes` is float64 [box, 4], ymin, xmin, ymax, xmax as shares of the sides; `content` the (height, width)
    shares that are not padding. `mask` is a picture of the classes to lay over it, if it has one. `shape` is the
    size to name where the picture is made of what it stands for: a clip's (frame, height, width).
    """

    uri: str
    size: tuple[int, int]
    boxes: NDArray[np.float64]
    content: tuple[float, float] = (1.0, 1.0)
    mask: str | None = None
    shape: tuple[int, ...] = ()


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


def open_sources(origin: Origin | None, named: str | None) -> tuple[SourceFiles | None, str]:
    """The source pictures, or why they are not shown.

    A data set of someone else decides on no folder of this machine: it would have its reader's own pictures shown.

    Args:
        origin: where they lay when this user converted them here, if that was so.
        named: the folder that the user names.

    Raises:
        UsageError: there is no folder as the user names it.
    """
    if named is not None:
        return LocalFiles(named), ""
    if origin is None:
        return None, (
            "Where the source pictures lie is no part of a data set, and it was not you who converted this one in this "
            "place"
        )
    if "://" in origin.images:
        return None, f"The source pictures lie at {origin.images}, where a report does not read"
    if not Path(origin.images).is_dir():
        return None, f"The source pictures are no longer at {origin.images}"
    return LocalFiles(origin.images), ""


def load_sample(
    folder: Path | Place,
    manifest: Manifest,
    chosen: tuple[Candidate, str | None],
    sources: SourceFiles | None,
    side: int,
    ranks: Mapping[int, int] | None = None,
) -> Sample:
    """Read one record whole, and its source picture.

    Args:
        ranks: of segmentation's classes, which color each has.
        side: the longer side of the thumbnails, in pixels.

    Raises:
        CorruptFileError: the record is not what was written.
    """
    candidate, reason = chosen
    shard = StoredShard(folder, candidate.shard)
    features = shard.features(candidate.row)
    source = (text_of(features, keys.FILENAME) or "")[:_LONGEST_NAME]
    boxes = _boxes_of(features, f"{folder}/{candidate.shard.file}: record {candidate.row}", folder)
    pixels = stored_image(features, manifest)
    if pixels is None:
        field = manifest.field("image")
        expected = f"{field.dtype} {list(field.shape)} stored as {field.encoding}"
        raise CorruptFileError(f"{source}: image/encoded is no {expected}; run `halofeed verify {folder}`")
    view = VIEWS[manifest.kind.name]
    shape = pixels.shape[:-1]
    pixels, content = view.shown(pixels, features)
    size = (pixels.shape[0], pixels.shape[1])
    label = label_map(features, manifest) if candidate.labelled else None
    labels = (
        tuple(value for value in class_counts(label, manifest).voxels if value)
        if label is not None
        else candidate.labels
    )
    stored = Picture(
        uri=_thumbnail(pixels, side),
        size=size,
        boxes=boxes,
        content=content,
        shape=shape,
        mask=None
        if label is None
        else overlay(
            view.classes(shown_classes(label, manifest), features), ranks or {}, thumbnail_size(size, side)
        ),
    )
    before, trouble = None, None
    notes: tuple[str, ...] = ()
    if sources is not None:
        try:
            if source.startswith("/") or ".." in source.split("/") or "\0" in source:
                raise SourceError("read", "the record names no file below the sources' folder", source)
            wanted = _Wanted(
                manifest=manifest,
                features=features,
                path=source,
                digest=shard.index.inputs.get(source),
                boxes=boxes * np.array([*size, *size]),
                orientation=candidate.orientation,
                side=side,
            )
            before, trouble, notes = view.before(sources, wanted)
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


def _boxes_of(features: Decoded, place: str, folder: Path | Place) -> NDArray[np.float64]:
    """float64 [box, 4]; none of a record without boxes."""
    corners = [features.get(key, np.zeros(0)) for key in keys.BOX_CORNERS]
    numbers = [value for value in corners if isinstance(value, np.ndarray)]
    if len(numbers) < len(corners) or len({len(value) for value in numbers}) > 1:
        raise CorruptFileError(
            f"{place}: its boxes are no four lists of one length; run `halofeed verify {folder}`"
        )
    return np.stack([value[:MOST_OBJECTS].astype(np.float64) for value in numbers], axis=-1)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """A record whose source is to be shown; its boxes in stored pixels."""

    manifest: Manifest
    features: Decoded
    path: str
    digest: str | None
    boxes: NDArray[np.float64]
    orientation: int
    side: int


_Before = tuple[Picture, str | None, tuple[str, ...]]
"""The source as it is shown, what is wrong with it, and what reading it noted."""


def _unpadded(size: tuple[int, int], features: Decoded) -> list[int]:
    """What of a stored picture is no padding."""
    return [
        min(max(1, integer_of(features, key) or side), side)
        for key, side in zip(keys.UNPADDED_SIDES, size, strict=True)
    ]


def _whole_picture(pixels: NDArray[Any], features: Decoded) -> tuple[NDArray[Any], tuple[float, float]]:
    size = (pixels.shape[0], pixels.shape[1])
    height, width = _unpadded(size, features)
    return pixels, (height / size[0], width / size[1])


def _sheet(frames: NDArray[Any], features: Decoded) -> tuple[NDArray[Any], tuple[float, float]]:
    """Some frames of a clip side by side, without their padding."""
    return sheet_of_frames(_unpadded_frames(frames, features)), (1.0, 1.0)


def _sheet_of_classes(label: NDArray[Any], features: Decoded) -> NDArray[Any]:
    return sheet_of_classes(_unpadded_frames(label, features))


def _unpadded_frames(frames: NDArray[Any], features: Decoded) -> NDArray[Any]:
    height, width = _unpadded((frames.shape[1], frames.shape[2]), features)
    return frames[:, :height, :width]


def _source_picture(sources: SourceFiles, wanted: _Wanted) -> _Before:
    image, trouble = _read_source(sources, wanted)
    return _before(image, wanted), trouble, image.notes


def _source_clip(sources: SourceFiles, wanted: _Wanted) -> _Before:
    tile = integer_of(wanted.features, keys.TILE) or 0
    try:
        sheet, shape = source_sheet(sources, wanted.path, tile, wanted.manifest)
    except UsageError as error:
        raise SourceError("read", "the recipe of the data set cannot be followed", str(error)) from error
    size = (sheet.shape[0], sheet.shape[1])
    picture = Picture(uri=_thumbnail(sheet, wanted.side), size=size, boxes=np.zeros((0, 4)), shape=shape)
    return picture, None, ()


class _View(NamedTuple):
    """How one kind is shown: the stored image and the share of it that is no padding; the source; its classes."""

    shown: Callable[[NDArray[Any], Decoded], tuple[NDArray[Any], tuple[float, float]]]
    before: Callable[[SourceFiles, _Wanted], _Before]
    classes: Callable[[NDArray[Any], Decoded], NDArray[Any]] = lambda label, features: label


VIEWS = {
    "picture": _View(_whole_picture, _source_picture),
    "clip": _View(_sheet, _source_clip, _sheet_of_classes),
}
"""Per kind of image; scans are shown by `halofeed.inspection.pictures.planes`."""


def _read_source(sources: SourceFiles, wanted: _Wanted) -> tuple[DecodedImage, str | None]:
    data, manifest = sources.read(wanted.path), wanted.manifest
    changed = wanted.digest not in (None, "", hashlib.sha256(data).hexdigest())

    def enough(height: int, width: int) -> tuple[int, int]:
        scale = min(1.0, wanted.side / max(height, width))
        return max(1, round(height * scale)), max(1, round(width * scale))

    options = ReadOptions(
        channels=4, max_pixels=int(manifest.recipe.get("max_pixels", ReadOptions.max_pixels))
    )
    image = read_image(data, options, enough)
    # What this reading alone did is no note of the conversion.
    own = [
        "opaque alpha added",
        "decoded at",
        *(["16 bit scaled"] if manifest.recipe.get("dtype") == "uint16" else []),
    ]
    notes = tuple(note for note in image.notes if not note.startswith(tuple(own)))
    image = DecodedImage(**{**vars(image), "notes": notes})
    return image, "the source file has changed since the conversion" if changed else None


def _before(image: DecodedImage, wanted: _Wanted) -> Picture:
    """The picture in the grid that its annotations speak of, and the stored boxes mapped back to it."""
    boxes, orientation = wanted.boxes, wanted.orientation
    pixels = apply_orientation(image.pixels, _TURN_BACK.get(orientation, orientation))
    height, width = (side_of(wanted.features, key) for key in keys.SOURCE_SIDES)
    transform = wanted.features.get(keys.TRANSFORM)
    if not isinstance(transform, np.ndarray) or transform.shape != (6,) or not np.isfinite(transform).all():
        raise SourceError("boxes", "the record does not say how it was transformed")
    try:
        mapped = apply_to_boxes(transform.astype(np.float64), boxes) if len(boxes) else boxes
    except UsageError as error:
        raise SourceError("boxes", "boxes do not follow the record's transform", str(error)) from error
    return Picture(
        uri=_thumbnail(pixels, wanted.side),
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


def picture_of(image: NDArray[Any], side: int) -> tuple[str, tuple[int, int]]:
    """An image [height, width, channel] as a data: URI whose longer side is at most `side`, and (height, width).

    Three channels and more are shown as red, green, blue; fewer by their first. Numbers that are no pixels run from
    black at the least to white at the greatest.
    """
    shown = image[..., :_COLORS] if image.shape[-1] >= _COLORS else image[..., :1]
    if shown.dtype in (np.uint8, np.uint16):
        pixels = scale_depth(np.ascontiguousarray(shown), "uint8")
    else:
        pixels = spread_out(shown)
    height, width, channels = pixels.shape
    size = thumbnail_size((height, width), side)
    if size != (height, width):
        pixels = np.asarray(cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA), np.uint8)
    return picture_uri(pixels.reshape(*size, channels)), (height, width)


def spread_out(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Any numbers as uint8, from the least to the greatest that is finite."""
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    scaled = (np.nan_to_num(numbers, nan=low, posinf=high, neginf=low) - low) * (255 / max(high - low, 1e-12))
    return np.rint(scaled).astype(np.uint8)


def _over_checks(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Colors with alpha over a gray checkered ground."""
    rows, columns = (np.arange(length) // 8 for length in pixels.shape[:2])
    ground = np.where((rows[:, None] + columns) % 2, 205, 235)[..., None]
    alpha = pixels[..., 3:].astype(np.uint32)
    blended = (pixels[..., :3] * alpha + ground * (255 - alpha) + 127) // 255
    return np.ascontiguousarray(blended, np.uint8)
