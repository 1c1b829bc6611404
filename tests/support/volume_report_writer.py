"""How tests of reports draw and count a small segmentation data set: scans of the phantom, or pictures."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.tallies import (
    PictureFacts,
    PictureTally,
    VolumeFacts,
    VolumeTally,
    measure_coverage,
    sum_pixels,
)
from halofeed.prep.geometry.scan import Triple
from halofeed.prep.geometry.volume_plan import plan_crop_or_pad
from halofeed.prep.voxels.counts import count_intensities, merge_counts
from halofeed.prep.voxels.intensity import IntensityPlan, IntensityWindow
from halofeed.prep.voxels.phantom import ORGANS, draw, grid_around
from halofeed.schemas.statistics import Statistics
from tests.support.set_writer import counted
from tests.support.volume_writer import DrawnScan, write_scans

CLASSES = {0: "background", **{organ.label: organ.name for organ in ORGANS if organ.label}, 9: "never seen"}
RECIPE = {"task": "segmentation", "spacing_mm": [], "window_hu": [], "window_percentiles": []}
RECIPE |= {"dtype": "int16", "fit": "crop-or-pad"}


def draw_scan(
    key: str,
    split: str = "train",
    *,
    spacing_mm: Triple = (6.0, 4.0, 4.0),
    padding: int = 2,
    labelled: bool = True,
    window: IntensityWindow | None = None,
    store: str = "int16",
    shape: tuple[int, int, int] = (24, 28, 34),
    **more: Any,
) -> DrawnScan:
    """The phantom, padded at the start of each axis and centered on the record's shape, as stored."""
    found = grid_around(spacing_mm, tuple(s * mm for s, mm in zip(shape, spacing_mm, strict=True)))
    image, mask = draw(found)
    outside = np.ones(found.shape, bool)
    outside[padding:, padding:, padding:] = False
    image[outside], mask[outside] = -1024, 0
    stored = IntensityPlan(store=store, window=window).apply(image[..., None])
    shown = {"labelled": labelled, "extent": np.array([[padding] * 3, found.shape]), "affine": found.affine}
    label = mask * np.uint8(labelled)
    return DrawnScan(key=key, split=split, image=stored, label=label, **shown, **more)


def draw_picture(key: str, split: str = "train", *, labelled: bool = True, seed: int = 0) -> DrawnScan:
    """A color picture [24, 32, 3] of two rectangles, which are its label; the bottom row is padding."""
    pixels = np.random.default_rng(seed).integers(60, 90, (24, 32, 3)).astype(np.uint8)
    label = np.zeros((24, 32), np.uint8)
    for value, place in ((1, np.s_[4:14, 3:15]), (2, np.s_[8:20, 18:30])):
        label[place] = value
        pixels[(*place, value)] = 220
    pixels[-1], label[-1] = 0, 0
    shown = {"labelled": labelled, "extent": np.array([[0, 0], [23, 32]]), "affine": np.eye(2, 3)}
    return DrawnScan(key=key, split=split, image=pixels, label=label * np.uint8(labelled), **shown)


def write_segmentation(
    folder: Path,
    records: Sequence[DrawnScan],
    *,
    label_dtype: str = "uint8",
    recipe: Mapping[str, Any] = RECIPE,
    **more: Any,
) -> Path:
    """Write the data set into `folder`, which is made; returns the folder."""
    size = records[0].label.shape
    sides = dict(zip(("depth", "height", "width")[-len(size) :], size, strict=True))
    counts = _volume_statistics if len(size) == 3 else _picture_statistics
    scans = [dataclasses.replace(drawn, label=drawn.label.astype(label_dtype)) for drawn in records]
    given = {"labels": CLASSES, "statistics": counts, "recipe": {**recipe, "depth": None, **sides}, **more}
    return write_scans(folder, scans, name="scans", **given)


def _count(drawn: DrawnScan) -> dict[int, int]:
    values, counts = np.unique(drawn.label, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True)) if drawn.labelled else {}


def _volume_statistics(records: Sequence[DrawnScan]) -> Statistics:
    return counted(VolumeTally(), map(_volume_facts, records))


def _volume_facts(drawn: DrawnScan) -> VolumeFacts:
    image: NDArray[Any] = drawn.image
    if image.dtype == np.uint16:  # the bits of bfloat16
        image = (image.astype(np.uint32) << np.uint32(16)).view(np.float32)
    body = count_intensities(image[..., 0], above=float(image.min()))
    foreground = count_intensities(image[..., 0], mask=drawn.label) if drawn.labelled else merge_counts(())
    source, shape = drawn.source, drawn.grid.shape
    label = {"labelled": drawn.labelled, "label_voxels": _count(drawn)}
    label["foreground_voxels"] = int(np.count_nonzero(drawn.label))
    scan = {"source": source, "modality": drawn.modality, "findings": drawn.findings, "sized": source.shape}
    scan["coverage"] = measure_coverage(source, [plan_crop_or_pad(source, shape)], None)
    counts = {"inside_voxels": int(np.prod(source.shape)), "body": body, "foreground": foreground}
    return VolumeFacts(shape=shape, first_of_scan=drawn.tile == 0, **counts, **label, **scan)


def _picture_statistics(records: Sequence[DrawnScan]) -> Statistics:
    return counted(PictureTally(max_boxes=0), map(_picture_facts, records))


def _picture_facts(drawn: DrawnScan) -> PictureFacts:
    size, voxels = tuple(drawn.extent[1].tolist()), _count(drawn)
    sums = sum_pixels(np.ascontiguousarray(drawn.image[: size[0]]))
    sizes = {"stored_size": drawn.label.shape, "picture_size": size, "source_size": size}
    label = {"labels": list(voxels), "labelled": drawn.labelled, "label_voxels": voxels}
    return PictureFacts(pixel_sums=sums, boxes=None, **sizes, **label)
