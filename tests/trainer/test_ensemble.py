"""Several runs predict the mean of their probabilities, each fold is evaluated alone, and components are proved."""

import argparse
import dataclasses
import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from halofeed.errors import UsageError
from halofeed.trainer import component_rules as component_rules_module
from halofeed.trainer.component_rules import prove_rules
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.cross_validation import CrossValidation, FoldResult, deviation_of, mean_of
from halofeed.trainer.ensemble import check_can_average
from halofeed.trainer.largest_component import (
    ComponentMetrics,
    component_rules,
    keep_largest,
    kept_classes,
)
from halofeed.trainer.metrics import SegmentationMetrics
from halofeed.trainer.run_folder import Run
from halofeed.trainer.tasks.classification import Classification
from halofeed.trainer.tasks.segmentation import Segmentation
from halofeed.training import _run_folders, _train
from tests.support.training import facts_of

LABELS = ("background", "liver", "spleen")


def slow_largest(label, number):
    """The voxels of the largest component of a class, by a flood fill from each voxel; the first of equal ones."""
    left = {tuple(place) for place in np.argwhere(label == number).tolist()}
    best: set[tuple[int, ...]] = set()
    for start in sorted(left):
        if start not in left:
            continue
        part, waiting = set(), [start]
        left.discard(start)
        while waiting:
            place = waiting.pop()
            part.add(place)
            for step in itertools.product((-1, 0, 1), repeat=label.ndim):
                near = tuple(int(a + b) for a, b in zip(place, step, strict=True))
                if near in left:
                    left.discard(near)
                    waiting.append(near)
        if len(part) > len(best):
            best = part
    return best


@given(
    arrays.arrays(
        np.uint8, arrays.array_shapes(min_dims=2, max_dims=3, max_side=6), elements=st.integers(0, 2)
    ),
    st.sets(st.integers(1, 2)),
)
def test_only_the_largest_component_of_each_named_class_stays(label, classes):
    before, found = label.copy(), keep_largest(label, classes)
    assert np.array_equal(label, before)
    for number in (1, 2):
        kept = {tuple(place) for place in np.argwhere(found == number).tolist()}
        everything = {tuple(place) for place in np.argwhere(label == number).tolist()}
        assert kept == (slow_largest(label, number) if number in classes else everything)
    assert set(np.unique(found)) <= set(np.unique(label)) | {0}


def batch_of(*labels, **more):
    return {"label": np.array(labels, np.uint8), **more}


TRUE = np.array([[1, 1, 0, 0, 0], [1, 1, 0, 0, 2]])
WITH_SPECK = np.array([[1, 1, 0, 0, 1], [1, 1, 0, 0, 2]])
WITHOUT = np.array([[1, 0, 0, 1, 1], [1, 1, 0, 0, 2]])


def test_a_rule_is_proved_where_the_mean_rises_and_more_examples_rise_than_fall():
    metrics = ComponentMetrics(SegmentationMetrics(LABELS, kind="picture", hausdorff=False))
    metrics.update(batch_of(WITH_SPECK, WITH_SPECK), batch_of(TRUE, TRUE))
    liver, spleen = metrics.rules()
    assert (liver.name, liver.better, liver.worse, liver.is_proved) == ("liver", 2, 0, True)
    assert liver.before == pytest.approx(8 / 9) and liver.after == 1.0
    assert (spleen.before, spleen.after, spleen.is_proved) == (1.0, 1.0, False)


def test_one_great_gain_does_not_prove_a_rule_that_harms_most_examples():
    names = ("background", "liver")
    before = [np.array([value]) for value in (0.1, 0.9, 0.9)]
    after = [np.array([value]) for value in (1.0, 0.8, 0.8)]
    (rule,) = component_rules(names, before, after)
    assert rule.after > rule.before and (rule.better, rule.worse, rule.is_proved) == (1, 2, False)


def test_metrics_with_a_rule_are_those_of_the_cleaned_labels():
    kept = ComponentMetrics(SegmentationMetrics(LABELS, kind="picture", hausdorff=False), {1})
    plain = SegmentationMetrics(LABELS, kind="picture", hausdorff=False)
    scores = kept.update(batch_of(WITHOUT, WITH_SPECK), batch_of(TRUE, TRUE))
    cleaned = batch_of(keep_largest(WITHOUT, {1}), keep_largest(WITH_SPECK, {1}))
    assert np.array_equal(scores, plain.update(cleaned, batch_of(TRUE, TRUE)))
    assert kept.result() == plain.result()


def test_padding_and_rows_that_do_not_count_prove_nothing():
    metrics = ComponentMetrics(SegmentationMetrics(LABELS, kind="picture", hausdorff=False))
    # The speck is in the padding: the picture has three columns.
    truth = batch_of(TRUE, TRUE, size=np.array([[2, 3], [2, 5]]), valid=np.array([True, False]))
    metrics.update(batch_of(WITH_SPECK, WITH_SPECK), truth)
    assert [rule.better for rule in metrics.rules() if rule.name == "liver"] == [0]


