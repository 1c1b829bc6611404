"""Mapping of predictions to the grid of the source files: boxes, label pictures, label volumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halofeed.prep.geometry.orientation import FIELD_OF_VIEW_VOXELS, plan_onto
from halofeed.prep.geometry.resize import apply_to_boxes
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.taps import positions
from halofeed.prep.geometry.volume_plan import (
    Ranges,
    Resample,
    VolumePlan,
    join_plans,
    plan_volume_step,
    plan_window,
    triple,
)
from halofeed.prep.voxels.resample import apply_mask, sample_affine, sample_image, view_of
from halofeed.storage.atomic_files import create_replacing
from halofeed.storage.paths import open_path
from halofeed.system.errors import UsageError, require_extra

BOX_DECIMALS = 3
"""Decimals of a pixel: float32 coordinates of a picture of 8,000 pixels are no finer."""
SCORE_DECIMALS = 6


def boxes_in_source(
    boxes: ArrayLike, transform: ArrayLike, image_size: Sequence[int], source_size: Sequence[int]
) -> NDArray[np.float64]:
    """Convert normalized boxes of a record to pixels of its source, clipped to the source and rounded.

    Args:
        boxes: [box, 4], ymin, xmin, ymax, xmax as shares of `image_size`.
        transform: [2, 3], the record's transform: [y_source, x_source] = transform @ [y, x, 1], in pixels from the
            corner of the first pixel.
        image_size: (height, width) of the record's image, including padding.
        source_size: (height, width) of the source file's own pixels, before any EXIF rotation.

    Returns:
        float64 [box, 4]: ymin, xmin, ymax, xmax in pixels of the source.

    >>> boxes_in_source([[0.0, 0.5, 0.5, 1.0]], [[2, 0, 0], [0, 2, 0]], (10, 20), (20, 30)).tolist()
    [[0.0, 20.0, 10.0, 30.0]]
    """
    height, width = image_size
    corners = np.asarray(boxes, np.float64).reshape(-1, 4) * [height, width, height, width]
    mapped = apply_to_boxes(np.asarray(transform, np.float64).reshape(6), corners)
    clipped: NDArray[np.float64] = np.clip(mapped, 0, [*source_size, *source_size])
    return clipped.round(BOX_DECIMALS)


def coco_results(
    image_id: int, boxes: NDArray[np.float64], classes: ArrayLike, scores: ArrayLike
) -> list[dict[str, Any]]:
    """Return one picture's detections as entries of a COCO results file, without boxes of no area (in the padding).

    Args:
        image_id: id of the record.
        boxes: float64 [box, 4] in pixels of the source, ymin, xmin, ymax, xmax.
        classes: [box], ids of the labels, from 1.
        scores: [box], 0 to 1.

    Returns:
        Entries of `image_id`, `category_id`, `bbox` as [x, y, width, height], and `score`, which pycocotools' loadRes
        reads (https://cocodataset.org/#format-results).

    >>> coco_results(7, np.array([[10.0, 20.0, 30.0, 50.0]]), [2], [0.5])
    [{'image_id': 7, 'category_id': 2, 'bbox': [20.0, 10.0, 30.0, 20.0], 'score': 0.5}]
    """
    entries = []
    columns = boxes, np.asarray(classes), np.round(np.asarray(scores, np.float64), SCORE_DECIMALS)
    for box, label, score in zip(*(column.tolist() for column in columns), strict=True):
        ymin, xmin, ymax, xmax = box
        if ymin < ymax and xmin < xmax:
            sides = [round(side, BOX_DECIMALS) for side in (xmax - xmin, ymax - ymin)]
            entry = {"image_id": image_id, "category_id": int(label), "bbox": [xmin, ymin, *sides]}
            entries.append({**entry, "score": score})
    return entries


SLAB_BYTES = 1 << 25
"""Size of the float32 probabilities of one class on the source grid in memory; a single slice may be larger."""


def labels_in_source(
    predicted: NDArray[Any], stored: Grid, source: Grid, extent: ArrayLike | None = None
) -> NDArray[Any]:
    """Return the class of each source voxel.

    Memory besides `predicted`: the result and two slabs of `SLAB_BYTES`; another copy of `predicted` if the axes of
    record and source are not parallel (gantry tilt).

    Args:
        predicted: probabilities or scores [depth, height, width, class] of any float type, or class indices
            [depth, height, width] of any integer type. The largest probability wins, the first of equal ones.
        stored: grid of the record, with an affine to patient coordinates.
        source: grid of the source, with the axes of its file, the slowest first.
        extent: [2, 3], the first stored voxel of the scan and the one after the last; None for all voxels.

    Returns:
        uint8 (uint16 for more than 256 classes) in the source's shape; 0 outside the record.

    Raises:
        UsageError: the shape of `predicted` differs from the grid's.
    """
    if predicted.shape[:3] != stored.shape or predicted.ndim != (3 if predicted.dtype.kind in "iu" else 4):
        raise UsageError(
            f"predicted: expected integers {stored.shape} or probabilities with one more axis of classes, got "
            f"{predicted.dtype} {predicted.shape}"
        )
    classes = predicted.shape[3] if predicted.ndim == 4 else int(predicted.max(initial=0)) + 1
    dtype = np.uint8 if classes <= 256 else np.uint16
    crop = _crop_to_scan(stored, extent)
    # A tile may be padding alone.
    if crop is None:
        return np.zeros(source.shape, dtype)
    plan = join_plans([crop, plan_onto(crop.target, source)])
    # Without new voxels between the stored ones, the classes can be moved in place of the probabilities.
    if not plan.resamples:
        return apply_mask(plan, most_probable(predicted, dtype), spare=True)
    *views, step = plan.steps
    assert isinstance(step, Resample)
    for view in views:
        predicted = view_of(plan_volume_step(stored, view), predicted)
    return _resample_classes(predicted, step, classes, dtype)


def _crop_to_scan(stored: Grid, extent: ArrayLike | None) -> VolumePlan | None:
    """Return the plan that leaves the padding of a record out; None if all of it is padding."""
    low, high = ((0, 0, 0), stored.shape) if extent is None else np.asarray(extent).astype(int).tolist()
    size = triple([stop - start for start, stop in zip(low, high, strict=True)])
    return None if min(size) < 1 else plan_window(stored, triple(low), size)


def picture_labels_in_source(
    predicted: NDArray[Any], transform: ArrayLike, source_size: ArrayLike, size: ArrayLike | None = None
) -> NDArray[Any]:
    """Return the class of each source pixel, as `labels_in_source` for a picture.

    Args:
        predicted: probabilities [height, width, class] or class indices [height, width].
        transform: [2, 3], the record's transform, as for `boxes_in_source`.
        source_size: (height, width) of the source file's own pixels, before any EXIF rotation.
        size: (height, width) of the picture at the top left of the record without padding; None for all of it.

    Returns:
        uint8 or uint16 [height, width] of the source.
    """
    height, width = predicted.shape[:2]
    rows, columns = np.asarray(source_size).astype(int).tolist()
    stored = Grid(
        shape=(1, height, width), affine=centers_affine(np.asarray(transform, np.float64).reshape(2, 3))
    )
    source = Grid(shape=(1, rows, columns), affine=centers_affine(np.eye(2, 3)))
    extent = None if size is None else [[0, 0, 0], [1, *np.asarray(size).astype(int).tolist()]]
    return np.asarray(labels_in_source(predicted[None], stored, source, extent)[0])


def centers_affine(transform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the affine of pixel centers in a slice at depth 0 for a transform of pixel corners."""
    affine = np.eye(4)
    affine[1:3, 1:3] = transform[:, :2]
    affine[1:3, 3] = transform @ [0.5, 0.5, 1] - 0.5
    return affine


def most_probable(predicted: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return the most probable class, the first of equal ones; by slices, because NumPy's argmax returns int64."""
    if predicted.ndim == 3:
        return predicted.astype(dtype)
    label = np.empty(predicted.shape[:3], dtype)
    for target, plane in zip(label, predicted, strict=True):
        target[...] = plane.argmax(axis=-1)
    return label


def _resample_classes(predicted: NDArray[Any], step: Resample, classes: int, dtype: Any) -> NDArray[Any]:
    """Return the class of the largest interpolated probability on a step's target grid, computed by slabs."""
    result = np.zeros(step.shape, dtype)
    probabilities_of = _probabilities_by_class(predicted, contiguous=not step.separable)
    # All other voxels of the source are background, so they are not computed.
    ranges = _ranges_near_record(step, predicted.shape[:3]) if step.separable else None
    (first, last), *plane = ranges or [(0, side) for side in step.shape]
    (top, bottom), (left, right) = plane
    # Record and source have no voxel in common.
    if bottom <= top or right <= left:
        return result
    slices = max(1, SLAB_BYTES // (4 * (bottom - top) * (right - left)))
    for start in range(first, last, slices):
        stop = min(start + slices, last)
        slab = result[start:stop, top:bottom, left:right]
        best, values = np.empty(slab.shape, np.float32), np.empty(slab.shape, np.float32)
        for number in range(classes):
            out = values if number else best
            _sample(probabilities_of(number), step, ((start, stop), (top, bottom), (left, right)), out)
            # The first class is the best so far; its values are in `best` already.
            if number:
                wins = values > best
                slab[wins] = number
                np.maximum(best, values, out=best)
    return result


def _sample(values: NDArray[Any], step: Resample, ranges: Ranges, out: NDArray[np.float32]) -> None:
    if step.separable:
        sample_image(values, step, ranges, out)
        return
    matrix = step.matrix.copy()
    matrix[:3, 3] += matrix[:3, 0] * ranges[0][0]
    # Outside, all classes have the same value, so the first one wins: the background.
    sample_affine(values, matrix, out, 0.0, interpolate=True)


def _ranges_near_record(step: Resample, stored_shape: tuple[int, ...]) -> Ranges:
    """Return the target voxels within `FIELD_OF_VIEW_VOXELS` of a stored voxel, along each axis."""
    ranges = []
    for axis, size in enumerate(stored_shape):
        place = positions(step.matrix[axis, axis], step.matrix[axis, 3], step.shape[axis])
        inside = np.flatnonzero((place >= -FIELD_OF_VIEW_VOXELS) & (place <= size - 1 + FIELD_OF_VIEW_VOXELS))
        ranges.append((int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0))
    return ranges[0], ranges[1], ranges[2]


def _probabilities_by_class(predicted: NDArray[Any], *, contiguous: bool) -> Callable[[int], NDArray[Any]]:
    """Return a function from a class to its probabilities [depth, height, width]; class indices give 0 and 1."""
    if predicted.ndim == 3:
        return lambda number: (predicted == number).view(np.uint8)
    by_class = np.moveaxis(predicted, -1, 0)
    if contiguous:
        # Affine sampling reads voxels in any order, once per slab.
        by_class = np.ascontiguousarray(by_class, np.float32)
    return lambda number: by_class[number]


PNG_PIXELS = 89_478_485
"""Most pixels of a PNG of labels: Pillow warns of larger pictures as decompression bombs (MAX_IMAGE_PIXELS)."""
_TIFF_TILE = (512, 512)


def write_tiff(path: Path, label: NDArray[Any]) -> None:
    """Save class indices [height, width] as a TIFF of tiles, compressed by Deflate; a BigTIFF from 4 GB on."""
    with require_extra("large", "tifffile", "imagecodecs"):
        import tifffile

    # Compressed, the file is smaller; only the raw size tells whether it may need offsets of 64 bits. TiffWriter
    # asks for the name of the stream, which a descriptor has not.
    with (
        open_path(path, "xb") as file,
        tifffile.TiffWriter(file, bigtiff=label.nbytes >= 1 << 32) as writer,
    ):
        writer.write(label, tile=_TIFF_TILE, compression="zlib", photometric="minisblack", metadata=None)


def write_png(path: Path, label: NDArray[Any]) -> None:
    """Save class indices [height, width], uint8 or uint16, as a PNG file of one channel."""
    from PIL import Image

    with open_path(create_replacing(path), "wb") as file:
        Image.fromarray(label).save(file, "PNG")
