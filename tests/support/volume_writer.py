"""How tests write a small segmentation data set, of volumes or of pictures, with `halofeed.schemas` alone.

Every voxel of a drawn image holds its own number, so that a test can say which stored voxel it sees.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Finding, Grid
from halofeed.schemas.identity import example_id
from halofeed.schemas.statistics import Statistics
from tests.support.set_writer import (
    Record,
    deal,
    encode_pixels,
    image_format,
    picture_features,
    stored_features,
    write_set,
)

CLASSES = {0: "background", 1: "liver", 2: "spleen", 300: "tumour"}


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnScan:
    """One example of segmentation.

    Args:
        image: [depth, height, width, channel] or [height, width, channel]; bfloat16 as uint16 of its bits.
        label: on the image's grid; 0 throughout where it is not `labelled`.
        extent: [2, axes], the first voxel that shows the scan and the one after the last; of a picture from 0.
        affine: [4, 4] of a volume, [2, 3] (the transform) of a picture; `source_affine`: of a volume's source.
        tile: of a volume.
    """

    key: str
    split: str
    image: NDArray[Any]
    label: NDArray[Any]
    labelled: bool
    extent: NDArray[np.int64]
    affine: NDArray[Any]
    source_affine: NDArray[Any] | None = None
    tile: int = 0
    modality: str = "CT"
    findings: tuple[Finding, ...] = ()

    @property
    def id(self) -> int:
        """The example's id: a scan's further tiles have their number in it."""
        return example_id(self.key, self.tile)

    @property
    def grid(self) -> Grid:
        return Grid(shape=self.label.shape, affine=self.affine)  # type: ignore[arg-type]

    @property
    def source(self) -> Grid:
        """Of a volume, what its file held: the part that is no padding."""
        affine = self.affine if self.source_affine is None else self.source_affine
        return Grid(shape=tuple((self.extent[1] - self.extent[0]).tolist()), affine=affine)  # type: ignore[arg-type]

    @property
    def spacing_mm(self) -> NDArray[np.float32]:
        return np.array(self.grid.spacing_mm, np.float32)


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
            image = image.astype("uint16" if dtype == "bfloat16" else dtype)
            arrays = {"image": image, "label": label.astype(label_dtype), "labelled": labelled}
            place = {"affine": affine, "source_affine": 2 * affine, "extent": extent, "tile": number % 4}
            drawn.append(DrawnScan(key=f"{split}/scan {number}", split=split, **arrays, **place))
    return drawn


def scan_features(scan: DrawnScan, encoding: str = "raw", pad: bool = True) -> dict[str, Any]:
    """The tf.train.Example features of one example; pictures without padding where not `pad`."""
    image, label = scan.image, scan.label
    if image.ndim == 4:
        source = scan.source
        more = {"affine": scan.affine.astype(np.float32).ravel(), "spacing_mm": scan.spacing_mm}
        more |= {
            "source/affine": source.affine.astype(np.float32).ravel(),
            "source/shape": np.array(source.shape),
        }
        more |= {"extent": scan.extent.ravel(), "tile": np.array([scan.tile])}
        more["tile/origin"] = np.array([scan.tile, 0, 2 * scan.tile])
        more = {f"image/{name}": array for name, array in more.items()}
    else:
        height, width = scan.extent[1].tolist()
        if not pad:
            image, label = image[:height, :width], label[:height, :width]
        source = np.rint(scan.affine[:, :2] @ scan.extent[1]).astype(int)
        more = picture_features((height, width), source, scan.affine)
    features = stored_features(scan.key, scan.id, encode_pixels(image, encoding), encoding, label.shape)
    features["image/labelled"] = np.array([int(scan.labelled)])
    features["image/label"] = encode_pixels(
        label[..., None], "raw" if encoding in ("raw", "packed") else "png"
    )
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
    alter: Callable[[DrawnScan, dict[str, Any]], dict[str, Any]] = lambda scan, features: features,
    **more: Any,
) -> Path:
    """Write the data set into `folder`, which is made; returns the folder.

    Args:
        dtype: what the manifest says of the image where that is not the array's, for bfloat16.
        alter: may change a record's features, so that all checksums are right and the content is not.
        more: arguments of `write_set`.
    """

    def record(scan: DrawnScan) -> Record:
        return Record(id=scan.id, features=alter(scan, scan_features(scan, encoding, pad)), facts=scan)

    image, label = scans[0].image, scans[0].label
    how = {"pad_value": pad_value, "label_dtype": str(label.dtype)}
    stored = image_format(image.shape, dtype or str(image.dtype), encoding, **how)
    more = {"labels": CLASSES, "statistics": scan_statistics, **more}
    return write_set(folder, deal(scans, shards, record), task="segmentation", image=stored, **more)


def scan_statistics(chosen: Sequence[DrawnScan]) -> Statistics:
    voxels = {str(value): [int((scan.label == value).sum()) for scan in chosen] for value in CLASSES}
    counts = {"records": len(chosen), "labelled": sum(scan.labelled for scan in chosen)}
    counts["labels"] = {value: sum(map(bool, each)) for value, each in voxels.items()}
    return Statistics(**counts, label_voxels={value: sum(each) for value, each in voxels.items()})
