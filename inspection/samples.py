"""Records that a report shows: their choice, and their pictures before and after the conversion."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_files import DatasetFiles
from halofeed.inspection.planes import Display, Plane, ShownVolume, center_of, cut_planes
from halofeed.inspection.record_words import KindWords, kind_words, task_words
from halofeed.inspection.scan_objects import StoredObjects
from halofeed.inspection.stored_records import (
    ClassCounts,
    StoredShard,
    affine_of,
    array_of,
    class_counts,
    extent_of,
    integer_of,
    label_map,
    orientation_of,
    shown_classes,
    spacing_of,
    stored_image,
    text_of,
)
from halofeed.inspection.thumbnails import overlay, thumbnail, thumbnail_size
from halofeed.loader.contact_sheet import contact_sheet, shown_frames
from halofeed.pipelines.source_registry import SourceLocations
from halofeed.prep.formats.clip.clip_formats import open_clip
from halofeed.prep.formats.clip.frame_choice import choose_frames
from halofeed.prep.formats.clip.opened_clip import FrameOptions
from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.prep.formats.picture.image import apply_orientation
from halofeed.prep.geometry.resize import apply_affine, apply_to_boxes, displayed_to_file
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles, SourceFiles
from halofeed.schemas import keys
from halofeed.schemas.limits import SIDE
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.tfexample import Decoded
from halofeed.system.addresses import is_remote
from halofeed.system.errors import CorruptFileError, SourceError, UsageError

CANDIDATES_PER_SPLIT = 1000
"""Records per split whose labels and sizes are read to choose from; evenly spaced over the split."""
MAX_OBJECTS = 10_000
"""Most boxes of one record that are counted and drawn."""
_CHOICE_KEYS = frozenset(
    {
        keys.CLASS_LABEL,
        keys.OBJECT_CLASS_LABEL,
        keys.TRANSFORM,
        keys.LABELLED,
        keys.DEPTH,
        keys.EXTENT,
        keys.SPACING_MM,
        *keys.SIDES,
        *keys.UNPADDED_SIDES,
        *keys.SOURCE_SIDES,
    }
)
_LONGEST_NAME = 4096
# EXIF orientations 6 and 8 undo each other; every other one undoes itself.
_TURN_BACK = {6: 8, 8: 6}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Properties of a record that need no decoding of its picture.

    Args:
        split, number: position in the data set, as in `split:number`.
        shard, row: the shard and the number of the record within it.
        labels: classes of its first `MAX_OBJECTS` boxes, or its class or classes.
        padding: share of the stored pixels that is padding.
        elongation: |log2(width / height)| of the source.
        orientation: EXIF orientation between the annotations and the picture, 1 to 8.
        labelled: False if a segmentation record has no label.
        anisotropy: largest spacing of a volume over its smallest.
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


def find_candidates(folder: Path | DatasetFiles, manifest: Manifest) -> list[Candidate]:
    """Read the small features of evenly spaced records of each split."""
    found = []
    for split, content in manifest.splits.items():
        step = max(1, math.ceil(content.records / CANDIDATES_PER_SPLIT))
        first = 0
        for shard in content.shards:
            # The multiples of `step` over the whole split.
            rows = range(-first % step, shard.records, step)
            if rows:
                stored = StoredShard(folder, shard)
                for row in rows:
                    features = stored.small_features(row, _CHOICE_KEYS)
                    found.append(_candidate(features, split, first + row, shard, row))
            first += shard.records
    return found


def choose_samples(
    candidates: Sequence[Candidate], count: int, *, detection: bool
) -> list[tuple[Candidate, str | None]]:
    """Choose the records to show: typical ones, spread over splits and classes, then unusual ones.

    Up to half of the records are unusual. The same candidates always give the same choice.

    Args:
        candidates: records in the data set's order.
        count: most records to choose.
        detection: whether records have boxes, so that a record with the most and one without are shown.

    Returns:
        each record with the reason why it is unusual; None for a typical one.
    """
    unusual: dict[tuple[str, int], tuple[Candidate, str]] = {}
    for candidate, reason in _unusual(candidates, detection):
        # Half of the records are typical ones, by which a reader judges the others.
        if len(unusual) < count // 2:
            unusual.setdefault((candidate.split, candidate.number), (candidate, reason))
    left = [item for item in candidates if (item.split, item.number) not in unusual]
    splits: Counter[str] = Counter()
    labels: Counter[int] = Counter()
    typical: list[tuple[Candidate, str | None]] = []
    while left and len(typical) < count - len(unusual):
        # The split and the rarest class with the fewest records so far, then new classes, then the order.
        best = min(
            range(len(left)),
            key=lambda at: (
                splits[left[at].split],
                min((labels[label] for label in left[at].labels), default=len(typical)),
                -len(set(left[at].labels) - set(labels)),
                at,
            ),
        )
        chosen = left.pop(best)
        splits[chosen.split] += 1
        labels.update(set(chosen.labels))
        typical.append((chosen, None))
    return [*typical, *unusual.values()]


def _unusual(candidates: Sequence[Candidate], detection: bool) -> list[tuple[Candidate, str]]:
    """Return unusual records with the reason, the most interesting first; a record may occur several times."""
    if not candidates:
        return []
    # `max` and `min` return the first of equal records.
    crowded = max(candidates, key=lambda item: len(item.labels))
    padded = max(candidates, key=lambda item: item.padding)
    longest = max(candidates, key=lambda item: item.elongation)
    flattest = max(candidates, key=lambda item: item.anisotropy)
    unlabelled = min(candidates, key=lambda item: item.labelled)
    empty = min(candidates, key=lambda item: len(item.labels))
    first_of_orientation: dict[int, Candidate] = {}
    for item in candidates:
        first_of_orientation.setdefault(item.orientation, item)
    first_of_orientation.pop(1, None)
    turned = [(True, item, f"EXIF orientation {at}") for at, item in first_of_orientation.items()]
    rows = [
        (detection, crowded, f"most boxes: {len(crowded.labels)}"),
        *turned[:1],
        (padded.padding >= 0.05, padded, f"most padding: {100 * padded.padding:.0f} %"),
        (longest.elongation >= 1, longest, f"longest sides: {2**longest.elongation:.1f} to 1"),
        (not unlabelled.labelled, unlabelled, "no label: for prediction"),
        (
            flattest.anisotropy >= 3,
            flattest,
            f"thickest slices: {flattest.anisotropy:.1f} times the spacing within",
        ),
        (detection and not empty.labels, empty, "no boxes"),
        *turned[1:],
    ]
    return [(candidate, reason) for is_unusual, candidate, reason in rows if is_unusual]


def clamped_side(features: Decoded, key: str) -> int:
    """Return the integer of a key, limited to a valid side length."""
    return min(max(1, integer_of(features, key) or 1), SIDE)


def _candidate(features: Decoded, split: str, number: int, shard: Shard, row: int) -> Candidate:
    stored, unpadded, source = (
        [clamped_side(features, key) for key in sides]
        for sides in (keys.SIDES, keys.UNPADDED_SIDES, keys.SOURCE_SIDES)
    )
    objects = features.get(keys.OBJECT_CLASS_LABEL)
    labels = features.get(keys.CLASS_LABEL, []) if objects is None else objects
    padding = 1 - math.prod(unpadded) / math.prod(stored)
    elongation = abs(math.log2(source[1] / source[0]))
    extent, spacing = extent_of(features), spacing_of(features)
    # Volumes may be padded at both ends of an axis, so their records state an extent.
    if extent is not None:
        depth = clamped_side(features, keys.DEPTH)
        padding = 1 - math.prod((extent[1] - extent[0]).tolist()) / (depth * math.prod(stored))
    return Candidate(
        split=split,
        number=number,
        shard=shard,
        row=row,
        labels=tuple(labels[:MAX_OBJECTS].tolist()) if isinstance(labels, np.ndarray) else (),
        padding=padding,
        elongation=elongation,
        orientation=_orientation_of(features.get(keys.TRANSFORM)),
        labelled=integer_of(features, keys.LABELLED) != 0,
        anisotropy=float(spacing.max() / spacing.min())
        if spacing is not None and (spacing > 0).all()
        else 1.0,
    )


def _orientation_of(transform: Any) -> int:
    """Return the EXIF orientation of a stored transform; each orientation has its own signs in the matrix."""
    if isinstance(transform, np.ndarray) and transform.shape == (6,):
        for orientation in range(1, 9):
            turn = displayed_to_file(orientation, (1, 1))
            if (np.sign(transform.reshape(2, 3)[:, :2]) == turn.reshape(2, 3)[:, :2]).all():
                return orientation
    return 1


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
`load_scan` shows scans, without their sources."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A thumbnail with its boxes and classes.

    Args:
        uri: data: URI of the thumbnail.
        size: (height, width) in pixels of the full picture.
        boxes: float64 [box, 4], ymin, xmin, ymax, xmax as shares of the sides.
        corners: float64 [box, 4, 2], y and x of the corners of each object likewise; None if the data set has none.
        regions: float64 [region, 4], ignored regions likewise.
        content: (height, width) shares that are not padding.
        tile: ymin, xmin, ymax, xmax of the record's tile as shares of the source's sides; None if it is no tile.
        mask: data: URI of the classes to lay over the thumbnail, if any.
        shape: (frame, height, width) of a clip whose contact sheet is shown; else ().
    """

    uri: str
    size: tuple[int, int]
    boxes: NDArray[np.float64]
    corners: NDArray[np.float64] | None = None
    regions: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    content: tuple[float, float] = (1.0, 1.0)
    tile: tuple[float, ...] | None = None
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
    drawn = draw_stored(features, manifest, folder, ranks or {}, side)
    stored = drawn.picture
    if drawn.voxels is not None:
        # The classes of a segmentation are those of its label map.
        candidate = replace(candidate, labels=tuple(filter(None, drawn.voxels)))
    before, problem = None, None
    notes: tuple[str, ...] = ()
    if sources is not None:
        try:
            read = _read_source(sources, source, features, manifest, side)
            before = _before(read, features, stored, candidate.orientation, side)
            notes = read.notes
            if read.digest and shard.index.inputs.get(source) not in (None, "", read.digest):
                problem = "the source file has changed since the conversion"
        except SourceError as error:
            problem = f"the source picture cannot be shown: {error}"
    return Sample(
        candidate=candidate,
        reason=reason,
        source=source,
        stored=stored,
        before=before,
        problem=problem,
        notes=notes,
    )


