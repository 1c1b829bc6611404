"""`--duplicates`: copies among the inputs are left out, or kept in one split."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import nibabel
import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError, UsageError
from halofeed.inspection.review.copies import find_copies
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.pipelines import first_pass
from halofeed.pipelines.convert import Conversion
from halofeed.pipelines.dry_run import dry_run
from halofeed.pipelines.duplicates import CONFLICT, COPIES, COPY
from halofeed.pipelines.job import JobOptions
from halofeed.prep.convert.source_signatures import SourceSignature, sign_source
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.schemas.file_layout import index_file
from tests.inspection.test_copies import PLANTED, draw, write
from tests.prep.formats.test_dicom_pictures import color
from tests.support.clip_writer import write_video
from tests.support.conversions import (
    all_bytes,
    convert_words,
    die_at,
    halofeed_here,
    rejected_entries,
    run_convert,
)
from tests.support.dicom_writer import save, write_series

PICTURES = {"layout": "folders", "height": 80, "width": 100}


def left_out(done: Conversion, reason: str = COPY) -> dict[str, str]:
    """Inputs that were left out for a reason, with the detail."""
    entries = rejected_entries(done.folder)
    return {one["source"]: one["detail"] for one in entries if one["reason"] == reason}


def splits_of(done: Conversion) -> dict[str, str]:
    """Split of each record by its source."""
    reviewed = ReviewedSet(done.folder)
    places = map(reviewed.place, range(len(reviewed)))
    return {place.source: place.split for place in places}


# What is kept


def test_one_of_each_is_kept_the_one_of_test_then_the_largest_then_the_first(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for number in range(6):
        write(source, f"train/a/{number}.png", draw(number))
    write(source, "test/a/small.png", PLANTED["resized"](draw(0)))
    write(source, "validation/a/middle.png", draw(0))
    write(source, "train/a/1small.png", PLANTED["resized"](draw(1)))
    write(source, "train/a/2again.png", draw(2))
    done = run_convert(source, tmp_path / "out", duplicates="drop", **PICTURES)
    assert left_out(done) == {
        "train/a/0.png": "test/a/small.png is kept in test",
        "validation/a/middle.png": "test/a/small.png is kept in test",
        "train/a/1small.png": "train/a/1.png is kept in train",
        "train/a/2again.png": "train/a/2.png is kept in train",
    }
    assert done.manifest.inputs[COPIES] == {"groups": 3, "left out": 4}
    assert done.manifest.recipe["duplicates"] == "drop"
    assert list(find_copies(ReviewedSet(done.folder))) == []


def test_copies_with_other_labels_are_kept_and_named_unless_all_are_to_be_left_out(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for number in range(4):
        write(source, f"a/{number}.png", draw(number))
    write(source, "b/0.png", draw(0))
    write(source, "b/9.png", draw(9))
    words = convert_words(source, tmp_path, duplicates="drop", height=80, width=100)
    said = halofeed_here(*words).stderr
    assert "a/0.png and b/0.png (a and b); all of them are kept" in said
    assert not rejected_entries(tmp_path / "set" / "1.0.0")
    advised = said[said.index("--duplicates drop-conflicts") :].split()[1]
    done = run_convert(source, tmp_path, version="2.0.0", duplicates=advised, **PICTURES)
    assert left_out(done, CONFLICT).keys() == {"a/0.png", "b/0.png"}


def test_labeled_copies_are_kept_before_unlabeled_ones_in_a_test_set(tmp_path: Path) -> None:
    write(tmp_path / "in", "test/0.png", draw(0))
    write(tmp_path / "in", "train/0.png", draw(0))
    write(tmp_path / "in", "train/1.png", draw(1))
    rows = [
        "path,split,xmin,ymin,xmax,ymax,label",
        "test/0.png,test,,,,,",
        "train/0.png,train,10,10,50,50,hat",
    ]
    (tmp_path / "in" / "boxes.csv").write_text("\n".join([*rows, "train/1.png,train,10,10,50,50,hat", ""]))
    done = run_convert(
        tmp_path / "in", tmp_path / "out", **{**PICTURES, "layout": "csv", "duplicates": "drop"}
    )
    # A picture without a box in a table of boxes is known to have none, so the labels differ.
    assert not left_out(done) and done.manifest.inputs[COPIES]["groups with other labels"] == 1


# Groups


def test_copies_and_their_patients_stay_in_one_split_transitively(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for number in range(12):
        write(source, f"a/p{number}_0.png", draw(number))
        write(source, f"a/p{number}_1.png", draw(100 + number))
    # Patient 0 shares a picture with patient 1, and patient 1 another one with patient 2.
    write(source, "a/p1_2.png", PLANTED["mirrored"](draw(0)))
    write(source, "a/p2_2.png", PLANTED["recompressed"](draw(101)))
    options = {**PICTURES, "group_pattern": "(p[0-9]+)_"}
    for seed in range(3):
        shares = {"folds": 3, "split_seed": seed}
        done = run_convert(source, tmp_path / f"out{seed}", duplicates="group", **options, **shares)
        splits = splits_of(done)
        joined = {split for path, split in splits.items() if path[2:].split("_")[0] in ("p0", "p1", "p2")}
        assert len(joined) == 1 and len(splits) == 26
        assert not any("several" in str(one.kind) for one in find_copies(ReviewedSet(done.folder)))
        assert done.manifest.inputs[COPIES] == {"groups": 2, "kept together": 8}


def test_copies_in_splits_that_have_names_are_refused_with_a_way_that_works(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for number in range(4):
        write(source, f"train/a/{number}.png", draw(number))
    write(source, "test/a/0.png", draw(0))
    with pytest.raises(
        AnnotationsError, match=r"test/a/0.png \(test\) and train/a/0.png \(train\)"
    ) as refused:
        run_convert(source, tmp_path / "out", duplicates="group", **PICTURES)
    advised = str(refused.value).partition("divide all inputs anew with --split-shares ")[2]
    done = run_convert(
        source, tmp_path / "out", duplicates="group", split_shares=tuple(advised.split(",")), **PICTURES
    )
    splits = splits_of(done)
    assert splits["test/a/0.png"] == splits["train/a/0.png"]
    lists = {"test": "test/a/0.png", "train": "".join(f"train/a/{number}.png\n" for number in range(4))}
    for name, text in lists.items():
        (tmp_path / f"{name}.txt").write_text(text)
    listed = tuple(f"{name}={tmp_path / name}.txt" for name in lists)
    with pytest.raises(AnnotationsError, match="--duplicates drop converts one of each"):
        run_convert(source, tmp_path / "lists", duplicates="group", split_lists=listed, **PICTURES)
    done = run_convert(source, tmp_path / "lists", duplicates="drop", split_lists=listed, **PICTURES)
    assert left_out(done).keys() == {"train/a/0.png"}


# Kinds of sources


def _turned(root: Path) -> None:
    """A JPEG whose EXIF data turn it, beside an upright one."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(draw(0)[..., ::-1])).save(root / "a" / "copy.jpg", exif=exif)


