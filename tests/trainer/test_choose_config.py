"""Without a name, the configuration follows from the task, the shape and the devices, and the reason names these."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halofeed.trainer.choose_config import IMAGES_PER_DEVICE, ConfigChoice, choose_config
from halofeed.trainer.config import load_config, named_configs
from tests.support.conversions import draw_folders, run_convert
from tests.support.object_masks import convert_objects
from tests.support.training import command, logged


@dataclass
class FakeManifest:
    """What the choice reads of a manifest."""

    task: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> Any:
        return SimpleNamespace(name="volume" if len(self.shape) == 4 else "picture")

    def field(self, name: str) -> Any:
        assert name == "image"
        return SimpleNamespace(shape=self.shape)


def choice_of(
    task: str, shape: tuple[int, ...], platform: str, devices: int, records: int = 1000
) -> ConfigChoice:
    manifest: Any = FakeManifest(task, shape)
    return choose_config(manifest, platform=platform, devices=devices, records=records)


@pytest.mark.parametrize(
    ("task", "shape", "machine", "name", "batch", "reason"),
    [
        (
            "detection",
            (640, 640, 3),
            ("cpu", 8),
            "retinanet_small",
            None,
            "recipes of full size need accelerators",
        ),
        (
            "detection",
            (640, 640, 3),
            ("gpu", 1),
            "retinanet_resnet50_fpn_640",
            8,
            "on 1 gpu device, with 8 images",
        ),
        (
            "detection",
            (640, 640, 3),
            ("tpu", 8),
            "retinanet_resnet50_fpn_640",
            None,
            "on 8 tpu devices, with 64",
        ),
        (
            "detection",
            (640, 640, 3),
            ("tpu", 64),
            "retinanet_resnet50_fpn_640",
            None,
            "with 64 images per step",
        ),
        ("detection", (640, 640, 1), ("gpu", 1), "retinanet_small", None, "none of full size has this shape"),
        (
            "detection",
            (512, 640, 3),
            ("gpu", 1),
            "retinanet_small",
            None,
            "pictures of 512 x 640 on 1 gpu device",
        ),
        (
            "detection",
            (2560, 2560, 3),
            ("gpu", 4),
            "retinanet_small",
            None,
            "8way needs a multiple of 8 devices",
        ),
        (
            "detection",
            (2560, 2560, 3),
            ("gpu", 8),
            "retinanet_resnet50_fpn_2560_8way",
            8,
            "with 8 images per step",
        ),
        (
            "segmentation",
            (128, 128, 128, 1),
            ("gpu", 2),
            "unet3d_128",
            8,
            "volumes of 128 x 128 x 128 on 2 gpu",
        ),
        ("segmentation", (256, 256, 256, 1), ("tpu", 16), "unet3d_256_16way", 8, "with 8 images per step"),
        ("segmentation", (640, 640, 3), ("gpu", 1), "unet2d_small", None, "none of full size has this shape"),
        (
            "classification",
            (224, 224, 3),
            ("gpu", 1),
            "classifier_small",
            None,
            "classification in pictures of",
        ),
    ],
)
def test_the_choice_follows_from_task_shape_and_devices(
    task: str, shape: tuple[int, ...], machine: tuple[str, int], name: str, batch: int | None, reason: str
) -> None:
    choice = choice_of(task, shape, *machine)
    assert choice.name == name
    expected = {} if batch is None else {"batch_size": batch}
    # Of 8 volumes per evaluation step of a v3-8, or 4 of a v3-64, this is the share of the batch.
    if batch and task == "segmentation":
        expected["evaluate_batch_size"] = {"unet3d_128": 2, "unet3d_256_16way": 1}[name]
    assert choice.changes == expected
    assert reason in choice.reason


def test_a_split_that_is_smaller_than_a_batch_takes_the_small_recipe() -> None:
    choice = choice_of("detection", (640, 640, 3), "gpu", 1, records=7)
    assert choice.name == "retinanet_small"
    assert choice.reason.endswith("retinanet_resnet50_fpn_640 needs 8 images per step, and the split has 7")
    assert choice_of("detection", (640, 640, 3), "gpu", 1, records=8).changes == {"batch_size": 8}


@pytest.mark.parametrize("name", IMAGES_PER_DEVICE)
def test_images_per_device_are_those_that_the_recipe_states(name: str) -> None:
    config = load_config(name)
    devices = config.batch_size / IMAGES_PER_DEVICE[name]
    # Published runs had a v3-8 or a v3-64.
    assert devices in (8, 64) and devices % config.cores_per_replica == 0


def test_a_train_without_config_names_its_choice_and_options_take_precedence(tmp_path: Path) -> None:
    draw_folders(tmp_path / "source", 8)
    data = run_convert(tmp_path / "source", tmp_path / "out", layout="folders", height=16, width=16).folder
    words = ("--steps", 1, "--batch-size", 8, "--set", "model.features=[8]", "--set", "learning_rate=0.5")
    printed = command("train", data, "--out", tmp_path / "run", *words)
    (line,) = [line for line in printed.splitlines() if "recipe classifier_small, for" in line]
    assert "classification in pictures of 16 x 16 on" in line and "--config NAME" in line
    named = command("train", data, "--out", tmp_path / "named", "--config", "classifier_small", *words)
    assert "recipe" not in named
    assert [line["loss"] for line in logged(tmp_path / "run")] == [
        line["loss"] for line in logged(tmp_path / "named")
    ]


@pytest.mark.parametrize("masks", [True, False])
def test_data_with_masks_name_the_recipe_that_learns_them(masks: bool, tmp_path: Path) -> None:
    data = convert_objects(tmp_path, masks=masks)
    # More images than there are records end the command after the choice.
    printed = command("train", data, "--out", tmp_path / "run", "--batch-size", 64, code=2)
    assert ("which --config retinanet_masks_small learns too" in printed) is masks
    assert "retinanet_masks_small" in named_configs()