@dataclass(frozen=True, kw_only=True)
class StoredDrawing:
    """A record as a picture.

    Args:
        picture: the picture with its boxes and classes.
        voxels: pixels of each class of a label map; None for a record without one.
    """

    picture: Picture
    voxels: Mapping[int, int] | None


def draw_stored(
    features: Decoded,
    manifest: Manifest,
    folder: Path | DatasetFiles,
    ranks: Mapping[int, int],
    side: int,
) -> StoredDrawing:
    """Draw what a record of a picture or a clip holds.

    Args:
        folder: folder of the data set, for messages.
        ranks: color number of each class of a label map.
        side: longer side of the thumbnail, in pixels.

    Raises:
        CorruptFileError: the record is not what was written.
    """
    source = (text_of(features, keys.FILENAME) or "")[:_LONGEST_NAME]
    boxes = _boxes_of(features, source, folder)
    pixels = stored_image(features, manifest)
    if pixels is None:
        field = manifest.field("image")
        expected = f"{field.dtype} {list(field.shape)} stored as {field.encoding}"
        raise CorruptFileError(
            f"{source}: image/encoded: expected {expected}; run `halofeed verify {folder}`"
        )
    label = label_map(features, manifest) if integer_of(features, keys.LABELLED) != 0 else None
    voxels = None if label is None else class_counts(label, manifest).voxels
    classes = None if label is None else shown_classes(label, manifest)
    picture = _stored_picture(features, kind_words(manifest), pixels, classes, boxes, ranks, side)
    corners = object_corners_of(features, len(boxes))
    return StoredDrawing(
        picture=replace(picture, corners=corners, regions=regions_of(features)), voxels=voxels
    )


