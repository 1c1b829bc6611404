"""Hausdorff distances are those of a loop over every pair of voxels; no padding counts (SimpleITK: test_predict.py)."""

import itertools
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from halofeed.errors import UsageError
from halofeed.trainer.data import evaluation_loader
from halofeed.trainer.metrics import SegmentationMetrics, hausdorff95
from halofeed.trainer.tasks.segmentation import Segmentation
from tests.support.clip_mask_writer import draw_masked, write_masks
from tests.support.clip_writer import write_folder
from tests.support.conversions import run_convert

LABELS = ("background", "liver", "tumor")


def slow_hausdorff95(one, other, spacing):
    """Every surface voxel against every other, by definition."""

    def surface(mask):
        points = []
        for index in np.argwhere(mask):
            for axis, step in itertools.product(range(mask.ndim), (-1, 1)):
                neighbor = index.copy()
                neighbor[axis] += step
                inside = 0 <= neighbor[axis] < mask.shape[axis]
                if not inside or not mask[tuple(neighbor)]:
                    points.append(index * np.array(spacing))
                    break
        return points

    here, there = surface(one), surface(other)
    ways = []
    for points, others in ((here, there), (there, here)):
        nearest = sorted(min(np.linalg.norm(point - target) for target in others) for point in points)
        place = 0.95 * (len(nearest) - 1)
        below = int(place)
        above = min(below + 1, len(nearest) - 1)
        ways.append(nearest[below] + (place - below) * (nearest[above] - nearest[below]))
    return max(ways)


@given(st.integers(0, 2**32 - 1), st.integers(2, 3))
@settings(max_examples=25, deadline=None)
def test_distances_are_those_of_every_pair_of_surface_voxels(seed, rank):
    generator = np.random.default_rng(seed)
    shape = tuple(generator.integers(2, 7, rank))
    spacing = tuple(generator.uniform(0.5, 4, rank))
    one, other = (generator.random(shape) < generator.uniform(0.1, 0.95) for _ in range(2))
    if one.any() and other.any():
        expected = slow_hausdorff95(one, other, spacing)
        assert hausdorff95(one, other, spacing) == pytest.approx(expected, rel=1e-12)


def metrics_of(predicted, true, **more):
    metrics = SegmentationMetrics(LABELS, kind="volume")
    spacing = np.tile(np.array([2.0, 1.0, 1.0]), (len(true), 1))
    scores = metrics.update({"label": predicted}, {"label": true, "spacing_mm": spacing, **more})
    return scores, metrics.result()


def test_a_class_absent_from_both_does_not_count_absent_from_one_is_missed_and_background_says_nothing():
    true, predicted = np.zeros((2, 2, 4, 6, 6), np.uint8)
    true[0, :2, :2, :2] = predicted[0, :2, :2, :2] = 1
    true[1, :2, :2, :2] = 1
    predicted[1, 3:, 3:, 3:] = 2
    scores, result = metrics_of(predicted, true)
    diagonal = np.sqrt((4 * 2.0) ** 2 + 6**2 + 6**2)
    assert scores.tolist() == [1.0, 0.0]
    assert result["dice_per_class"] == {"liver": 0.5, "tumor": 0.0}
    assert result["dice"] == 0.25
    assert result["hausdorff95_mm_per_class"] == pytest.approx({"liver": diagonal / 2, "tumor": diagonal})
    assert result["hausdorff95_mm"] == pytest.approx(0.75 * diagonal)
    assert result["examples"] == 2
    empty = np.zeros((1, 2, 3, 4), np.uint8)
    scores, result = metrics_of(empty, empty)
    assert np.isnan(scores).all()
    assert result["dice_per_class"] == {"liver": None, "tumor": None}
    assert (result["dice"], result["hausdorff95_mm"], result["examples"]) == (0.0, None, 1)


