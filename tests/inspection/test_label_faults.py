"""Likely label faults are found by predictions: each kind, where it is, and only where the predictions tell."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.inspection.review.components import components_of
from halofeed.inspection.review.evidence import CLEAR, LISTED, evidence
from halofeed.inspection.review.faulty_boxes import BoxFault, BoxRecord, box_faults, ious
from halofeed.inspection.review.faulty_classes import ClassFault, class_faults
from halofeed.inspection.review.faulty_masks import MaskFault, MaskFaults
from halofeed.inspection.review.label_faults import label_faults
from halofeed.inspection.review.review import review_dataset
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.suspects import RecordPlace, Suspect
from halofeed.loader import Loader
from halofeed.trainer.held_out import choose_runs
from halofeed.trainer.run_folder import open_run
from tests.support.annotation_writer import boxed, draw, write_annotations
from tests.support.conversions import draw_folders, halofeed_here, run_convert
from tests.support.run_writer import write_run
from tests.support.training import random_boxes, slow_overlap

# Evidence ------------------------------------------------------------------------------------------------


def slow_evidence(measured: list[float], planted: list[float], labels: int) -> list[float]:
    """Isotonic regression by its min-max formula over distinct values, with a label more in each level block."""
    values = sorted({*measured, *planted})
    bad = [planted.count(value) / len(planted) for value in values]
    good = [measured.count(value) / labels for value in values]

    def share(first: int, last: int) -> float:
        return sum(bad[first : last + 1]) / sum(bad[first : last + 1] + good[first : last + 1])

    count = len(values)
    levels = [
        max(min(share(first, last) for last in range(at, count)) for first in range(at + 1))
        for at in range(count)
    ]
    found, largest = {}, 0.0
    for value, level in zip(values, levels, strict=True):
        block = [at for at, other in enumerate(levels) if abs(other - level) < 1e-12]
        faulty, usual = sum(bad[at] for at in block), sum(good[at] for at in block)
        largest = max(largest, faulty / (faulty + usual + 1 / labels))
        found[value] = largest
    return [found[value] for value in measured]


WHOLE = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=12)


@given(measured=WHOLE, planted=WHOLE, more=st.integers(0, 3))
def test_evidence_is_the_isotonic_share_of_planted_faults(
    measured: list[float], planted: list[float], more: int
) -> None:
    labels = len(measured) + more
    found = evidence(np.array(measured), np.array(planted), labels)
    np.testing.assert_allclose(found, slow_evidence(measured, planted, labels), atol=2e-4)
    order = np.argsort(measured, kind="stable")
    assert (np.diff(found[order]) >= -1e-9).all()


def test_measures_that_planted_faults_have_as_often_are_no_evidence() -> None:
    random = np.random.default_rng(1)
    found = evidence(random.random(1000), random.random(1000), 1000)
    assert (found > 0.7).mean() < 0.02


# Classes -------------------------------------------------------------------------------------------------


def test_a_swapped_class_comes_first_with_the_class_that_is_seen() -> None:
    random = np.random.default_rng(2)
    true = random.integers(0, 4, 200)
    probabilities = random.dirichlet(np.ones(4) * 0.3, 200) * 0.2
    probabilities[np.arange(200), true] += 0.8
    labels = true.copy()
    changed = [3, 50, 170]
    labels[changed] = (true[changed] + 1) % 4
    found = class_faults(labels, probabilities, random)
    assert {fault.row for fault in found[:3]} == set(changed)
    assert all(fault.seen == true[fault.row] for fault in found[:3])
    assert found[2].score > CLEAR > found[3].score


def test_a_label_without_probability_comes_before_one_that_another_class_surpasses() -> None:
    random = np.random.default_rng(3)
    labels = random.integers(0, 4, 200)
    probabilities = random.dirichlet(np.ones(4) * 0.3, 200) * 0.2
    probabilities[np.arange(200), labels] += 0.8
    labels[:2] = 0
    probabilities[0], probabilities[1] = [0.001, 0.333, 0.333, 0.333], [0.25, 0.75, 0, 0]
    found = class_faults(labels, probabilities, random)
    assert [fault.row for fault in found[:2]] == [0, 1]


def test_a_set_of_one_class_has_no_wrong_class() -> None:
    assert class_faults(np.zeros(5, np.int64), np.ones((5, 1)), np.random.default_rng(0)) == []


# Boxes ---------------------------------------------------------------------------------------------------


def test_overlaps_are_those_of_a_slow_loop() -> None:
    generator = np.random.default_rng(4)
    one, other = (random_boxes(generator, count).astype(np.float64) for count in (7, 5))
    expected = [[slow_overlap(first, second) for second in other] for first in one]
    np.testing.assert_allclose(ious(one, other), expected, atol=1e-12)
    assert ious(np.zeros((1, 4)), np.zeros((1, 4))).tolist() == [[0.0]]


def grid_boxes(random: np.random.Generator) -> NDArray[np.float64]:
    """Boxes of 0.1 to 0.15 in some cells of a grid of 4 x 4, which none of them leaves."""
    cells = random.permutation(15)[:6]
    corners = np.stack([cells // 4, cells % 4], 1) * 0.25 + 0.05
    return np.concatenate([corners, corners + random.uniform(0.1, 0.15, (6, 2))], 1)


def box_record(number: int, random: np.random.Generator, **changed: Any) -> BoxRecord:
    """A record whose predictions are its boxes, slightly moved, with scores from 0.6 to 0.9, and weak false ones."""
    boxes, classes = grid_boxes(random), random.integers(1, 4, 6)
    false = grid_boxes(random)
    given = {
        "boxes": boxes,
        "classes": classes,
        "predicted": np.concatenate([boxes + random.uniform(-0.01, 0.01, boxes.shape), false]),
        "predicted_classes": np.concatenate([classes, random.integers(1, 4, 6)]),
        "scores": np.concatenate([random.uniform(0.6, 0.9, 6), random.uniform(0.02, 0.2, 6)]),
        "unlabeled": np.zeros((0, 4)),
    }
    return BoxRecord(number=number, **{**given, **changed})


def box_records(count: int = 40) -> list[BoxRecord]:
    random = np.random.default_rng(5)
    return [box_record(number, random) for number in range(count)]


def test_boxes_of_a_class_that_the_run_never_sees_are_not_extra_and_extra_ones_of_others_are_found() -> None:
    records = box_records()
    unseen = int(records[0].classes[0])
    for number, one in enumerate(records):
        is_seen = one.predicted_classes != unseen
        at_unseen = ious(one.boxes[one.classes == unseen], one.predicted).max(0, initial=0) > 0
        kept = is_seen & ~at_unseen
        records[number] = replace(
            one,
            predicted=one.predicted[kept],
            predicted_classes=one.predicted_classes[kept],
            scores=one.scores[kept],
        )
    boxes = np.concatenate([records[20].boxes, [[0.97, 0.97, 0.99, 0.99]]])
    records[20] = replace(
        records[20], boxes=boxes, classes=np.append(records[20].classes, unseen % 3 + 1).astype(np.int64)
    )
    listed = [one for one in box_faults(records, np.random.default_rng(0)) if one.score >= LISTED]
    extra = [one for one in listed if one.kind is BoxFault.EXTRA]
    assert {one.label for one in extra} == {unseen % 3 + 1}
    assert (20, (0.97, 0.97, 0.99, 0.99)) in [(one.record, one.box) for one in extra]


def test_each_kind_of_faulty_box_comes_first_under_its_kind() -> None:
    records = box_records()
    wrong, missing, extra, misplaced = (records[number] for number in (3, 11, 20, 31))
    wrong.classes[2] = wrong.classes[2] % 3 + 1
    records[11] = box_record(11, np.random.default_rng(0))
    kept = {name: getattr(missing, name) for name in ("predicted", "predicted_classes", "scores")}
    records[11] = box_record(
        11, np.random.default_rng(0), boxes=missing.boxes[1:], classes=missing.classes[1:], **kept
    )
    corner = [[0.8, 0.8, 0.92, 0.92]]  # the last cell has no box and no prediction
    kept = {name: getattr(extra, name) for name in ("predicted", "predicted_classes", "scores")}
    records[20] = box_record(
        20,
        np.random.default_rng(0),
        boxes=np.concatenate([extra.boxes, corner]),
        classes=np.append(extra.classes, 2),
        **kept,
    )
    misplaced.boxes[4] += np.tile((misplaced.boxes[4, 2:] - misplaced.boxes[4, :2]) / 2, 2)
    found = box_faults(records, np.random.default_rng(0))
    first = {(fault.record, fault.kind): fault for fault in found[:4]}
    assert set(first) == {
        (3, BoxFault.WRONG_CLASS),
        (11, BoxFault.MISSING),
        (20, BoxFault.EXTRA),
        (31, BoxFault.MISPLACED),
    }
    assert slow_overlap(first[11, BoxFault.MISSING].box, missing.boxes[0]) > 0.7
    np.testing.assert_allclose(first[20, BoxFault.EXTRA].box, corner[0])
    np.testing.assert_allclose(first[31, BoxFault.MISPLACED].box, misplaced.boxes[4])
    assert first[3, BoxFault.WRONG_CLASS].seen == (wrong.classes[2] + 1) % 3 + 1
    assert min(fault.score for fault in found[:4]) > 0.9 > found[4].score


def test_nothing_is_missing_in_a_crowd_or_an_ignored_region() -> None:
    records = box_records()
    one = records[7]
    kept = {name: getattr(one, name) for name in ("predicted", "predicted_classes", "scores")}
    less = {"boxes": one.boxes[1:], "classes": one.classes[1:], **kept}
    for unlabeled, expected in (
        (np.zeros((0, 4)), 1),
        (one.boxes[:1] + np.array([-0.05, -0.05, 0.05, 0.05]), 0),
    ):
        records[7] = box_record(7, np.random.default_rng(0), **less, unlabeled=unlabeled)
        found = [fault for fault in box_faults(records, np.random.default_rng(0)) if fault.score > 0.9]
        assert len(found) == expected


def test_a_run_that_learned_nothing_finds_next_to_nothing() -> None:
    random = np.random.default_rng(6)
    records = []
    for number in range(60):
        found = {
            "predicted": random_boxes(random, 12).astype(float),
            "predicted_classes": random.integers(1, 4, 12),
        }
        records.append(box_record(number, random, **found))
    faults = box_faults(records, np.random.default_rng(0))
    assert sum(fault.score > 0.8 for fault in faults) < 0.02 * 360


def test_records_without_boxes_or_predictions_have_no_faults() -> None:
    nothing = {
        "boxes": np.zeros((0, 4)),
        "classes": np.zeros(0, np.int64),
        "predicted": np.zeros((0, 4)),
        "predicted_classes": np.zeros(0, np.int64),
        "scores": np.zeros(0),
    }
    random = np.random.default_rng(0)
    assert box_faults([box_record(0, random, **nothing)], random) == []
    assert box_faults([], random) == []
    records = [*box_records(5), box_record(5, random, **nothing)]
    assert all(fault.record < 5 for fault in box_faults(records, random))


# Masks ---------------------------------------------------------------------------------------------------


def slow_components(labels: NDArray[np.int64]) -> list[set[tuple[int, ...]]]:
    """Connected sets of voxels of one class by flood filling: 8 neighbors in a slice, 3 above and 3 below."""
    steps = [(0, row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]
    steps += [(depth, 0, column) for depth in (-1, 1) for column in (-1, 0, 1)]
    left = {tuple(place) for place in np.argwhere(labels).tolist()}
    found = []
    while left:
        front, component = [min(left)], set[tuple[int, ...]]()
        while front:
            place = front.pop()
            if place not in left:
                continue
            left.remove(place)
            component.add(place)
            around = [tuple(at + step for at, step in zip(place, one, strict=True)) for one in steps]
            front += [one for one in around if one in left and labels[one] == labels[place]]
        found.append(component)
    return found


@given(seed=st.integers(0, 1000), density=st.floats(0.2, 0.7))
def test_components_are_those_of_flood_filling(seed: int, density: float) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(1, 3, (3, 6, 7)) * (random.random((3, 6, 7)) < density)
    found = components_of(labels, labels > 0, least=2)
    expected = [one for one in slow_components(labels) if len(one) >= 2]
    own = [set(map(tuple, np.argwhere(found.numbers == row + 1).tolist())) for row in range(len(found))]
    assert sorted(map(sorted, own)) == sorted(map(sorted, expected))
    for row, places in enumerate(own):
        inside = np.array(sorted(places))
        assert found.sizes[row] == len(places) and {labels[place] for place in places} == {found.classes[row]}
        np.testing.assert_array_equal(found.boxes[row], [inside.min(0), inside.max(0) + 1])


def blocks(random: np.random.Generator, depth: int = 3) -> NDArray[np.int64]:
    """Blocks of classes 1 and 2 in four of nine cells of 12 x 12, within slices 0 to 1 of three."""
    labels = np.zeros((depth, 36, 36), np.int64)
    for cell in random.permutation(8)[:4]:
        top, left = cell // 3 * 12 + 2, cell % 3 * 12 + 2
        height, width = random.integers(6, 9, 2)
        labels[:2, top : top + height, left : left + width] = random.integers(1, 3)
    return labels


def soft(labels: NDArray[np.int64], random: np.random.Generator, classes: int = 3) -> NDArray[np.float64]:
    """Probabilities of about 0.8 for the given classes."""
    shares = random.uniform(0, 0.2, (*labels.shape, classes))
    shares[(*np.indices(labels.shape), labels)] += 1
    return shares / shares.sum(-1, keepdims=True)


def mask_faults_of(changes: dict[int, NDArray[np.int64]], count: int = 30) -> list[Any]:
    """The faults of blocks that are predicted well, where the labels of some records are others."""
    random, collected = np.random.default_rng(8), MaskFaults(3, np.random.default_rng(0))
    for number in range(count):
        labels = blocks(random)
        probabilities = soft(labels, random)
        given_labels = changes.get(number, labels)
        collected.add(number, given_labels, probabilities, np.ones(labels.shape, bool))
    return collected.faults()


def block_labels(number: int) -> NDArray[np.int64]:
    """The labels of a record of `mask_faults_of`."""
    random = np.random.default_rng(8)
    for _ in range(number):
        soft(blocks(random), random)
    return blocks(random)


def test_each_kind_of_faulty_object_comes_first_with_its_place_and_slice() -> None:
    changes = {number: block_labels(number).copy() for number in (4, 9, 15, 22)}
    objects = {number: components_of(labels, labels > 0) for number, labels in changes.items()}
    first = {number: one.numbers == 1 for number, one in objects.items()}
    changes[4][first[4]] = 3 - changes[4][first[4]]
    changes[9][first[9]] = 0
    changes[15][1:, 27:34, 27:34] = 1  # the last cell has no block
    moved = np.roll(first[22], (3, 3), (1, 2))
    label = objects[22].classes[0]
    changes[22][first[22]] = 0
    changes[22][moved] = label
    found = mask_faults_of(changes)
    best = {(fault.record, fault.kind): fault for fault in found[:4]}
    assert set(best) == {
        (4, MaskFault.WRONG_CLASS),
        (9, MaskFault.MISSING),
        (15, MaskFault.EXTRA),
        (22, MaskFault.MISPLACED),
    }
    for number in (4, 9):
        fault = next(fault for (record, _), fault in best.items() if record == number)
        np.testing.assert_array_equal(fault.box, objects[number].boxes[0])
        assert fault.seen == objects[number].classes[0]
    assert best[15, MaskFault.EXTRA].depth == 1 and best[15, MaskFault.EXTRA].box == (
        (1, 27, 27),
        (3, 34, 34),
    )
    assert min(fault.score for fault in found[:4]) > 0.8 > found[4].score


def test_half_of_an_object_with_another_class_is_a_region_of_it() -> None:
    labels = block_labels(6).copy()
    objects = components_of(labels, labels > 0)
    low, high = objects.boxes[0]
    middle = (low[2] + high[2]) // 2
    half = (slice(low[0], high[0]), slice(low[1], high[1]), slice(middle, high[2]))
    labels[half] = 3 - objects.classes[0]
    found = mask_faults_of({6: labels})
    assert found[0].record == 6 and found[0].kind is MaskFault.WRONG_CLASS
    assert found[0].box == ((low[0], low[1], middle), tuple(high)) and found[0].seen == objects.classes[0]


def test_pixels_without_a_label_are_no_fault() -> None:
    random, collected = np.random.default_rng(8), MaskFaults(3, np.random.default_rng(0))
    for number in range(20):
        labels = blocks(random)
        probabilities, counts = soft(labels, random), np.ones(labels.shape, bool)
        if number == 5:
            counts = labels == 0
            labels = np.zeros_like(labels)
        collected.add(number, labels, probabilities, counts)
    assert all(fault.record != 5 for fault in collected.faults())


# Lists ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strong", "labels", "expected"),
    [(2, 100, 10), (2, 30, 3), (12, 100, 12), (2, 1000, 22), (0, 0, 0)],
)
def test_a_list_goes_on_with_weak_evidence_up_to_a_tenth_of_the_labels(
    tmp_path, monkeypatch, strong, labels, expected
):
    """20 suspects of an evidence of 0.5 to 0.74 follow the strong ones, and 20 of less."""
    place = RecordPlace(split="train", number=0, id=0, source="a")
    scores = [*[0.9] * strong, *np.linspace(0.74, 0.5, 20), *[0.49] * 20]
    suspects = [
        Suspect(kind=ClassFault.WRONG_CLASS, places=(place,), score=score, words="seen") for score in scores
    ]
    monkeypatch.setattr(
        "halofeed.inspection.review.label_faults.TASK_FAULTS",
        {"classification": lambda reviewed, rows, random: (labels, iter(suspects))},
    )
    done = run_convert(
        draw_folders(tmp_path / "source", 4), tmp_path / "out", height=16, width=24, layout="folders"
    )
    found = label_faults(ReviewedSet(done.folder), [])
    assert len(found) == expected
    assert [one.words for one in found] == ["seen" if one.score >= LISTED else "seen (weak)" for one in found]


# Data sets -----------------------------------------------------------------------------------------------


def echo(folder: str | Path, split: str, change: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Batches of predictions that repeat the truth as `change` alters it."""
    loader = Loader(folder, split=split, batch_size=4, training=False, include=("size",))
    for step in range(loader.steps):
        truth = {name: np.array(value) for name, value in loader.batch(step).items()}
        yield change({name: value.copy() for name, value in truth.items()}), truth