def _stored_picture(
    features: Decoded,
    kind: KindWords,
    pixels: NDArray[Any],
    classes: NDArray[Any] | None,
    boxes: NDArray[np.float64],
    ranks: Mapping[int, int],
    side: int,
) -> Picture:
    """Draw the pixels of a record, with its classes and boxes to lay over them."""
    part, content = _shown_frames(features, kind, pixels.shape[:-1])
    flat = kind.flat(pixels[part])
    size = (flat.shape[0], flat.shape[1])
    mask = None
    if classes is not None:
        mask = overlay(kind.flat_classes(classes[part]), ranks, thumbnail_size(size, side))
    return Picture(
        uri=thumbnail(flat, side),
        size=size,
        boxes=boxes,
        content=content,
        mask=mask,
        shape=pixels.shape[:-1],
    )


def _shown_frames(
    features: Decoded, kind: KindWords, shape: tuple[int, ...]
) -> tuple[Any, tuple[float, float]]:
    """Return the part of a stored image that is shown, and the shares of its sides that are no padding."""
    height, width = shape[-2:]
    rows, columns = (
        min(max(1, integer_of(features, key) or most), most)
        for key, most in zip(keys.UNPADDED_SIDES, (height, width), strict=True)
    )
    # A contact sheet shows frames without padding.
    if kind.is_sheet:
        return np.s_[:, :rows, :columns], (1.0, 1.0)
    return np.s_[:], (rows / height, columns / width)


