"""Thumbnails of records before and after the conversion: the source picture, and what is stored."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError, SourceError, UsageError
from halofeed.inspection.candidates import MAX_OBJECTS, Candidate, clamped_side
from halofeed.inspection.dataset_files import DatasetFiles
from halofeed.inspection.overlay import overlay, png_uri
from halofeed.inspection.record_words import kind_words
from halofeed.inspection.stored_records import (
    class_counts,
    integer_of,
    label_map,
    shown_classes,
    stored_image,
    text_of,
)
from halofeed.inspection.stored_shard import StoredShard
from halofeed.loader.picture import contact_sheet, shown_frames
from halofeed.pipelines.source_registry import SourceLocations
from halofeed.prep.formats.clip.clip import FrameOptions
from halofeed.prep.formats.clip.frame_choice import choose_frames
from halofeed.prep.formats.clip.table import open_clip
from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.prep.formats.picture.pixels import apply_orientation, scale_depth
from halofeed.prep.geometry.resize import apply_to_boxes
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles, SourceFiles
from halofeed.prep.voxels.encode import encode_jpeg
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded
from halofeed.system.addresses import is_remote

_FULL_SIZE_PICTURES = 24
"""Most pictures at full size; more are drawn smaller, so that a page stays below 5 MB."""
_JPEG_QUALITY = 84
_LONGEST_NAME = 4096
_COLORS = 3
_EXACT_PIXELS = 96 * 96
"""Pictures up to this many pixels are shown as PNG, because blocks of JPEG would be visible."""
_TURN_BACK = {6: 8, 8: 6}


@dataclass(frozen=True, kw_only=True)
class SourcePicture:
    """A source as a picture: an image, or a contact sheet of the frames of a clip.

    Args:
        pixels: [height, width, 1, 3 or 4], upright.
        shape: (frame, height, width) of the source of a contact sheet; () for an image.
        digest: SHA-256 of the file if the index has one to compare; else "".
        notes: changes to the pixels during reading, such as a conversion of colors.
    """

    pixels: NDArray[Any]
    shape: tuple[int, ...] = ()
    digest: str = ""
    notes: tuple[str, ...] = ()


def open_source_files(origin: SourceLocations | None, named: str | None) -> tuple[SourceFiles | None, str]:
    """Open the folder of the source pictures, or return the reason why they are not shown.

    A data set of someone else must not select a folder of this machine: the report would show the reader's files.

    Args:
        origin: recorded place of the sources, if this user converted the data set on this machine.
        named: folder that the user names.

    Raises:
        UsageError: the folder that the user names does not exist.
    """
    if named is not None:
        return LocalFiles(named), ""
    if origin is None:
        return None, (
            "A data set does not name the folder of its source pictures, and you did not convert this one at this path"
        )
    if is_remote(origin.images):
        return None, f"The source pictures are at {origin.images}, and reports read local folders only"
    if not Path(origin.images).is_dir():
        return None, f"The source pictures are no longer at {origin.images}"
    return LocalFiles(origin.images), ""


def thumbnail_side(pictures: int, largest: int, smallest: int) -> int:
    """Return the longer side of each of `pictures` thumbnails; many thumbnails are smaller, to keep the page small."""
    shrunk = math.sqrt(min(1.0, _FULL_SIZE_PICTURES / max(1, pictures)))
    return max(smallest, round(largest * shrunk))


def thumbnail_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return the (height, width) of a thumbnail whose longer side is at most `side`."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _read_picture(sources: SourceFiles, path: str, tile: int, manifest: Manifest, side: int) -> SourcePicture:
    data = sources.read(path)
    most = int(manifest.recipe.get("max_pixels", ReadOptions.max_pixels))
    options = ReadOptions(channels=4, max_pixels=most)
    image = read_image(data, options, lambda height, width: thumbnail_size((height, width), side))
    # Notes on this thumbnail only are left out: they do not apply to the conversion.
    ignored = ["opaque alpha added", "decoded at"]
    ignored += ["16 bit scaled"] if manifest.recipe.get("dtype") == "uint16" else []
    notes = tuple(note for note in image.notes if not note.startswith(tuple(ignored)))
    return SourcePicture(pixels=image.pixels, digest=hashlib.sha256(data).hexdigest(), notes=notes)


def _read_frames(sources: SourceFiles, path: str, tile: int, manifest: Manifest, side: int) -> SourcePicture:
    try:
        recipe = Recipe.from_json(manifest.recipe)
        options = FrameOptions(
            picture=ReadOptions(max_pixels=recipe.max_pixels),
            frame_rate=recipe.folder_frame_rate,
            incomplete=recipe.incomplete_clips,
        )
        members = () if sources.size(path) is not None else sources.files_in(path)
        clip = open_clip(sources, path, members, options)
        windows = choose_frames(clip.frames, clip.times_s, recipe.frame_choice()).windows
        window = windows[min(tile, len(windows) - 1)]
        wanted = window[shown_frames(len(window))]
        read = dict(zip(np.unique(wanted).tolist(), clip.read(wanted), strict=True))
    except UsageError as error:
        raise SourceError("read", "this version of halofeed cannot use the recipe", str(error)) from error
    sheet = contact_sheet(np.stack([read[index] for index in wanted.tolist()]))
    return SourcePicture(pixels=sheet, shape=(clip.frames, clip.height, clip.width))


SOURCES: dict[str, Callable[[SourceFiles, str, int, Manifest, int], SourcePicture]] = {
    "picture": _read_picture,
    "clip": _read_frames,
}
"""Reader of a source for each kind of image: (files, path, tile, manifest, longer side of the thumbnail); SourceError.
`halofeed.inspection.planes` shows scans, without their sources."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A thumbnail with its boxes and classes.

    Args:
        uri: data: URI of the thumbnail.
        size: (height, width) in pixels of the full picture.
        boxes: float64 [box, 4], ymin, xmin, ymax, xmax as shares of the sides.
        content: (height, width) shares that are not padding.
        mask: data: URI of the classes to lay over the thumbnail, if any.
        shape: (frame, height, width) of a clip whose contact sheet is shown; else ().
    """

    uri: str
    size: tuple[int, int]
    boxes: NDArray[np.float64]
    content: tuple[float, float] = (1.0, 1.0)
    mask: str | None = None
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One record to show.

    Args:
        reason: why the record is unusual; None for a typical one.
        source: name of the source file, as the record gives it.
        stored: what the record holds.
        before: the source picture; None if it cannot be shown.
        problem: why the source picture cannot be shown or trusted.
        notes: notes of `SourcePicture`.
    """

    candidate: Candidate
    reason: str | None
    source: str
    stored: Picture
    before: Picture | None
    problem: str | None
    notes: tuple[str, ...]


