"""The page and pictures of `halofeed predict --draw` show what was predicted, worst first, by the names of files."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image

from halofeed.errors import JobError, UsageError
from halofeed.inspection.html.predictions_page import write_predictions_page
from halofeed.loader import Loader
from halofeed.loader.batch import join_id
from halofeed.loader.contact_sheet import rgb_of
from halofeed.pipelines.convert import Conversion
from halofeed.trainer.predict import PredictionOptions, predict_batches
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.task import DataFacts
from tests.support import clip_mask_writer
from tests.support.conversions import all_bytes, draw_folders, run_convert
from tests.support.pages import Page, assert_a_browser_shows
from tests.support.phantom import write_phantom
from tests.support.training import convert_scans, facts_of, slow_overlap

NAMES = {1: "cup", 2: "spoon"}


def known_facts(done: Conversion) -> DataFacts:
    manifest = done.manifest
    shape = manifest.field("image").shape
    return facts_of(manifest.task, manifest.labels, shape, kind=manifest.kind.name)


def predicted(
    done: Conversion, change: Any, out: Path, split: str = "train", **options: Any
) -> dict[str, Any]:
    """Write the truth, as `change` alters each row of a batch, as predictions."""
    loader = Loader(done.folder, split=split, batch_size=4, training=False)
    metadata = SplitMetadata(done.folder, split)

    def pairs() -> Any:
        for step in range(loader.steps):
            batch = {name: np.array(value) for name, value in loader.batch(step).items()}
            truth = {"id": batch["id"], "valid": batch["valid"]}
            if "boxes" in batch:
                batch["scores"] = np.full(batch["classes"].shape, 0.9, np.float32)
                batch["num_detections"] = batch["num_boxes"]
            for row in np.flatnonzero(batch["valid"]):
                change(metadata.of_id(int(join_id(batch["id"][row]))), batch, row)
            yield batch, truth

    given = PredictionOptions(**options)
    return predict_batches(pairs(), done.folder, split, out, facts=known_facts(done), options=given)


def unchanged(record: Any, batch: Any, row: int) -> None:
    """Leave a perfect prediction as it is."""


def files_on(page: Page) -> list[str]:
    """The names of files on a page, in its order."""
    return [
        str(given["title"]).rpartition(", record ")[0] for given in page.all("code") if given.get("title")
    ]


def rectangles(figure: str) -> list[list[float]]:
    """Left, top, width and height of each box of a figure, sorted."""
    found = re.findall(r'<rect[^>]* x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', figure)
    return sorted([float(one) for one in row] for row in found[: len(found) // 2])


def articles(source: str) -> list[str]:
    return re.findall(r"<article.*?</article>", source, re.S)


# Boxes --------------------------------------------------------------------------------------------------


def write_boxes(folder: Path, names: tuple[str, ...]) -> dict[str, list[list[float]]]:
    """Gray pictures of 80 x 120 with three boxes each: class, xmin, ymin, xmax, ymax by the picture's name."""
    folder.mkdir()
    rows, boxes = ["filename,class,xmin,ymin,xmax,ymax"], {}
    for number, name in enumerate(names):
        Image.fromarray(np.full((80, 120, 3), 100, np.uint8)).save(folder / name)
        boxes[name] = [
            [1, 8 + 2 * number, 10, 32 + 2 * number, 40],
            [2, 50, 20, 90, 60 - number],
            [1, 96, 66, 116, 78],
        ]
        rows += [f"{name},{NAMES[int(label)]},{','.join(map(str, box))}" for label, *box in boxes[name]]
    (folder / "boxes.csv").write_text("\n".join(rows) + "\n")
    return boxes


PICTURES = tuple(f"{letter}.png" for letter in "abcdefg")


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    root = tmp_path_factory.mktemp("boxes")
    truth = write_boxes(root / "source", PICTURES)
    options = {
        "layout": "csv",
        "resize": "keep-aspect",
        "min_dimension": 160,
        "max_dimension": 240,
        "pad": True,
    }
    return truth, run_convert(root / "source/boxes.csv", root / "out", max_boxes=20, **options)


def worse(record: Any, batch: Any, row: int) -> None:
    """Move, drop and score boxes by the picture's name, so that each picture has other mistakes."""
    number = PICTURES.index(record.source)
    scores = np.array([0.9, 0.2 if number % 2 else 0.8, 0.04 if number == 4 else 0.5])
    batch["scores"][row, :3] = scores
    batch["boxes"][row, 0, [0, 2]] += 0.04 * number
    if number in (2, 3):
        batch["classes"][row, 2] = 2


