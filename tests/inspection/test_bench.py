"""`halofeed bench` measures each part of the input pipeline; `halofeed show` writes the batch that training takes."""

import re

import cv2
import numpy as np
import pytest

from halofeed.cli import main
from halofeed.errors import UsageError
from halofeed.inspection import bench as module
from halofeed.inspection.batch_png import write_batch
from halofeed.inspection.bench import (
    AUGMENTED,
    COPY,
    DECODE,
    DISK,
    ON_DEVICE,
    PLAIN,
    TENSORFLOW,
    TRANSFER,
    VERIFIED,
    bench,
)
from halofeed.inspection.training_batches import TrainingBatches
from halofeed.loader import FlipLeftRight, Loader
from halofeed.loader.contact_sheet import draw_batch
from halofeed.loader.device import Brightness, augment_on_device
from halofeed.schemas.native import kernel
from tests.support.conversions import draw_folders, run_convert


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    source = tmp_path_factory.mktemp("photos")
    draw_folders(source, 12)
    out = tmp_path_factory.mktemp("out")
    return {
        encoding: run_convert(source, out / encoding, layout="folders", encoding=encoding, shards=2).folder
        for encoding in ("raw", "packed", "png")
    }


@pytest.mark.parametrize(("encoding", "more"), [("raw", set()), ("packed", {DECODE}), ("png", {DECODE})])
def test_every_part_of_the_way_has_a_rate(folders, encoding, more):
    flip = [{"name": "FlipLeftRight"}]
    found = bench(folders[encoding], TrainingBatches(batch_size=4, augment=flip), seconds=0.01)
    parts = {COPY, DISK, PLAIN, VERIFIED, AUGMENTED, TENSORFLOW, TRANSFER} | more
    assert set(found.rates) == parts
    assert all(rate.images > 0 and rate.bytes > 0 for rate in found.rates.values())
    assert found.stream == found.rates[AUGMENTED]
    assert re.search(r"(?m)slowest part per image: [a-z, ]+, \d+% of the time$", str(found))
    assert ("no C compiler" in str(found)) != kernel.is_built()
    assert f"12 records, {encoding}, batches of 4" in str(found)


def test_what_a_recipe_does_on_the_device_has_a_rate(folders):
    device = [{"name": "Brightness", "shift": [-0.1, 0.1]}, {"name": "GaussianNoise"}]
    found = bench(folders["raw"], TrainingBatches(batch_size=4, device_augment=device), seconds=0.01)
    assert found.rates[ON_DEVICE].images > 0
    assert found.stream == found.rates[PLAIN]
    assert ON_DEVICE not in bench(folders["raw"], TrainingBatches(batch_size=4), seconds=0.01).rates


def test_the_part_that_is_slow_is_named(folders, monkeypatch):
    real = module.decode_image

    def slow(*arguments, **more):
        module.time.sleep(0.05)
        return real(*arguments, **more)

    monkeypatch.setattr(module, "decode_image", slow)
    assert "image: decoding, " in bench(folders["png"], TrainingBatches(batch_size=4), seconds=0.01).slowest


def test_the_command_says_how_many_accelerators_are_fed(folders, capsys):
    words = ["bench", str(folders["raw"]), "--batch-size", "4", "--seconds", "0.01", "--appetite"]
    assert main([*words, "10"]) == 0
    told = r"this host feeds [\d.]+ accelerators at 10 images/s each\n$"
    assert re.search(told, capsys.readouterr().out)
    assert main([*words, "0"]) == 2
    assert "--appetite 0: expected images per second above 0" in capsys.readouterr().err
    with pytest.raises(UsageError, match="seconds: expected more than 0"):
        bench(folders["raw"], TrainingBatches(), seconds=0)


@pytest.fixture
def photos(folders):
    return folders["raw"]


def read(path):
    return cv2.imread(str(path))[..., ::-1]


def test_the_picture_is_of_the_step_that_training_takes_and_a_partition_needs_no_recipe(
    photos, tmp_path, capsys
):
    config = tmp_path / "mine.toml"
    config.write_text(
        'model = "classifier"\nbatch_size = 4\nseed = 3\naugment = [{ name = "FlipLeftRight" }]\n'
        'cores_per_replica = 2\npartition = "image=1,2,1,1"\n'
    )
    words = ["show", photos, "--config", config, "--step", 2, "--side", 64, "-o", tmp_path / "batch.png"]
    assert main([str(word) for word in words]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'batch.png'}\n"
    # The command names the file of each row instead of its id.
    given = {"split": "train", "include": ["source"]}
    loader = Loader(photos, batch_size=4, seed=3, augment=[FlipLeftRight()], **given)
    expected = loader.picture(2, split=(1, 2, 1, 1), side=64)
    np.testing.assert_array_equal(read(tmp_path / "batch.png"), expected)
    file = write_batch(
        photos, tmp_path / "batch.png", TrainingBatches(batch_size=2), partition="image=1,2,2,1", side=64
    )
    expected = Loader(photos, batch_size=2, **given).picture(split=(1, 2, 2, 1), side=64)
    np.testing.assert_array_equal(read(file), expected)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"output": "batch.jpg"}, UsageError, "written as PNG; name a .png"),
        ({"split": "none"}, UsageError, "no split 'none'"),
        ({"partition": "rows=4"}, UsageError, "--partition rows=4: .* such as image=1,2,1,1"),
        ({"augment": [{"name": "Spin"}]}, UsageError, "augment 'Spin': not known"),
    ],
)
def test_what_cannot_be_shown_is_refused_and_nothing_is_written(photos, tmp_path, options, error, words):
    given = {"output": "batch.png"} | options
    output, partition = tmp_path / given.pop("output"), given.pop("partition", "")
    with pytest.raises(error, match=words):
        write_batch(photos, output, TrainingBatches(**given), partition=partition)
    assert list(tmp_path.iterdir()) == []


def test_what_a_recipe_does_within_the_step_is_shown_too(photos, tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text(
        'model = "classifier"\nbatch_size = 4\ndevice_augment = [{ name = "Brightness", shift = [0.3, 0.3] }]\n'
    )
    words = ["show", photos, "--config", config, "--seed", 7, "--side", 64, "-o", tmp_path / "a.png"]
    assert main([str(word) for word in words]) == 0
    loader = Loader(photos, split="train", batch_size=4, seed=7, include=["epoch", "size", "source"])
    batch = loader.batch(0)
    brighter = augment_on_device(batch, [Brightness(shift=(0.3, 0.3))], seed=7)["image"]
    assert (np.asarray(brighter) > batch["image"]).any()
    batch["image"] = np.asarray(brighter).round().astype(np.uint8)
    expected = draw_batch(batch, loader.kind, loader.class_names, side=64)
    np.testing.assert_array_equal(read(tmp_path / "a.png"), expected)
