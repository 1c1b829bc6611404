"""The report of a training run is complete, self-contained, escaped and reproducible."""

import itertools
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from halofeed.errors import CorruptFileError, UsageError
from halofeed.inspection.html.report import write_report
from halofeed.inspection.html.run_gallery import (
    MIN_SCORE,
    ExampleBoxes,
    match_predictions,
)
from halofeed.inspection.html.run_report import config_as_toml, write_run_report
from halofeed.inspection.planes import find_worst_planes
from tests.support.clip_mask_writer import convert_masked_clips, draw_masked
from tests.support.level_rows import others
from tests.support.pages import Page, assert_a_browser_shows, assert_self_contained, picture
from tests.support.run_writer import CONFIG, write_run

SECTIONS = ["curves", "metrics", "confusion", "examples", "waiting", "config", "use"]


def report(folder: Path) -> tuple[str, Page]:
    source = write_run_report(folder).read_text("utf-8")
    return source, Page(source)


RUNS = [("detection", None), ("classification", None), ("segmentation", True), ("segmentation", False)]


@pytest.mark.parametrize(("task", "volume"), RUNS)
def test_the_page_is_well_formed_loads_nothing_and_has_every_section_in_order(tmp_path, task, volume):
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


def test_the_figures_are_the_runs_and_classes_stand_from_worst_to_best(tmp_path: Path) -> None:
    source, page = report(write_run(tmp_path / "run", "detection"))
    words = page.words()
    assert "retinanet, trained for detection on split 'train' of drawn 1.0.0: 200 steps of 8 images" in words
    assert "of 96 × 128, 3 classes." in words
    assert "best mAP, step 2000.750" in words and "parameters1.23 M" in words
    assert "Each image was split into 2 along height and 2 along width: 48 × 64 on each of 4 cores." in words
    assert "2 replicas shared each batch equally." in words
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    taken = sum(8 / line["images_per_second"] for line in lines if line["images_per_second"])
    assert f"{round(taken)} s" in words
    waited = [(line["waiting_share"], 8 / line["images_per_second"]) for line in lines[2:]]
    share = sum(one * weight for one, weight in waited) / sum(weight for _, weight in waited)
    assert f"{100 * share:.1f} % of the time, steps waited" in page.words("waiting")
    assert f"from {lines[0]['loss']:.4g} at step 1 to {lines[-1]['loss']:.4g} at step 200" in source
    assert "Input is fast enough" in page.words("waiting") and "not finished" not in words
    words = page.words("metrics")
    assert words.index("square") < words.index("disk") < words.index("star")
    assert "star––" in words and "mAP small–" in words


def test_the_best_step_is_named_where_it_is_not_the_last(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "segmentation", volume=False)
    with (folder / "evaluations.jsonl").open("a") as lines:
        worse = {"dice": 0.11, "extra": {"a": {"b": {"c": 1}}}}
        lines.write(json.dumps({"step": 201, "split": "validation", "metrics": worse}) + "\n")
    _, page = report(folder)
    assert "step 200 was better" in page.words("metrics") and "dice0.1100.833" in page.words("metrics")
    assert "b c" in page.words("metrics"), "what nobody foresaw is a table too"


def test_a_run_from_the_weights_of_another_one_and_a_continued_one_say_so(tmp_path: Path) -> None:
    origin = {"run": "runs/coco", "step": 30, "loaded": ["backbone"], "new": ["outputs.logits"]}
    lengths = [{"until_step": 100, "steps": 100}, {"until_step": 150, "steps": 180}]
    _, page = report(
        write_run(tmp_path / "run", "detection", steps=1, origin=origin, earlier_lengths=lengths)
    )
    assert "first weightsruns/coco, step 30; new outputs.logits" in page.words("config")
    assert "earlier numbers of steps100 up to step 100; 180 up to step 150" in page.words("config")
    for broken in ([], {}, [1], 3):
        report(write_run(tmp_path / "run", "detection", steps=1, origin=broken, earlier_lengths=broken))


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
    words = page.words()
    assert "not finished: 163 of 200 steps are missing and there is no evaluation yet" in words
    assert "No checkpoint was saved: the same command starts from the beginning." in words
    for name in ("00000020", "00000030", "00000037.orbax-checkpoint-tmp-0"):
        (folder / "checkpoints" / name).mkdir(parents=True)
    _, page = report(folder)
    assert "The same command resumes after step 30." in page.words()
    assert "has not been evaluated yet" in page.words("metrics") and "no examples" in page.words("examples")
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
    assert "1 step without a loss, shown as gaps" in page.words("curves")
    words = page.words("metrics")
    assert "dice–" in words and "hausdorff95_mm∞" in words and "liver–" in words


