"""A data set whose images have several classes trains, is evaluated, predicted and drawn by the usual commands."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.cli import main
from halofeed.errors import UsageError
from halofeed.inspection.html.predictions_page import write_predictions_page
from halofeed.loader import Loader
from halofeed.schemas.manifest import read_manifest
from halofeed.trainer.held_out import choose_runs
from halofeed.trainer.loaded_run import LoadedRun
from halofeed.trainer.predict import PredictionOptions, predict, predict_batches
from halofeed.trainer.run_folder import open_run
from halofeed.trainer.tasks.multi_label import area_under_roc, average_precision
from tests.support.annotation_writer import draw
from tests.support.conversions import run_convert
from tests.support.training import facts_of

NAMES = ("coat", "hat", "shoe")


def converted(folder: Path, most: int = 3, **options: Any) -> Any:
    """Twelve pictures: each class is in every second, third or fourth one, and some have none unless `most` is 1."""
    pictures = {
        f"{number:02d}.png": [NAMES[k] for k in range(3) if number % (k + 2) == 0][:most]
        for number in range(12)
    }
    if most == 1:
        # One class each, as a data set without several classes needs, and each class somewhere.
        pictures = {name: [NAMES[number % 3]] for number, name in enumerate(pictures)}
    source = draw(folder / "source", *pictures)
    lines = (json.dumps({"filename": name, "class": classes}) for name, classes in pictures.items())
    (source / "t.jsonl").write_text("\n".join(lines))
    given = {"layout": "jsonl", "height": 16, "width": 16, "several_classes": "keep", **options}
    return pictures, run_convert(source, folder / "out", **given)


def test_the_threshold_of_a_run_decides_on_pictures_of_tiles_as_well(tmp_path):
    _, done = converted(tmp_path, fit="tiles")
    manifest = read_manifest(done.folder)
    facts = replace(facts_of("classification", manifest.labels, (16, 16, 3)), multi_label=True)
    loader = Loader(done.folder, split="train", batch_size=4, training=False)
    probabilities = np.tile(np.float32([0.4, 0.2, 0.6]), (4, 1))
    batches = (
        ({"probabilities": probabilities, "labels": np.zeros((4, 3), np.uint8)}, loader.batch(step))
        for step in range(loader.steps)
    )
    options = PredictionOptions(class_threshold=0.3)
    predict_batches(batches, done.folder, "train", tmp_path / "found", facts=facts, options=options)
    with (tmp_path / "found/classes.csv").open(newline="") as stream:
        assert {row["classes"] for row in csv.DictReader(stream)} == {'["coat", "shoe"]'}


@pytest.mark.long
def test_a_run_learns_measures_predicts_and_draws_several_classes(tmp_path):
    pictures, done = converted(tmp_path)
    data, out = str(done.folder), str(tmp_path / "run")
    options = ["--set", "model.features=[4]", "--steps", "2", "--set", "evaluate_split=train"]
    assert (
        main(
            ["train", data, "--config", "classifier_small", "--out", out, "-q", "--batch-size", "8", *options]
        )
        == 0
    )
    run = open_run(out)
    assert run.facts.multi_label
    found = predict(run, data, "train", tmp_path / "found")
    with (tmp_path / "found/classes.csv").open(newline="") as stream:
        rows = {row["source"]: row for row in csv.DictReader(stream)}
    assert set(rows) == set(pictures) and found["records"] == 12
    for row in rows.values():
        assert set(row) == {"id", "key", "source", "classes", *(f"p({name})" for name in NAMES)}
        assert json.loads(row["classes"]) == [name for name in NAMES if float(row[f"p({name})"]) >= 0.5]
    metrics = LoadedRun(run, data, "train").evaluate()
    for name in NAMES:
        scores = np.array([float(rows[picture][f"p({name})"]) for picture in pictures])
        truth = np.array([name in classes for classes in pictures.values()])
        assert metrics["AP"][name] == pytest.approx(average_precision(scores, truth))
        assert metrics["AUROC"][name] == pytest.approx(area_under_roc(scores, truth))
    page = write_predictions_page(tmp_path / "found", data, "train").read_text()
    assert "it has" in page and " missed, " in page
    with pytest.raises(UsageError, match=r"may have several classes.*review the data without --run"):
        choose_runs([run], data)
    _, one = converted(tmp_path / "one", 1, several_classes="refuse")
    with pytest.raises(UsageError, match=r"one class per image.*--several-classes keep"):
        LoadedRun(run, one.folder, "train").check_labels()
    _, kept = converted(tmp_path / "kept", 1)
    LoadedRun(run, kept.folder, "train").check_labels()
