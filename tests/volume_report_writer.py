"""How tests of reports write a small segmentation data set: drawn scans or pictures in, a finished folder out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Finding, Grid, Triple
from halofeed.prep.geometry.volume import plan_crop_or_pad
from halofeed.prep.statistics.counts import count_intensities, merge_counts
from halofeed.prep.statistics.coverage import measure_coverage
from halofeed.prep.statistics.pictures import Facts, PictureTally, sum_pixels
from halofeed.prep.statistics.volumes import VolumeFacts, VolumeTally
from halofeed.prep.voxels.intensity import IntensityPlan, Window
from halofeed.prep.voxels.phantom import ORGANS, draw, grid_around
from halofeed.schemas.identity import example_id, shard_of
from halofeed.schemas.kinds import KINDS
from halofeed.schemas.tasks import ImageFormat
from tests.dataset_writer import counted, encode_pixels
from tests.set_writer import Record, picture_features, stored_features, volume_features, write_set

CLASSES = {0: "background", **{organ.label: organ.name for organ in ORGANS if organ.label}, 9: "never seen"}
RAW_KEYS = ("image/encoded", "image/label")
RECIPE = {
    "task": "segmentation",
    "spacing_mm": [],
    "window_hu": [],
    "window_percentiles": [],
    "dtype": "int16",
    "fit": "crop-or-pad",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """One record: the image [(depth,) height, width, channel], its label and what else is known of it.

    Args:
        label: of the image's shape without the channel; None where the source has none.
        grid: of volumes, the record's; None makes it a picture.
        inside: of a volume the part that is not padding, as slices; of a picture its size without padding.
    """

    key: str
    split: str
    image: NDArray[Any]
    label: NDArray[Any] | None
    grid: Grid | None = None
    extent: NDArray[np.int64] | None = None
    tile: int = 0
    modality: str = "CT"
    findings: tuple[Finding, ...] = field(default=())

    @property
    def id(self) -> int:
        """Of the record: a scan's further tiles have their number in it."""
        return example_id(f"{self.key}#{self.tile}" if self.tile else self.key)


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
) -> Drawn:
    """The phantom, padded at the start of each axis and centered on the record's shape, as stored."""
    found = grid_around(spacing_mm, tuple(s * mm for s, mm in zip(shape, spacing_mm, strict=True)))
    image, mask = draw(found)
    extent = np.array([[padding] * 3, found.shape])
    outside = np.ones(found.shape, bool)
    outside[padding:, padding:, padding:] = False
    image[outside], mask[outside] = -1024, 0
    stored = IntensityPlan(store=store, window=window).apply(image[..., None])
    return Drawn(
        key=key,
        split=split,
        image=stored,
        label=mask if labelled else None,
        grid=found,
        extent=extent,
        **more,
    )


def draw_picture(key: str, split: str = "train", *, labelled: bool = True, seed: int = 0) -> Drawn:
    """A color picture [24, 32, 3] of two rectangles, which are its label; the bottom row is padding."""
    pixels = np.random.default_rng(seed).integers(60, 90, (24, 32, 3)).astype(np.uint8)
    label = np.zeros((24, 32), np.uint8)
    for value, place in ((1, np.s_[4:14, 3:15]), (2, np.s_[8:20, 18:30])):
        label[place] = value
        pixels[(*place, value)] = 220
    pixels[-1], label[-1] = 0, 0
    return Drawn(key=key, split=split, image=pixels, label=label if labelled else None)


def features_of(drawn: Drawn, encoding: str = "raw", label_dtype: str = "uint8") -> dict[str, Any]:
    """The tf.train.Example features of one record."""
    size = drawn.image.shape[:-1]
    label = np.zeros(size, label_dtype) if drawn.label is None else drawn.label.astype(label_dtype)
    encoded = encode_pixels(drawn.image, encoding)
    features = stored_features(drawn.key, drawn.id, encoded, encoding, size)
    features["image/label"] = encode_pixels(label[..., None], "raw" if encoding == "raw" else "png")
    features["image/labelled"] = np.array([int(drawn.label is not None)])
    if (grid := drawn.grid) is not None:
        origin = (grid.affine, _source_shape(drawn), drawn.tile, (0, 0, 0))
        return features | volume_features(grid.spacing_mm, grid.affine, drawn.extent, *origin)
    if encoding != "raw":
        features["image/key/sha256"] = hashlib.sha256(encoded).hexdigest().encode()
    picture = (size[0] - 1, size[1])
    return features | picture_features(picture, picture, (1, 0, 0, 0, 1, 0))