def _deep(root: Path) -> None:
    write(root, "a/copy.png", draw(0).astype(np.uint16) * 257)


def _jpeg(root: Path) -> None:
    write(root, "a/copy.jpg", draw(0))


def _tiles(root: Path) -> None:
    """A picture, of which tiles are not compared with those of the same picture."""
    write(root, "a/copy.png", draw(0))


@pytest.mark.parametrize(
    ("plant", "options"),
    [(_jpeg, {}), (_turned, {}), (_deep, {}), (_tiles, {"fit": "tiles", "height": 64, "width": 64})],
    ids=["png beside jpeg", "turned by exif", "16 bits", "tiles"],
)
def test_copies_of_other_forms_are_found(
    tmp_path: Path, plant: Callable[[Path], None], options: dict[str, Any]
) -> None:
    for number in range(4):
        write(tmp_path / "in", f"a/{number}.png", draw(number))
    plant(tmp_path / "in")
    done = run_convert(tmp_path / "in", tmp_path / "out", duplicates="drop", **{**PICTURES, **options})
    (kept,) = left_out(done).values()
    assert len(left_out(done)) == 1 and kept.startswith(("a/0.png", "a/copy"))


def _coco(root: Path, *boxes: tuple[str, int]) -> None:
    """Pictures by name, each with a box that begins at this column."""
    images = [{"id": n, "file_name": name, "height": 160, "width": 200} for n, (name, _) in enumerate(boxes)]
    objects = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [left, 20, 40, 40], "area": 1600, "iscrowd": 0}
        for n, (_, left) in enumerate(boxes)
    ]
    document = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "hat"}]}
    (root / "instances.json").write_text(json.dumps(document))