def boxes_with_scores(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "scores": np.full(batch["classes"].shape, 0.9), "num_detections": batch["num_boxes"]}


@pytest.fixture(scope="module")
def boxed_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boxes")
    root = folder / "source"
    draw(root, *(f"{number:02}.png" for number in range(12)))
    rows = []
    for number in range(12):
        rows.append(boxed(f"{number:02}.png", (2, 2, 8, 8), "cap" if number == 7 else "hat"))
        rows.append(boxed(f"{number:02}.png", (12, 8, 20, 14), "cap"))
    write_annotations(root, "csv", rows)
    return Path(run_convert(root, folder / "out", height=16, width=24, layout="csv", task="detection").folder)


def test_a_review_names_the_record_and_the_box_of_a_wrong_class(boxed_set: Path) -> None:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        # The box at the left is a hat in each picture.
        hat = sorted(ReviewedSet(boxed_set).manifest.labels.items(), key=lambda item: item[1] != "hat")[0][0]
        left = batch["boxes"][..., 1] < 0.3
        batch["classes"][left] = hat
        return boxes_with_scores(batch)

    suspects = review_dataset(boxed_set, echo(boxed_set, "train", change)).suspects
    found = [one for one in suspects if isinstance(one.kind, BoxFault)]
    first = found[0]
    assert suspects[: len(found)] == tuple(found)  # what the run sees comes before other searches
    assert first.kind is BoxFault.WRONG_CLASS and first.places[0].source.endswith("07.png")
    assert "labeled cap, seen as hat with score 0.90" in first.words
    np.testing.assert_allclose(first.box, [2 / 16, 2 / 24, 8 / 16, 8 / 24], atol=1e-6)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert all(one.score >= LISTED or one.words.endswith("(weak)") for one in found)


