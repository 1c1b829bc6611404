"""Scans and masks that are large for the bytes of their files, and what converting one takes."""

import gzip
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.volume_records import VolumeConverter
from halofeed.prep.formats.dicom.mask_files import open_dicom_mask
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import LocalFiles
from halofeed.system.memory import ReserveMemory, with_margin
from tests.support.dicom_mask_writer import saved, segmentation, structure_set
from tests.support.dicom_writer import image_dataset, save
from tests.support.memory_probe import Measured, measure

Shape = tuple[int, int, int]
LARGE: Shape = (160, 512, 512)
SMALL: Shape = (6, 40, 40)
UPRIGHT = np.diag([-0.8, -0.8, 2.5, 1.0])
TILTED = UPRIGHT + np.array([[0] * 4, [0, 0, 0.8, 0], [0] * 4, [0] * 4])
LABELS = LabelMap(entries=((0, "background"), (1, "organ")), first_id=0)


def even(shape: Shape, dtype: Any = np.int16) -> NDArray[Any]:
    """Air with a block of tissue in it, half of it brighter; or a mask of that."""
    is_mask = np.dtype(dtype).kind == "u"
    voxels = np.full(shape, 0 if is_mask else -1000, dtype)
    voxels[tuple(slice(side // 4, side // 2) for side in shape)] = 1 if is_mask else 40
    if not is_mask:
        voxels[: shape[0] // 3][voxels[: shape[0] // 3] == 40] = 90
    return voxels


def noise(shape: Shape) -> NDArray[np.int16]:
    """Values that no encoding makes smaller."""
    return np.random.default_rng(0).integers(-32768, 32768, shape, np.int16)


def save_nifti(path: Path, voxels: NDArray[Any], affine: NDArray[np.float64] = UPRIGHT) -> None:
    """A volume, compressed where its name says so."""
    image = nibabel.Nifti1Image(voxels.transpose(2, 1, 0), affine)
    image.header.set_xyzt_units("mm")
    data = image.to_bytes()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def _series(folder: Path, shape: Shape) -> None:
    for number in range(shape[0]):
        pixels = even((shape[1], shape[2], 1))[..., 0]
        options: dict[str, Any] = {"position": (0, 0, number * 2.5), "spacing": (0.8, 0.8), "thickness": 2.5}
        save(image_dataset(pixels, rescale=(1, 0), **options), folder / "series" / f"{number:04d}.dcm")


FILES: Mapping[str, Callable[[Path, Shape], None]] = {
    "ct.nii.gz": lambda path, shape: save_nifti(path, even(shape)),
    "ct.nii": lambda path, shape: save_nifti(path, even(shape)),
    "noise.nii": lambda path, shape: save_nifti(path, noise(shape)),
    "wide.nii.gz": lambda path, shape: save_nifti(path, even(shape, np.float64)),
    "integers.nii.gz": lambda path, shape: save_nifti(path, even(shape, np.int32)),
    "tilted.nii.gz": lambda path, shape: save_nifti(path, even(shape), TILTED),
    "mask.nii.gz": lambda path, shape: save_nifti(path, even(shape, np.uint8)),
    "mask of floats.nii.gz": lambda path, shape: save_nifti(path, 1.0 * (even(shape, np.float64) > -1000)),
    "mask of the tilted.nii.gz": lambda path, shape: save_nifti(path, even(shape, np.uint8), TILTED),
    "series": lambda path, shape: _series(path.parent, shape),
}

WHOLE = {"depth": LARGE[0], "height": LARGE[1], "width": LARGE[2]}
SMALLER = {"depth": 32, "height": 128, "width": 128}


def _of(options, image="ct.nii.gz", mask="mask.nii.gz") -> tuple[str, str | None, dict[str, Any]]:
    return image, mask, options


CONVERSIONS = {
    "its own grid": _of(WHOLE),
    "not compressed": _of(WHOLE, "ct.nii"),
    "without label": _of(WHOLE, mask=None),
    "cropped": _of(SMALLER),
    "window": _of({**WHOLE, "window_hu": (-160.0, 240.0), "dtype": "uint8"}),
    "percentiles": _of({**WHOLE, "window_percentiles": (0.0, 99.9), "dtype": "uint8"}),
    "float32": _of({**WHOLE, "dtype": "float32"}),
    "finer": _of({**WHOLE, "spacing_mm": (2.0, 0.7, 0.7)}),
    "coarser": _of({**SMALLER, "spacing_mm": (5.0, 3.0, 3.0)}),
    "tiles": _of({"depth": 32, "height": 192, "width": 192, "fit": "tiles", "tile_overlap": (0, 16, 16)}),
    "packed": _of({**WHOLE, "encoding": "packed"}, "noise.nii"),
    "packed tiles": _of(
        {
            "depth": 32,
            "height": 192,
            "width": 192,
            "fit": "tiles",
            "tile_overlap": (0, 16, 16),
            "encoding": "packed",
        },
        "noise.nii",
    ),
    "float64": _of(WHOLE, "wide.nii.gz", "mask of floats.nii.gz"),
    "int32": _of(WHOLE, "integers.nii.gz"),
    "DICOM": _of(WHOLE, "series"),
    "tilted": _of(WHOLE, "tilted.nii.gz", "mask of the tilted.nii.gz"),
}
"""By name: the scan, its mask, and the options."""


def draw(folder: Path, shape: Shape, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            FILES[name](folder / name, shape)


def convert_scan(folder: str, conversion: str, reserve: ReserveMemory | None = None) -> int:
    """Convert one scan, in the measuring process; the number of its records."""
    image, mask, options = CONVERSIONS[conversion]
    files = LocalFiles(folder)
    members = tuple(path for path in files.sizes() if path.startswith("series/"))
    reference = SourceExample(source=image, key="a", mask=mask, members=members if image == "series" else ())
    recipe = Recipe(layout="csv", max_memory=1 << 30, **options)
    return len(VolumeConverter(recipe=recipe, labels=LABELS).records(reference, files, reserve))


def asked_for(call: str, *arguments: str) -> int:
    """Convert a scan or read a mask, in the measuring process; the most bytes that it says it will take."""
    asked: list[int] = []
    {"scan": convert_scan, "mask": read_mask}[call](*arguments, reserve=asked.append)
    return with_margin(max(asked))


def measured_scan(conversion: str, folder: Path) -> Measured:
    """What converting a scan takes; the result is what it is planned to take."""
    image, mask, _ = CONVERSIONS[conversion]
    for shape, name in ((LARGE, "large"), (SMALL, "small")):
        draw(folder / name, shape, image, *filter(None, [mask]))
    large, small = (os.fspath(folder / name) for name in ("large", "small"))
    return measure(asked_for, "scan", large, conversion, warm=("scan", small, conversion))


# Masks of DICOM -------------------------------------------------------------------------------------------

MASK_SHAPE: Shape = (60, 384, 384)
GRID = np.array([[0, 0, 0.7, 0], [0, 0.7, 0, 0], [1.5, 0, 0, 0], [0, 0, 0, 1.0]])


def _segments(count: int, slices: int, **options: Any) -> Dataset:
    frames = []
    for number in range(1, count + 1):
        pixels = np.zeros(MASK_SHAPE[1:], np.uint8)
        pixels[2 * number : 2 * number + 2, 5:50] = 255 if options else 1
        frames += [(number, index, pixels) for index in range(slices)]
    return segmentation(frames, GRID, {at: f"organ {at}" for at in range(1, count + 1)}, **options)


def _circle(points: int, plane: int, radius: float) -> tuple[str, NDArray[np.float64]]:
    angles = np.linspace(0, 2 * np.pi, points, endpoint=False)
    flat = np.stack([100 + radius * np.cos(angles), 100 + radius * np.sin(angles)], 1)
    flat += np.random.default_rng(0).random(flat.shape) * 0.01
    return "CLOSED_PLANAR", np.column_stack([flat, np.full(points, plane * 1.5)])


def _contours(organs: int, points: int, radius: int, grows: int, times: int = 1) -> Dataset:
    """So many organs of 50 contours, or of some times as many, each organ wider than the one before."""
    drawn = {}
    for number in range(1, organs + 1):
        circles = [_circle(points, plane, radius + grows * number) for plane in range(50)]
        drawn[number] = (f"organ {number}", circles * times)
    return structure_set(drawn)


RUN_LENGTHS = {"kind": "FRACTIONAL", "syntax": "1.2.840.10008.1.2.5"}
MASKS: Mapping[str, Callable[[], Dataset]] = {
    "many segments": lambda: _segments(40, MASK_SHAPE[0]),
    "fractions by run lengths": lambda: _segments(10, MASK_SHAPE[0], **RUN_LENGTHS),
    "contours of a million points": lambda: _contours(5, 4000, 20, 5),
    "a contour of a million points": lambda: structure_set({1: ("organ", [_circle(1_000_000, 5, 60)])}),
    "many contours": lambda: _contours(29, 8, 1, 1, times=4),
}


def read_mask(path: str, reserve: ReserveMemory | None = None) -> int:
    """Read a mask in the measuring process; its voxels."""
    folder, name = os.path.split(path)
    grid = Grid(shape=MASK_SHAPE, affine=GRID)
    mask = open_dicom_mask(LocalFiles(folder), name, grid, reserve=reserve or (lambda _: None))
    if reserve is not None:
        # As `halofeed.prep.convert.volume_records` has it.
        reserve(mask.held_bytes + mask.read_bytes)
    assert mask.read_classes is not None
    return int(np.count_nonzero(mask.read_classes({number: number for number in mask.names}, "last")[0]))


def measured_mask(name: str, folder: Path) -> Measured:
    """What reading a mask takes; the result is what it is planned to take."""
    path, small = folder / "mask.dcm", folder / "small.dcm"
    path.write_bytes(saved(MASKS[name]()))
    contours = {1: ("a", [_circle(20, 1, 9)])}
    small.write_bytes(saved(structure_set(contours) if "contour" in name else _segments(1, 2)))
    return measure(asked_for, "mask", os.fspath(path), warm=("mask", os.fspath(small)))
