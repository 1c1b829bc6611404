"""The masks of a perfect model overlay the source scan, in its own order of axes, and the source picture."""

import csv
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from halofeed.errors import UsageError
from halofeed.loader import Loader
from halofeed.pipelines.convert import Conversion
from halofeed.prep.formats.volume.nifti import write_nifti
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.voxels.phantom import LABELED_ORGANS, grid_around
from halofeed.trainer.source_grid import labels_in_source, picture_labels_in_source, write_png
from tests.support.conversions import run_convert
from tests.support.phantom import dice, write_phantom
from tests.support.training import convert_scans

INCLUDE = ("affine", "source_affine", "source_shape", "extent", "source")
TOTAL = "volumes/totalsegmentator"
STRAIGHT, TILTED, TURNED = grid_around(), grid_around(tilt_degrees=15), grid_around(turn_degrees=12)


def one_hot(label: NDArray[Any], classes: int) -> NDArray[np.float32]:
    return np.eye(classes, dtype=np.float32)[label]


def masks_back(done: Conversion, *, probabilities: bool = True) -> dict[str, tuple[NDArray[Any], Grid]]:
    """By source: the stored label, taken for a prediction, on the source's grid."""
    found = {}
    for split in done.manifest.splits:
        loader = Loader(done.folder, split=split, batch_size=1, training=False, include=INCLUDE)
        for batch in loader.batches():
            label = batch["label"][0]
            affine = batch["source_affine"][0].astype(np.float64)
            source = Grid(shape=tuple(batch["source_shape"][0].tolist()), affine=affine)
            grid = Grid(shape=label.shape, affine=batch["affine"][0].astype(np.float64))
            predicted = one_hot(label, int(label.max()) + 1) if probabilities else label
            found[batch["source"][0]] = labels_in_source(predicted, grid, source, batch["extent"][0]), source
    return found


def overlaps(found: NDArray[Any], truth: NDArray[Any], least_voxels: int = 1) -> dict[int, float]:
    """Dice by class of the truth."""
    counts = np.bincount(truth.ravel())
    classes = [label for label in np.flatnonzero(counts).tolist() if label and counts[label] >= least_voxels]
    return {label: dice(found == label, truth == label) for label in classes}


def size(depth: int, height: int, width: int) -> dict[str, Any]:
    return {"depth": depth, "height": height, "width": width}


# Real scans ---------------------------------------------------------------------------------------------

SPLEEN = ("volumes/spleen/sub-spleen2_ct.nii.gz", "volumes/spleen/sub-spleen2_ct_seg-manual.nii.gz")
CT = (f"{TOTAL}/example_ct_sm.nii.gz", f"{TOTAL}/example_seg.nii.gz")
MR = (f"{TOTAL}/example_mr_sm.nii.gz", f"{TOTAL}/example_seg_mr.nii.gz")
HIPPOCAMPUS = tuple(f"volumes/hippocampus/{folder}/hippocampus_001.nii.gz" for folder in ("images", "labels"))
REAL = {
    "spleen, padded and cropped": ([SPLEEN], size(32, 170, 160), 1.0),
    "spleen, cropped about it": ([SPLEEN], {**size(22, 130, 146), "center": "label"}, 1.0),
    "spleen at 2 mm slices": ([SPLEEN], {**size(66, 88, 88), "spacing_mm": (2, 1.5, 1.5)}, 0.98),
    "CT, padded": ([CT], size(32, 104, 128), 1.0),
    "MR, padded": ([MR], size(32, 104, 128), 1.0),  # by itself: its names give the values other organs
    "MR at 2.5 mm": ([MR], {**size(26, 112, 144), "spacing_mm": (2.5, 2.5, 2.5)}, 0.97),
    "hippocampus, padded": ([HIPPOCAMPUS], size(40, 56, 40), 1.0),
    "hippocampus, stretched": ([HIPPOCAMPUS], {**size(64, 64, 64), "fit": "stretch"}, 0.97),
}


