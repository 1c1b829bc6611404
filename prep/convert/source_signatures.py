"""Signatures of sources before they become records, by which `--duplicates` finds copies.

They are made by the functions that sign records (`halofeed.prep.voxels.signatures`), but of the complete picture, scan
or clip, before it is resized, cropped or cut into tiles and windows. A JPEG is decoded at the smallest scale that
suffices.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.picture_records import frame_in_file, with_frame
from halofeed.prep.formats.picture import Footprint, ReadOptions, read_image
from halofeed.prep.formats.picture.picture_formats import open_picture
from halofeed.prep.options.option import copy_options
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.same_pixels import COMPARED_SIDE, Gray, to_compared
from halofeed.prep.voxels.signatures import sign_picture, sign_stack
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory

SIGNED_SIDE = 128
"""Least rows and columns of a decoded picture: 8 for each cell of a thumbnail, of which 4 rows are summed."""
_CLIP_FRAMES = 12
"""Frames of a clip that are decoded: as many as a signature reads."""
_SAME_PLACE = 0.15
_NO_OBJECT = "no object"
_CELLS, _OVERLAP = 8, 0.7
"""Cells along a side by which places of labels are compared, and the intersection over union of copies, as in
`halofeed review`."""
_SHOWN = 1e-4
"""Share of a label that one copy has and another one lacks, from which they differ: a lesion is small, and the copy
with it must not be left out silently. A speck of fewer pixels may be lost when a label image is resized."""
_MOST_COLORS = 4096
"""Values of a label picture; one with more is compressed with losses, and its bytes are compared."""


@dataclass(frozen=True, kw_only=True)
class SourceSignature:
    """Signature of a source.

    Args:
        words: as those of `ShardIndex.signatures`.
        pixels: pixels or voxels of the source; for a clip, those of a frame.
        content: digest of the file's bytes; "" for sources that are not one file.
    """

    words: tuple[int, ...]
    pixels: int
    content: str = ""


def sign_source(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory
) -> SourceSignature:
    """Return the signature of a source.

    Args:
        reserve: called with the number of bytes before pixels are decoded.

    Raises:
        SourceError: the source cannot be decoded.
    """
    return _SIGNERS[recipe.rules.kind.name](recipe, reference, files, reserve)


def gray_picture(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory
) -> Gray:
    """Return a picture for the comparison of its pixels; arguments and errors as for `sign_source`."""
    return to_compared(_read(recipe, reference, files, reserve, 2 * COMPARED_SIDE)[0])


def _read(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory, side: int
) -> tuple[NDArray[Any], tuple[int, int], str]:
    """Return pixels [row, column, channel] whose shorter side has about `side`, the full size, and a digest."""
    files = with_frame(recipe, reference, files, reserve)
    data = frame_in_file(reference, files) or files.read(reference.source)
    options = copy_options(ReadOptions, recipe, background=recipe.backdrop(), may_be_uint16=True)
    held = len(data) if isinstance(data, bytes) else data.byte_count

    def needed(height: int, width: int) -> tuple[int, int]:
        share = min(1.0, side / min(height, width))
        return math.ceil(height * share), math.ceil(width * share)

    def reserve_decoding(footprint: Footprint) -> None:
        reserve(held + footprint.peak_bytes)

    image = read_image(data, options, needed, reserve_decoding, frame=reference.frame or 0)
    top, left, bottom, right = (round(edge) for edge in image.extent)
    content = hashlib.blake2b(data, digest_size=16).hexdigest() if isinstance(data, bytes) else ""
    return image.pixels[top : max(bottom, top + 1), left : max(right, left + 1)], image.stored_size, content


def _sign_picture(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory
) -> SourceSignature:
    pixels, size, content = _read(recipe, reference, files, reserve, SIGNED_SIDE)
    words = sign_picture(np.ascontiguousarray(pixels), reference.origin, reference.group)
    return SourceSignature(words=words, pixels=math.prod(size), content=content)


def _sign_scan(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory
) -> SourceSignature:
    from halofeed.prep.formats.volume_formats import open_scan
    from halofeed.prep.geometry.orientation import plan_canonical
    from halofeed.prep.voxels.resample import apply_image

    members = reference.slices or reference.members
    scan = open_scan(files, reference.source, members, recipe.scan_options(reserve), reference.volume)
    voxels = math.prod(scan.grid.shape)
    reserve(scan.held_bytes + scan.read_bytes + voxels * scan.channels * np.dtype(scan.dtype).itemsize)
    upright = apply_image(plan_canonical(scan.grid), scan.read(), 0, spare=True)
    words = sign_stack(upright[..., 0], reference.origin, reference.group, str(upright.dtype))
    return SourceSignature(words=words, pixels=voxels)


def _sign_clip(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory
) -> SourceSignature:
    from halofeed.prep.formats.clip.clip_formats import open_clip
    from halofeed.prep.formats.clip.opened_clip import FrameOptions

    stored = {"channels": 3, "dtype": "uint8", "may_be_uint16": False}
    picture = copy_options(ReadOptions, recipe, background=recipe.backdrop(), **stored)
    options = FrameOptions(picture=picture, incomplete=recipe.incomplete_clips, reserve=reserve)
    clip = open_clip(files, reference.source, reference.members, options)
    reserve(clip.held_bytes + (_CLIP_FRAMES + 1) * clip.frame_bytes)
    at = (2 * np.arange(_CLIP_FRAMES) + 1) * clip.frames // (2 * _CLIP_FRAMES)
    read = dict(zip(np.unique(at).tolist(), clip.read(at), strict=True))
    words = sign_stack(np.stack([read[index] for index in at.tolist()]), reference.origin, reference.group)
    return SourceSignature(words=words, pixels=clip.height * clip.width)


_Sign = Callable[[Recipe, SourceExample, SourceFiles, ReserveMemory], SourceSignature]
_SIGNERS: dict[str, _Sign] = {"picture": _sign_picture, "volume": _sign_scan, "clip": _sign_clip}


# Labels ----------------------------------------------------------------------------------------------------------


def label_shares(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory
) -> Mapping[str, float]:
    """Return the share of the picture or scan that each value of its label files covers.

    A file that is no picture and no volume of classes, such as an RTSTRUCT, has one share of 1 by its bytes.
    """
    shares: dict[str, float] = defaultdict(float)
    named = [*reference.class_masks, *(("", path) for path in reference.masks)]
    for name, path in named:
        try:
            values = _label_values(recipe, reference, files, path, reserve)
        except SourceError:
            values = None
        if values is None:
            shares[f"{name}#{hashlib.blake2b(files.read(path), digest_size=16).hexdigest()}"] += 1.0
            continue
        found, counts = np.unique(values, return_counts=True)
        for value, count in zip(found.tolist(), counts.tolist(), strict=True):
            # The mask of one class has any value but 0 for it.
            if value:
                shares[name or str(value)] += count / values.size
    for name, runs in reference.class_runs or ():
        shares[f"{name}#{hashlib.blake2b(repr(runs).encode(), digest_size=16).hexdigest()}"] += 1.0
    return shares


def label_places(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory
) -> Mapping[str, NDArray[np.float64]]:
    """Return the share of the picture that each value of its label pictures covers by cells, float64 [cell].

    Files that are no pictures of classes have no places.
    """
    places: dict[str, NDArray[np.float64]] = {}
    for name, path in (*reference.class_masks, *(("", path) for path in reference.masks)):
        try:
            values = _label_values(recipe, reference, files, path, reserve)
        except SourceError:
            continue
        if values is None:
            continue
        rows, columns = (np.arange(side) * _CELLS // side for side in values.shape)
        cells = (rows[:, None] * _CELLS + columns).reshape(-1)
        found, at = np.unique(values, return_inverse=True)
        counts = np.bincount(at.reshape(-1) * _CELLS**2 + cells, minlength=len(found) * _CELLS**2)
        for value, by_cell in zip(found.tolist(), counts.reshape(len(found), -1), strict=True):
            if value:
                key = name or str(value)
                places[key] = places.get(key, 0) + by_cell / values.size
    return places


def _label_values(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, path: str, reserve: ReserveMemory
) -> NDArray[Any] | None:
    """Return the values of a label file; None where these are not classes."""
    kind = recipe.rules.kind.name
    if kind == "clip":
        return None
    if kind == "volume":
        from halofeed.prep.formats.volume_formats import open_mask, open_scan

        members = reference.slices or reference.members
        options = recipe.scan_options(reserve)
        grid = open_scan(files, reference.source, members, options, reference.volume).grid
        mask = open_mask(files, path, grid, options, dict(reference.mask_members).get(path, ()))
        reserve(mask.held_bytes + mask.read_bytes + mask.value_bytes * math.prod(mask.grid.shape))
        return mask.read()
    opened = open_picture(files.read(path), ReadOptions())
    reserve(4 * opened.estimate(False, opened.stored_size).peak_bytes)
    pixels = opened.load(False, opened.stored_size).pixels
    values = np.zeros(pixels.shape[:2], np.int64)
    for channel in range(pixels.shape[2]):
        values = values << 16 | pixels[..., channel]
    return values if len(np.unique(values)) <= _MOST_COLORS else None


def differing_annotations(
    references: Sequence[SourceExample], *, is_whole: bool, is_exact: bool = False
) -> str:
    """Return how the classes and boxes of copies differ; "" if they do not, or where annotations are missing.

    Args:
        is_whole: whether all copies show all objects; otherwise copies with and without objects differ.
        is_exact: whether all copies have the same bytes, so that their boxes have the same places.
    """
    # A picture of a multi-label set without any class is labeled, too.
    classed = [one for one in references if one.label is not None or one.labels is not None]
    classes = {" + ".join(sorted(one.classes)) or "no class" for one in classed}
    if len(classes) > 1:
        return " and ".join(sorted(classes))
    boxes = [one.boxes for one in references if one.boxes is not None]
    return _differing_boxes(boxes, is_whole=is_whole, is_exact=is_exact) if len(boxes) > 1 else ""


def _differing_boxes(boxes: Sequence[Sequence[Box]], *, is_whole: bool, is_exact: bool) -> str:
    """Return how boxes of copies differ, as `differing_annotations` does."""
    counted = {_in_words(Counter(box.label for box in some)) for some in boxes}
    # A part may show fewer objects, but seldom none, and the copy with all objects must not be left out silently.
    if len(counted) > 1 and (is_whole or _NO_OBJECT in counted):
        return " and ".join(sorted(counted))
    is_compared = is_whole and is_exact
    moved = is_compared and not all(_at_the_same_places(boxes[0], other) for other in boxes[1:])
    return "boxes of one class are at other places" if moved else ""


def _at_the_same_places(first: Sequence[Box], second: Sequence[Box]) -> bool:
    """Return whether each box has one of its class, whose edges differ by less than 15 % of its mean side.

    Two boxes of one size that differ by so much along one axis have an intersection over union of 0.74.
    """

    def near(one: Box, other: Box) -> bool:
        side = (one.ymax - one.ymin + one.xmax - one.xmin) / 2
        edges = (
            (one.ymin, other.ymin),
            (one.xmin, other.xmin),
            (one.ymax, other.ymax),
            (one.xmax, other.xmax),
        )
        return one.label == other.label and all(abs(a - b) <= _SAME_PLACE * side for a, b in edges)

    return all(any(near(one, other) for other in second) for one in first) and all(
        any(near(one, other) for other in first) for one in second
    )


def _in_words(counts: Mapping[str, int]) -> str:
    return " + ".join(f"{count} {name}" for name, count in sorted(counts.items())) or _NO_OBJECT


def differing_shares(shares: Sequence[Mapping[str, float]], least: float = 0.02) -> str:
    """Return which value of label files covers more of one copy than of another one; "" where none does.

    Args:
        shares: of `label_shares`.
        least: difference that counts; resized label images differ at their edges.

    >>> differing_shares([{"1": 0.2}, {"1": 0.21}]), differing_shares([{"1": 0.2}, {}])
    ('', "label '1' covers 20% more in one of them")
    >>> differing_shares([{"1": 0.2, "tumor": 0.001}, {"1": 0.2}])
    "label 'tumor' is in one of them only, and covers 0.10%"
    """
    return next(_differences(shares, least), "")


def differing_places(places: Sequence[Mapping[str, NDArray[np.float64]]]) -> str:
    """Return which value of the label pictures of equal pictures is at other places; "" where none is.

    The cells give an upper bound of the intersection over union, so labels that differ within cells count as equal.

    Args:
        places: of `label_places`.

    >>> left, right = np.array([0.2, 0.0]), np.array([0.0, 0.2])
    >>> differing_places([{"1": left}, {"1": left}]), differing_places([{"1": left}, {"1": right}])
    ('', "label '1' is at other places")
    """
    first, *others = places
    for other in others:
        for name in sorted(first.keys() & other.keys()):
            one, two = first[name], other[name]
            if np.minimum(one, two).sum() < _OVERLAP * np.maximum(one, two).sum():
                return f"label {name!r} is at other places"
    return ""


def _differences(shares: Sequence[Mapping[str, float]], least: float) -> Iterator[str]:
    for name in sorted({name for one in shares for name in one}):
        covered = [one.get(name, 0.0) for one in shares]
        if (more := max(covered) - min(covered)) > least:
            yield f"label {name.partition('#')[0]!r} covers {more:.0%} more in one of them"
        elif not min(covered) and more > _SHOWN:
            yield f"label {name.partition('#')[0]!r} is in one of them only, and covers {more:.2%}"