def slow_f1(truth: list[list[float]], found: list[dict[str, Any]], min_score: float) -> float:
    """F1 of the COCO results of a picture, each box beside each box."""
    left, right, extra = [tuple(one) for one in truth], 0, 0
    for one in sorted(found, key=lambda one: -one["score"]):
        if one["score"] < min_score:
            continue
        x, y, width, height = one["bbox"]
        best = max(
            (box for box in left if box[0] == one["category_id"]),
            key=lambda box: slow_overlap((y, x, y + height, x + width), (box[2], box[1], box[4], box[3])),
            default=None,
        )
        if best and slow_overlap((y, x, y + height, x + width), (best[2], best[1], best[4], best[3])) >= 0.5:
            left.remove(best)
            right += 1
        else:
            extra += 1
    return 2 * right / (2 * right + extra + len(left))


def test_pictures_come_worst_first_by_the_f1_of_a_slow_count_under_their_names(boxes, tmp_path):
    truth, done = boxes
    predicted(done, worse, tmp_path / "p")
    source = write_predictions_page(tmp_path / "p", done.folder, "train").read_text("utf-8")
    found = json.loads((tmp_path / "p/detections.json").read_text())
    expected = {
        name: slow_f1(truth[name], [one for one in found if one["file_name"] == name], 0.3)
        for name in PICTURES
    }
    assert len(set(expected.values())) >= 4
    names = files_on(Page(source))
    assert sorted(names) == sorted(PICTURES)
    assert [expected[name] for name in names] == sorted(expected.values())
    for name, article in zip(names, articles(source), strict=True):
        assert f"F1 {expected[name]:.3f}" in article
    assert "Worst first by F1" in source
    ids = {str(one["image_id"]) for one in found}
    assert not any(one in re.sub(r'title="[^"]*"', "", source) for one in ids)
    drawn = sorted(path.name for path in (tmp_path / "p/drawn").iterdir() if path.suffix == ".jpg")
    assert drawn == [f"{place:04d}-{name[0]}.jpg" for place, name in enumerate(names, 1)]
    assert [f'href="drawn/{name}"' in article for name, article in zip(drawn, articles(source), strict=True)]


@pytest.mark.parametrize("least", [0.3, 0.6, 0.1])
def test_as_many_boxes_are_drawn_as_the_results_have_of_that_score(boxes, tmp_path, least):
    truth, done = boxes
    document = predicted(done, worse, tmp_path / "p")
    source = write_predictions_page(tmp_path / "p", done.folder, "train", min_score=least).read_text("utf-8")
    found = json.loads((tmp_path / "p/detections.json").read_text())
    for name, article in zip(files_on(Page(source)), articles(source), strict=True):
        left, right = re.findall(r"<figure.*?</figure>", article, re.S)
        assert left.count("<rect") == 2 * len(truth[name])  # a halo and a line
        assert right.count("<rect") == 2 * sum(
            one["file_name"] == name and one["score"] >= least for one in found
        )
    assert document["boxes"] == len(found) == 20 and document["boxes_left_out"] == 1
    assert document["highest_score_left_out"] == pytest.approx(0.04)