def draw_label(
    features: Decoded,
    manifest: Manifest,
    label: NDArray[Any],
    ranks: Mapping[int, int],
    size: tuple[int, int],
    side: int,
) -> str | None:
    """Draw other classes than the stored ones over the picture of a record, such as predicted ones.

    Args:
        features: values of the record.
        manifest: manifest of the data set.
        label: class of each pixel, on the grid of the stored image.
        ranks: color number of each class.
        size: (height, width) of the record's picture.
        side: longer side of its thumbnail, in pixels.

    Returns:
        a data: URI; None if all is background.
    """
    kind = kind_words(manifest)
    part, _ = _shown_frames(features, kind, label.shape)
    return overlay(kind.flat_classes(label[part]), ranks, thumbnail_size(size, side))


def _read_source(
    sources: SourceFiles, source: str, features: Decoded, manifest: Manifest, side: int
) -> SourcePicture:
    """Read the source picture that a record names; SourceError if its name leads out of the sources' folder."""
    _check_inside(source)
    tile = integer_of(features, keys.TILE) or 0
    return SOURCES[manifest.kind.name](sources, source, tile, manifest, side)


def _check_inside(source: str) -> None:
    """Raise SourceError if a name leads out of the sources' folder.

    A data set may come from a stranger, and a page must not show other files of the reader.
    """
    if source.startswith("/") or ".." in source.split("/") or "\0" in source:
        raise SourceError("read", "the record names a file outside of the sources' folder", source)


def reject_thumbnail(sources: SourceFiles, source: str, manifest: Manifest, side: int) -> str | None:
    """Return a data: URI of the picture of a rejected input; None where it cannot be read as a picture.

    Args:
        sources: folder of the source pictures.
        source: name of the input, relative to that folder.
        manifest: manifest of the data set.
        side: longer side in pixels.
    """
    if manifest.kind.name != "picture" or not source:
        return None
    try:
        _check_inside(source)
        return thumbnail(_read_picture(sources, source, 0, manifest, side).pixels, side)
    except (SourceError, OSError):
        return None