def test_a_run_that_can_have_no_rule_is_not_predicted_to_find_one(monkeypatch):
    loaded = SimpleNamespace(step=3, can_have_rules=False)  # without `find_rules`
    monkeypatch.setattr(component_rules_module, "LoadedRun", lambda *_, **__: loaded)
    run = run_of("a", regions={"organ": ["liver"]})
    run = dataclasses.replace(run, document={**run.document, "evaluate_split": "fold0"})
    assert prove_rules(run, "data", "fold0", "best") == ([], run)


def test_all_processes_of_a_planned_run_take_part_in_proving_its_rules(monkeypatch):
    @dataclasses.dataclass
    class Data:
        description: dict[str, str]

    proved = []
    done = SimpleNamespace(metrics={}, stopped_by=None)
    monkeypatch.setattr("halofeed.trainer.data.open_data", lambda *_: Data({"data_name": "scans"}))
    monkeypatch.setattr("halofeed.trainer.train.train", lambda *_, **__: done)
    monkeypatch.setattr("halofeed.training._not_evaluated", lambda _: [])
    monkeypatch.setattr("halofeed.training._prove_after_training", lambda *given: proved.append(given) or [])
    monkeypatch.setattr("halofeed.trainer.distributed.is_chief", lambda: False)
    parsed = argparse.Namespace(split="train", fold=None, path="data", out="run", overwrite=False)
    assert _train(parsed, TrainConfig(), "auto", ["patch: 8 x 8"]) == 0
    assert len(proved) == 1


def test_rules_hold_for_the_checkpoint_that_proved_them():
    document = {"largest_component": {"step": 7, "classes": [{"label": 2}]}}
    assert (
        kept_classes(document, 7) == {2} and kept_classes(document, 8) == kept_classes({}, 7) == frozenset()
    )


def run_of(folder, task="segmentation", names=("background", "liver"), **task_options):
    first = 1 if task == "detection" else 0
    labels = {first + number: name for number, name in enumerate(names)}
    facts = facts_of(task, labels, (8, 8, 1))
    config = TrainConfig(task_options=task_options)
    return Run(folder=Path(folder), document={"facts": facts.to_json(), "config": config.to_json()})


def test_only_runs_of_one_task_and_list_of_classes_are_averaged():
    check_can_average([run_of("a"), run_of("b")])
    with pytest.raises(UsageError, match="b: its boxes cannot be averaged"):
        check_can_average([run_of("b", task="detection")] * 2)
    with pytest.raises(UsageError, match=r"b: learned segmentation of .*spleen.*name runs of one data set"):
        check_can_average([run_of("a"), run_of("b", names=("background", "spleen"))])
    with pytest.raises(UsageError, match="b: learned classification"):
        check_can_average([run_of("a"), run_of("b", task="classification")])


def test_only_runs_of_the_same_regions_in_one_order_are_averaged():
    whole, core = {"whole": ["liver", "spleen"]}, {"core": ["spleen"]}
    runs = [run_of(name, names=LABELS, regions={**whole, **core}) for name in "ab"]
    check_can_average(runs)
    for other in ({}, {"regions": {**core, **whole}}, {"regions": {**whole, "core": ["liver"]}}):
        with pytest.raises(UsageError, match=r"c: learned the regions .*same task\.regions"):
            check_can_average([runs[0], run_of("c", names=LABELS, **other)])


@given(arrays.arrays(np.float32, (3, 2, 4, 3), elements=st.integers(0, 16).map(lambda share: share / 16)))
def test_the_class_of_a_mean_is_the_most_probable_one(probabilities):
    mean = probabilities.mean(0)
    expected = [[max(range(3), key=lambda label: row[label]) for row in rows] for rows in mean.tolist()]
    assert Segmentation(labels=LABELS).decide(mean)["label"].tolist() == expected
    assert Classification(labels=LABELS).decide(mean[0])["label"].tolist() == expected[0]


def test_a_table_of_folds_has_the_mean_and_the_deviation_by_hand():
    folds = [
        FoldResult(
            run=f"runs/fold{number}",
            split=f"fold{number}",
            step=10,
            metrics={"dice": dice, "dice_per_class": {"liver": dice, "spleen": None}, "examples": 4},
        )
        for number, dice in enumerate((0.8, 0.9, 1.0))
    ]
    found = CrossValidation(folds=folds, best="dice")
    head, rows = found.rows()
    assert head == ["run", "split", "step", "examples", "dice", "dice liver", "dice spleen"]
    assert rows[0] == ["runs/fold0", "fold0", "10", "4", "0.8000", "0.8000", "–"]
    assert rows[3] == ["mean", "", "", "", "0.9000", "0.9000", "–"]
    assert rows[4] == ["deviation", "", "", "", "0.1000", "0.1000", "–"]
    assert found.to_json()["mean"]["dice"] == pytest.approx(0.9)
    assert found.to_json()["deviation"]["dice spleen"] is None
    assert math.isnan(mean_of([math.nan])) and math.isnan(deviation_of([1.0]))


def test_runs_are_separated_by_commas_and_a_folder_with_a_comma_is_one(tmp_path):
    (tmp_path / "a,b").mkdir()
    assert _run_folders(f"{tmp_path}/a,b") == [f"{tmp_path}/a,b"]
    assert _run_folders("runs/a,runs/b,") == ["runs/a", "runs/b"]
    for text, message in ((",", "expected the folder of a run"), ("a,b,a", "a: is named twice")):
        with pytest.raises(UsageError, match=message):
            _run_folders(text)
