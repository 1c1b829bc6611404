"""A class that a run did not learn is named with the reason that was measured, and its numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halofeed.trainer.config import load_config
from halofeed.trainer.data import open_data
from halofeed.trainer.detection.anchors import retinanet_anchors, ssd_anchors
from halofeed.trainer.tasks import build_task
from halofeed.trainer.training_setup import build_training_setup
from halofeed.trainer.unlearned import (
    Evidence,
    LossTrend,
    SmallestSide,
    explain,
    median_sides,
    objects_by_class,
    smallest_side,
    unlearned_classes,
    unlearned_lines,
)
from tests.support.conversions import run_convert
from tests.support.small_scans import AFFINE, SHAPE, SIZE, image, msd_document, write_json
from tests.support.training import facts_of
from tests.support.volume_support import save_nifti

FLAT, FALLING = [1.0, 1.1] * 50, [100.0 - step for step in range(100)]


def evidence_of(**more: Any) -> Evidence:
    known: dict[str, Any] = {
        "split": "train",
        "objects": "boxes",
        "counts": {"cat": 40, "dog": 3},
        "sides": {"cat": 30.0, "dog": 5.2},
        "smallest": SmallestSide(side=14.0, reason="the smallest anchor is larger"),
        "losses": FLAT,
        "shown": 17.3,
    }
    return Evidence(**known | more)


@pytest.mark.parametrize(
    ("label", "more", "expected"),
    [
        ("cow", {"losses": FALLING}, ["split train has no boxes of it, and 43 of other classes"]),
        (
            "dog",
            {},
            ["too small at the training size: its median side is 5.2, and the smallest anchor is larger"],
        ),
        (
            "cat",
            {"losses": FALLING},
            ["still fell from 30.5 to 10.5 in the last 40 of 100, and", "shown 17 times"],
        ),
        ("cat", {"losses": [2.0, 1.0]}, ["too few steps: 2, and each record was shown 17 times"]),
        ("dog", {"losses": FALLING}, ["its median side is 5.2", "; too few steps: the loss still fell"]),
        (
            "cat",
            {},
            [
                "no likely reason was measured: split train has 40 boxes of it, its median side is 30.0",
                "(1.05, then 1.05)",
            ],
        ),
        (
            "cat",
            {"counts": None, "sides": {}, "smallest": None},
            ["no likely reason was measured: the loss no longer"],
        ),
    ],
)
def test_each_reason_has_its_numbers(label: str, more: Mapping[str, Any], expected: Sequence[str]) -> None:
    line = explain(label, "AP", 0.0012, evidence_of(**more))
    assert line.startswith(f"AP of {label} is 0.0012: ")
    for part in expected:
        assert part in line
    if len(expected) == 1:
        assert "; " not in line


def test_only_classes_with_a_dice_or_ap_of_0_are_named_and_none_without_examples() -> None:
    metrics = {"mAP": 0.0, "AP": {"a": 0.0, "b": 0.006, "c": None}, "AP@0.5": {"b": 0.0}}
    assert unlearned_classes(metrics) == {"a": ("AP", 0.0)}
    assert unlearned_classes({"dice": 0.3, "dice_per_class": {"liver": 0.6, "bladder": 0.004}}) == {
        "bladder": ("Dice", 0.004)
    }
    assert unlearned_classes({"accuracy": 0.0, "recall": {"a": 0.0}}) == {}


def falls(losses: NDArray[np.float64]) -> bool:
    trend = LossTrend.of(losses.tolist())
    assert trend is not None
    return trend.falls


def test_a_loss_falls_only_by_more_than_its_noise() -> None:
    generator = np.random.default_rng(0)
    flat = [falls(generator.normal(1, 0.1, 100)) for _ in range(200)]
    assert np.mean(flat) < 0.06, "two standard errors: 2.3 % of these"
    assert all(falls(np.linspace(2, 1, 100) + generator.normal(0, 0.1, 100)) for _ in range(50))
    assert LossTrend.of([1.0] * 9) is None


class Batches:
    """A source of evaluation of batches that are given."""

    def __init__(self, *batches: Mapping[str, NDArray[Any]]) -> None:
        self._batches = batches
        self.num_records = sum(int(batch["valid"].sum()) for batch in batches)

    def on_mesh(self, *_: Any) -> Any:
        raise NotImplementedError

    def batch(self, step: int) -> Mapping[str, NDArray[Any]]:
        return self._batches[step]


def test_sides_of_boxes_are_in_pixels_of_the_stored_picture_without_crowds_and_padding() -> None:
    boxes = np.zeros((2, 3, 4), np.float32)
    boxes[0, 0] = (0, 0, 0.5, 0.25)  # 50 x 50 pixels
    boxes[0, 1] = (0.1, 0.1, 0.2, 0.6)  # 10 x 100
    boxes[0, 2] = (0, 0, 1, 1)  # a crowd
    boxes[1, 0] = (0, 0, 1, 1)  # a row of padding
    batch = {
        "image": np.zeros((2, 100, 200, 3), np.uint8),
        "boxes": boxes,
        "classes": np.array([[1, 3, 1], [2, 0, 0]]),
        "num_boxes": np.array([3, 1]),
        "is_crowd": np.array([[0, 0, 1], [0, 0, 0]], bool),
        "valid": np.array([True, False]),
    }
    found = median_sides(Batches(batch), ("cat", "dog", "cow"))
    assert found == {"cat": pytest.approx(50), "cow": pytest.approx(np.sqrt(1000))}


def test_sides_of_labels_are_roots_of_their_voxels_and_the_ignore_label_has_none() -> None:
    label = np.zeros((2, 8, 8, 8), np.uint8)
    label[0, :3, :3, :3] = 1
    label[1, :1, :1, :1] = 1
    label[1, 4:] = 255
    batch = {"image": np.zeros((2, 8, 8, 8, 1)), "label": label, "valid": np.ones(2, bool)}
    found = median_sides(Batches(batch), ("background", "liver", "spleen"))
    assert set(found) == {"background", "liver"}
    assert found["liver"] == pytest.approx(2.0), "the median of 3 and 1"


def test_counts_are_those_of_the_manifest_and_0_for_a_class_that_is_not_there() -> None:
    manifest: Any = SimpleNamespace(
        split=lambda name: SimpleNamespace(
            statistics=SimpleNamespace(labels={"1": 4}, label_voxels={"0": 99, "2": 7})
        )
    )
    labels = {1: "cat", 2: "dog"}
    assert objects_by_class(manifest, "train", facts_of("detection", labels, (8, 8, 3))) == {
        "cat": 4,
        "dog": 0,
    }
    labels = {0: "background", 1: "liver", 2: "spleen"}
    facts = facts_of("segmentation", labels, (8, 8, 8, 1))
    assert objects_by_class(manifest, "train", facts) == {"liver": 0, "spleen": 7}


def test_lines_on_a_data_set_count_its_voxels_and_measure_its_structures(tmp_path: Path) -> None:
    cases = [f"scan_{number}.nii.gz" for number in range(4)]
    label = np.zeros(SHAPE, np.uint8)
    label[1:3, 1:3, 1:3] = 1
    for number, case in enumerate(cases):
        save_nifti(tmp_path / "source/imagesTr" / case, image(number), AFFINE)
        save_nifti(tmp_path / "source/labelsTr" / case, label, AFFINE)
    write_json(tmp_path / "source", msd_document(*cases))
    folder = run_convert(tmp_path / "source", tmp_path / "out", layout="msd", **SIZE).folder
    config = load_config("unet3d_small").changed(["augment=[]"], batch_size=4, evaluate_split="train")
    data = open_data(config, folder, "train", lambda facts: build_task(facts, config.task_options))

    metrics = {"dice_per_class": {"liver": 0.0, "spleen": 0.001}}
    liver, spleen = unlearned_lines(config, data, metrics=metrics, losses=[1.0] * 50, steps=50)
    assert liver.startswith(
        "Dice of liver is 0.0000: it is too small at the training size: its median side is 2.0, "
    )
    assert spleen == "Dice of spleen is 0.0010: split train has no voxels of it, and 32 of other classes"
    short = unlearned_lines(config, data, metrics=metrics, losses=[1.0] * 5, steps=5)
    assert short[0].endswith("; too few steps: 5, and each record was shown 5 times")
    learned = {"dice_per_class": {"liver": 0.9, "spleen": None}}
    assert unlearned_lines(config, data, metrics=learned, losses=[1.0] * 50, steps=50) == []


def area_side(anchors: NDArray[np.float32], shape: Sequence[int]) -> float:
    sides = (anchors[..., 2:] - anchors[..., :2]) * np.array(shape[:2])
    return float(np.sqrt(sides.prod(-1)).min())


def test_the_smallest_side_of_a_detector_follows_from_its_anchors() -> None:
    shape = (128, 192, 3)
    facts = facts_of("detection", {1: "cat"}, shape)
    config = load_config("retinanet_small")
    found = smallest_side(build_training_setup(config, facts), facts)
    expected = area_side(retinanet_anchors(shape, (16, 24), stride=8, scale=2.5, aspect_ratios=[1.0]), shape)
    assert found is not None and found.side == pytest.approx(expected * np.sqrt(0.5), rel=1e-6)
    assert "smallest anchor of 20 pixels matches boxes from 14 on (overlap 0.5)" in found.reason

    for model, few in (("ssd_mobilenet_v1", True), ("ssd_mobilenet_v1_ppn", False)):
        config = load_config("retinanet_small").changed(
            model=model, model_options={"width": 8}, task_options={}
        )
        found = smallest_side(build_training_setup(config, facts), facts)
        least = 0.2 if few else 0.15
        anchors = ssd_anchors(
            shape, (4, 6), level=0, levels=6, min_scale=least, reduce_boxes_in_lowest_layer=few
        )
        assert found is not None
        assert found.side == pytest.approx(area_side(anchors, shape) * np.sqrt(0.5), rel=1e-6)


def test_the_smallest_side_of_a_segmenter_is_that_of_a_structure_with_an_inside() -> None:
    facts = facts_of("segmentation", {0: "background", 1: "liver"}, (16, 16, 16, 1))
    found = smallest_side(build_training_setup(load_config("unet3d_small"), facts), facts)
    assert found == SmallestSide(side=3.0, reason="below 3 voxels each voxel of it lies at its surface")