def _boxes_of(features: Decoded, place: str, folder: Path | DatasetFiles) -> NDArray[np.float64]:
    """Return the boxes as float64 [box, 4], [0, 4] for a record without boxes."""
    corners = [features.get(key, np.zeros(0)) for key in keys.BOX_CORNERS]
    numbers = [value for value in corners if isinstance(value, np.ndarray)]
    if len(numbers) < len(corners) or len({len(value) for value in numbers}) > 1:
        raise CorruptFileError(
            f"{place}: expected four lists of box sides of one length; run `halofeed verify {folder}`"
        )
    return np.stack([value[:MAX_OBJECTS].astype(np.float64) for value in numbers], axis=-1)


def regions_of(features: Decoded) -> NDArray[np.float64]:
    """Return the ignored regions of a record as float64 [region, 4]; none where their lists do not fit together."""
    numbers = [value for key in keys.IGNORED_CORNERS if isinstance(value := features.get(key), np.ndarray)]
    # `verify` reports lists that are missing or of another length.
    if len(numbers) < len(keys.IGNORED_CORNERS) or len({len(value) for value in numbers}) > 1:
        return np.zeros((0, 4))
    return np.stack([value[:MAX_OBJECTS].astype(np.float64) for value in numbers], axis=-1)


def object_corners_of(features: Decoded, boxes: int) -> NDArray[np.float64] | None:
    """Return the corners of objects as float64 [box, 4, 2]; None without corners of each box."""
    numbers = [value for key in keys.CORNER_POINTS if isinstance(value := features.get(key), np.ndarray)]
    lists = [value[:MAX_OBJECTS].astype(np.float64) for value in numbers]
    # `verify` reports lists of another length.
    if len(lists) < len(keys.CORNER_POINTS) or any(len(one) != boxes for one in lists):
        return None
    return np.stack(lists, axis=-1).reshape(-1, 4, 2)


def _before(
    source: SourcePicture, features: Decoded, stored: Picture, orientation: int, side: int
) -> Picture:
    """Return the source in the orientation of its annotations, with the boxes of the `stored` picture mapped to it."""
    # The frames of a contact sheet have another size, so boxes would not fit.
    if source.shape:
        size = (source.pixels.shape[0], source.pixels.shape[1])
        uri = thumbnail(source.pixels, side)
        return Picture(uri=uri, size=size, boxes=np.zeros((0, 4)), shape=source.shape)
    pixels = apply_orientation(source.pixels, _TURN_BACK.get(orientation, orientation))
    height, width = (clamped_side(features, key) for key in keys.SOURCE_SIDES)
    transform = features.get(keys.TRANSFORM)
    if not isinstance(transform, np.ndarray) or transform.shape != (6,) or not np.isfinite(transform).all():
        raise SourceError("boxes", "the record does not say how it was transformed")
    to_source = transform.astype(np.float64)
    shown = np.concatenate([stored.boxes, stored.regions]) * np.array([*stored.size, *stored.size])
    try:
        mapped = apply_to_boxes(to_source, shown) if len(shown) else shown
    except UsageError as error:
        raise SourceError(
            "boxes", "the boxes cannot be mapped through the record's transform", str(error)
        ) from error
    sides = np.array([height, width, height, width], np.float64)
    tile = None
    if keys.TILE_ORIGIN in features:
        # Without a frame, the objects outside of the tile seem to lack their boxes.
        content = np.array([[0.0, 0.0, *np.multiply(stored.size, stored.content)]])
        tile = tuple(np.clip(apply_to_boxes(to_source, content)[0] / sides, 0, 1).tolist())
    return Picture(
        uri=thumbnail(pixels, side),
        size=(height, width),
        tile=tile,
        boxes=mapped[: len(stored.boxes)] / sides,
        regions=mapped[len(stored.boxes) :] / sides,
        corners=None
        if stored.corners is None
        else apply_affine(to_source, stored.corners * np.array(stored.size)) / np.array([height, width]),
    )


