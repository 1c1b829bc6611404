"""A converted scan lies where the patient was, in every orientation, format and geometric mode, and on real files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from halofeed.inspection.verify import verify
from halofeed.pipelines.convert import Conversion
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.voxels.phantom import (
    LABELED_ORGANS,
    PHANTOM_AIR_HU,
    draw,
    grid_around,
    interior,
    margin_mm,
    stored,
    stored_grid,
)
from tests.support.conversions import run_convert
from tests.support.dicom_writer import write_volume
from tests.support.phantom import write_phantom
from tests.support.volume_support import (
    Stored,
    by_name,
    findings,
    rejected,
    save_nifti,
    stored_volumes,
    write_table,
)

STRAIGHT = grid_around()
ACQUISITIONS = {
    "axial": ((0, 1, 2), (1, -1, -1)),
    "axial feet first": ((0, 1, 2), (-1, -1, 1)),
    "coronal": ((1, 0, 2), (1, -1, -1)),
    "sagittal": ((2, 0, 1), (-1, -1, -1)),
}
SHEARED = {"turned": grid_around(turn_degrees=12), "tilted": grid_around(tilt_degrees=15)}
TABLE = {"layout": "csv", "task": "segmentation"}
WHOLE = {"depth": 44, "height": 72, "width": 88}
EVEN = {"depth": 66, "height": 56, "width": 70, "spacing_mm": (2, 2, 2)}
CUBIC = {"interpolation": "cubic"}
MODES: dict[str, dict[str, Any]] = {
    "none": WHOLE,
    "spacing": EVEN,
    "spacing, nearest masks": EVEN
    | {"height": 74, "width": 66, "spacing_mm": (2, 1.5, 2), "mask_interpolation": "nearest"},
    "spacing, slice by slice": EVEN | {"slice_wise": "always"},
    "cubic": EVEN | {"depth": 50, "height": 86, "width": 86, "spacing_mm": (2.5, 1.3, 1.6)} | CUBIC,
    "stretch": {"depth": 48, "height": 64, "width": 64, "fit": "stretch"},
    "tiles": {"depth": 24, "height": 40, "width": 48, "fit": "tiles", "tile_overlap": (4, 8, 8)},
    "foreground": {"depth": 38, "height": 64, "width": 80, "crop_foreground": True},
    "center foreground": {"depth": 38, "height": 64, "width": 80, "center": "foreground"},
    "center label": {"depth": 30, "height": 46, "width": 64, "center": "label"},
}
QUICK = ("none", "spacing", "stretch", "tiles")
LEVELS = [pytest.param(mode, marks=() if mode in QUICK else pytest.mark.long) for mode in MODES]


def grid_in(organ_free_name: str) -> Grid:
    return SHEARED.get(organ_free_name.partition(".")[0], STRAIGHT)


def write_source(folder: Path, numbers: range, *, series: tuple[str, ...]) -> Path:
    """The phantom in some of the 48 orientations, turned, under a gantry tilt, and as DICOM series."""
    rows = write_phantom(folder, numbers, SHEARED)
    image, mask = draw(STRAIGHT)
    save_nifti(folder / "any-mask.nii.gz", mask, STRAIGHT.affine)
    for name in series:
        way = ACQUISITIONS[name]
        write_volume(folder / name, stored(image, way), stored_grid(STRAIGHT, way).affine)
        rows.append((name, name, "any-mask.nii.gz"))
    write_table(folder, rows)
    return folder


@pytest.fixture(scope="session")
def converted(tmp_path_factory) -> Callable[[str], Conversion]:
    """converted(mode) converts the phantom once: all 48 orientations for "none" and "spacing", else a few."""
    every = write_source(tmp_path_factory.mktemp("every"), range(48), series=tuple(ACQUISITIONS))
    few = write_source(tmp_path_factory.mktemp("few"), range(0, 48, 13), series=("coronal",))
    made: dict[str, Conversion] = {}

    def get(mode: str) -> Conversion:
        if mode not in made:
            source = every if mode in ("none", "spacing") else few
            made[mode] = run_convert(source, tmp_path_factory.mktemp("out"), **TABLE, **MODES[mode])
        return made[mode]

    return get


def is_straight(name: str) -> bool:
    return not name.startswith(tuple(SHEARED))


@pytest.mark.parametrize("mode", LEVELS)
def test_the_phantom_gives_one_record_in_every_orientation_and_as_dicom(converted, mode):
    done = converted(mode)
    records = [record for record in stored_volumes(done) if is_straight(record.name)]
    names = {record.name for record in records}
    assert len(names) == (48 + 4 if mode in ("none", "spacing") else 4 + 1)
    assert not done.manifest.rejected and all(record.labelled for record in records)
    tiles = {record.tile for record in records}
    assert len(tiles) == (2 * 2 * 2 if mode == "tiles" else 1)
    for number in tiles:
        assert len({record.bits for record in records if record.tile == number}) == 1


@pytest.mark.parametrize("mode", LEVELS)
def test_organs_are_where_they_were_and_as_dense_in_every_mode(converted, mode):
    parts: dict[str, list[Stored]] = {}
    for record in stored_volumes(converted(mode)):
        parts.setdefault(record.name, []).append(record)
    checked = {
        next(name for name in parts if is_straight(name)),
        *filter(lambda name: not is_straight(name), parts),
    }
    assert len(checked) == 3
    off, wrong = 0.0, 0.0
    for name in checked:
        source = grid_in(name)
        for organ in LABELED_ORGANS:
            places, values = [], []
            for part in parts[name]:
                places.append(part.grid.to_mm(np.argwhere(part.label == organ.label)))
                margin = margin_mm(source, part.grid, 2.0 if mode == "cubic" else 1.0)
                inside = interior(part.grid, organ, margin)
                values.append(part.image[..., 0][inside])
                assert (part.label[inside] == organ.label).all(), (name, organ.name)
            found = np.unique(np.concatenate(places).round(3), axis=0)  # tiles overlap
            off = max(off, float(np.linalg.norm(found.mean(axis=0) - organ.center_mm)))
            inner = np.concatenate(values)
            assert len(inner) > 20
            wrong = max(wrong, abs(float(inner.mean()) - organ.hu))
    assert verify(converted(mode).folder).ok
    assert off < 0.5, f"a centroid is {off} mm off"
    assert wrong < 1, f"a mean is {wrong} HU off"


def test_without_resampling_every_labelled_voxel_has_its_organs_value(converted):
    record = by_name(converted("none"))["17.nii"]
    for organ in LABELED_ORGANS:
        assert set(record.image[..., 0][record.label == organ.label].tolist()) == {organ.hu}
    image, mask = draw(record.grid)
    shown = record.shown
    assert np.array_equal(record.image[..., 0][shown], image[shown])
    assert np.array_equal(record.label[shown], mask[shown])
    padding = np.ones(record.grid.shape, bool)
    padding[shown] = False
    assert (
        padding.any() and (record.image[padding] == PHANTOM_AIR_HU).all() and not record.label[padding].any()
    )


# Real files ---------------------------------------------------------------------------------------------

TOTAL = "volumes/totalsegmentator"
NIIVUE, NIBABEL, READER = "odd/nifti/niivue", "odd/nifti/nibabel", "odd/nifti/reader-js"
PAIRS = {
    f"{TOTAL}/example_ct.nii.gz": f"{TOTAL}/spine_report/totalseg.nii.gz",
    f"{TOTAL}/example_ct_sm.nii.gz": f"{TOTAL}/example_seg.nii.gz",
    f"{TOTAL}/example_mr_sm.nii.gz": f"{TOTAL}/example_seg_mr.nii.gz",
    "volumes/spleen/sub-spleen2_ct.nii.gz": "volumes/spleen/sub-spleen2_ct_seg-manual.nii.gz",
    "dicom/totalsegmentator_jpeg2000": f"{TOTAL}/example_seg_dicom.nii.gz",
}
REFUSED = {
    f"{TOTAL}/pulmonary_report/ct_cropped.nii.gz": "mask lies on another grid than its image",
    f"{NIBABEL}/nifti1.hdr": "the .img file with the voxels is missing",
    f"{NIBABEL}/example4d.nii.gz": "number of channels",
    f"{NIBABEL}/example_nifti2.nii.gz": "number of channels",
    f"{NIBABEL}/functional.nii": "number of channels",
    f"{NIIVUE}/complex_image.nii.gz": "voxels of this type are not supported",
    f"{NIIVUE}/ct_perfusion.nii.gz": "number of channels",
    f"{READER}/5D_small.nii": "number of channels",
    f"{READER}/not-nifti.nii": "not a NIfTI or Analyze file",
}
"""What of the real data is not converted as one channel, and why; everything else is."""
EXTRA_CHANNELS = {
    f"{NIBABEL}/example4d.nii.gz": 2,
    f"{NIBABEL}/example_nifti2.nii.gz": 2,
    f"{NIBABEL}/functional.nii": 20,
    f"{NIIVUE}/ct_perfusion.nii.gz": 3,
    f"{READER}/5D_small.nii": 3,
}


def all_scans(root: Path) -> list[tuple[str, str]]:
    """(image, mask or nothing) of every volume and series of the real data; masks that belong to none by themselves."""
    masks = {*PAIRS.values()}
    pairs = dict(PAIRS)
    for path in sorted((root / "volumes/hippocampus/images").iterdir()):
        label = f"volumes/hippocampus/labels/{path.name}"
        pairs[f"volumes/hippocampus/images/{path.name}"] = label
        masks.add(label)
    report = f"{TOTAL}/pulmonary_report"
    pairs[f"{report}/ct_cropped.nii.gz"] = f"{report}/heart.nii.gz"
    masks.add(f"{report}/heart.nii.gz")
    files = [
        str(path.relative_to(root))
        for folder in ("volumes", "odd/nifti")
        for path in sorted((root / folder).rglob("*"))
        if path.name.endswith((".nii", ".nii.gz", ".hdr"))
    ]
    series = sorted(f"dicom/{path.name}" for path in (root / "dicom").iterdir())
    images = [name for name in files if name not in masks]
    return [(name, pairs.get(name, "")) for name in images + series]


@pytest.fixture(scope="session")
def real(test_data, tmp_path_factory) -> Conversion:
    folder = tmp_path_factory.mktemp("real")
    # The names in this mask give 10 to another organ than the names in the masks of CT, and some masks have no names.
    scans = [(image, "" if "seg_mr" in mask else mask) for image, mask in all_scans(test_data)]
    table = write_table(folder, [(f"scan {number}", *pair) for number, pair in enumerate(scans)])
    options = {"depth": 48, "height": 128, "width": 128, "dtype": "float32", "max_rejected": None}
    return run_convert(table, folder / "out", images=str(test_data), **TABLE, **options)


def convert_one(images: Path, folder: Path, image: str, label: str = "", **options: Any) -> Conversion:
    table = write_table(folder, [("a", image, label)])
    return run_convert(table, folder / "out", images=str(images), **TABLE, **options)


def test_every_real_scan_converts_or_is_refused_with_a_true_reason(real, test_data):
    scans = [image for image, _ in all_scans(test_data)]
    assert len(scans) == 53
    refused = {name: reason for name, (stage, reason, _) in rejected(real).items() if stage != "selection"}
    assert refused == REFUSED
    records = by_name(real)
    assert sorted([*records, *refused]) == sorted(scans)
    assert {name for name, record in records.items() if record.labelled} == {
        *(image for image, mask in PAIRS.items() if "seg_mr" not in mask),
        *(name for name in scans if name.startswith("volumes/hippocampus")),
    }


def test_scans_of_several_channels_convert_once_the_channels_are_said(test_data, tmp_path):
    for name, channels in EXTRA_CHANNELS.items():
        size = {"depth": 24, "height": 96, "width": 128, "channels": channels, "dtype": "float32"}
        (record,) = stored_volumes(convert_one(test_data, tmp_path / name, name, **size))
        truth = np.asarray(nibabel.load(test_data / name).dataobj)
        if truth.dtype.names:
            truth = np.stack([truth[color] for color in "RGB"], axis=-1)
        assert record.image.shape == (24, 96, 128, channels)
        whole = truth.reshape(*truth.shape[:3], channels)
        if record.source_grid.shape == (24, 96, 128):
            assert np.array_equal(record.image, whole[::-1].transpose(2, 1, 0, 3)), name
        assert set(np.unique(record.image)) <= {*np.unique(whole.astype(np.float32)), float(whole.min())}


def test_spleen_and_liver_of_the_dicom_series_have_their_hounsfield_units(test_data, tmp_path):
    pair = ("dicom/totalsegmentator_jpeg2000", f"{TOTAL}/example_seg_dicom.nii.gz")
    size = {"depth": 20, "height": 512, "width": 512}
    (record,) = stored_volumes(convert_one(test_data, tmp_path, *pair, **size))
    values = {label: record.image[..., 0][record.label == label] for label in (1, 5)}
    found = {label: (round(float(v.mean())), round(float(v.std()))) for label, v in values.items()}
    assert found == {1: (80, 21), 5: (89, 22)}


def test_the_mask_of_another_grid_is_refused_and_may_be_resampled(real, test_data, tmp_path):
    report = f"{TOTAL}/pulmonary_report"
    stage, reason, detail = rejected(real)[f"{report}/ct_cropped.nii.gz"]
    assert (stage, reason) == ("geometry", "mask lies on another grid than its image")
    assert "112×102×122" in detail and "191×167×233" in detail
    pair = (f"{report}/ct_cropped.nii.gz", f"{report}/heart.nii.gz")
    options = {"depth": 112, "height": 102, "width": 122, "mask_grid": "resample"}
    done = convert_one(test_data, tmp_path, *pair, **options)
    assert findings(done)["mask on another grid (corrected)"] == 1
    (record,) = stored_volumes(done)
    source = nibabel.load(test_data / f"{report}/heart.nii.gz")
    places = record.grid.to_mm(np.argwhere(np.ones(record.grid.shape, bool)))
    inverse = np.linalg.inv(source.affine)
    voxels = np.rint(places @ inverse[:3, :3].T + inverse[:3, 3]).astype(int)
    inside = ((voxels >= 0) & (voxels < source.shape)).all(axis=1)
    truth = np.zeros(len(voxels), np.uint8)
    truth[inside] = np.asarray(source.dataobj)[tuple(voxels[inside].T)]
    assert (truth.reshape(record.label.shape) == record.label).mean() > 0.9999 and record.label.any()
