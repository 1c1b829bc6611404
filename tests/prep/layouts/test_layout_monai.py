"""MONAI's datalists: JSON of any name with lists of images, labels, channels and folds."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import AnnotationsError
from halofeed.loader import Loader
from halofeed.prep.annotations.suggest_layout import suggest_layout
from halofeed.prep.layouts import LayoutOptions, monai
from halofeed.prep.sources.files import LocalFiles
from tests.support.conversions import run_convert
from tests.support.layout_references import by_source, outcome, write_files
from tests.support.small_scans import AFFINE, SIZE, image, mask
from tests.support.volume_support import save_nifti

read = partial(by_source, "monai")
CHANNELS = ("t1", "t2")


def entry(case: str, fold: int | None = None, folder: str = "scans") -> dict[str, Any]:
    """A case of two channels."""
    content: dict[str, Any] = {
        "image": [f"{folder}/{case}_{one}.nii" for one in CHANNELS],
        "label": f"{folder}/{case}_seg.nii",
    }
    return content if fold is None else {**content, "fold": fold}


def write(root: Path, document: Any, *paths: str, name: str = "folds.json") -> LocalFiles:
    return write_files(root, {name: json.dumps(document), **dict.fromkeys(paths, "x")})


def files_of(*cases: str, folder: str = "scans") -> list[str]:
    return [f"{folder}/{case}_{one}.nii" for case in cases for one in (*CHANNELS, "seg")]


def test_folds_are_splits_and_lists_of_images_are_channels(tmp_path):
    document = {
        "training": [entry("a", 0), entry("b", 1), entry("c", 0)],
        "validation": [entry("d")],
        "testing": [{"image": entry("e")["image"]}],
        "labels": {"0": "background", "1": "core", "2": "edema"},
    }
    files = write(tmp_path, document, *files_of("a", "b", "c", "d", "e"), "scans/other.nii")
    references = read(files)
    assert {
        source: (one.split, one.channels, one.mask)
        for source, one in references.items()
        if one.problem is None
    } == {
        f"scans/{case}_t1.nii": (split, (f"scans/{case}_t2.nii",), label and f"scans/{case}_seg.nii")
        for case, split, label in (
            ("a", "fold0", 1),
            ("b", "fold1", 1),
            ("c", "fold0", 1),
            ("d", "validation", 1),
            ("e", "test", None),
        )
    }
    left = "file is not in folds.json"
    assert {source: one.problem[1] for source, one in references.items() if one.problem} == {
        "scans/other.nii": left,
        "scans/e_seg.nii": left,
    }
    assert monai.label_values(files, files, None, LayoutOptions()) == {0: "background", 1: "core", 2: "edema"}


def test_the_loader_trains_on_all_folds_but_one(tmp_path: Path) -> None:
    root = tmp_path / "s"
    for number, case in enumerate("abcd"):
        for channel, one in enumerate(CHANNELS):
            save_nifti(root / f"scans/{case}_{one}.nii", image(10 * number + channel), AFFINE)
        save_nifti(root / f"scans/{case}_seg.nii", mask(number), AFFINE)
    write(root, {"training": [entry(case, number % 2) for number, case in enumerate("abcd")]})
    done = run_convert(root, tmp_path / "o", layout="monai", channels=2, **SIZE)
    loaders = [
        Loader(done.folder, fold=1, split=split, batch_size=2, shuffle=False)
        for split in ("train", "validation")
    ]
    batches = [loader.batch(0) for loader in loaders]
    for batch, numbers in zip(batches, ((0, 2), (1, 3)), strict=True):
        expected = {mask(number).tobytes() for number in numbers}
        assert {np.asarray(label).astype(np.uint8).tobytes() for label in batch["label"]} == expected
    found = np.asarray(batches[0]["image"])
    channels = {np.ascontiguousarray(one).tobytes() for one in found[..., 1]}
    assert channels == {image(1).tobytes(), image(21).tobytes()}


def test_paths_are_those_below_the_file_or_below_the_root(tmp_path):
    document = {"training": [entry("a"), entry("b", folder="scans")]}
    write(tmp_path, document, *files_of("a"), *files_of("b", folder="lists/scans"), name="lists/my.json")
    references = read(LocalFiles(tmp_path))
    good = {source: one.split for source, one in references.items() if one.problem is None}
    assert good == {"scans/a_t1.nii": "train", "lists/scans/b_t1.nii": "train"}


def test_what_is_wrong_with_an_entry_is_said_by_its_number(tmp_path):
    document = {
        "training": [
            entry("a", 0),
            entry("b"),
            {**entry("c", 0), "fold": -1},
            {**entry("d", 0), "label": ["scans/d_seg.nii"]},
            {"label": "scans/e_seg.nii", "fold": 0},
            {**entry("gone", 0)},
            {"image": entry("f")["image"], "fold": 1},
            {"image": "scans/g_t1.nii", "label": "scans/g_t1.nii", "fold": 1},
            {"image": ["scans/._h_t1.nii"], "fold": 1},
        ]
    }
    references = read(write(tmp_path, document, *files_of(*"abcdefg"), "scans/._h_t1.nii"))
    found = outcome(references)
    problems = {
        "scans/b_t1.nii": "entry has no fold",
        "scans/c_t1.nii": "entry has no fold",
        "folds.json#training[3]": "entry has several labels",
        "folds.json#training[4]": "entry names no image",
        "scans/gone_t1.nii": "image file not found",
        "scans/f_t1.nii": "image has no label",
        "scans/g_t1.nii": "image and label are one file",
    }
    assert {source: found[source] for source in problems} == problems
    assert (
        references["scans/b_t1.nii"]
        .problem[2]
        .startswith("folds.json#training[1]: fold: expected a number from 0")
    )
    kept = read(LocalFiles(tmp_path), missing_masks="prediction")
    assert kept["scans/f_t1.nii"].problem is None


def test_a_folder_without_a_datalist_or_with_two_is_refused(tmp_path):
    with pytest.raises(AnnotationsError, match=r'expected one JSON file with "training".*found none'):
        read(write_files(tmp_path / "a", {"x.json": "{}"}))
    files = write(tmp_path / "b", {"training": [entry("a")]}, *files_of("a"))
    write(tmp_path / "b", {"training": [entry("a")]}, name="other.json")
    with pytest.raises(AnnotationsError, match=r"found folds\.json, other\.json; name one with --source"):
        read(LocalFiles(tmp_path / "b"))
    assert read(files, file="folds.json")["scans/a_t1.nii"].mask == "scans/a_seg.nii"


@pytest.mark.parametrize(
    ("name", "document", "layout"),
    [
        ("folds.json", {"training": [entry("a", 0)]}, "monai"),
        ("dataset.json", {"training": [entry("a", 0)], "modality": {"0": "MR"}}, "monai"),
        (
            "dataset.json",
            {"modality": {"0": "MR"}, "training": [{"image": "a.nii", "label": "b.nii"}]},
            "msd",
        ),
        ("btcv.json", {"training": [{"image": "a.nii", "label": "b.nii"}]}, "monai"),
        ("coco.json", {"images": [{"file_name": "a.png"}], "training": []}, "coco"),
    ],
)
def test_its_files_are_told_from_those_of_others(tmp_path, name, document, layout):
    hint = suggest_layout(write(tmp_path, document, "a.nii", "b.nii", name=name))
    assert hint is not None and hint.layouts == (layout,)