@dataclass(frozen=True, kw_only=True)
class ScanSample:
    """One record to show: its planes, and the facts for its caption."""

    candidate: Candidate
    reason: str | None
    source: str
    planes: list[Plane]
    classes: ClassCounts
    spacing_mm: tuple[float, ...]
    source_shape: tuple[int, ...]
    source_spacing_mm: tuple[float, ...]
    tile: int


def load_scan(
    folder: Path | DatasetFiles,
    manifest: Manifest,
    chosen: tuple[Candidate, str | None],
    display: Display,
    ranks: Mapping[int, int],
    side: int,
) -> ScanSample:
    """Read one record and cut planes through the centroid of its label, or through its middle; see `cut_planes`.

    Raises:
        CorruptFileError: the record is not what was written.
    """
    candidate, reason = chosen
    features = StoredShard(folder, candidate.shard).features(candidate.row)
    source = text_of(features, keys.FILENAME) or ""
    fix = f"run `halofeed verify {folder}`"
    scan, has_boxes = scan_of(features, manifest), task_words(manifest).has_boxes
    objects = StoredObjects.of(features) if has_boxes else None
    if scan is None or (objects if has_boxes else scan.label) is None:
        raise CorruptFileError(
            f"{source}: the record is not a volume with {'boxes' if has_boxes else 'a label'}; {fix}"
        )
    if (scan.extent[1] <= scan.extent[0]).any():
        raise CorruptFileError(f"{source}: image/extent is empty; {fix}")
    planes = cut_planes(
        ShownVolume(
            voxels=scan.volume,
            ranges=tuple(slice(int(first), int(last)) for first, last in zip(*scan.extent, strict=True)),
            steps_mm=scan.steps_mm,
            directions=scan.directions,
        ),
        [objects.outlines if objects else lambda at: shown_classes(scan.label[at], manifest)],
        objects.middle(scan.extent) if objects else center_of(scan.label, scan.extent),
        display,
        ranks,
        side,
    )
    source_affine = affine_of(features, keys.SOURCE_AFFINE)
    shape = array_of(features, keys.SOURCE_SHAPE, "i")
    lengths = np.zeros(0) if source_affine is None else np.linalg.norm(source_affine[:3, :3], axis=0)
    return ScanSample(
        candidate=candidate,
        reason=reason,
        source=source,
        planes=planes,
        classes=objects.counts if objects else class_counts(scan.label, manifest),
        spacing_mm=tuple(scan.spacing_mm.tolist()),
        source_shape=() if shape is None else tuple(shape.tolist()),
        source_spacing_mm=tuple(lengths.tolist()),
        tile=integer_of(features, keys.TILE) or 0,
    )


@dataclass(frozen=True, kw_only=True)
class RecordScan:
    """The arrays of a volume's record; the values of its affine and spacing may be anything.

    `label` is [depth, height, width], with class ids or sets; None in a record with boxes.
    """

    volume: NDArray[Any]
    label: Any
    affine: NDArray[np.float64]
    extent: NDArray[np.int64]
    spacing_mm: NDArray[np.float32]

    @property
    def steps_mm(self) -> list[float]:
        """Return the distance between voxels along each axis; 1 where it is no distance, so that planes have a size."""
        return [float(value) if np.isfinite(value) and value > 0 else 1.0 for value in self.spacing_mm]

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """Return the patient's directions at the ends of each axis, "?" if they are unknown."""
        return orientation_of(self.affine) if np.isfinite(self.affine).all() else (("?", "?"),) * 3


def scan_of(features: Decoded, manifest: Manifest) -> RecordScan | None:
    """Return the arrays of a volume's record; None if any is missing or malformed."""
    found: dict[str, Any] = {
        "volume": stored_image(features, manifest),
        "label": label_map(features, manifest),
        "affine": affine_of(features),
        "extent": extent_of(features),
        "spacing_mm": spacing_of(features),
    }
    missing = [name for name, value in found.items() if value is None and name != "label"]
    return None if missing else RecordScan(**found)