@pytest.mark.parametrize("case", REAL)
def test_true_masks_of_real_scans_overlay_their_source(test_data, tmp_path, case):
    scans, options, least = REAL[case]
    rows = [(f"scan {number}", *pair) for number, pair in enumerate(scans)]
    done = convert_scans(tmp_path, rows, test_data, **options)
    found = masks_back(done)
    assert len(found) == len(scans)
    for image, mask in scans:
        label, source = found[image]
        truth = np.asarray(nibabel.load(test_data / mask).dataobj).astype(np.uint16)
        write_nifti(tmp_path / "mask.nii.gz", label, source.affine)
        written = nibabel.load(tmp_path / "mask.nii.gz")
        scan = nibabel.load(test_data / image)
        assert written.shape == scan.shape == truth.shape
        assert np.abs(written.affine - scan.affine).max() < 1e-3
        values = np.asarray(written.dataobj)
        if least == 1 and "cropped" not in case:
            assert np.array_equal(values, truth)
        # An organ of a few voxels is all edge.
        scores = overlaps(values, truth, 1 if least == 1 else 300)
        assert scores and min(scores.values()) >= least, scores
        union = overlaps((values > 0).astype(np.uint8), (truth > 0).astype(np.uint8))
        assert union[1] >= least


# The drawn phantom --------------------------------------------------------------------------------------


PHANTOMS = [(size(44, 72, 88), False), ({**size(70, 68, 72), "spacing_mm": (1.9, 1.7, 2)}, True)]


@pytest.mark.parametrize(("options", "resampled"), PHANTOMS)
@pytest.mark.parametrize("probabilities", [True, False])
def test_the_phantom_comes_back_from_any_orientation_and_tilt(tmp_path, options, resampled, probabilities):
    rows = write_phantom(tmp_path / "scans", range(0, 48, 7), {"tilted": TILTED, "turned": TURNED})
    done = convert_scans(tmp_path, rows, tmp_path / "scans", **options)
    found = masks_back(done, probabilities=probabilities)
    assert len(found) == len(rows)
    for name, image, mask in rows:
        truth = np.asarray(nibabel.load(tmp_path / "scans" / mask).dataobj).T
        label, _ = found[image]
        if not resampled and name != "tilted":
            assert np.array_equal(label, truth), name
        scores = overlaps(label, truth)
        assert set(scores) == {organ.label for organ in LABELED_ORGANS}
        # Organs of 800 to 2,500 voxels, a third and more of them on the surface.
        assert min(scores.values()) >= (0.95 if resampled else 0.97), (name, scores)
        assert overlaps((label > 0).view(np.uint8), (truth > 0).view(np.uint8))[1] >= 0.97


# Edges --------------------------------------------------------------------------------------------------


def scaled_grid(shape: tuple[int, int, int], spacing_mm: float, first_mm: float) -> Grid:
    affine = np.diag([spacing_mm] * 3 + [1.0])[[2, 1, 0, 3]]
    affine[:3, 3] = first_mm
    return Grid(shape=shape, affine=affine)


def test_outside_the_stored_field_of_view_is_background():
    stored_part, source = scaled_grid((4, 4, 4), 1.0, 3.0), scaled_grid((10, 10, 10), 1.0, 0.0)
    found = labels_in_source(np.ones((4, 4, 4), np.uint8), stored_part, source, [[1, 0, 0], [4, 4, 4]])
    expected = np.zeros((10, 10, 10), np.uint8)
    expected[4:7, 3:7, 3:7] = 1
    assert np.array_equal(found, expected)


def test_the_last_source_voxels_of_a_coarse_record_are_not_lost():
    # 11 voxels of 1 mm are stored as one of 8 mm: the outermost lie half a millimeter outside of it and more.
    record, source = scaled_grid((1, 1, 1), 8.0, 5.0), scaled_grid((11, 11, 11), 1.0, 0.0)
    assert labels_in_source(one_hot(np.ones((1, 1, 1), int), 2), record, source).all()


def test_what_lies_between_voxels_has_the_class_of_most_interpolated_probability():
    generator = np.random.default_rng(0)
    record, source = scaled_grid((3, 3, 3), 2.0, 0.0), scaled_grid((5, 5, 5), 1.0, 0.0)
    probabilities = generator.random((3, 3, 3, 4)).astype(np.float32)
    expected = np.zeros(source.shape, int)
    for at in np.ndindex(source.shape):
        total = np.zeros(4)
        for corner in np.ndindex(3, 3, 3):
            weight = np.prod([max(0.0, 1 - abs(a / 2 - c)) for a, c in zip(at, corner, strict=True)])
            total += weight * probabilities[corner]
        expected[at] = total.argmax()
    for dtype in (np.float32, np.float64, np.float16):
        found = labels_in_source(probabilities.astype(dtype), record, source)
        assert (found == expected).mean() > (0.98 if dtype == np.float16 else 0.999)