def test_boxes_of_copies_are_compared(tmp_path: Path) -> None:
    names = ["0.png", "0b.png", "1.png", "1b.png", "2.png"]
    for name in names:
        write(tmp_path / "in", name, draw(int(name[0])))
    _coco(tmp_path / "in", *zip(names, (10, 12, 10, 120, 10), strict=True))
    done = run_convert(tmp_path / "in", tmp_path / "out", duplicates="drop", **{**PICTURES, "layout": "coco"})
    assert left_out(done).keys() == {"0b.png"}
    assert done.manifest.inputs[COPIES] == {"groups": 2, "groups with other labels": 1, "left out": 1}


def test_a_part_without_any_object_has_other_labels_than_a_picture_with_some(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "in", f"{number}.png", draw(number))
        write(tmp_path / "in", f"{number}part.png", np.ascontiguousarray(PLANTED["cropped"](draw(number))))
    rows = ["path,xmin,ymin,xmax,ymax,label", *(f"{number}.png,20,20,60,60,hat" for number in range(3))]
    rows += ["0part.png,,,,,", "1part.png,15,15,55,55,hat", "2part.png,15,15,55,55,hat", ""]
    (tmp_path / "in" / "boxes.csv").write_text("\n".join(rows))
    done = run_convert(
        tmp_path / "in", tmp_path / "out", **{**PICTURES, "layout": "csv", "duplicates": "drop"}
    )
    assert left_out(done).keys() == {"1part.png", "2part.png"}


def test_masks_of_copies_are_compared_and_pictures_for_prediction_stay_apart(tmp_path: Path) -> None:
    masks = {"0": 40, "0b": 40, "1": 40, "1b": 100, "2": 40}
    for name, side in masks.items():
        mask = np.zeros((160, 200), np.uint8)
        mask[10 : 10 + side, 10 : 10 + side] = 1
        write(tmp_path / "in", f"images/{name}.png", draw(int(name[0])))
        write(tmp_path / "in", f"masks/{name}.png", mask)
    for name in ("2unlabeled", "2again"):
        write(tmp_path / "in", f"images/{name}.png", draw(2))
    pairs = {
        "image_pattern": "images/{id}.png",
        "label_pattern": "masks/{id}.png",
        "missing_masks": "prediction",
    }
    options = {**PICTURES, "layout": "pairs", "task": "segmentation", "duplicates": "drop", **pairs}
    done = run_convert(tmp_path / "in", tmp_path / "out", **options)
    assert left_out(done).keys() == {"images/0b.png", "images/2unlabeled.png"}
    assert done.manifest.inputs[COPIES]["groups with other labels"] == 1


def test_a_small_lesion_that_one_copy_lacks_is_another_label(tmp_path: Path) -> None:
    for name, side in {"0": 10, "0b": 0, "1": 10}.items():
        mask = np.zeros((160, 200), np.uint8)
        mask[:80, :100] = 1
        mask[100 : 100 + side, 100 : 100 + side] = 2
        write(tmp_path / "in", f"images/{name}.png", draw(int(name[0])))
        write(tmp_path / "in", f"masks/{name}.png", mask)
    pairs = {"layout": "pairs", "image_pattern": "images/{id}.png", "label_pattern": "masks/{id}.png"}
    options = {**PICTURES, "task": "segmentation", "duplicates": "drop", **pairs}
    done = run_convert(tmp_path / "in", tmp_path / "out", **options)
    assert not left_out(done) and done.manifest.inputs[COPIES]["groups with other labels"] == 1


