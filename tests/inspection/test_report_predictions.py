"""With a run, the report shows its predictions beside or over the labels of each record."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.inspection.card_predictions import draw_boxes, stored_boxes
from halofeed.inspection.dataset_facts import DatasetFacts
from halofeed.inspection.dataset_files import open_manifest
from halofeed.inspection.html.report import write_report
from halofeed.inspection.html.run_gallery import ExampleBoxes
from halofeed.inspection.review.kept_predictions import KeptPredictions, RecordPrediction
from halofeed.inspection.review.label_faults import ClassFault
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.suspects import Suspect
from halofeed.loader import Loader
from halofeed.loader.batch import join_id
from halofeed.schemas import keys
from tests.inspection.test_report import report
from tests.inspection.test_report_records import plant
from tests.support.dataset_writer import draw_examples, write_dataset
from tests.support.pages import assert_self_contained, images, part_of, picture
from tests.support.volume_report_writer import draw_scan, write_segmentation

Batch = dict[str, Any]


def split_id(identity: int) -> np.ndarray:
    """The two halves of an id, as a batch has them."""
    halves = np.array([identity >> 32, identity & 0xFFFFFFFF], np.uint32)
    return halves if int(join_id(halves[None])[0]) == identity else halves[::-1]


@given(count=st.integers(1, 9), seed=st.integers(0, 999))
def test_kept_predictions_are_those_of_the_batches_without_padding(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 9, (count, 2))
    truth = {
        "id": np.stack([split_id(7 * number + 3) for number in range(count)]),
        "label": np.zeros((count, 8, 8), np.uint8),
        "size": sizes,
        "valid": np.arange(count) < count - 1,
    }
    predicted = {"label": random.integers(0, 3, (count, 8, 8)).astype(np.uint8)}
    kept = KeptPredictions([(predicted, truth)])
    assert next(iter(list(kept)))[0] is predicted, "batches pass unchanged"
    for number, (rows, columns) in enumerate(sizes.tolist()):
        found = kept.of(7 * number + 3)
        if number == count - 1:
            assert found is None, "a row that fills the batch is no record"
            continue
        assert found is not None and found.label is not None
        expected = np.zeros((8, 8))
        for row in range(rows):
            for column in range(columns):
                expected[row, column] = predicted["label"][number, row, column]
        np.testing.assert_array_equal(found.label, expected)
    kept.close()


def some_boxes(*rows: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(rows, np.float64).reshape(-1, 4)


def prediction(*rows: tuple[tuple[float, float, float, float], int, float]) -> RecordPrediction:
    boxes, classes, scores = zip(*rows, strict=True)
    return RecordPrediction(boxes=some_boxes(*boxes), classes=np.array(classes), scores=np.array(scores))


A, B, C = (0.1, 0.1, 0.4, 0.4), (0.5, 0.5, 0.9, 0.9), (0.0, 0.6, 0.2, 0.9)


def truth_of(boxes: np.ndarray, labels: list[int], crowd: list[int] | None = None) -> ExampleBoxes:
    features = {keys.OBJECT_IS_CROWD: np.array(crowd)} if crowd else {}
    return stored_boxes(features, boxes, np.zeros((0, 4)), labels)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> DatasetFacts:
    folder = tmp_path_factory.mktemp("boxes") / "1"
    write_dataset(folder, draw_examples("detection", {"train": 2}), task="detection")
    return DatasetFacts(path=str(folder), manifest=open_manifest(folder))


def test_dashed_boxes_are_missed_labels_and_predictions_without_a_label(facts: DatasetFacts) -> None:
    first, second = sorted(facts.manifest.labels)[:2]
    truth = truth_of(some_boxes(A, B, C), [first, first, first], [0, 0, 1])
    drawn = draw_boxes(facts, prediction((A, first, 0.5), (B, second, 0.9), (C, first, 0.1)), truth, (10, 10))
    assert list(drawn.missed) == [False, True, False], "a crowd is never missed"
    shown = {box.name.split()[-1]: box.dashed for box in drawn.boxes}
    assert shown == {"0.50": False, "0.90": True}, "a low score is not drawn"


def test_the_boxes_at_a_suspect_are_drawn_first_whatever_their_score(facts: DatasetFacts) -> None:
    (first, *_) = sorted(facts.manifest.labels)
    found = prediction((A, first, 0.9), (B, first, 0.8), (C, first, 0.06))
    truth = truth_of(some_boxes(), [])
    drawn = draw_boxes(facts, found, truth, (10, 10), (0.1, 0.7, 0.2, 0.8))
    assert [box.name.split()[-1] for box in drawn.boxes] == ["0.06", "0.90", "0.80"]
    assert [bool(box.tag) for box in drawn.boxes] == [True, False, False], "only boxes at a suspect are named"
    many = prediction(*(((0.1, 0.7, 0.2, 0.8 - 0.01 * at), first, 0.09) for at in range(6)))
    assert [
        round(box.width, 1) for box in draw_boxes(facts, many, truth, (10, 10), (0.1, 0.7, 0.2, 0.8)).boxes
    ] == [
        1.0,
        0.9,
        0.8,
    ], "of low scores the three that fit best"
    weak = draw_boxes(facts, prediction((A, first, 0.2), (B, first, 0.1)), truth, (10, 10))
    assert len(weak.boxes) == 2, "without a good score the best are drawn"


def echo(folder: Path, change: Any) -> Iterator[tuple[Batch, Batch]]:
    """Predictions that repeat the truth as `change` alters it."""
    for split in open_manifest(folder).splits:
        loader = Loader(folder, split=split, batch_size=4, training=False)
        for step in range(loader.steps):
            truth = {name: np.array(value) for name, value in loader.batch(step).items()}
            yield change({name: value.copy() for name, value in truth.items()}), truth


def as_detections(batch: Batch) -> Batch:
    return {**batch, "scores": np.full(batch["classes"].shape, 0.75), "num_detections": batch["num_boxes"]}


def test_the_contents_show_labels_or_predicted_boxes_by_a_choice(tmp_path: Path) -> None:
    examples = draw_examples("detection", {"train": 9, "test": 3})
    folder = write_dataset(tmp_path / "d" / "1", examples, task="detection")
    source, page = report(folder, predicted=echo(folder, as_detections))
    assert_self_contained(source, page)
    contents = part_of(source, "contents")
    assert contents.count('class="predicted"') == sum(bool(len(one.classes)) for one in examples)
    assert contents.count('type="radio"') == 2 and "layered" in contents
    without, _ = report(folder)
    assert 'type="radio"' not in without and 'class="predicted"' not in without


def test_the_command_that_lists_all_label_faults_names_the_runs(tmp_path, monkeypatch):
    examples = draw_examples("classification", {"train": 12})
    folder = write_dataset(tmp_path / "d" / "1", examples, task="classification")

    def faults(reviewed: ReviewedSet, batches: Any) -> list[Suspect]:
        assert list(batches)
        kind = ClassFault.WRONG_CLASS
        return [
            Suspect(kind=kind, places=(reviewed.place(at),), score=1, words="of a run") for at in range(8)
        ]

    monkeypatch.setattr("halofeed.inspection.review.review.label_faults", faults)
    source, _ = report(folder, predicted=echo(folder, as_classes), runs="runs/a b,runs/c")
    assert f"halofeed review {folder} --run &#39;runs/a b,runs/c&#39; --json found.json" in source


def as_classes(batch: Batch) -> Batch:
    return {**batch, "probabilities": np.full((len(batch["label"]), 3), 1 / 3)}


def test_a_label_fault_has_the_prediction_beside_it_and_other_suspects_have_none(tmp_path, monkeypatch):
    examples = draw_examples("classification", {"train": 30})
    folder = write_dataset(tmp_path / "d" / "1", examples, task="classification")

    def search(reviewed: ReviewedSet) -> Iterator[Suspect]:
        place = reviewed.place(4)
        yield Suspect(kind=ClassFault.WRONG_CLASS, places=(place,), score=1, words="of a run")

    plant(monkeypatch, search)
    monkeypatch.setattr(
        "halofeed.inspection.review.review.label_faults", lambda reviewed, batches: list(batches)[:0]
    )

    def change(batch: Batch) -> Batch:
        shares = np.full((len(batch["label"]), 3), 0.1)
        shares[np.arange(len(shares)), (batch["label"] + 1) % 3] = 0.8
        return {"probabilities": shares}

    source, page = report(folder, predicted=echo(folder, change))
    suspects = part_of(source, "suspects")
    assert len(re.findall('class="guess-row"', suspects)) == 3 and "prediction of the run" in suspects
    assert "(true)" in page.words("suspects") and "80" in page.words("suspects")
    assert page.words("contents").count("seen as ") == 30


def test_predicted_classes_of_a_volume_lie_over_the_same_slices(tmp_path: Path) -> None:
    folder = write_segmentation(tmp_path / "s" / "1", [draw_scan("a.nii.gz"), draw_scan("b.nii.gz")])

    def change(batch: Batch) -> Batch:
        shares = np.zeros((*batch["label"].shape, 1 + int(batch["label"].max())))
        return {"label": np.where(batch["label"] == 1, 1, 0).astype(np.uint8), "probabilities": shares}

    source, page = report(folder, predicted=echo(folder, change))
    masks = re.findall(r'<img class="mask (truth|predicted)" src="([^"]*)"', part_of(source, "contents"))
    truth, predicted = (picture(dict(masks[:2])[name]) for name in ("truth", "predicted"))
    assert truth.shape == predicted.shape and (predicted[..., 3] > 0).any()
    inside = (truth[..., 3] > 0) & (predicted[..., 3] == 0)
    assert not ((truth[..., 3] == 0) & (predicted[..., 3] > 0)).any(), "only class 1 is predicted"
    assert inside.any() or len(open_manifest(folder).labels) <= 2
    assert len(images(page, "contents")) >= 2


def test_equal_predictions_give_equal_bytes(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "d" / "1", draw_examples("detection", {"train": 6}), task="detection")
    pages = [
        write_report(folder, tmp_path / "r.html", predicted=echo(folder, as_detections)).read_bytes()
        for _ in range(2)
    ]
    assert pages[0] == pages[1]