def test_rows_of_padding_and_rows_without_a_label_do_not_count():
    generator = np.random.default_rng(3)
    predicted, true = generator.integers(0, 3, (2, 4, 3, 4, 5)).astype(np.uint8)
    valid, labelled = np.array([True, False, True, True]), np.array([True, True, False, True])
    scores, result = metrics_of(predicted, true, valid=valid, labelled=labelled)
    alone, expected = metrics_of(predicted[[0, 3]], true[[0, 3]])
    assert result == expected
    assert np.isnan(scores[[1, 2]]).all() and scores[[0, 3]].tolist() == alone.tolist()


def test_pictures_are_measured_in_pixels_within_their_size():
    true = np.zeros((1, 8, 8), np.uint8)
    true[0, 2:5, 2:5] = 1
    predicted = np.roll(true, 1, axis=2)
    predicted[0, 7] = 1
    metrics = SegmentationMetrics(("background", "leaf"), kind="picture")
    metrics.update({"label": predicted}, {"label": true, "size": np.array([[7, 8]], np.int32)})
    result = metrics.result()
    assert result["dice"] == pytest.approx(2 * 6 / 18)
    assert result["hausdorff95_pixels"] == 1.0


def test_without_distances_no_spacing_is_needed_and_with_them_its_absence_is_told():
    label = np.ones((1, 2, 2, 2), np.uint8)
    truth = {"label": label, "spacing_mm": np.zeros((1, 3), np.float32), "id": np.array([[0, 42]], np.uint32)}
    without = SegmentationMetrics(LABELS, kind="volume", hausdorff=False)
    without.update({"label": label}, truth)
    assert without.result() == {
        "dice": 1.0,
        "dice_per_class": {"liver": 1.0, "tumor": None},
        "miou": 1.0,
        "iou_per_class": {"background": None, "liver": 1.0, "tumor": None},
        "examples": 1,
    }
    with pytest.raises(UsageError, match=r"example 42: expected a spacing_mm .* set task.hausdorff=false"):
        SegmentationMetrics(LABELS, kind="volume").update({"label": label}, truth)


def test_what_is_predicted_where_nothing_is_known_counts_in_no_metric():
    generator = np.random.default_rng(0)
    true, predicted = (generator.integers(0, 3, (2, 6, 8)).astype(np.uint8) for _ in range(2))
    unknown = generator.random((2, 6, 8)) < 0.3
    cut = [np.where(unknown, 0, values) for values in (predicted, true)]
    expected = SegmentationMetrics(LABELS, kind="picture")
    found = SegmentationMetrics(LABELS, kind="picture", ignore_label=255)
    scores = expected.update({"label": cut[0]}, {"label": cut[1]})
    given = {"label": np.where(unknown, 255, true).astype(np.uint8)}
    assert found.update({"label": predicted}, given).tolist() == scores.tolist()
    iou = slow_iou(predicted[~unknown], true[~unknown], len(LABELS))
    by_class = dict(zip(LABELS, iou, strict=True))
    assert found.result() == {**expected.result(), "miou": np.mean(iou), "iou_per_class": by_class}


def slow_iou(predicted, true, classes):
    """Count voxel by voxel; None for a class that is nowhere."""
    found = []
    for label in range(classes):
        both = either = 0
        for one, other in zip(predicted.ravel().tolist(), true.ravel().tolist(), strict=True):
            both += one == label and other == label
            either += label in (one, other)
        found.append(both / either if either else None)
    return found


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_iou_is_a_count_over_all_examples_with_the_background_and_without_padding(seed):
    generator = np.random.default_rng(seed)
    labels = ("background", "road", "sky", "tree")
    predicted, true = (generator.integers(0, generator.integers(1, 5), (3, 5, 6)) for _ in range(2))
    size = generator.integers(1, 6, (3, 2)).astype(np.int32)
    metrics = SegmentationMetrics(labels, kind="picture", hausdorff=False)
    # Two batches: IoU is of all voxels together, not the mean of the batches.
    for rows in (slice(2), slice(2, 3)):
        metrics.update({"label": predicted[rows]}, {"label": true[rows], "size": size[rows]})
    shown = np.zeros(true.shape, bool)
    for row, (height, width) in enumerate(size.tolist()):
        shown[row, :height, :width] = True
    expected = slow_iou(predicted[shown], true[shown], len(labels))
    result = metrics.result()
    assert result["iou_per_class"] == dict(zip(labels, expected, strict=True))
    assert result["miou"] == pytest.approx(np.mean([iou for iou in expected if iou is not None]))