def test_masks_of_equal_pictures_at_other_places_are_other_labels(tmp_path: Path) -> None:
    for name, top in {"0": 0, "0b": 80, "1": 0, "1b": 2}.items():
        mask = np.zeros((160, 200), np.uint8)
        mask[top : top + 60, 20:80] = 1
        write(tmp_path / "in", f"images/{name}.png", draw(int(name[0])))
        write(tmp_path / "in", f"masks/{name}.png", mask)
    pairs = {"layout": "pairs", "image_pattern": "images/{id}.png", "label_pattern": "masks/{id}.png"}
    options = {**PICTURES, "task": "segmentation", "duplicates": "drop", **pairs}
    done = run_convert(tmp_path / "in", tmp_path / "out", **options)
    assert left_out(done).keys() == {"images/1b.png"}


def test_no_class_is_another_label_than_a_class(tmp_path: Path) -> None:
    for name in ("0.png", "0b.png", "1.png", "2.png"):
        write(tmp_path / "in", name, draw(int(name[0])))
    rows = ["path,label", "0.png,[]", "0b.png,hat", "1.png,hat", "2.png,hat", "2.png,shoe", ""]
    (tmp_path / "in" / "labels.csv").write_text("\n".join(rows))
    options = {**PICTURES, "layout": "csv", "task": "classification", "several_classes": "keep"}
    done = run_convert(tmp_path / "in", tmp_path / "out", duplicates="drop", **options)
    assert not left_out(done) and done.manifest.inputs[COPIES]["groups with other labels"] == 1