def load_sample(
    folder: Path | DatasetFiles,
    manifest: Manifest,
    chosen: tuple[Candidate, str | None],
    sources: SourceFiles | None,
    side: int,
    ranks: Mapping[int, int] | None = None,
) -> Sample:
    """Read one record and its source picture.

    Args:
        chosen: the record, and why it is unusual.
        sources: folder of the source pictures; None to show none.
        side: longer side of the thumbnails, in pixels.
        ranks: color number of each class of a segmentation.

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
        raise CorruptFileError(
            f"{source}: image/encoded: expected {expected}; run `halofeed verify {folder}`"
        )
    kind = kind_words(manifest)
    shape, height, width = pixels.shape[:-1], *pixels.shape[-3:-1]
    rows, columns = (
        min(max(1, integer_of(features, key) or most), most)
        for key, most in zip(keys.UNPADDED_SIDES, (height, width), strict=True)
    )
    # A contact sheet shows frames without padding.
    shown = np.s_[:, :rows, :columns] if kind.is_sheet else np.s_[:]
    content = (1.0, 1.0) if kind.is_sheet else (rows / height, columns / width)
    pixels = kind.flat(pixels[shown])
    size = (pixels.shape[0], pixels.shape[1])
    label = label_map(features, manifest) if candidate.labelled else None
    mask = None
    if label is not None:
        candidate = replace(candidate, labels=tuple(filter(None, class_counts(label, manifest).voxels)))
        classes = kind.flat_classes(shown_classes(label, manifest)[shown])
        mask = overlay(classes, ranks or {}, thumbnail_size(size, side))
    before, problem = None, None
    notes: tuple[str, ...] = ()
    if sources is not None:
        try:
            if source.startswith("/") or ".." in source.split("/") or "\0" in source:
                raise SourceError("read", "the record names a file outside of the sources' folder", source)
            tile = integer_of(features, keys.TILE) or 0
            read = SOURCES[manifest.kind.name](sources, source, tile, manifest, side)
            before = _before(read, features, boxes * np.array([*size, *size]), candidate.orientation, side)
            notes = read.notes
            if read.digest and shard.index.inputs.get(source) not in (None, "", read.digest):
                problem = "the source file has changed since the conversion"
        except SourceError as error:
            problem = f"the source picture cannot be shown: {error}"
    return Sample(
        candidate=candidate,
        reason=reason,
        source=source,
        stored=Picture(
            uri=_thumbnail(pixels, side), size=size, boxes=boxes, content=content, mask=mask, shape=shape
        ),
        before=before,
        problem=problem,
        notes=notes,
    )


def _boxes_of(features: Decoded, place: str, folder: Path | DatasetFiles) -> NDArray[np.float64]:
    """Return the boxes as float64 [box, 4], [0, 4] for a record without boxes."""
    corners = [features.get(key, np.zeros(0)) for key in keys.BOX_CORNERS]
    numbers = [value for value in corners if isinstance(value, np.ndarray)]
    if len(numbers) < len(corners) or len({len(value) for value in numbers}) > 1:
        raise CorruptFileError(
            f"{place}: expected four lists of box sides of one length; run `halofeed verify {folder}`"
        )
    return np.stack([value[:MAX_OBJECTS].astype(np.float64) for value in numbers], axis=-1)


def _before(
    source: SourcePicture, features: Decoded, boxes: NDArray[np.float64], orientation: int, side: int
) -> Picture:
    """Return the source in the orientation of its annotations, with the stored `boxes` in pixels mapped to it."""
    if source.shape:
        size = (source.pixels.shape[0], source.pixels.shape[1])
        uri = _thumbnail(source.pixels, side)
        return Picture(uri=uri, size=size, boxes=np.zeros((0, 4)), shape=source.shape)
    pixels = apply_orientation(source.pixels, _TURN_BACK.get(orientation, orientation))
    height, width = (clamped_side(features, key) for key in keys.SOURCE_SIDES)
    transform = features.get(keys.TRANSFORM)
    if not isinstance(transform, np.ndarray) or transform.shape != (6,) or not np.isfinite(transform).all():
        raise SourceError("boxes", "the record does not say how it was transformed")
    try:
        mapped = apply_to_boxes(transform.astype(np.float64), boxes) if len(boxes) else boxes
    except UsageError as error:
        raise SourceError(
            "boxes", "the boxes cannot be mapped through the record's transform", str(error)
        ) from error
    return Picture(
        uri=_thumbnail(pixels, side),
        size=(height, width),
        boxes=mapped / np.array([height, width, height, width], np.float64),
    )


def _thumbnail(pixels: NDArray[Any], side: int) -> str:
    """Encode pixels [height, width, 1, 3 or 4] as a data: URI whose longer side is at most `side`."""
    channels = pixels.shape[2]
    small = scale_depth(np.ascontiguousarray(pixels), "uint8")
    size = thumbnail_size((pixels.shape[0], pixels.shape[1]), side)
    if size != pixels.shape[:2]:
        small = cv2.resize(small, size[::-1], interpolation=cv2.INTER_AREA).reshape(*size, channels)
    if channels == 4:
        small = _over_checkerboard(small)
    return picture_uri(small)


def picture_uri(small: NDArray[np.uint8]) -> str:
    """Encode uint8 pixels [height, width, 1 or 3] as a data: URI."""
    if small.shape[0] * small.shape[1] <= _EXACT_PIXELS:
        return png_uri(small)
    return f"data:image/jpeg;base64,{base64.b64encode(encode_jpeg(small, _JPEG_QUALITY)).decode()}"


def image_thumbnail(image: NDArray[Any], side: int) -> tuple[str, tuple[int, int]]:
    """Return an image [height, width, channel] as a data: URI whose longer side is at most `side`, and its size.

    Three channels and more are shown as red, green and blue; of fewer, the first is shown. Numbers other than uint8
    and uint16 are scaled from black at the least to white at the greatest.
    """
    shown = image[..., :_COLORS] if image.shape[-1] >= _COLORS else image[..., :1]
    pixels = shown if shown.dtype in (np.uint8, np.uint16) else scale_to_uint8(shown)
    return _thumbnail(pixels, side), (pixels.shape[0], pixels.shape[1])


def scale_to_uint8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Scale numbers to uint8, from the least to the greatest finite one."""
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    scaled = (np.nan_to_num(numbers, nan=low, posinf=high, neginf=low) - low) * (255 / max(high - low, 1e-12))
    return np.rint(scaled).astype(np.uint8)


def _over_checkerboard(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blend colors with alpha over a gray checkerboard."""
    rows, columns = (np.arange(length) // 8 for length in pixels.shape[:2])
    ground = np.where((rows[:, None] + columns) % 2, 205, 235)[..., None]
    alpha = pixels[..., 3:].astype(np.uint32)
    blended = (pixels[..., :3] * alpha + ground * (255 - alpha) + 127) // 255
    return np.ascontiguousarray(blended, np.uint8)
