"""Is the report of a training run about that run: complete, self-contained, escaped, and the same every time?"""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers

from halofeed.inspection.html.line_chart import Series, line_chart, running_mean, thinned
from halofeed.inspection.html.run_report import write_run_report
from halofeed.inspection.html.run_sections import config_as_toml
from halofeed.inspection.pictures.planes import telling_planes
from halofeed.inspection.run.boxes import LEAST_SCORE, meet
from halofeed.inspection.run.examples import Boxes
from halofeed.schemas.errors import CorruptFileError, UsageError
from tests.inspection.test_report import Page, assert_a_browser_shows, assert_self_contained, picture

SECTIONS = ["curves", "metrics", "confusion", "examples", "waiting", "config", "use"]
LABELS = {
    "detection": {1: "disk", 2: "square", 4: "star"},
    "classification": {0: "disk", 1: "square", 2: "cross", 3: "ring"},
    "segmentation": {0: "background", 1: "liver", 2: "spleen"},
}
CONFIG: dict[str, Any] = {
    "model": "retinanet", "model_options": {"width": 16, "features": [8, 16]}, "task_options": {"alpha": 0.25},
    "image_shape": None, "augment": [{"name": "FlipLeftRight", "probability": 0.5}], "backbone_weights": "",
    "steps": 200, "batch_size": 8, "seed": 7, "learning_rate": 0.02, "rates": [0.1, 1e-05], "cores_per_replica": 4,
    "partition": "image=1,2,2,1", "evaluate_every": 50,
}  # fmt: skip


