"""How tests of reports draw and count a small segmentation data set: scans of the phantom, or pictures."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Triple
from halofeed.prep.geometry.volume import plan_crop_or_pad
from halofeed.prep.statistics.counts import count_intensities, merge_counts
from halofeed.prep.statistics.coverage import measure_coverage
from halofeed.prep.statistics.pictures import Facts, PictureTally, sum_pixels
from halofeed.prep.statistics.volumes import VolumeFacts, VolumeTally
from halofeed.prep.voxels.intensity import IntensityPlan, Window
from halofeed.prep.voxels.phantom import ORGANS, draw, grid_around
from halofeed.schemas.statistics import Statistics
from tests.support.set_writer import counted
from tests.support.volume_writer import DrawnScan, write_scans

CLASSES = {0: "background", **{organ.label: organ.name for organ in ORGANS if organ.label}, 9: "never seen"}
RECIPE = {
    "task": "segmentation",
    "spacing_mm": [],
    "window_hu": [],
    "window_percentiles": [],
    "dtype": "int16",
    "fit": "crop-or-pad",
}


def draw_scan(
    key: str,
    split: str = "train",
    *,
    spacing_mm: Triple = (6.0, 4.0, 4.0),
    padding: int = 2,
    labelled: bool = True,
    window: Window | None = None,
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
    return DrawnScan(
        key=key,
        split=split,
        image=IntensityPlan(store=store, window=window).apply(image[..., None]),
        label=mask * np.uint8(labelled),
        labelled=labelled,
        extent=np.array([[padding] * 3, found.shape]),
        affine=found.affine,
        **more,
    )


def draw_picture(key: str, split: str = "train", *, labelled: bool = True, seed: int = 0) -> DrawnScan:
    """A color picture [24, 32, 3] of two rectangles, which are its label; the bottom row is padding."""
    pixels = np.random.default_rng(seed).integers(60, 90, (24, 32, 3)).astype(np.uint8)
    label = np.zeros((24, 32), np.uint8)
    for value, place in ((1, np.s_[4:14, 3:15]), (2, np.s_[8:20, 18:30])):
        label[place] = value
        pixels[(*place, value)] = 220
    pixels[-1], label[-1] = 0, 0
    return DrawnScan(
        key=key,
        split=split,
        image=pixels,
        label=label * np.uint8(labelled),
        labelled=labelled,
        extent=np.array([[0, 0], [23, 32]]),
        affine=np.eye(2, 3),
    )


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
    return write_scans(
        folder,
        [dataclasses.replace(drawn, label=drawn.label.astype(label_dtype)) for drawn in records],
        labels=CLASSES,
        name="scans",
        statistics=_volume_statistics if len(size) == 3 else _picture_statistics,
        recipe={
            **recipe,
            "depth": None,
            **dict(zip(("depth", "height", "width")[-len(size) :], size, strict=True)),
        },
        **more,
    )


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
    return VolumeFacts(
        shape=drawn.grid.shape,
        inside_voxels=int(np.prod(drawn.source.shape)),
        labelled=drawn.labelled,
        label_voxels=_count(drawn),
        foreground_voxels=int(np.count_nonzero(drawn.label)),
        body=body,
        foreground=foreground,
        first_of_scan=drawn.tile == 0,
        source=drawn.source,
        modality=drawn.modality,
        findings=drawn.findings,
        sized=drawn.source.shape,
        coverage=measure_coverage(drawn.source, [plan_crop_or_pad(drawn.source, drawn.grid.shape)], None),
    )


def _picture_statistics(records: Sequence[DrawnScan]) -> Statistics:
    return counted(PictureTally(max_boxes=0), map(_picture_facts, records))


def _picture_facts(drawn: DrawnScan) -> Facts:
    height, width = drawn.extent[1].tolist()
    voxels = _count(drawn)
    return Facts(
        pixel_sums=sum_pixels(np.ascontiguousarray(drawn.image[:height])),
        stored_size=drawn.label.shape,
        picture_size=(height, width),
        source_size=(height, width),
        labels=list(voxels),
        boxes=None,
        labelled=drawn.labelled,
        label_voxels=voxels,
    )