def test_slabs_give_what_one_piece_gives(monkeypatch):
    generator = np.random.default_rng(1)
    probabilities = generator.random((12, 14, 10, 3)).astype(np.float32)
    tilt = np.array(TILTED.affine)
    for affine in (STRAIGHT.affine, tilt):
        record = Grid(shape=(12, 14, 10), affine=affine)
        source = Grid(shape=(30, 25, 22), affine=STRAIGHT.affine @ np.diag([0.43, 0.53, 0.47, 1]))
        whole = labels_in_source(probabilities, record, source)
        monkeypatch.setattr("halofeed.trainer.source_grid.SLAB_BYTES", 1)
        assert np.array_equal(labels_in_source(probabilities, record, source), whole) and whole.any()
        monkeypatch.undo()


def test_predictions_of_another_shape_are_refused():
    grid = scaled_grid((4, 4, 4), 1.0, 0.0)
    with pytest.raises(UsageError, match="expected integers"):
        labels_in_source(np.zeros((4, 4, 5), np.uint8), grid, grid)
    with pytest.raises(UsageError, match="axis of classes"):
        labels_in_source(np.zeros((4, 4, 4), np.float32), grid, grid)


# Pictures -----------------------------------------------------------------------------------------------

PICTURE_RECIPES = {
    "stretched": ({"height": 96, "width": 128}, 0.97),
    "padded": ({"resize": "keep-aspect", "min_dimension": 96, "max_dimension": 128, "pad": True}, 0.97),
    "enlarged": ({"resize": "keep-aspect", "min_dimension": 300, "max_dimension": 400, "pad": True}, 0.97),
    "as it is": ({"resize": "none", "encoding": "png"}, 1.0),
}


@pytest.mark.parametrize("recipe", PICTURE_RECIPES)
def test_true_masks_of_pictures_overlay_the_file_under_every_exif_orientation(tmp_path, recipe):
    options, least = PICTURE_RECIPES[recipe]
    (tmp_path / "source").mkdir()
    rows, columns = np.mgrid[:150, :190]
    truth = np.where((rows - 60) ** 2 + (columns - 70) ** 2 < 45**2, 1, 0) + 2 * (rows + 2 * columns > 420)
    truth = truth.astype(np.uint8)
    with (tmp_path / "source/table.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "label"])
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[0x0112] = orientation
            Image.fromarray(truth * 60).convert("RGB").save(tmp_path / f"source/{orientation}.jpg", exif=exif)
            Image.fromarray(truth).save(tmp_path / f"source/{orientation}-label.png")
            writer.writerow([f"{orientation}.jpg", f"{orientation}-label.png"])
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="csv", task="segmentation", **options)
    include = ("transform", "source_height", "source_width", "size", "source")
    seen = 0
    for batch in Loader(done.folder, batch_size=1, training=False, include=include).batches():
        source_size = int(batch["source_height"][0]), int(batch["source_width"][0])
        found = picture_labels_in_source(
            one_hot(batch["label"][0], 3), batch["transform"][0], source_size, batch["size"][0]
        )
        write_png(tmp_path / "mask.png", found)
        written = np.asarray(Image.open(tmp_path / "mask.png"))
        assert written.shape == truth.shape and written.dtype == np.uint8
        scores = overlaps(written, truth)
        assert min(scores.values()) >= least, (batch["source"][0], scores)
        seen += 1
    assert seen == 8


@pytest.mark.parametrize("axis", [0, 1])
def test_a_slope_of_probability_is_cut_where_it_lies_in_the_source(axis):
    # Half way along 10 stored pixels is half way along the 40 of the source.
    slope = np.broadcast_to(((np.arange(10) + 0.5) / 10)[:, None], (10, 10))
    probabilities = np.stack([1 - slope, slope], axis=-1).astype(np.float32)
    if axis:
        probabilities = probabilities.transpose(1, 0, 2)
    found = picture_labels_in_source(probabilities, [[4, 0, 0], [0, 4, 0]], (40, 40))
    assert np.moveaxis(found, axis, 0)[20:].all() and not np.moveaxis(found, axis, 0)[:20].any()