def write_run(folder: Path, task: str, *, steps: int = 200, volume: bool | None = None, **more: Any) -> Path:
    """Fabricate what training leaves: a falling loss, rising metrics and drawn pictures with nearly right predictions.

    Args:
        volume: of segmentation: whether it is of CT scans, the default, or of pictures.
        more: entries of run.json.
    """
    volume = task == "segmentation" if volume is None else volume
    shape = (20, 44, 52, 1) if volume else (96, 128, 3)
    config = {**CONFIG, **({"model": "unet", "partition": "image=1,2,2,1,1"} if volume else {})}
    document = {
        "format": 1,
        "config": config,
        "facts": {
            "task": task,
            "labels": {str(label): name for label, name in LABELS[task].items()},
            "image_shape": list(shape),
            "mean": [101.5, 99.25, 87.0][: shape[-1]],
            "std": [50.0, 51.0, 52.0][: shape[-1]],
        },
        "data": "data/drawn/1.0.0",
        "data_name": "drawn",
        "data_version": "1.0.0",
        "split": "train",
        "evaluate_split": "validation",
        "halofeed": "0.3.0",
        "parameters": 1_234_567,
        "mesh": {"replica": 2, "core0": 2, "core1": 2},
        "platform": "cpu",
        "best_metric": {"detection": "mAP", "classification": "accuracy", "segmentation": "dice"}[task],
        "recipe": {"dtype": "int16", "window_hu": [-160, 240]} if volume else {"resize": "keep-aspect"},
        **more,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(document))
    random = np.random.default_rng(5)
    with (folder / "log.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            loss = 3.2 * math.exp(-step / 45) + 0.06 + 0.05 * random.random()
            rate = 0.01 * min(1.0, step / 20) * (1 + math.cos(math.pi * step / max(1, steps)))
            entry = {"step": step, "loss": loss, "class_loss": 0.7 * loss, "learning_rate": rate}
            entry |= {"box_loss": 0.3 * loss * random.random()}
            entry |= {"gradient_norm": 4 * loss * (5 if step == 120 else 1)}
            entry |= {"images_per_second": None if step == 1 else 40 + 4 * random.random()}
            entry |= {"waiting_share": 0.4 if step < 3 else 0.02 * random.random()}
            log.write(json.dumps(entry) + "\n")
    with (folder / "evaluations.jsonl").open("w") as lines:
        for step in range(50, steps + 1, 50):
            metrics = fabricated_metrics(task, step / (step + 40))
            lines.write(json.dumps({"step": step, "split": "validation", "metrics": metrics}) + "\n")
    if steps >= 50:
        write_examples(folder, task, volume, steps)
    return folder


def fabricated_metrics(task: str, good: float) -> dict[str, Any]:
    names = [name for label, name in LABELS[task].items() if label or task != "segmentation"]
    if task == "detection":
        each = {name: {"AP": good * 0.9**at, "AP@0.5": good * 0.97**at} for at, name in enumerate(names)}
        return {
            "mAP": good * 0.9, "mAP@0.5": good, "mAP@0.75": good * 0.8, "mAP small": None, "AR@100": good * 0.95,
            "ap": {**each, names[-1]: {"AP": None, "AP@0.5": None}},
        }  # fmt: skip
    if task == "classification":
        right = round(40 * good)
        confusion = np.full((4, 4), 2) + np.diag([right, right, right, right])
        confusion[2, 3] += 15
        recall = {name: float(confusion[at, at] / confusion[at].sum()) for at, name in enumerate(names)}
        return {
            "accuracy": float(np.trace(confusion) / confusion.sum()), "examples": int(confusion.sum()),
            "recall": recall, "precision": {**recall, "disk": None}, "confusion": confusion.tolist(),
        }  # fmt: skip
    return {
        "dice": good, "dice_per_class": {"liver": good, "spleen": good * 0.9}, "hausdorff95_mm": 9 * (1 - good),
        "hausdorff95_mm_per_class": {"liver": 4.0, "spleen": None}, "examples": 12,
    }  # fmt: skip


def write_examples(folder: Path, task: str, volume: bool, step: int) -> None:
    draw: Callable[[np.random.Generator], dict[str, Any]] = {
        "detection": draw_detection,
        "classification": draw_classification,
        "segmentation": draw_scan if volume else draw_label,
    }[task]
    (folder / "examples").mkdir()
    listed = []
    for number in range(4):
        arrays = draw(np.random.default_rng(number))
        np.savez_compressed(folder / "examples" / f"{number:02d}.npz", **arrays)
        told = {"file": f"{number:02d}.npz", "id": 4_000_000_007 + number}
        told |= {"score": None if number == 3 else 0.2 + 0.1 * number}
        listed.append({**told, "reason": "worst" if number < 2 else "typical"})
    document = {"step": step, "split": "validation", "examples": listed}
    (folder / "examples" / "examples.json").write_text(json.dumps(document))


def draw_shapes(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A picture with shapes on a soft ground, their boxes in pixels and their classes."""
    rows, columns = np.mgrid[:96, :128]
    ground = 120 + 40 * np.sin(columns / 17 + random.random() * 6) + 30 * np.cos(rows / 11)
    picture = np.stack([ground, ground * 0.95, ground * 0.8], -1).clip(0, 255).astype(np.uint8)
    boxes, classes = [], []
    for at in range(count):
        size = int(random.integers(14, 26))
        top, left = int(random.integers(2, 94 - size)), int(2 + at * 124 / count)
        kind = int(random.choice([1, 2]))
        color = tuple(map(int, random.integers(0, 255, 3)))
        middle = (left + size // 2, top + size // 2)
        if kind == 1:
            cv2.circle(picture, middle, size // 2, color, -1)
        else:
            cv2.rectangle(picture, (left, top), (left + size, top + size), color, -1)
        boxes.append((top, left, top + size, left + size))
        classes.append(kind)
    return picture, np.array(boxes, np.float32), np.array(classes, np.int32)


def draw_detection(random: np.random.Generator) -> dict[str, Any]:
    picture, boxes, classes = draw_shapes(random, 4)
    scale = np.array([96, 128, 96, 128], np.float32)
    truth = np.zeros((10, 4), np.float32)
    truth[:4] = boxes / scale
    found = np.concatenate([boxes[:3] + random.normal(0, 1, (3, 4)), [[60, 90, 90, 120]]]) / scale
    predicted = np.zeros((20, 4), np.float32)
    predicted[:4] = found
    predicted[4:] = found[0]
    return {
        "image": picture,
        "truth_boxes": truth,
        "truth_classes": np.pad(classes, (0, 6)),
        "truth_num_boxes": np.int32(4),
        "truth_is_crowd": np.zeros(10, bool),
        "truth_id": np.int64(5),
        "predicted_boxes": predicted,
        "predicted_scores": np.array([0.97, 0.88, 0.61, 0.45, *np.linspace(0.2, 0.01, 16)], np.float32),
        "predicted_classes": np.array([*classes[:3], 2, *[1] * 16], np.int32),
        "predicted_num_detections": np.int32(18),
    }


def draw_classification(random: np.random.Generator) -> dict[str, Any]:
    picture, _, _ = draw_shapes(random, 1)
    shares = random.dirichlet([0.4] * 4).astype(np.float32)
    return {
        "image": picture,
        "truth_label": np.int32(random.integers(4)),
        "predicted_label": np.int32(shares.argmax()),
        "predicted_probabilities": shares,
    }


def draw_label(random: np.random.Generator) -> dict[str, Any]:
    picture, boxes, classes = draw_shapes(random, 3)
    truth = np.zeros((96, 128), np.uint8)
    for (top, left, bottom, right), kind in zip(boxes.astype(int).tolist(), classes.tolist(), strict=True):
        truth[top:bottom, left:right] = kind
    predicted = np.roll(truth, (2, -3), (0, 1))
    return {"image": picture, "truth_label": truth, "predicted_label": predicted.astype(np.int32)}


def draw_scan(random: np.random.Generator) -> dict[str, Any]:
    depth, height, width = np.mgrid[:20, :44, :52].astype(np.float64)

    def ball(middle: tuple[float, float, float], radii: tuple[float, float, float]) -> np.ndarray:
        axes = zip((depth, height, width), middle, radii, strict=True)
        return np.asarray(sum(((axis - at) / radius) ** 2 for axis, at, radius in axes) < 1)

    liver, spleen = ball((11, 24, 36), (6, 11, 10)), ball((12, 18, 12), (4, 6, 6))
    volume = np.full((20, 44, 52), -1000.0)
    volume[ball((10, 22, 26), (40, 20, 24))] = 0
    volume[liver], volume[spleen] = 90, 140
    volume += random.normal(0, 18, volume.shape)
    truth = np.where(liver, 1, np.where(spleen, 2, 0)).astype(np.uint8)
    predicted = np.roll(truth, 2, 2)
    predicted[ball((6, 30, 30), (3, 4, 4))] = 1
    return {
        "image": volume[..., None].astype(np.int16),
        "truth_label": truth,
        "predicted_label": predicted.astype(np.int32),
        "spacing_mm": np.array([5.0, 2.0, 2.0], np.float32),
    }


def report(folder: Path) -> tuple[str, Page]:
    source = write_run_report(folder).read_text("utf-8")
    return source, Page(source)


RUNS = [("detection", None), ("classification", None), ("segmentation", True), ("segmentation", False)]


@pytest.mark.parametrize(("task", "volume"), RUNS)
def test_the_page_is_well_formed_loads_nothing_and_has_every_section_in_order(
    tmp_path: Path, task: str, volume: bool | None
) -> None:
    source, page = report(write_run(tmp_path / "run", task, volume=volume))
    expected = [name for name in SECTIONS if name != "confusion" or task == "classification"]
    assert [given["id"] for given in page.all("section")] == expected
    assert_self_contained(source, page)
    for image in page.all("img"):
        assert image["alt"] and picture(image["src"]).size
    charts = [given for given in page.all("svg") if given.get("class") == "chart"]
    assert len(charts) >= 7 and all(given["role"] == "img" and given["aria-label"] for given in charts)
    figures, captions = len(page.all("figure")), len(page.all("figcaption"))
    assert figures == captions > len(charts)


def test_the_figures_are_the_runs(tmp_path: Path) -> None:
    source, page = report(write_run(tmp_path / "run", "detection"))
    words = page.words()
    sentence = (
        "retinanet, trained for detection on split 'train' of drawn 1.0.0: 200 steps of 8 images of 96 × 128"
    )
    assert f"{sentence}, 3 classes." in words
    assert "best mAP, step 2000.750" in words and "parameters1.23 M" in words
    assert "Each image was cut into 2 along height and 2 along width: 48 × 64 on each of 4 cores." in words
    assert "2 replicas took an equal part of each batch." in words
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    taken = sum(8 / line["images_per_second"] for line in lines if line["images_per_second"])
    assert f"{round(taken)} s" in words
    waited = [(line["waiting_share"], 8 / line["images_per_second"]) for line in lines[2:]]
    share = sum(one * weight for one, weight in waited) / sum(weight for _, weight in waited)
    assert f"{100 * share:.1f} % of the steps' time went on waiting" in page.words("waiting")
    assert f"from {lines[0]['loss']:.4g} at step 1 to {lines[-1]['loss']:.4g} at step 200" in source
    assert "Input keeps up" in page.words("waiting") and "not finished" not in words


def test_classes_stand_from_worst_to_best_and_nothing_counted_is_a_dash(tmp_path: Path) -> None:
    _, page = report(write_run(tmp_path / "run", "detection"))
    words = page.words("metrics")
    assert words.index("square") < words.index("disk") < words.index("star")
    assert "star––" in words and "mAP small–" in words


def test_the_best_step_is_named_where_it_is_not_the_last(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "segmentation", volume=False)
    with (folder / "evaluations.jsonl").open("a") as lines:
        worse = {"dice": 0.11, "extra": {"a": {"b": {"c": 1}}}}
        lines.write(json.dumps({"step": 201, "split": "validation", "metrics": worse}) + "\n")
    _, page = report(folder)
    assert "at step 200 it was better" in page.words("metrics") and "dice0.1100.833" in page.words("metrics")
    assert "b c" in page.words("metrics"), "what nobody foresaw is a table too"


def test_the_confusion_matrix_is_a_table_of_counts_or_a_picture_of_many_classes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "classification")
    source, page = report(folder)
    counts = json.loads((folder / "evaluations.jsonl").read_text().splitlines()[-1])["metrics"]["confusion"]
    table = source[source.index('<table class="confusion">') :]
    cells = re.findall(r'<td class="(right|wrong)"[^>]*>(\d+|·)</td>', table[: table.index("</table>")])
    assert [int(cell) for _, cell in cells] == [count for row in counts for count in row]
    assert [kind == "right" for kind, _ in cells] == np.eye(4, dtype=bool).ravel().tolist()
    assert "crossring17" in page.words("confusion"), "the most frequent mistake"
    many = np.eye(60, dtype=int) * 9
    many[3, 5] = 4
    metrics = {"accuracy": 0.9, "confusion": many.tolist()}
    evaluation = {"step": 9, "split": "test", "metrics": metrics}
    (folder / "evaluations.jsonl").write_text(json.dumps(evaluation) + "\n")
    _, page = report(folder)
    (heat,) = [given for given in page.all("img") if given.get("class") == "heat"]
    pixels = picture(heat["src"])
    assert pixels.shape == (60, 60, 4) and (pixels[..., 3] > 0).sum() == 61 and pixels[3, 5, 3] > 0
    assert "354" in page.words("confusion")


def test_an_unfinished_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "detection", steps=37)
    _, page = report(folder)
    assert (
        "not finished: 163 of 200 steps are still to be taken and no evaluation is there yet" in page.words()
    )
    assert "No step of it was saved: the same command starts it again." in page.words()
    for name in ("00000020", "00000030", "00000037.orbax-checkpoint-tmp-0"):
        (folder / "checkpoints" / name).mkdir(parents=True)
    _, page = report(folder)
    assert "The same command goes on after step 30." in page.words()
    assert "has not been evaluated yet" in page.words("metrics") and "No examples" in page.words("examples")
    (folder / "log.jsonl").unlink()
    (folder / "evaluations.jsonl").unlink()
    _, page = report(folder)
    assert "No step has been logged yet." in page.words("curves")
    left = ["curves", "metrics", "examples", "config", "use"]
    assert [given["id"] for given in page.all("section")] == left


def test_a_run_that_was_killed_and_went_on_counts_each_step_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "detection", steps=30)
    whole = write_run_report(folder, tmp_path / "whole.html").read_bytes()
    log = folder / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    wrong = [line.replace('"loss": ', '"loss": 9') for line in lines[20:25]]
    log.write_text("".join(lines[:20] + wrong + lines[20:]))
    assert write_run_report(folder, tmp_path / "resumed.html").read_bytes() == whole
    log.write_text("".join(lines) + lines[-1][:40])
    assert write_run_report(folder, tmp_path / "cut.html").read_bytes() == whole


def test_numbers_that_are_not_finite_are_gaps_and_dashes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "segmentation", steps=30)
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"step": 31, "loss": "NaN", "gradient_norm": "Infinity", "class_loss": NaN}\n')
    metrics = '{"dice": "NaN", "hausdorff95_mm": "Infinity", "dice_per_class": {"liver": NaN, "spleen": 0.5}}'
    (folder / "evaluations.jsonl").write_text(f'{{"step": 31, "split": "test", "metrics": {metrics}}}\n')
    _, page = report(folder)
    assert "1 step without a loss, seen as gaps" in page.words("curves")
    words = page.words("metrics")
    assert "dice–" in words and "hausdorff95_mm∞" in words and "liver–" in words


def test_text_is_never_taken_for_html(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>\'&\x1b[31m'
    folder = write_run(
        tmp_path / "run", "detection", data=evil, data_name=evil, evaluate_split=evil, platform=evil
    )
    document = json.loads((folder / "run.json").read_text())
    document["facts"]["labels"] = {"1": evil, "2": "</style>", "4": '" onload="'}
    document["config"].update(model=evil, model_options={evil: evil})
    (folder / "run.json").write_text(json.dumps(document))
    per_class = {evil: {evil: 0.1}, "</style>": {evil: None}}
    metrics = {evil: 0.5, "ap": per_class, "other": {evil: 3}, "words": evil}
    with (folder / "evaluations.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": 300, "split": evil, "metrics": metrics}) + "\n")
    log = (folder / "log.jsonl").read_text().splitlines()
    log[-1] = json.dumps({**json.loads(log[-1]), evil: 0.5})
    (folder / "log.jsonl").write_text("\n".join(log) + "\n")
    _, page = report(folder)
    assert not page.all("script") and not any("onload" in given for _, given in page.elements)
    shown = evil.replace("\x1b", "\\x1b")
    for section in ("curves", "metrics", "examples", "config"):
        assert shown in page.words(section), section
    assert shown.partition("'")[0] in page.words("use")


def test_equal_runs_give_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a" / "run", "segmentation")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    pages = []
    for place in ("a", "b"):
        monkeypatch.chdir(tmp_path / place)
        written = write_run_report("run")
        assert written == Path("run/report.html")
        pages.append(written.read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("run.json", None, "holds no run"),
        ("run.json", "{", r"run\.json: cannot be read.*--overwrite"),
        ("run.json", '{"format": 2}', r"run\.json: expected a run of format 1"),
        ("run.json", '{"format": 1, "config": {}, "facts": {}}', r"run\.json: expected a config, and facts"),
        (
            "log.jsonl",
            '{"step": 1}\n{"loss": 3}\n',
            r"log\.jsonl: line 2: expected a JSON object with a step",
        ),
        ("log.jsonl", 'broken\n{"step": 1}\n', r"log\.jsonl: line 1: .*remove the line"),
        ("evaluations.jsonl", '{"step": 1, "metrics": 3}\n', r"evaluations\.jsonl: line 1: expected metrics"),
        ("examples/examples.json", "[]", r"examples\.json: expected a step and a list.*evaluate again"),
        (
            "examples/examples.json",
            '{"step": 1, "examples": [{"file": "../x.npz"}]}',
            r"is no \.npz file in the same folder",
        ),
        ("examples/02.npz", "broken", r"02\.npz: cannot be read.*evaluate again"),
    ],
)
def test_a_broken_file_is_named_with_the_cure_and_no_page_is_left(
    tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    folder = write_run(tmp_path / "run", "detection", steps=60)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises((UsageError, CorruptFileError), match=message):
        write_run_report(folder)
    assert not (folder / "report.html").exists() and not list(folder.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("detection", {"predicted_boxes": None}, "predicted_boxes is missing"),
        (
            "detection",
            {"predicted_scores": np.zeros(3)},
            r"predicted_scores: expected numbers of shape \(20,\)",
        ),
        ("detection", {"image": np.zeros((3, 3))}, "image: expected"),
        ("segmentation", {"predicted_label": np.zeros((2, 2))}, "predicted_label: expected numbers of shape"),
        (
            "segmentation",
            {"predicted_label": np.full((96, 128), -1)},
            "predicted_label: expected class indices",
        ),
        ("classification", {"truth_label": np.array(["x"])}, "truth_label: expected numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_named_with_what_was_expected(
    tmp_path: Path, task: str, changes: dict[str, Any], message: str
) -> None:
    folder = write_run(tmp_path / "run", task, steps=60, volume=False)
    file = folder / "examples" / "01.npz"
    arrays = {**np.load(file), **changes}
    np.savez(file, **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(CorruptFileError, match=f"01.npz: {message}"):
        write_run_report(folder)


def test_wrong_outputs_are_refused_in_words(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "detection", steps=3)
    with pytest.raises(UsageError, match="is a folder; name a file"):
        write_run_report(folder, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_run_report(folder, tmp_path / "file" / "page.html")
    with pytest.raises(UsageError, match="holds no run"):
        write_run_report(tmp_path)
    assert write_run_report(folder, tmp_path / "new" / "page.html").is_file()


def test_a_missed_box_and_one_that_is_not_there_are_dashed(tmp_path: Path) -> None:
    source, page = report(write_run(tmp_path / "run", "detection"))
    assert page.words("examples").count("3 of 4 boxes found") == 4
    first = source[source.index('<article class="sample">') :]
    left, right = first[: first.index("</article>")].split("<figcaption>truth, 4 boxes</figcaption>")
    for half, dashed in ((left, 1), (right, 1)):
        drawn = half[half.index('<g class="boxes">') : half.index("</svg>")]
        assert drawn.count("<rect") == 4 and drawn.count('class="dashed"') == dashed
    assert "predicted, 4 boxes (14 weaker left out)" in right and re.search(r">(disk|square) 0\.97<", right)
    colors = re.findall(r'<span class="tag" style="(--k:#\w+)[^>]*>(\w+)', first[: first.index("</article>")])
    assert len({(color, name) for color, name in colors}) == len({name for _, name in colors}), (
        "one color a class"
    )


def boxes_of(corners: Any, classes: Any, scores: Any = None, crowd: Any = None) -> Boxes:
    count = len(classes)
    return Boxes(
        corners=np.array(corners, np.float64).reshape(-1, 4),
        classes=np.array(classes, np.int64),
        scores=np.ones(count) if scores is None else np.array(scores, np.float64),
        crowd=np.zeros(count, bool) if crowd is None else np.array(crowd, bool),
    )


def test_two_predictions_on_one_object_are_right_once_and_a_crowd_takes_any_number() -> None:
    here, there = [0, 0, 0.4, 0.4], [0.5, 0.5, 1, 1]
    twice = boxes_of([here, here], [1, 1], [0.9, 0.8])
    assert meet(boxes_of([here], [1]), twice).right.tolist() == [True, False]
    assert meet(boxes_of([here], [2]), twice).right.tolist() == [False, False], "of another class"
    crowd = boxes_of([[0, 0, 1, 1], there], [1, 1], crowd=[True, False])
    meeting = meet(crowd, twice)
    assert meeting.right.tolist() == [True, True] and meeting.found.tolist() == [True, False]
    assert meet(boxes_of([], []), twice).right.tolist() == [False, False]
    weak = meet(boxes_of([here], [1]), boxes_of([here] * 5, [1] * 5, [LEAST_SCORE / 2] * 5))
    assert weak.weak and weak.shown == 3 and weak.found.all()
    assert meet(boxes_of([here], [1]), boxes_of([], [])).shown == 0


def test_a_scan_without_a_label_or_a_fault_shows_its_middle() -> None:
    nothing = np.zeros((5, 7, 9), int)
    assert telling_planes(nothing.shape, nothing, nothing) == (2, 3, 4)


@given(st.integers(0, 2**32 - 1))
def test_the_planes_shown_are_those_with_the_most_wrong_voxels(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(random.integers(1, 6, 3).tolist())
    truth, predicted = random.integers(0, 3, shape), random.integers(0, 3, shape)
    places = telling_planes(shape, truth, predicted)
    if (truth != predicted).any():
        for axis, place in enumerate(places):
            per_plane = []
            for at in range(shape[axis]):
                here, there = (np.take(one, at, axis).ravel().tolist() for one in (truth, predicted))
                per_plane.append(sum(a != b for a, b in zip(here, there, strict=True)))
            assert per_plane[place] == max(per_plane)
    else:
        assert all(0 <= place < side for place, side in zip(places, shape, strict=True))


def test_outlines_lie_where_the_label_is_right_side_up(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "segmentation", steps=60)
    arrays = dict(np.load(folder / "examples" / "00.npz"))
    label = np.zeros((20, 44, 52), np.uint8)
    label[15:19, 30:40, 2:8] = 1
    np.savez(folder / "examples" / "00.npz", **{**arrays, "truth_label": label, "predicted_label": label * 2})
    _, page = report(folder)
    mask = next(given for given in page.all("img") if given.get("class") == "mask")
    alpha = picture(mask["src"])[..., 3]
    rows, columns = np.flatnonzero(alpha.any(1)), np.flatnonzero(alpha.any(0))
    found = [
        *(place / alpha.shape[0] for place in (rows[0], rows[-1] + 1)),
        *(place / alpha.shape[1] for place in (columns[0], columns[-1] + 1)),
    ]
    np.testing.assert_allclose(found, [4 / 44, 14 / 44, 44 / 52, 50 / 52], atol=0.012)
    assert "axial, depth 15 of 20" in page.words("examples"), "superior planes are the later ones"


@pytest.mark.parametrize("count", [8, 50])
@pytest.mark.parametrize(("task", "volume"), RUNS)
def test_pages_of_noise_stay_below_five_megabytes(
    tmp_path: Path, task: str, volume: bool | None, count: int
) -> None:
    folder = write_run(tmp_path / "run", task, steps=60, volume=volume)
    file = folder / "examples" / "00.npz"
    arrays = dict(np.load(file))
    grown_by = 2 if volume else 4
    labels = {name: value for name, value in arrays.items() if name.endswith("_label") and value.ndim}
    ones = {name: np.ones((grown_by,) * value.ndim, np.uint8) for name, value in labels.items()}
    grown = arrays | {name: np.kron(value, ones[name]) for name, value in labels.items()}
    shape = tuple(grown_by * side for side in arrays["image"].shape[:-1]) + arrays["image"].shape[-1:]
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.savez(file, **{**grown, "image": noise})
    listed = json.loads((folder / "examples" / "examples.json").read_text())
    listed["examples"] = [listed["examples"][0]] * count
    (folder / "examples" / "examples.json").write_text(json.dumps(listed))
    source, page = report(folder)
    shown = len(page.all("article"))
    each = (3 if volume else 1) * (1 if task == "classification" else 2)
    assert len(source) < 5_000_000 and shown == min(count, 96 // each)
    assert (f"{count - shown} more are in the run's folder" in page.words("examples")) == (shown < count)


@pytest.mark.parametrize("points", [0, 1, 2, 19, 100_000])
@pytest.mark.parametrize("kind", ["falling", "level", "zeros", "negative", "gaps", "nothing"])
def test_a_line_chart_draws_any_number_of_points_in_few_bytes(points: int, kind: str) -> None:
    steps = np.arange(1.0, points + 1)
    values = {
        "falling": 100 * 0.5 ** (10 * steps / max(points, 1)),
        "level": np.full(points, 0.25),
        "zeros": np.zeros(points),
        "negative": np.sin(steps),
        "gaps": np.where(steps % 10 > 7, np.nan, 1 / steps),
        "nothing": np.full(points, np.nan),
    }[kind]
    drawn = line_chart([Series(name="loss", steps=steps, values=values, smooth=True)], "Loss")
    assert len(drawn) < 40_000 and "nan" not in drawn and "inf" not in drawn
    if points == 0 or kind == "nothing":
        assert "No values are logged." in drawn
        return
    logarithmic = {("falling", 2), ("falling", 19), ("falling", 100_000), ("gaps", 100_000)}
    assert ("logarithmic" in drawn) == ((kind, points) in logarithmic)
    heights = re.findall(r"[ML][\d.]+ ([-\d.]+)", drawn) + re.findall(r'cy="([-\d.]+)"', drawn)
    places = [float(height) for height in heights]
    assert places and all(13 < place < 171 for place in places), "inside the frame"


def test_a_gap_parts_a_line_and_a_lonely_point_is_a_dot() -> None:
    values = np.array([1, 2, np.nan, 3, np.nan, 4, 5.0])
    drawn = line_chart([Series(name="a", steps=np.arange(7.0), values=values)], "A")
    (path,) = re.findall(r'<path class="line s0" d="([^"]*)"', drawn)
    assert path.count("M") == 3 and path.count("L") == 2 and drawn.count("<circle") == 5
    assert "a from 1 at step 0 to 5 at step 6, lowest 1 at step 0, highest 5 at step 6" in drawn


@given(numbers.arrays(np.float64, st.integers(700, 4000), elements=st.floats(-5, 5) | st.just(math.nan)))
def test_thinning_keeps_the_highest_the_lowest_and_the_order(values: np.ndarray) -> None:
    steps, kept = thinned(np.arange(len(values), dtype=np.float64), values)
    assert len(steps) <= 640 and (np.diff(steps) > 0).all()
    np.testing.assert_array_equal(values[steps.astype(int)], kept)
    if np.isfinite(values).any():
        assert np.nanmax(kept) == np.nanmax(values) and np.nanmin(kept) == np.nanmin(values)


@given(numbers.arrays(np.float64, st.integers(1, 200), elements=st.floats(-5, 5) | st.just(math.nan)))
def test_the_running_mean_is_that_of_known_neighbors(values: np.ndarray) -> None:
    reach = max(1, len(values) // 60)
    for at, mean in enumerate(running_mean(values).tolist()):
        near = min(reach, at, len(values) - 1 - at)
        known = [value for value in values[at - near : at + near + 1].tolist() if not math.isnan(value)]
        if math.isnan(values[at]):
            assert math.isnan(mean)
        else:
            assert mean == pytest.approx(sum(known) / len(known), abs=1e-9)


def test_the_config_comes_back_from_the_page(tmp_path: Path) -> None:
    config = {
        **CONFIG,
        "backbone_weights": 'a "b" \\ \n\x7f é',
        "model_options": {"a b": [True, {"c": None, "d": 1.5}]},
    }
    expected = {name: value for name, value in config.items() if value is not None}
    expected["model_options"] = {"a b": [True, {"d": 1.5}]}
    assert tomllib.loads(config_as_toml(config)) == expected
    source, page = report(write_run(tmp_path / "run", "detection", steps=3))
    blocks = [html.unescape(code) for code in re.findall(r"<pre><code>(.*?)</code></pre>", source, re.S)]
    predict, evaluate, again, toml = blocks
    assert tomllib.loads(toml) == {name: value for name, value in CONFIG.items() if value is not None}
    assert again.startswith("halofeed train data/drawn/1.0.0 --split train --config again.toml")
    assert predict.startswith(f"halofeed predict {tmp_path / 'run'} ") and "--split validation" in evaluate
    assert "model.width16" in page.words("config")


@pytest.mark.long
@pytest.mark.parametrize(("task", "volume"), RUNS)
def test_a_browser_shows_the_run_without_errors_overlaps_or_sideways_scrolling(
    tmp_path: Path, task: str, volume: bool | None
) -> None:
    folder = write_run(tmp_path / "run", task, volume=volume, data="a/very/long/path" * 12)
    source, page = report(folder)
    assert_a_browser_shows(source, len(page.all("img")), tmp_path)
