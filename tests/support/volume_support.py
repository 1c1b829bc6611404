"""What the tests of converted volumes share: how to write a scan, and how to read a record without the loader."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

from halofeed.pipelines.convert import Conversion
from halofeed.prep.geometry.scan import Grid
from halofeed.schemas.statistics import Statistics
from tests.support.conversions import read_split

IJK = [2, 1, 0, 3]
"""NIfTI's order of an affine's columns, for depth, height, width."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """One record of a volume, parsed.

    Args:
        image: [depth, height, width, channel]; bfloat16 as float32.
        grid: of the record; `source_grid`: of the file, the slowest index first.
        bits: everything that two records of one scan share: voxels, label, affine, spacing and extent.
    """

    name: str
    key: str
    split: str
    image: NDArray[Any]
    label: NDArray[Any]
    labelled: bool
    grid: Grid
    source_grid: Grid
    spacing_mm: tuple[float, ...]
    extent: NDArray[np.int64]
    tile: int
    tile_origin: tuple[int, ...]
    bits: tuple[bytes, ...]

    @property
    def shown(self) -> tuple[slice, ...]:
        """The part that shows the scan."""
        return tuple(slice(low, high) for low, high in zip(*self.extent.tolist(), strict=True))


def stored_volumes(done: Conversion) -> list[Stored]:
    dtypes = {field.name: field.dtype for field in done.manifest.fields}
    return [
        _stored(features, split, dtypes)
        for split in done.manifest.splits
        for features in read_split(Path(done.folder), split)
    ]


def by_name(done: Conversion) -> dict[str, Stored]:
    """Every record by its source; of sets without tiles."""
    found = stored_volumes(done)
    assert len({record.name for record in found}) == len(found)
    return {record.name: record for record in found}


def _stored(features: Mapping[str, Any], split: str, dtypes: Mapping[str, str]) -> Stored:
    shape = tuple(int(features[f"image/{side}"][0]) for side in ("depth", "height", "width"))
    image = image_values(features["image/encoded"][0], dtypes["image"]).reshape(*shape, -1)
    label = np.frombuffer(features["image/label"][0], np.dtype(dtypes["label"]).newbyteorder("<"))
    of_scan = (features[f"image/{name}"] for name in ("affine", "source/affine"))
    affines = [np.asarray(each, np.float64).reshape(4, 4) for each in of_scan]
    source_shape = tuple(int(side) for side in features["image/source/shape"])
    shared = ("encoded", "label", "labelled", "affine", "spacing_mm", "extent", "tile", "tile/origin")
    values = [features[f"image/{name}"] for name in shared]
    texts = (bytes(features[f"image/{name}"][0]).decode() for name in ("filename", "key/source"))
    named: dict[str, Any] = dict(zip(("name", "key"), texts, strict=True))
    named |= {"grid": Grid(shape=shape, affine=affines[0]), "labelled": bool(features["image/labelled"][0])}
    named |= {
        "source_grid": Grid(shape=source_shape, affine=affines[1]),
        "tile": int(features["image/tile"][0]),
    }
    named |= {"tile_origin": tuple(features["image/tile/origin"].tolist())}
    named |= {"spacing_mm": tuple(features["image/spacing_mm"].tolist())}
    named["extent"] = np.asarray(features["image/extent"], np.int64).reshape(2, 3)
    bits = tuple(bytes(v[0]) if isinstance(v, list) else v.tobytes() for v in values)
    return Stored(split=split, image=image, label=label.reshape(shape), bits=bits, **named)


def image_values(data: Any, dtype: str) -> NDArray[Any]:
    """Raw bytes as numbers; bfloat16 as the float32 that has its bits before 16 zeros."""
    if dtype == "bfloat16":
        bits = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))


def save_nifti(path: Path, array: NDArray[Any], affine: NDArray[np.float64] | None = None) -> Path:
    """A volume [depth, height, width] or [depth, height, width, channel] as NIfTI; 1 mm voxels without affine."""
    affine = (np.eye(4)[:, IJK] if affine is None else affine)[:, IJK]
    path.parent.mkdir(parents=True, exist_ok=True)
    order = (2, 1, 0, *range(3, array.ndim))
    nibabel.save(nibabel.Nifti1Image(array.transpose(order), affine), path)
    return path


def as_simpleitk(array: NDArray[Any], grid: Grid) -> Any:
    """[depth, height, width] on its grid as SimpleITK has it: x to the left, y to posterior."""
    import SimpleITK

    image = SimpleITK.GetImageFromArray(array)
    steps = np.diag([-1.0, -1.0, 1.0]) @ grid.affine[:3, :3][:, ::-1]
    lengths = np.linalg.norm(steps, axis=0)
    image.SetSpacing(lengths.tolist())
    image.SetDirection((steps / lengths).ravel().tolist())
    image.SetOrigin((np.array([-1.0, -1.0, 1.0]) * grid.affine[:3, 3]).tolist())
    return image


def write_table(folder: Path, rows: Iterable[Sequence[object]], columns: str = "id,image,label") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "table.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns.split(","))
        writer.writerows(rows)
    return path


def rejected(done_or_folder: Conversion | Path) -> dict[str, tuple[str, str, str]]:
    """(stage, reason, detail) of every rejected input by its source."""
    folder = done_or_folder if isinstance(done_or_folder, Path) else Path(done_or_folder.folder)
    entries = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    assert len({entry["source"] for entry in entries}) == len(entries)
    return {entry["source"]: (entry["stage"], entry["reason"], entry["detail"]) for entry in entries}


def findings(done: Conversion) -> dict[str, int]:
    total = Statistics.total(split.statistics for split in done.manifest.splits.values())
    return dict(total.findings or {})
