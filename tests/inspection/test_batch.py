"""`halofeed show` writes the batch that training takes and refuses impossible options."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from halofeed.cli import main
from halofeed.inspection.batch import write_batch
from halofeed.loader import FlipLeftRight, Loader
from halofeed.loader.device import Brightness, augment_on_device
from halofeed.loader.picture import draw_batch
from halofeed.schemas.errors import PartitionError, UsageError
from tests.support.conversions import draw_folders, run_convert


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    source = tmp_path_factory.mktemp("photos")
    draw_folders(source, 10)
    return run_convert(source, tmp_path_factory.mktemp("out"), layout="folders").folder


def read(path):
    return cv2.imread(str(path))[..., ::-1]


def test_the_picture_is_of_the_step_that_training_takes(photos, tmp_path, capsys):
    config = tmp_path / "mine.toml"
    config.write_text(
        'model = "classifier"\nbatch_size = 4\nseed = 3\naugment = [{ name = "FlipLeftRight" }]\n'
        'cores_per_replica = 2\npartition = "image=1,2,1,1"\n'
    )
    words = ["show", photos, "--config", config, "--step", 2, "--side", 64, "-o", tmp_path / "batch.png"]
    assert main([str(word) for word in words]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'batch.png'}\n"
    loader = Loader(photos, split="train", batch_size=4, seed=3, augment=[FlipLeftRight()])
    expected = loader.picture(2, split=(1, 2, 1, 1), side=64)
    np.testing.assert_array_equal(read(tmp_path / "batch.png"), expected)


def test_a_partition_needs_no_recipe(photos, tmp_path):
    file = write_batch(photos, tmp_path / "batch.png", batch_size=2, partition="image=1,2,2,1", side=64)
    expected = Loader(photos, split="train", batch_size=2).picture(split=(1, 2, 2, 1), side=64)
    np.testing.assert_array_equal(read(file), expected)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"output": "batch.jpg"}, UsageError, "written as PNG; name a .png"),
        ({"split": "none"}, UsageError, "no split 'none'"),
        ({"partition": "image=1,64,1,1"}, PartitionError, "height of size 16 does not divide by 64"),
        ({"partition": "rows=4"}, UsageError, "--partition rows=4: .* such as image=1,2,1,1"),
        ({"partition": "image=1,3,1,1;label=1,2,1"}, PartitionError, "^((?!--cores-per-replica).)*$"),
        ({"augment": [{"name": "Spin"}]}, UsageError, "augment 'Spin': not known"),
    ],
)
def test_what_cannot_be_shown_is_refused_and_nothing_is_written(photos, tmp_path, options, error, words):
    given = {"output": "batch.png"} | options
    with pytest.raises(error, match=words):
        write_batch(photos, tmp_path / given.pop("output"), **given)
    assert list(tmp_path.iterdir()) == []


def test_what_a_recipe_does_within_the_step_is_shown_too(photos, tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text(
        'model = "classifier"\nbatch_size = 4\ndevice_augment = [{ name = "Brightness", shift = [0.3, 0.3] }]\n'
    )
    words = ["show", photos, "--config", config, "--seed", 7, "--side", 64, "-o", tmp_path / "a.png"]
    assert main([str(word) for word in words]) == 0
    loader = Loader(photos, split="train", batch_size=4, seed=7, include=["epoch", "size"])
    batch = loader.batch(0)
    brighter = augment_on_device(batch, [Brightness(shift=(0.3, 0.3))], seed=7)["image"]
    assert (np.asarray(brighter) > batch["image"]).any()
    batch["image"] = np.asarray(brighter).round().astype(np.uint8)
    expected = draw_batch(batch, loader.kind, loader.class_names, side=64)
    np.testing.assert_array_equal(read(tmp_path / "a.png"), expected)
