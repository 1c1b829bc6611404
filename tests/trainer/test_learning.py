"""The small recipes learn what their headers say, split over four cores, on drawn and on real data."""

import csv
from pathlib import Path

import numpy as np
import pytest

from halofeed import demo, demo_volumes
from tests.support import clip_mask_writer, clip_writer
from tests.support.level_rows import others
from tests.support.training import finished, halofeed, logged


def run(*words: object) -> None:
    finished(halofeed(*words), seconds=1800)


def convert(folder: Path, source: Path, *options: object) -> Path:
    run("convert", "--source", source, "--out", folder, "--name", "data", *options)
    return folder / "data" / "1.0.0"


def learned(data: Path, folder: Path, metric: str, config: str, *options: object) -> float:
    run("train", data, "--config", config, "--out", folder, "--cores-per-replica", 4, *options)
    return float(logged(folder, "evaluations")[-1]["metrics"][metric])


@pytest.mark.exhaustive
def test_a_detector_learns_the_demos_shapes(tmp_path):
    demo.draw_data_set(tmp_path / "source", 400)
    data = convert(tmp_path, tmp_path / "source", *demo.SHAPES_OPTIONS)
    rows = ("--partition", "image=1,4,1,1")
    assert learned(data, tmp_path / "run", "mAP@0.5", "retinanet_small", *rows) >= 0.9


@pytest.mark.exhaustive
def test_a_unet_learns_the_demos_scans(tmp_path):
    source = tmp_path / "source"
    demo_volumes.draw_scans(source)
    table = ("--layout", "csv", "--task", "segmentation", "--label-map", source / "labels.txt")
    data = convert(tmp_path, source, *table, *demo.VOLUME_SETS["phantom_2mm"])
    assert learned(data, tmp_path / "run", "dice", "unet3d_small", "--partition", "image=1,4,1,1,1") >= 0.9


@pytest.mark.exhaustive
def test_a_unet_learns_the_hippocampus_from_nine_scans(tmp_path, test_data):
    data = convert(
        tmp_path, test_data / "volumes/hippocampus", "--layout", "pairs",
        "--depth", 48, "--height", 64, "--width", 48, "--window-percentiles", "1,99",
        "--split-shares", "train=0.75,test=0.25",
    )  # fmt: skip
    # With so few scans, how a processor rounds bfloat16 decides whether this seed finds the second class whole:
    # Dice was 0.78 on one (seed 1: 0.86) and 0.86 on another; in float32 it is 0.86.
    options = ("--partition", "image=1,4,1,1,1", "--set", "compute_dtype=float32")
    assert learned(data, tmp_path / "run", "dice", "unet3d_small", *options) >= 0.8


@pytest.mark.exhaustive
def test_a_classifier_learns_which_way_a_square_moves_in_clips_split_by_rows(tmp_path):
    """No single frame tells the classes apart."""
    generator = np.random.default_rng(5)
    for split, each in (("train", 48), ("validation", 16)):
        for direction in ("left", "right"):
            (tmp_path / "source" / split / direction).mkdir(parents=True)
            for number in range(each):
                frames = clip_writer.moving_square(direction, 8, generator)
                clip_writer.write_gif(tmp_path / "source" / split / direction / f"{number}.gif", frames)
    size = ("--layout", "folders", "--frames", 8, "--height", 24, "--width", 32)
    data = convert(tmp_path, tmp_path / "source", *size)
    options = ("--steps", 150, "--batch-size", 16, "--set", "augment=[]", "--partition", "image=1,1,4,1,1")
    options += ("--set", "learning_rate=0.003")
    assert learned(data, tmp_path / "run", "accuracy", "classifier_small", *options) >= 0.9
    for direction in ("left", "right"):
        (tmp_path / "new").mkdir(exist_ok=True)
        for number in range(8):
            frames = clip_writer.moving_square(direction, 8, generator)
            clip_writer.write_folder(tmp_path / "new" / f"{direction}{number}", frames)
    run("predict", tmp_path / "run", "--source", tmp_path / "new", "--out", tmp_path / "found")
    with (tmp_path / "found/classes.csv").open(newline="") as stream:
        right = [row["key"].startswith(row["class"]) for row in csv.DictReader(stream)]
    assert len(right) == 16 and sum(right) >= 12


@pytest.fixture(scope="module")
def masked_clips(tmp_path_factory):
    folder, generator = tmp_path_factory.mktemp("clips"), np.random.default_rng(3)
    for name, each in (("train", 24), ("validation", 8)):
        for number in range(each):
            frames, masks = clip_mask_writer.draw_masked(generator)
            clip_writer.write_folder(folder / "source" / name / "images" / str(number), frames)
            clip_mask_writer.write_masks(folder / "source" / name / "labels" / str(number), masks, "folder")
    size = ("--layout", "pairs", "--frames", 8, "--height", 24, "--width", 32)
    return convert(folder, folder / "source", *size)


SPLITS = others(["1,4,1,1,1", "1,1,1,4,1"], [], pytest.mark.exhaustive) + others(["1,1,4,1,1"], [])


@pytest.mark.parametrize("split", SPLITS)
def test_a_unet_learns_what_moves_in_clips_split_by_frames_rows_and_columns(masked_clips, tmp_path, split):
    options = ("--steps", 60, "--set", "augment=[]", "--set", "model.depth=3")
    options += ("--partition", f"image={split}")
    assert learned(masked_clips, tmp_path / "run", "dice", "unet3d_small", *options) >= 0.9


@pytest.mark.exhaustive
def test_a_classifier_learns_clothing(tmp_path, test_data):
    size = ("--layout", "folders", "--height", 96, "--width", 96)
    data = convert(tmp_path, test_data / "images/clothing", *size)
    found = learned(data, tmp_path / "run", "accuracy", "classifier_small", "--partition", "image=1,4,1,1")
    assert found >= 0.35  # chance is 0.1