def test_a_review_of_classes_names_both_probabilities(tmp_path: Path) -> None:
    done = run_convert(
        draw_folders(tmp_path / "source", 24), tmp_path / "out", height=16, width=24, layout="folders"
    )
    reviewed = ReviewedSet(done.folder)
    target = int(reviewed.ids[5])

    def change(batch: dict[str, Any]) -> dict[str, Any]:
        from halofeed.loader.batch import join_id

        count = len(done.manifest.labels)
        labels = np.where(join_id(batch["id"]) == target, (batch["label"] + 1) % count, batch["label"])
        return {"probabilities": np.eye(count)[labels] * 0.9 + 0.1 / count, "label": labels}

    (split,) = done.manifest.splits
    found = label_faults(reviewed, echo(done.folder, split, change), least_score=0.6)
    assert [suspect.places[0] for suspect in found] == [reviewed.place(5)]
    assert "(probability 0.0" in found[0].words and "seen as" in found[0].words


def test_runs_predict_the_splits_that_they_were_not_trained_on(tmp_path: Path) -> None:
    done = run_convert(
        draw_folders(tmp_path / "source", 24),
        tmp_path / "out",
        height=16,
        width=24,
        layout="folders",
        folds=3,
    )
    name = done.manifest.name
    for fold, trained in ((0, "fold1+fold2"), (1, "fold0+fold2")):
        write_run(tmp_path / f"run{fold}", "classification", steps=1, split=trained, data_name=name)
    runs = [open_run(tmp_path / f"run{fold}") for fold in range(2)]
    chosen = {one.split: (one.run.folder.name, one.is_held_out) for one in choose_runs(runs, done.folder)}
    assert chosen == {"fold0": ("run0", True), "fold1": ("run1", True), "fold2": ("run0", False)}
    (only,) = choose_runs(runs[:1], done.folder, "fold1")
    assert (only.split, only.is_held_out) == ("fold1", False)


