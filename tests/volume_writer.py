"""How tests write a small segmentation data set, of volumes or of pictures, with `halofeed.schemas` alone.

Every voxel of a drawn image holds its own number, so that a test can say which stored voxel it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.encode import ENCODERS
from halofeed.schemas.identity import example_id, shard_of
from halofeed.schemas.kinds import KINDS
from halofeed.schemas.statistics import Statistics
from halofeed.schemas.tasks import ImageFormat
from tests.set_writer import Record, picture_features, stored_features, volume_features, write_set

CLASSES = {0: "background", 1: "liver", 2: "spleen", 300: "tumour"}


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnScan:
    """One example of segmentation.

    Args:
        key: its name.
        split: where it goes.
        image: [depth, height, width, channel] or [height, width, channel]; bfloat16 as uint16 of its bits.
        label: on the image's grid.
        labelled: whether the source has a label.
        extent: [2, axes], the first voxel that shows the scan and the one after the last; of a picture from 0.
        affine: [4, 4] of a volume, [2, 3] (the transform) of a picture.
        tile: of a volume.
    """

    key: str
    split: str
    image: NDArray[Any]
    label: NDArray[Any]
    labelled: bool
    extent: NDArray[np.int64]
    affine: NDArray[np.float32]
    tile: int = 0

    @property
    def id(self) -> int:
        """The example's id."""
        return example_id(self.key)

    @property
    def spacing_mm(self) -> NDArray[np.float32]:
        """The distance between voxels along each axis."""
        return np.linalg.norm(self.affine[:3, :3], axis=0).astype(np.float32)


def draw_scans(
    counts: Mapping[str, int],
    *,
    shape: tuple[int, ...] = (6, 8, 10),
    channels: int = 1,
    dtype: str = "int16",
    label_dtype: str = "uint8",
    seed: int = 0,
) -> list[DrawnScan]:
    """Examples per split: volumes where the shape has three sides, pictures where it has two.

    Every third has no label. Voxels outside the extent hold 0, those inside numbers from 1, each another as far as the
    dtype holds so many.
    """
    generator = np.random.default_rng(seed)
    drawn = []
    for split, count in counts.items():
        for number in range(count):
            corners = [np.sort(generator.choice(side + 1, 2, replace=False)) for side in shape]
            extent = np.array(corners).T
            if len(shape) == 2:
                extent = np.array([(0, 0), np.maximum(extent[1], 3)])
            inside = np.zeros(shape, bool)
            inside[tuple(slice(low, high) for low, high in extent.T)] = True
            numbers = (np.arange(inside.size * channels) + 17 * number).reshape(*shape, channels)
            most = 255 if dtype == "uint8" else 32_000
            image = np.where(inside[..., None], 1 + numbers % most, 0)
            labelled = number % 3 != 2
            classes = [value for value in CLASSES if value <= np.iinfo(label_dtype).max]
            label = generator.choice(classes, shape) * (generator.random(shape) < 0.2) * inside * labelled
            if len(shape) == 3:
                affine = generator.normal(size=(4, 4)).astype(np.float32)
                affine[3] = 0, 0, 0, 1
            else:
                affine = np.array([[2, 0, 1], [0, 2, -3]], np.float32)
            drawn.append(
                DrawnScan(
                    key=f"{split}/scan {number}",
                    split=split,
                    image=image.astype("uint16" if dtype == "bfloat16" else dtype),
                    label=label.astype(label_dtype),
                    labelled=labelled,
                    extent=extent,
                    affine=affine,
                    tile=number % 4,
                )
            )
    return drawn


def scan_features(scan: DrawnScan, encoding: str = "raw", pad: bool = True) -> dict[str, Any]:
    """The tf.train.Example features of one example; pictures without padding where not `pad`."""
    image, label = scan.image, scan.label
    if image.ndim == 4:
        origin = (2 * scan.affine, (7, 8, 9), scan.tile, (scan.tile, 0, 2 * scan.tile))
        more = volume_features(scan.spacing_mm, scan.affine, scan.extent, *origin)
    else:
        height, width = scan.extent[1].tolist()
        if not pad:
            image, label = image[:height, :width], label[:height, :width]
        more = picture_features((height, width), (2 * height, 2 * width), scan.affine)
    encoded, mask = bytes(ENCODERS[encoding](image, 95)), "raw" if encoding == "raw" else "png"
    features = stored_features(scan.key, scan.id, encoded, encoding, label.shape, file=f"{scan.key}.nii.gz")
    features["image/labelled"] = np.array([int(scan.labelled)])
    features["image/label"] = bytes(ENCODERS[mask](label[..., None], 95))
    return features | more


def write_scans(
    folder: Path,
    scans: Sequence[DrawnScan],
    *,
    encoding: str = "raw",
    pad: bool = True,
    shards: int = 2,
    dtype: str | None = None,
    pad_value: tuple[float, ...] = (0,),
    name: str = "tiny",
) -> Path:
    """Write the data set into `folder`, which is made; returns the folder.

    `dtype` is what the manifest says of the image where that is not the array's, for bfloat16.
    """
    splits: dict[str, list[list[Record]]] = {}
    for scan in sorted(scans, key=lambda item: (item.split, item.id)):
        parts = splits.setdefault(scan.split, [[] for _ in range(shards)])
        record = Record(id=scan.id, features=scan_features(scan, encoding, pad), facts=scan)
        parts[shard_of(scan.id, shards)].append(record)
    image, label = scans[0].image, scans[0].label
    stored = ImageFormat(
        kind=KINDS["volume" if label.ndim == 3 else "picture"],
        shape=label.shape,
        channels=image.shape[-1],
        dtype=dtype or str(image.dtype),
        encoding=encoding,
        pad_value=pad_value,
        label_dtype=str(label.dtype),
    )
    return write_set(
        folder,
        splits,
        task="segmentation",
        image=stored,
        labels=CLASSES,
        name=name,
        raw_keys=("image/encoded", "image/label") if encoding == "raw" else (),
        statistics=scan_statistics,
    )


def scan_statistics(chosen: Sequence[DrawnScan]) -> Statistics:
    """What is counted of labels."""
    return Statistics(
        records=len(chosen),
        labelled=sum(scan.labelled for scan in chosen),
        labels={str(value): sum(bool((scan.label == value).any()) for scan in chosen) for value in CLASSES},
        label_voxels={
            str(value): sum(int((scan.label == value).sum()) for scan in chosen) for value in CLASSES
        },
    )