def write_segmentation(
    folder: Path,
    records: Sequence[Drawn],
    *,
    encoding: str = "raw",
    dtype: str | None = None,
    label_dtype: str = "uint8",
    shards: int = 2,
    recipe: Mapping[str, Any] = RECIPE,
    rejected: Sequence[Mapping[str, str]] = (),
    alter: Callable[[Drawn, dict[str, Any]], dict[str, Any]] = lambda drawn, features: features,
) -> Path:
    """Write the data set into `folder`, which is made; returns the folder.

    `alter` may change a record's features, so that all checksums are right and the content is not.
    """
    is_volume = records[0].grid is not None
    splits: dict[str, list[list[Record]]] = {}
    for drawn in sorted(records, key=lambda item: (item.split, example_id(item.key), item.tile)):
        record = Record(
            id=drawn.id,
            features=alter(drawn, features_of(drawn, encoding, label_dtype)),
            inputs={drawn.key: ""},
            facts=_volume_facts(drawn) if is_volume else _picture_facts(drawn),
        )
        parts = splits.setdefault(drawn.split, [[] for _ in range(shards)])
        parts[shard_of(example_id(drawn.key), shards)].append(record)
    *size, channels = records[0].image.shape
    image = ImageFormat(
        kind=KINDS["volume" if len(size) == 3 else "picture"],
        shape=tuple(size),
        channels=channels,
        dtype=dtype or str(records[0].image.dtype),
        encoding=encoding,
        label_dtype=label_dtype,
    )
    return write_set(
        folder,
        splits,
        task="segmentation",
        image=image,
        labels=CLASSES,
        name="scans",
        raw_keys=RAW_KEYS if encoding == "raw" else (),
        statistics=lambda facts: counted(VolumeTally() if is_volume else PictureTally(max_boxes=0), facts),
        rejected=rejected,
        recipe={**recipe, "depth": None, **dict(zip(image.kind.axes, size, strict=True))},
    )


def _source_shape(drawn: Drawn) -> tuple[int, ...]:
    assert drawn.extent is not None
    return tuple((drawn.extent[1] - drawn.extent[0]).tolist())


def _count(label: NDArray[Any] | None) -> dict[int, int]:
    values, counts = np.unique(np.zeros(0) if label is None else label, return_counts=True)
    return {int(value): int(count) for value, count in zip(values, counts, strict=True)}


def _volume_facts(drawn: Drawn) -> VolumeFacts:
    assert drawn.grid is not None and drawn.extent is not None
    image = drawn.image
    if image.dtype == np.uint16:  # the bits of bfloat16
        image = (image.astype(np.uint32) << np.uint32(16)).view(np.float32)
    body = count_intensities(image[..., 0], above=float(image.min()))
    foreground = (
        merge_counts(()) if drawn.label is None else count_intensities(image[..., 0], mask=drawn.label)
    )
    source = Grid(shape=_source_shape(drawn), affine=drawn.grid.affine)  # type: ignore[arg-type]
    return VolumeFacts(
        shape=drawn.grid.shape,
        inside_voxels=int(np.prod(source.shape)),
        labelled=drawn.label is not None,
        label_voxels=_count(drawn.label),
        foreground_voxels=0 if drawn.label is None else int(np.count_nonzero(drawn.label)),
        body=body,
        foreground=foreground,
        first_of_scan=drawn.tile == 0,
        source=source,
        modality=drawn.modality,
        findings=drawn.findings,
        sized=source.shape,
        coverage=measure_coverage(source, [plan_crop_or_pad(source, drawn.grid.shape)], None),
    )


def _picture_facts(drawn: Drawn) -> Facts:
    height, width = drawn.image.shape[:2]
    voxels = _count(drawn.label)
    return Facts(
        pixel_sums=sum_pixels(np.ascontiguousarray(drawn.image[:-1])),
        stored_size=(height, width),
        picture_size=(height - 1, width),
        source_size=(height - 1, width),
        labels=list(voxels),
        boxes=None,
        labelled=drawn.label is not None,
        label_voxels=voxels,
    )