def test_lines_of_boxes_are_where_the_annotations_of_the_file_say(boxes, tmp_path):
    truth, done = boxes
    predicted(done, unchanged, tmp_path / "p")
    write_predictions_page(tmp_path / "p", done.folder, "train", count=1)
    (file,) = [path for path in (tmp_path / "p/drawn").iterdir() if path.suffix == ".jpg"]
    drawn = pixels(file).astype(int)
    for label, xmin, ymin, xmax, ymax in truth[f"{file.stem[-1]}.png"]:
        color = np.array(rgb_of(int(label) - 1))
        # Both pictures are 160 x 240, and the gap between them has 6 pixels.
        for left in (0, 246):
            at = [2 * ymin + 1, 2 * ymax - 2], [left + 2 * xmin + 1, left + 2 * xmax - 2]
            for row, column in [
                *((row, (sum(at[1])) // 2) for row in at[0]),
                *((sum(at[0]) // 2, c) for c in at[1]),
            ]:
                near = drawn[row - 1 : row + 2, column - 1 : column + 2].reshape(-1, 3)
                # JPEG blurs colors, so a line is nearer to its color than to the gray around it.
                assert np.abs(near - color).sum(1).min() < np.abs(color - 100).sum() / 2, (row, column)
            middle = drawn[ymin + ymax, left + xmin + xmax]
            assert np.abs(middle - 100).max() < 12


def test_low_scores_are_written_on_request_and_count_in_metrics_of_boxes(boxes, tmp_path):
    _, done = boxes

    def hardly(record: Any, batch: Any, row: int) -> None:
        batch["scores"][row] = 0.003

    document = predicted(done, hardly, tmp_path / "p")
    assert document["boxes"] == 0 and document["boxes_left_out"] == 21
    assert json.loads((tmp_path / "p/detections.json").read_text()) == []
    document = predicted(done, hardly, tmp_path / "all", min_score=0.0)
    assert document["boxes"] == 21 and document["boxes_left_out"] == 0
    source = write_predictions_page(tmp_path / "all", done.folder, "train").read_text("utf-8")
    assert "all scores are below 0.3" in source
    assert {path.name for path in (tmp_path / "all").iterdir()} >= {"drawn", "predictions.html"}


def test_a_browser_shows_each_picture_and_nothing_scrolls_on_a_phone(boxes, tmp_path):
    _, done = boxes
    predicted(done, worse, tmp_path / "p")
    page = write_predictions_page(tmp_path / "p", done.folder, "train").read_text("utf-8")
    assert not Page(page).all("script") and not re.search(r"https?:|@import|url\(", page)
    assert_a_browser_shows(page, 14, tmp_path)


def test_equal_predictions_give_equal_bytes_and_can_be_replaced(boxes, tmp_path):
    _, done = boxes
    for name in ("p", "q"):
        predicted(done, worse, tmp_path / name)
        write_predictions_page(tmp_path / name, done.folder, "train", count=3)
    first = all_bytes(tmp_path / "p")
    assert first == all_bytes(tmp_path / "q")
    with pytest.raises(JobError, match="records were predicted"):  # not: the folder holds files of others
        predict_batches([], done.folder, "train", tmp_path / "p", facts=known_facts(done), overwrite=True)
    with pytest.raises(UsageError, match="holds no predictions"):
        write_predictions_page(tmp_path, done.folder, "train")


TILES = {"fit": "tiles", "height": 48, "width": 48, "tile_overlap": (12, 12)}


@pytest.mark.parametrize(
    ("scale", "orientation", "empty"),
    [(1.0, 1, "keep"), (0.5, 1, "keep"), (1.0, 6, "keep"), (1.0, 1, "drop")],
)
def test_pictures_of_tiles_are_drawn_whole_with_each_object_once(tmp_path, scale, orientation, empty):
    truth = write_boxes(tmp_path / "source", PICTURES[:2])
    table = tmp_path / "source/boxes.csv"
    if empty == "drop":  # the first tile has no object, so that the first record is another one
        lines = [line for line in table.read_text().splitlines() if not line.endswith(",40")]
        table.write_text("\n".join(lines) + "\n")
        truth = {name: boxes[1:] for name, boxes in truth.items()}
    if orientation != 1:
        for name in truth:
            exif = Image.Exif()
            exif[0x0112] = orientation
            Image.fromarray(np.full((80, 120, 3), 100, np.uint8)).save(tmp_path / "source" / name, exif=exif)
    options = {"layout": "csv", "max_boxes": 20, "scale": scale, "empty_tiles": empty}
    done = run_convert(table, tmp_path / "out", **options, **TILES)
    document = predicted(done, unchanged, tmp_path / "p")
    assert document["sources"] == 2 < document["records"]
    source = write_predictions_page(tmp_path / "p", done.folder, "train").read_text("utf-8")
    results = json.loads((tmp_path / "p/detections.json").read_text())
    dropped = document["tiles_dropped"]
    assert (dropped > 0) == (empty == "drop")
    assert ("left out of the data set" in source) == (f"{dropped} empty tile" in source) == (dropped > 0)
    found = articles(source)
    assert len(found) == 2 and set(files_on(Page(source))) == set(truth)
    for name, article in zip(files_on(Page(source)), found, strict=True):
        left, right = re.findall(r"<figure.*?</figure>", article, re.S)
        assert left.count("<rect") == 2 * len(truth[name])
        assert right.count("<rect") == 2 * sum(one["file_name"] == name for one in results)
        size = re.search(r'viewBox="0 0 (\d+) (\d+)"', left)
        assert size and sorted(map(int, size.groups())) == [round(80 * scale), round(120 * scale)]
        placed, again = (rectangles(figure) for figure in (left, right))
        np.testing.assert_allclose(placed, again, atol=0.6)  # boxes of tiles end at whole pixels
        if orientation == 1:
            expected = sorted(
                [scale * xmin, scale * ymin, scale * (xmax - xmin), scale * (ymax - ymin)]
                for _, xmin, ymin, xmax, ymax in truth[name]
            )
            np.testing.assert_allclose(placed, expected, atol=0.02)


# Classes and masks ----------------------------------------------------------------------------------------


def test_pictures_come_worst_first_by_the_probability_of_their_class(tmp_path):
    draw_folders(tmp_path / "source", 12)
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="folders", height=32, width=32)

    def guess(record: Any, batch: Any, row: int) -> None:
        share = 0.05 + (record.id % 89) / 100
        batch.setdefault("probabilities", np.zeros((len(batch["id"]), 2)))[row] = (share, 1 - share)
        batch["label"][row] = int(share < 0.5)

    predicted(done, guess, tmp_path / "p")
    source = write_predictions_page(tmp_path / "p", done.folder, "train", count=9).read_text("utf-8")
    with (tmp_path / "p/classes.csv").open(newline="") as stream:
        share = {
            row["source"]: float(row[f"p({row['source'].split('/')[-2]})"]) for row in csv.DictReader(stream)
        }
    assert len(share) == 12
    assert files_on(Page(source)) == sorted(share, key=share.__getitem__)[:9]
    assert "This page shows 9 of them" in Page(source).words()


def test_names_of_files_and_classes_are_text_on_the_page(tmp_path):
    draw_folders(tmp_path / "drawn", 4)
    (tmp_path / "source").mkdir()
    for number, name in enumerate(("<b>hat&", "'shirt\"")):
        (tmp_path / "drawn" / ("hat", "shirt")[number]).rename(tmp_path / "source" / name)
    file = next(path for path in (tmp_path / "source/<b>hat&").iterdir())
    file.rename(file.with_name('<img src=x onerror="alert(1)">.jpg'))
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="folders", height=16, width=16)

    def certain(record: Any, batch: Any, row: int) -> None:
        shares = batch.setdefault("probabilities", np.zeros((len(batch["id"]), 2)))
        shares[row, batch["label"][row]] = 1

    predicted(done, certain, tmp_path / "p")
    source = write_predictions_page(tmp_path / "p", done.folder, "train").read_text("utf-8")
    page = Page(source)
    assert '<b>hat&/<img src=x onerror="alert(1)">.jpg' in files_on(page)
    assert "onerror" not in {name for _, given in page.elements for name in given}
    assert "<b>hat&" in page.words() and "'shirt\"" in page.words()
    assert all(re.fullmatch(r"drawn/[\w.-]+\.jpg", str(given["href"])) for given in page.all("a"))


def pixels(file: Path) -> np.ndarray:
    with Image.open(file) as opened:
        return np.asarray(opened)


def write_masks(folder: Path) -> None:
    """Pictures of 90 x 130 with a square of class 1 and one of class 2."""
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for number in range(3):
        label = np.zeros((90, 130), np.uint8)
        label[20 + number : 50, 10:70], label[40:80, 80:120] = 1, 2
        Image.fromarray(np.full((90, 130, 3), 90, np.uint8)).save(folder / f"images/{number}.png")
        Image.fromarray(label).save(folder / f"labels/{number}.png")


@pytest.mark.parametrize("fit", ["whole", "tiles", "tiles in TIFF"])
def test_masks_of_pictures_have_the_dice_of_their_files_worst_first(tmp_path, monkeypatch, fit):
    write_masks(tmp_path / "source")
    shape = {"height": 90, "width": 130} if fit == "whole" else TILES
    if fit == "tiles in TIFF":
        monkeypatch.setattr("halofeed.trainer.predict.PNG_PIXELS", 1)
        monkeypatch.setattr("halofeed.inspection.predicted_sources._MASK_ROWS", 7)
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="pairs", task="segmentation", **shape)

    def lost(record: Any, batch: Any, row: int) -> None:
        if "2" in record.source:
            batch["label"][row] = np.where(batch["label"][row] == 2, 0, batch["label"][row])
        if "1" in record.source:
            batch["label"][row] = np.where(batch["label"][row] == 1, 2, batch["label"][row])

    document = predicted(done, lost, tmp_path / "p")
    source = write_predictions_page(tmp_path / "p", done.folder, "train").read_text("utf-8")
    expected = {}
    for entry in document["masks"]:
        assert entry["file"].endswith(".tif") == (fit == "tiles in TIFF")
        found = (
            tifffile.imread(file)
            if (file := tmp_path / "p" / entry["file"]).suffix == ".tif"
            else pixels(file)
        )
        true = pixels(tmp_path / "source/labels" / Path(entry["source"]).name)
        dice = [
            2 * ((found == n) & (true == n)).sum() / ((found == n).sum() + (true == n).sum()) for n in (1, 2)
        ]
        expected[entry["source"]] = np.mean(dice)
    names = files_on(Page(source))
    assert names == sorted(expected, key=expected.__getitem__) and len(set(expected.values())) == 3
    shown = [float(one) for one in re.findall(r"mean Dice ([\d.]+)", " ".join(articles(source)))]
    np.testing.assert_allclose(shown, sorted(expected.values()), atol=0.001)


@pytest.mark.parametrize("fit", ["crop-or-pad", "tiles"])
def test_scans_are_drawn_whole_with_the_masks_that_were_written(tmp_path, fit):
    rows = [
        (f"patient/{name}", *paths)
        for name, *paths in write_phantom(tmp_path / "scans", range(3, 48, 20), ending=".nii.gz")
    ]
    shape = {"depth": 44, "height": 72, "width": 88}
    if fit == "tiles":
        shape = {"depth": 24, "height": 40, "width": 48, "tile_overlap": (4, 8, 8)}
    done = convert_scans(tmp_path, rows, tmp_path / "scans", fit=fit, **shape)
    bad = sorted(image for _, image, _ in rows)[1]

    def lost(record: Any, batch: Any, row: int) -> None:
        if record.source == bad:
            batch["label"][row] = np.where(batch["label"][row] == 1, 0, batch["label"][row])

    document = predicted(done, lost, tmp_path / "p")
    source = write_predictions_page(tmp_path / "p", done.folder, "train").read_text("utf-8")
    names, found = files_on(Page(source)), articles(source)
    assert names[0] == bad and sorted(names) == sorted(image for _, image, _ in rows)
    shown = [float(re.findall(r"mean Dice ([\d.]+)", one)[0]) for one in found]
    assert shown[0] == 0.75 and min(shown[1:]) > 0.99  # one of four classes is lost
    assert all(one.count("<figure") == 6 for one in found)
    masks = {entry["source"]: nibabel.load(tmp_path / "p" / entry["file"]) for entry in document["masks"]}
    assert not (np.asarray(masks[bad].dataobj) == 1).any()


@pytest.mark.long
def test_masks_of_clips_are_contact_sheets_of_each_clip(tmp_path):
    clip_mask_writer.write_masked_clips(tmp_path / "source", frames=10)
    options = {"layout": "pairs", "frames": 5, "height": 48, "width": 64}
    done = run_convert(tmp_path / "source", tmp_path / "out", folder_frame_rate=10.0, **options)
    document = predicted(done, unchanged, tmp_path / "p")
    source = write_predictions_page(tmp_path / "p", done.folder, "train").read_text("utf-8")
    assert len(articles(source)) == len(document["masks"])
    assert set(re.findall(r"mean Dice ([\d.]+)", " ".join(articles(source)))) == {"1.000"}


def test_new_files_have_no_truth_and_no_path_of_the_folder_that_is_deleted(boxes, tmp_path):
    _, done = boxes
    document = predicted(done, worse, tmp_path / "p", source="photos")
    assert document["source"] == "photos" and not {"data", "data_name", "data_version", "split"} & set(
        document
    )
    texts = [path.read_bytes() for path in (tmp_path / "p").iterdir() if path.is_file()]
    assert not any(str(done.folder).encode() in text for text in texts)
    source = write_predictions_page(tmp_path / "p", done.folder, "train", count=4).read_text("utf-8")
    words = Page(source).words()
    assert "There are no labels to compare with" in words and "Worst first" not in words
    assert "truth" not in words.lower() and "photos" in words and 'class="dashed"' not in source
    assert files_on(Page(source)) == [PICTURES[place] for place in (0, 2, 4, 6)]
    assert str(done.folder) not in source
    with Image.open(tmp_path / "p/drawn/0001-a.jpg") as drawn:
        assert drawn.size[0] < 2 * 240, "one picture, and no truth beside it"
