"""The anchors of a planned detector are those that match the boxes of its data at their cost."""

import numpy as np
import pytest

from halofeed.auto_config import configuring
from halofeed.loader import Loader
from halofeed.schemas.manifest import read_manifest
from halofeed.trainer.auto.anchors import planned_anchors, sampled_box_sides
from halofeed.trainer.auto.candidates import Machine
from halofeed.trainer.auto.choose import Verdict
from halofeed.trainer.auto.fingerprint import Fingerprint, fingerprint_of
from halofeed.trainer.auto.plan_auto import Planner, plan_auto
from halofeed.trainer.choose_config import ConfigChoice
from halofeed.trainer.config import load_config
from halofeed.trainer.detection.anchor_fit import Anchors, best_anchors
from halofeed.trainer.detection.anchors import retinanet_anchors
from tests.support.object_masks import convert_objects

SQUARES = Anchors(levels=(3, 5), scale=2.5, aspect_ratios=(1.0,), scales_per_octave=2)


def slow_matched_share(sides: np.ndarray, anchors: Anchors, generator: np.random.Generator) -> float:
    """Share of boxes at random places of a picture of 256 x 256 that overlap one of its anchors by half."""
    grid = (
        np.concatenate(
            [
                retinanet_anchors(
                    (256, 256),
                    (256 >> level, 256 >> level),
                    stride=2**level,
                    scale=anchors.scale,
                    aspect_ratios=anchors.aspect_ratios,
                    scales_per_octave=anchors.scales_per_octave,
                ).reshape(-1, 4)
                for level in range(anchors.levels[0], anchors.levels[1] + 1)
            ]
        ).astype(float)
        * 256
    )
    found = 0
    for side in sides:
        first = generator.uniform(64, 128, 2)
        box = np.concatenate([first, first + side])
        common = np.clip(np.minimum(grid[:, 2:], box[2:]) - np.maximum(grid[:, :2], box[:2]), 0, None).prod(
            -1
        )
        union = (grid[:, 2:] - grid[:, :2]).prod(-1) + side.prod() - common
        found += (common / union).max() >= 0.5
    return found / len(sides)


@pytest.mark.parametrize("largest", [8, 24, 120])
@pytest.mark.parametrize(
    "anchors",
    [SQUARES, Anchors(levels=(2, 5), scale=2.0, aspect_ratios=(1.0, 2.0, 0.5), scales_per_octave=2)],
)
def test_the_matched_share_is_that_of_boxes_at_random_places(anchors, largest):
    generator = np.random.default_rng(largest)
    sides = generator.uniform(largest / 4, largest, (600, 2))
    assert anchors.matched_share(sides, 0.5) == pytest.approx(
        slow_matched_share(sides, anchors, generator), abs=0.08
    )


@pytest.mark.parametrize(
    ("sides", "options"),
    [
        # Cells of 8 pixels need a finer level: anchors of their size would be a stride of 8 apart.
        ((8, 8), {"first_level": 2}),
        ((20, 20), {}),
        ((200, 200), {"anchor_scale": 4.0}),
        ((150, 60), {"aspect_ratios": [1.0, 2.0, 0.5]}),
    ],
)
def test_anchors_follow_the_boxes(sides, options):
    boxes = np.tile(np.array(sides, float), (50, 1))
    found = best_anchors(boxes, SQUARES, 0.5, (2, 3)).options(SQUARES)
    assert {name: found.get(name) for name in options} == options and bool(found) == bool(options)
    # Without a finer level the anchors stay at the level of the model.
    assert "first_level" not in best_anchors(boxes, SQUARES, 0.5).options(SQUARES)


def test_the_line_says_what_the_recipe_would_match_and_another_backbone_keeps_its_levels():
    boxes = np.tile(np.array([8.0, 8.0]), (50, 1))
    config = load_config("retinanet_small")
    changes, line = planned_anchors(config, boxes)
    assert changes == {"first_level": 2}
    assert "levels 2 to 5" in line and "94% of 50 boxes with sides of 8 to 8 pixels" in line
    assert line.endswith("of the recipe's 0%")
    mobile = config.changed(["model.backbone=mobilenet_v1"])
    assert "first_level" not in planned_anchors(mobile, boxes)[0]
    assert planned_anchors(config, 2.5 * boxes)[1].endswith("and these are the recipe's")


def test_boxes_are_sampled_as_they_are_stored_without_crowds(tmp_path):
    data = convert_objects(tmp_path, fit="tiles", tile_overlap=(8, 8), max_boxes=8)
    expected = []
    for batch in Loader(data, split="train", batch_size=1, training=False).batches():
        is_box = (np.arange(8) < batch["num_boxes"][0]) & ~batch["is_crowd"][0]
        boxes = batch["boxes"][0][is_box].astype(float)
        expected += ((boxes[:, 2:] - boxes[:, :2]) * 32).tolist()
    found = sampled_box_sides(str(data), "train")
    assert len(expected) > 16
    assert np.allclose(sorted(found.tolist()), sorted(expected))


def planned(*settings, most_boxes=320, side=8.0):
    """The configuration and the lines of a plan for boxes of one side, with options of the user."""
    fingerprint = Fingerprint(
        task="detection",
        kind="picture",
        records=100,
        stored_shape=(256, 256, 3),
        spacing_mm=(1.0, 1.0),
        best_spacing_mm=(1.0, 1.0),
        median_shape=(256, 256),
        largest_shape=(256, 256),
        structures={},
        most_boxes=most_boxes,
    )
    verdict = Verdict(fits=True, total_bytes=1, step_seconds=0.1, is_measured=True)
    planner = Planner(
        machine=Machine(platform="cpu", devices=1, limit_bytes=1 << 40),
        seconds=600.0,
        configure=configuring(settings, {}),
        judge_of=lambda configure: lambda candidate: verdict,
    )
    choice = ConfigChoice(name="retinanet_small", reason="a test")
    plan = plan_auto(fingerprint, choice, planner, np.full((50, 2), side))
    lines = [line for line in plan.lines if line.startswith(("anchors: ", "detections: "))]
    return planner.configure(plan.recipe, plan.changes), lines


def test_a_planned_detector_has_anchors_and_detections_for_its_boxes():
    config, lines = planned()
    recipe = load_config("retinanet_small")
    assert config.model_options == {**recipe.model_options, "first_level": 2}
    detections = {"max_detections": 400, "max_candidates_per_level": 1280}
    assert config.task_options == {**recipe.task_options, **detections}
    assert len(lines) == 2 and "because one has 320 boxes; the recipe has 100" in lines[1]
    config, lines = planned(most_boxes=100)
    assert config.task_options == recipe.task_options and len(lines) == 1


def test_options_of_the_user_stay_and_the_others_are_planned_for_them():
    config, lines = planned("model.anchor_scale=4", side=12.0)
    assert config.model_options["anchor_scale"] == 4 and "4 strides" in lines[0] and len(lines) == 2
    config, lines = planned("model.first_level=3", side=200.0)
    assert config.model_options["first_level"] == 3 and config.model_options["anchor_scale"] == 4
    config, lines = planned("task.max_detections=50")
    assert config.task_options["max_detections"] == 50
    assert [line.partition(":")[0] for line in lines] == ["anchors"]
    assert config.model_options["first_level"] == 2 and "levels 2 to 5" in lines[0]


def test_boxes_of_a_record_are_counted_as_the_loader_gives_them(tmp_path):
    data = convert_objects(tmp_path, max_boxes=3)
    assert fingerprint_of(read_manifest(data), "train").most_boxes == 3