def test_text_is_never_taken_for_html(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>\'&\x1b[31m'
    said = dict.fromkeys(("data", "data_name", "evaluate_split", "platform"), evil)
    folder = write_run(tmp_path / "run", "detection", **said)
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
        ("run.json", '{"format": 2}', "expected a run of format 1"),
        ("log.jsonl", '{"step": 1}\n{"loss": 3}\n', "line 2: expected a JSON object with a step"),
        ("log.jsonl", 'broken\n{"step": 1}\n', "line 1: .*remove the line"),
        ("evaluations.jsonl", '{"step": 1, "metrics": 3}\n', "line 1: expected metrics"),
        ("examples/examples.json", "[]", "expected a step and a list.*evaluate again"),
        ("examples/examples.json", '{"step": 1, "examples": [{"file": "../x.npz"}]}', r"is not a \.npz file"),
        ("examples/02.npz", "broken", "cannot be read.*evaluate again"),
    ],
)
def test_a_broken_file_is_named_with_the_cure_and_no_page_is_left(tmp_path, file, content, message):
    folder = write_run(tmp_path / "run", "detection", steps=60)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    place = "" if content is None else rf"{re.escape(Path(file).name)}: .*"
    with pytest.raises((UsageError, CorruptFileError), match=f"{place}{message}"):
        write_run_report(folder)
    assert not (folder / "report.html").exists() and not list(folder.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("task", "name", "value", "message"),
    [
        ("detection", "predicted_boxes", None, "is missing"),
        ("detection", "predicted_scores", np.zeros(3), r"expected numbers of shape \(20,\)"),
        ("detection", "image", np.zeros((3, 3)), "expected"),
        ("segmentation", "predicted_label", np.zeros((2, 2)), "expected numbers of shape"),
        ("segmentation", "predicted_label", np.full((96, 128), -1), "expected class indices"),
        ("classification", "truth_label", np.array(["x"]), "expected numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_named_with_what_was_expected(tmp_path, task, name, value, message):
    folder = write_run(tmp_path / "run", task, steps=60, volume=False)
    file = folder / "examples" / "01.npz"
    arrays = {**np.load(file), name: value}
    np.savez(file, **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(CorruptFileError, match=f"01.npz: {name}:? {message}"):
        write_run_report(folder)


def test_a_missed_box_and_one_that_is_not_there_are_dashed(tmp_path: Path) -> None:
    source, page = report(write_run(tmp_path / "run", "detection"))
    assert page.words("examples").count("3 of 4 boxes found") == 4
    first = source[source.index('<article class="sample">') :]
    left, right = first[: first.index("</article>")].split("<figcaption>truth, 4 boxes</figcaption>")
    for half, dashed in ((left, 1), (right, 1)):
        drawn = half[half.index('<g class="boxes">') : half.index("</svg>")]
        assert drawn.count("<rect") == 4 and drawn.count('class="dashed"') == dashed
    assert "predicted, 4 boxes (14 with lower scores not shown)" in right
    assert re.search(r">(disk|square) 0\.97<", right)
    colors = re.findall(r'<span class="tag" style="(--k:#\w+)[^>]*>(\w+)', first[: first.index("</article>")])
    assert len(set(colors)) == len({name for _, name in colors}), "one color a class"


def boxes_of(corners: Any, classes: Any, scores: Any = None, crowd: Any = None) -> ExampleBoxes:
    count = len(classes)
    return ExampleBoxes(
        corners=np.array(corners, np.float64).reshape(-1, 4),
        classes=np.array(classes, np.int64),
        scores=np.ones(count) if scores is None else np.array(scores, np.float64),
        crowd=np.zeros(count, bool) if crowd is None else np.array(crowd, bool),
    )


def test_two_predictions_on_one_object_are_right_once_and_a_crowd_takes_any_number() -> None:
    here, there = [0, 0, 0.4, 0.4], [0.5, 0.5, 1, 1]
    twice = boxes_of([here, here], [1, 1], [0.9, 0.8])
    assert match_predictions(boxes_of([here], [1]), twice).right.tolist() == [True, False]
    other = match_predictions(boxes_of([here], [2]), twice)
    assert other.right.tolist() == [False, False], "of another class"
    meeting = match_predictions(boxes_of([[0, 0, 1, 1], there], [1, 1], crowd=[True, False]), twice)
    assert meeting.right.tolist() == [True, True] and meeting.found.tolist() == [True, False]
    assert match_predictions(boxes_of([], []), twice).right.tolist() == [False, False]
    weak = match_predictions(boxes_of([here], [1]), boxes_of([here] * 5, [1] * 5, [MIN_SCORE / 2] * 5))
    assert weak.weak and weak.shown == 3 and weak.found.all()
    assert match_predictions(boxes_of([here], [1]), boxes_of([], [])).shown == 0


@given(st.integers(0, 2**32 - 1))
def test_the_planes_shown_are_those_with_the_most_wrong_voxels(seed: int) -> None:
    nothing = np.zeros((5, 7, 9), int)
    assert find_worst_planes(nothing.shape, nothing, nothing) == (2, 3, 4), "without a fault the middle"
    random = np.random.default_rng(seed)
    shape = tuple(random.integers(1, 6, 3).tolist())
    truth, predicted = random.integers(0, 3, shape), random.integers(0, 3, shape)
    places = find_worst_planes(shape, truth, predicted)
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


@pytest.mark.parametrize("count", others([8, 50], [50]))
@pytest.mark.parametrize(("task", "volume"), others(RUNS, [("segmentation", True), ("detection", None)]))
def test_pages_of_noise_stay_below_five_megabytes(tmp_path, task, volume, count):
    folder = write_run(tmp_path / "run", task, steps=60, volume=volume)
    file = folder / "examples" / "00.npz"
    arrays = dict(np.load(file))
    grown_by = 2 if volume else 4
    labels = {name: value for name, value in arrays.items() if name.endswith("_label") and value.ndim}
    ones = {name: np.ones((grown_by,) * value.ndim, np.uint8) for name, value in labels.items()}
    grown = arrays | {name: np.kron(value, ones[name]) for name, value in labels.items()}
    shape = tuple(grown_by * side for side in arrays["image"].shape[:-1]) + arrays["image"].shape[-1:]
    np.savez(file, **{**grown, "image": np.random.default_rng(0).integers(0, 256, shape, np.uint8)})
    listed = json.loads((folder / "examples" / "examples.json").read_text())
    listed["examples"] = [listed["examples"][0]] * count
    (folder / "examples" / "examples.json").write_text(json.dumps(listed))
    source, page = report(folder)
    shown = len(page.all("article"))
    each = (3 if volume else 1) * (1 if task == "classification" else 2)
    assert len(source) < 5_000_000 and shown == min(count, 96 // each)
    assert (f"{count - shown} more are in the run's folder" in page.words("examples")) == (shown < count)


def test_a_config_comes_back_from_its_toml() -> None:
    config = {**CONFIG, "backbone_weights": 'a "b" \\ \n\x7f é'}
    config["model_options"] = {"a b": [True, {"c": None, "d": 1.5}]}
    expected = {name: value for name, value in config.items() if value is not None}
    expected["model_options"] = {"a b": [True, {"d": 1.5}]}
    assert tomllib.loads(config_as_toml(config)) == expected


@pytest.mark.long
@pytest.mark.parametrize(("task", "volume"), RUNS)
def test_a_browser_shows_the_run_without_errors_overlaps_or_sideways_scrolling(tmp_path, task, volume):
    folder = write_run(tmp_path / "run", task, volume=volume, data="a/very/long/path" * 12)
    source, page = report(folder)
    assert_a_browser_shows(source, len(page.all("img")), tmp_path)


def assert_classes_lie_over_what_they_show(page: str, pairs: int) -> None:
    """Each sheet of classes covers what is red or blue in the sheet of frames under it."""
    shown = itertools.pairwise(Page(page).all("img"))
    found = [(before["src"], mask["src"]) for before, mask in shown if mask.get("class") == "mask"]
    assert len(found) == pairs
    for stored, mask in found:
        covered = picture(mask)[..., 3] > 0
        sheet = Image.fromarray(picture(stored)).convert("RGB")
        colors = np.asarray(sheet.resize(covered.shape[::-1], Image.Resampling.NEAREST)).astype(int)
        red_or_blue = np.abs(colors[..., 0] - colors[..., 2]) > 60
        assert covered.mean() > 0.04 and (covered != red_or_blue).mean() < 0.02


def test_the_classes_of_every_frame_of_a_sheet_of_a_data_set_lie_over_it(tmp_path, monkeypatch):
    monkeypatch.setattr("halofeed.inspection.review.review.SEARCHES", ())
    page = write_report(convert_masked_clips(tmp_path / "clips"), tmp_path / "report.html").read_text()
    # Samples, and contents.
    assert_classes_lie_over_what_they_show(page, 12 + 24)


def test_a_run_shows_the_truth_and_the_prediction_over_the_frames_of_its_clips(tmp_path):
    run = write_run(tmp_path / "run", "segmentation", volume=False)
    document = json.loads((run / "run.json").read_text())
    document["facts"] |= {"kind": "clip", "image_shape": [12, 48, 64, 3]}
    document["config"] |= {"model": "unet", "partition": "image=1,4,1,1,1"}
    (run / "run.json").write_text(json.dumps(document))
    for file in sorted((run / "examples").glob("*.npz")):
        frames, masks = draw_masked(np.random.default_rng(int(file.stem)))
        label = np.array(masks)
        np.savez(file, image=np.array(frames), truth_label=label, predicted_label=label.astype(np.int32))
    page = write_run_report(run, tmp_path / "run.html").read_text()
    assert_classes_lie_over_what_they_show(page, 8)
    assert "0.0 % of the pixels are wrong" in page or "0 % of the pixels are wrong" in page
    assert "4 along frame" in page and "voxels" not in page


def test_examples_are_named_by_their_files_where_the_run_knows_them(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "classification")
    file = folder / "examples" / "examples.json"
    listed = json.loads(file.read_text())
    for number, entry in enumerate(listed["examples"]):
        entry |= {"id": 10**18 + number} | ({"source": f"<b>{number}.png"} if number else {})
    file.write_text(json.dumps(listed))
    _, page = report(folder)
    words = page.words("examples")
    assert all(f"<b>{number}.png" in words for number in range(1, len(listed["examples"])))
    assert str(10**18) in words and str(10**18 + 1) not in words, "an id where there is no name"
    assert f"<b>1.png, record {10**18 + 1}" in [given.get("title") for given in page.all("code")]
