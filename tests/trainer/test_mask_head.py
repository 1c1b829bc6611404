"""RetinaNet with a mask head: its options, what it refuses, and that it learns."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from halofeed.system.errors import UsageError
from halofeed.trainer.config import TrainConfig, load_config
from halofeed.trainer.detection.anchors import MaskedLevels
from halofeed.trainer.models.layers import Layers
from halofeed.trainer.models.retinanet import RetinaNet
from tests.support.object_masks import convert_objects
from tests.support.training import finished, halofeed, logged

TINY = {"blocks": [1, 1, 1, 1], "width": 4, "features": 8, "last_level": 5, "tower_depth": 1}


def built(**options: Any) -> RetinaNet:
    layers = Layers(rngs=nnx.Rngs(0), dtype=jnp.float32)
    return RetinaNet(layers, classes=2, image_shape=(64, 48, 3), **{**TINY, **options})


def shapes_of(**options: Any) -> Any:
    """The outputs for one picture, as shapes."""
    return nnx.eval_shape(lambda: built(**options)(jnp.zeros((1, 64, 48, 3))))


@pytest.mark.parametrize(
    ("first_level", "stride", "size"), [(3, 4, (16, 12)), (3, 8, (8, 6)), (2, 2, (32, 24)), (2, 1, (64, 48))]
)
def test_masks_have_their_stride(first_level, stride, size):
    options = {"mask_head": True, "first_level": first_level, "mask_stride": stride}
    outputs = shapes_of(**options)
    assert isinstance(outputs, MaskedLevels)
    assert outputs.pixels.foreground.shape == (1, *size)
    assert outputs.pixels.log_distances.shape == (1, *size, 4)
    assert [level.class_logits.shape[1] for level in outputs.levels] == [
        64 // 2**level for level in range(first_level, 6)
    ]


def test_without_a_mask_head_there_are_levels_alone():
    assert isinstance(shapes_of(), list)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_head": True, "mask_stride": 8, "first_level": 2}, "model.mask_stride: expected one of 1, 2, 4, got 8"),
        ({"first_level": 4}, "model.first_level: expected 2 or 3, got 4"),
        ({"last_level": 4}, "model.last_level: expected 5 or more, got 4"),
        (
            {"first_level": 2, "backbone": "mobilenet_v1", "blocks": None},
            "mobilenet_v1 has no map of that level; take --set model.backbone=resnet50",
        ),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_with_those_that_do(options, message):
    with pytest.raises(UsageError, match=message):
        built(**options)


def test_the_task_follows_the_model():
    assert load_config("retinanet_masks_small").options_of_task["masks"] is True
    assert "masks" not in load_config("retinanet_small").options_of_task
    assert TrainConfig(model_options={"mask_head": False}).options_of_task == {}


def small_run(data: Path, out: Path, *more: object, code: int = 0) -> str:
    """Train a tiny model in a process of its own, which has one device; return what it prints."""
    options = [f"model.{name}={json.dumps(value)}" for name, value in TINY.items()]
    sets = [word for option in options for word in ("--set", option)]
    words = ["--config", "retinanet_masks_small", *sets, "--set", "augment=[]", "--batch-size", 4]
    return finished(halofeed("train", data, "--out", out, *words, *more), code)


@pytest.mark.long
def test_data_that_a_mask_head_cannot_learn_is_refused_with_what_helps(tmp_path):
    data = convert_objects(tmp_path, masks=False)
    refused = small_run(data, tmp_path / "run", "--steps", 1, code=2)
    reason = "needs the objects' masks, which the data set lacks; convert it with --masks"
    assert reason in refused and "pass --set model.mask_head=false" in refused
    small_run(data, tmp_path / "run", "--steps", 1, "--set", "model.mask_head=false")


@pytest.mark.long
def test_a_mask_head_learns_from_tiles_and_its_masks_are_joined(tmp_path):
    data = convert_objects(
        tmp_path, sizes=[(96, 96)] * 2, fit="tiles", height=64, width=64, tile_overlap=(32, 32), max_boxes=8
    )
    run, found = tmp_path / "run", tmp_path / "found"
    wider = ["--set", "model.width=8", "--set", "model.features=24", "--set", "compute_dtype=float32"]
    small_run(data, run, "--steps", 120, "--set", "evaluate_split=train", *wider)
    metrics = logged(run, "evaluations")[-1]["metrics"]
    assert metrics["mask mAP@0.5"] > 0.5 and metrics["tiles"] == 8
    finished(halofeed("predict", run, "--split", "train", "--min-score", 0, "--out", found, "--draw"))
    entries = json.loads((found / "detections.json").read_text())
    assert {tuple(one["segmentation"]["size"]) for one in entries} == {(96, 96)}
    assert len(list((found / "drawn").glob("*.jpg"))) == 2


@pytest.mark.long
def test_a_mask_head_learns_the_masks_of_its_pictures(tmp_path):
    data = convert_objects(tmp_path, sizes=[(64, 64)] * 4, height=64, width=64, max_boxes=8)
    wider = ["--set", "model.width=8", "--set", "model.features=24", "--set", "compute_dtype=float32"]
    small_run(data, tmp_path / "run", "--steps", 60, "--set", "evaluate_split=train", *wider)
    metrics = logged(tmp_path / "run", "evaluations")[-1]["metrics"]
    assert metrics["mask mAP@0.5"] > 0.5
    examples = sorted((tmp_path / "run" / "examples").glob("*.npz"))
    with np.load(examples[0]) as example:
        assert example["truth_objects"].shape == (64, 64) and example["predicted_objects"].max() > 0