def test_a_run_of_another_data_set_is_held_out_everywhere(tmp_path: Path) -> None:
    done = run_convert(
        draw_folders(tmp_path / "source", 8), tmp_path / "out", height=16, width=24, layout="folders"
    )
    run = open_run(write_run(tmp_path / "run", "classification", steps=1, split="train", data_name="other"))
    assert all(one.is_held_out for one in choose_runs([run], done.folder))


def test_a_split_of_a_review_needs_a_run(tmp_path: Path) -> None:
    done = run_convert(
        draw_folders(tmp_path / "source", 8), tmp_path / "out", height=16, width=24, layout="folders"
    )
    refused = halofeed_here("review", done.folder, "--split", "train")
    assert refused.returncode == 2 and "--run" in refused.stderr
    missing = halofeed_here("review", done.folder, "--run", tmp_path / "nowhere")
    assert missing.returncode == 2 and "nowhere" in missing.stderr


def test_another_task_has_no_label_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_convert(
        draw_folders(tmp_path / "source", 8), tmp_path / "out", height=16, width=24, layout="folders"
    )
    monkeypatch.setattr("halofeed.inspection.review.label_faults.TASK_FAULTS", {})
    with pytest.raises(UsageError, match="no label fault is known for the task 'classification'"):
        label_faults(ReviewedSet(done.folder), [])


@pytest.mark.long
def test_two_trained_runs_review_a_set_of_folds(tmp_path: Path) -> None:
    source = draw_folders(tmp_path / "source", 16)
    done = run_convert(source, tmp_path / "out", height=16, width=24, layout="folders", folds=2)
    tiny = ("--config", "classifier_small", "--set", "model.features=[8]", "--steps", 2, "--batch-size", 8)
    runs = [tmp_path / f"run{fold}" for fold in range(2)]
    for fold, run in enumerate(runs):
        trained = halofeed_here("train", done.folder, "--fold", fold, *tiny, "--out", run)
        assert trained.returncode == 0, trained.stderr
    file = tmp_path / "found.json"
    both = halofeed_here("review", done.folder, "--run", ",".join(map(str, runs)), "--json", file)
    assert both.returncode == 0 and "trained on these labels" not in both.stderr, both.stderr
    assert json.loads(file.read_text())["records"] == 16
    part = halofeed_here("review", done.folder, "--split", "fold0", "--run", runs[0])
    assert part.returncode == 0 and "trained on these labels" not in part.stderr, part.stderr
    one = halofeed_here("review", done.folder, "--run", runs[0])
    assert "fold1: the run was trained on these labels" in one.stderr