def _scan(seed: int) -> np.ndarray:
    """A scan of 12 slices [column, row, slice] with organs."""
    slices = [cv2.cvtColor(draw(50 * seed + slice_ // 4), cv2.COLOR_BGR2GRAY) for slice_ in range(12)]
    return np.stack(slices, axis=-1).transpose(1, 0, 2).astype(np.int16)


def test_scans_are_compared(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for number in range(4):
        image = nibabel.Nifti1Image(_scan(min(number, 2)) * (1 if number < 3 else 2), np.eye(4))
        label = nibabel.Nifti1Image((_scan(min(number, 2)) > 120).astype(np.uint8), np.eye(4))
        for folder, scan in (("imagesTr", image), ("labelsTr", label)):
            (source / folder).mkdir(parents=True, exist_ok=True)
            nibabel.save(scan, source / folder / f"{number}.nii.gz")
    patterns = {"image_pattern": "imagesTr/{id}.nii.gz", "label_pattern": "labelsTr/{id}.nii.gz"}
    shape = {"depth": 8, "height": 32, "width": 32, "layout": "pairs", **patterns}
    done = run_convert(source, tmp_path / "out", duplicates="drop", **shape)
    assert left_out(done) == {"imagesTr/3.nii.gz": "imagesTr/2.nii.gz is kept in train"}


def test_dicom_series_are_compared(tmp_path: Path) -> None:
    for number in range(4):
        stored = np.ascontiguousarray(_scan(min(number, 2)).transpose(2, 1, 0)).astype(np.uint16)
        positions = [[0, 0, 2 * index] for index in range(len(stored))]
        write_series(
            tmp_path / "in" / f"s{number}",
            stored,
            positions,
            series=f"1.2.{number}",
            more={"PatientID": f"p{number}"},
        )
    shape = {"layout": "dicom", "depth": 8, "height": 32, "width": 32}
    done = run_convert(tmp_path / "in", tmp_path / "out", duplicates="drop", **shape)
    assert left_out(done) == {"s3": "s2 is kept in train"}


def test_a_file_of_several_pictures_is_left_out_only_for_an_equal_file(tmp_path: Path) -> None:
    """Files of frames whose first one is the same."""
    (tmp_path / "in" / "a").mkdir(parents=True)
    for name, seeds in {"0": (0, 1, 2), "0b": (0, 1, 2), "1": (0, 3, 4), "2": (5, 6)}.items():
        frames = np.stack([draw(seed)[..., ::-1] for seed in seeds])
        dataset = color(frames, PatientID=None, SOPInstanceUID=f"1.2.{name[0]}")
        save(dataset, tmp_path / "in" / "a" / f"{name}.dcm")
    write(tmp_path / "in", "a/+.png", draw(0))
    done = run_convert(tmp_path / "in", tmp_path / "out", duplicates="drop", **PICTURES)
    assert left_out(done) == dict.fromkeys(["a/+.png", "a/0b.dcm"], "a/0.dcm is kept in train")


def test_videos_are_compared(tmp_path: Path) -> None:
    (tmp_path / "in" / "walk").mkdir(parents=True)
    for name, seed in (("0", 0), ("1", 1), ("1b", 1), ("2", 2)):
        frames = [draw(100 * seed + frame // 4)[:48, :64, ::-1] for frame in range(12)]
        write_video(tmp_path / "in" / "walk" / f"{name}.avi", frames)
    shape = {"layout": "folders", "frames": 4, "height": 48, "width": 64}
    done = run_convert(tmp_path / "in", tmp_path / "out", duplicates="drop", **shape)
    assert left_out(done) == {"walk/1b.avi": "walk/1.avi is kept in train"}


# Runs


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw 24 pictures, 8 of them copies."""
    folder = tmp_path_factory.mktemp("some")
    for number in range(24):
        write(folder, f"{'ab'[number % 2]}/{number}.jpg", draw(number % 16))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("mode", ["drop", "group"])
def test_processes_and_kills_do_not_change_a_byte(some: Path, tmp_path: Path, mode: str) -> None:
    options = {**PICTURES, "duplicates": mode, "shards": 3, "split_shares": ("train=0.6", "test=0.4")}
    alone = run_convert(some, tmp_path / "alone", workers=1, threads=1, **options)
    several = run_convert(some, tmp_path / "several", workers=2, threads=2, **options)
    assert all_bytes(Path(alone.folder)) == all_bytes(Path(several.folder))
    assert alone.manifest.inputs[COPIES]["groups"] == 8
    words = convert_words(
        some, tmp_path / "killed", workers=1, **{**options, "split_shares": "train=0.6,test=0.4"}
    )
    die_at((index_file("set-train.tfrecord-00001-of-00003"), "after", "exchange", words))
    done = run_convert(some, tmp_path / "killed", workers=1, **options)
    assert all_bytes(Path(done.folder)) == all_bytes(Path(alone.folder))
    assert run_convert(some, tmp_path / "killed", workers=1, **options).was_there


def test_another_mode_or_a_changed_copy_is_another_data_set(some: Path, tmp_path: Path) -> None:
    run_convert(some, tmp_path, duplicates="drop", **PICTURES)
    with pytest.raises(UsageError, match="--duplicates: was 'drop'"):
        run_convert(some, tmp_path, **PICTURES)


def test_a_dry_run_shows_what_would_be_left_out(some: Path, tmp_path: Path) -> None:
    options = JobOptions(source=str(some), out=str(tmp_path / "out"), name="set")
    recipe = {**PICTURES, "duplicates": "drop"}
    text = dry_run(options, lambda **more: Recipe(**{**recipe, **more}), str(tmp_path / "scratch")).text
    assert (
        "copies       8 groups of copies; 8 inputs left out" in text and "16 inputs of layout folders" in text
    )


def test_other_runners_are_refused(some: Path, tmp_path: Path) -> None:
    words = convert_words(some, tmp_path, duplicates="drop")
    said = halofeed_here(*words, "--", "--runner=PrismRunner").stderr
    assert "--duplicates drop" in said and "leave --runner out" in said


def test_a_new_version_keeps_the_examples_of_the_earlier_one_and_leaves_new_copies_out(
    some: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    for number in range(6):
        write(source, f"a/{number + 5}.png", PLANTED["resized"](draw(number)))
    first = run_convert(source, tmp_path / "out", duplicates="drop", **PICTURES)
    # A larger copy with a name that comes first would be kept without the earlier version.
    write(source, "a/0.png", draw(0))
    write(source, "a/1.png", draw(30))
    options = {"duplicates": "drop", "version": "1.1.0", "from_": first.folder, **PICTURES}
    second = run_convert(source, tmp_path / "out", **options)
    assert left_out(second).keys() == {"a/0.png"}
    assert splits_of(first).keys() < splits_of(second).keys()


def test_a_new_copy_joins_the_split_of_the_earlier_version(some: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for number in range(8):
        write(source, f"a/{number}.png", draw(number))
    options = {"duplicates": "group", "folds": 2, **PICTURES}
    first = run_convert(source, tmp_path / "out", **options)
    for number in range(8):
        # Names that come first would name the joint group, and its hash choose another split.
        write(source, f"a/+{number}.png", PLANTED["mirrored"](draw(number)))
    more = {"version": "1.1.0", "from_": first.folder, "keep_splits": True}
    splits = splits_of(run_convert(source, tmp_path / "out", **options, **more))
    before = splits_of(first)
    assert {path: splits[path] for path in before} == before
    assert all(splits[f"a/+{number}.png"] == before[f"a/{number}.png"] for number in range(8))


def test_copies_in_the_test_set_of_the_earlier_version_are_kept(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path / "in", f"a/{number}.png", draw(number))
        write(tmp_path / "in", f"a/{number}b.png", draw(number))
    options = {"split_shares": ("train=0.5", "test=0.5"), **PICTURES}
    first = run_convert(tmp_path / "in", tmp_path / "out", **options)
    more = {"duplicates": "drop", "version": "1.1.0", "from_": first.folder, "keep_splits": True}
    second = run_convert(tmp_path / "in", tmp_path / "out", **options, **more)
    before, after = splits_of(first), splits_of(second)
    pairs = [{before[f"a/{number}.png"], before[f"a/{number}b.png"]} for number in range(8)]
    assert len(after) == 8 and {"test", "train"} in pairs
    assert list(after.values()).count("test") == sum("test" in pair for pair in pairs)


def test_a_new_version_decodes_only_new_and_changed_pictures_for_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    for number in range(6):
        write(source, f"a/{number}.png", draw(number))
    options = {"duplicates": "drop", "layout": "folders", "height": 128, "width": 160}
    first = run_convert(source, tmp_path / "out", **options)
    write(source, "a/new.png", PLANTED["resized"](draw(3)))
    write(source, "a/5.png", draw(50))
    signed = []

    def sign(recipe: Recipe, reference: SourceExample, *others: Any) -> SourceSignature:
        signed.append(reference.source)
        return sign_source(recipe, reference, *others)

    monkeypatch.setattr(first_pass, "sign_source", sign)
    more = {"version": "1.1.0", "from_": first.folder}
    second = run_convert(source, tmp_path / "out", **options, **more)
    # The copy that is known is decoded again for its size.
    assert signed == ["a/5.png", "a/new.png", "a/3.png"]
    assert left_out(second) == {"a/new.png": "a/3.png is kept in train"}
    signed.clear()
    small = run_convert(source, tmp_path / "small", duplicates="drop", **PICTURES)
    signed.clear()
    run_convert(
        source, tmp_path / "small", duplicates="drop", **PICTURES, version="1.1.0", from_=small.folder
    )
    assert len(signed) == 7


def test_a_new_version_compares_boxes_and_sizes_of_known_copies_as_a_complete_conversion_does(
    tmp_path: Path,
) -> None:
    names = ["0.png", "0b.png", "1.png", "1a.png", "2.png"]
    for name in names:
        write(tmp_path / "in", name, draw(int(name[0])))
    write(tmp_path / "in", "1.png", PLANTED["resized"](draw(1)))
    _coco(tmp_path / "in", *zip(names, (10, 120, 10, 10, 10), strict=True))
    document = json.loads((tmp_path / "in" / "instances.json").read_text())
    document["images"][2] |= {"height": 64, "width": 80}
    (tmp_path / "in" / "instances.json").write_text(json.dumps(document))
    options = {"layout": "coco", "height": 128, "width": 160}
    first = run_convert(tmp_path / "in", tmp_path / "out", **options)
    complete = run_convert(tmp_path / "in", tmp_path / "complete", duplicates="drop", **options)
    more = {"version": "1.1.0", "from_": first.folder, "keep_splits": True}
    second = run_convert(tmp_path / "in", tmp_path / "out", duplicates="drop", **options, **more)
    assert left_out(complete) == left_out(second) == {"1.png": "1a.png is kept in train"}
    assert second.manifest.inputs[COPIES]["groups with other labels"] == 1