@pytest.mark.parametrize("seed", range(4))
def test_iou_is_that_of_torchmetrics(seed):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    classification = pytest.importorskip(
        "torchmetrics.classification", reason="torchmetrics is not installed"
    )
    generator = np.random.default_rng(seed)
    labels = ("background", "road", "sky", "tree")
    # A class that is nowhere counts in neither mean.
    predicted, true = generator.integers(0, 3 + seed % 2, (2, 4, 9, 11))
    metrics = SegmentationMetrics(labels, kind="picture", hausdorff=False, ignore_label=255)
    of_class, mean = (
        classification.MulticlassJaccardIndex(num_classes=4, average=average, ignore_index=255)
        for average in (None, "macro")
    )
    true[generator.random(true.shape) < 0.1] = 255
    for rows in (slice(3), slice(3, 4)):
        metrics.update({"label": predicted[rows]}, {"label": true[rows]})
        for oracle in (of_class, mean):
            oracle.update(torch.from_numpy(predicted[rows]), torch.from_numpy(true[rows]))
    result = metrics.result()
    assert result["miou"] == pytest.approx(float(mean.compute()))
    found = [0.0 if iou is None else iou for iou in result["iou_per_class"].values()]
    assert found == pytest.approx(of_class.compute().tolist())


@pytest.mark.parametrize("kind", ["picture", "volume", "clip"])
def test_padding_counts_for_no_kind_of_image(tmp_path: Path, kind: str) -> None:
    generator = np.random.default_rng(0)
    root = tmp_path / "in"
    if kind == "volume":
        for name, voxels in (("images", 40), ("labels", 1)):
            (root / name).mkdir(parents=True)
            scan = np.full((20, 20, 9), voxels // 2, np.int16)
            scan[4:9, 4:9, 2:5] = voxels
            nibabel.Nifti1Image(scan, np.eye(4)).to_filename(root / name / "a.nii.gz")
        options = {"depth": 16, "height": 32, "width": 32, "pad_value": (-5,)}
    else:
        frames, masks = draw_masked(generator, 5)
        if kind == "clip":
            write_folder(root / "images" / "a", frames)
            write_masks(root / "labels" / "a", masks, "folder")
        else:
            for name, image in (("images", frames[0]), ("labels", masks[0])):
                (root / name).mkdir(parents=True)
                Image.fromarray(image).save(root / name / "a.png")
        options = {"resize": "keep-aspect", "min_dimension": 48, "max_dimension": 64, "pad": True}
        options |= {"frames": 8, "short_clips": "repeat"} if kind == "clip" else {"task": "segmentation"}
    done = run_convert(root, tmp_path / "out", layout="pairs", **options)
    labels = tuple(name for _, name in sorted(done.manifest.labels.items()))
    task = Segmentation(labels=labels, kind=kind)
    batch = evaluation_loader(done.folder, "train", 1, task).batch(0)
    shown = np.zeros(batch["label"].shape, bool)
    if kind == "volume":
        shown |= batch["image"][..., 0] != -5
    else:
        shown[(0, slice(5), slice(48), slice(64)) if kind == "clip" else (0, slice(48), slice(64))] = True
    predicted = np.where(shown, batch["label"], 1)
    assert (predicted != batch["label"]).any()
    metrics = task.metrics()
    assert metrics.update({"label": predicted}, batch).tolist() == [1.0]
    assert metrics.result()["dice"] == 1.0
