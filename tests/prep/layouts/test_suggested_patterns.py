"""Patterns that are suggested: from names of the files, tried on them, and never of two patients."""

import re
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.suggest_patterns import several_labels, suggest_patterns
from halofeed.prep.layouts.pairs import list_references
from halofeed.prep.sources.files import LocalFiles
from tests.support.advice import type_suggestions
from tests.support.small_scans import AFFINE, image, mask
from tests.support.volume_support import save_nifti

Draw = Callable[[Path], None]


def photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path))).integers(0, 256, (16, 24, 3), np.uint8)
    cv2.imwrite(str(path), noise)


def drawing(path: Path, classes: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    block = np.zeros((16, 24), np.uint8)
    block[2:9, 3:20] = classes - 1
    cv2.imwrite(str(path), block)


def scan(path: Path) -> None:
    save_nifti(path, image(), AFFINE)


def label(path: Path) -> None:
    save_nifti(path, mask(classes=2), AFFINE)


def draw(root: Path, ids: str, **files: Callable[[Path], None]) -> None:
    """Draw each file for each id; a name has _ for / and X for the id."""
    for name, write in files.items():
        for one in ids.split():
            write(root / name.replace("__", "/").replace("X", one))


SCANS = {
    "a folder for each patient": (
        {"pX__ct.nii.gz": scan, "pX__roi.nii.gz": label},
        "0 1",
        "p{id}/ct.nii.gz p{id}/roi.nii.gz",
    ),
    "a folder for each name": (
        {"X__ct.nii.gz": scan, "X__roi.nii.gz": label},
        "anna bob",
        "{id}/ct.nii.gz {id}/roi.nii.gz",
    ),
    "words before the number": (
        {"volume-X.nii.gz": scan, "labels-X.nii.gz": label},
        "1 2",
        "volume-{id}.nii.gz labels-{id}.nii.gz",
    ),
    "the patient's number in both names": (
        {"P_X__P_X.nii.gz": scan, "P_X__GT.nii.gz": label},
        "01 02",
        "P_{id}/P_{id}.nii.gz P_{id}/GT.nii.gz",
    ),
    "a channel's number": (
        {"img__X_0000.nii.gz": scan, "lab__X.nii.gz": label},
        "1 2",
        "img/{id}_0000.nii.gz lab/{id}.nii.gz",
    ),
    "two words in two folders": (
        {"scan__liver-origX.nii.gz": scan, "label__liver-segX.nii.gz": label},
        "001 002",
        "scan/liver-orig{id}.nii.gz label/liver-seg{id}.nii.gz",
    ),
}
PICTURES = {
    "a split and a town": (
        {
            "left__train__aachen__aachen_X_left.png": photo,
            "fine__train__aachen__aachen_X_ids.png": drawing,
            "left__val__bonn__bonn_X_left.png": photo,
            "fine__val__bonn__bonn_X_ids.png": drawing,
        },
        "000 001",
        "left/{split}/{group}/{id}_left.png fine/{split}/{group}/{id}_ids.png",
    ),
    "a picture beside the folder of the set": (
        {"set__train__X.png": photo, "set__trainlab__X.png": drawing, "set__val__aX.png": photo}
        | {"set__vallab__aX.png": drawing, "docs__logo.png": photo},
        "000 001 002",
        "set/{split}/{id}.png set/{split}lab/{id}.png",
    ),
    "a split at the begin of a longer word": (
        {
            "train__X.png": photo,
            "trainannot__X.png": drawing,
            "val__aX.png": photo,
            "valannot__aX.png": drawing,
        },
        "000 001",
        "{split}/{id}.png {split}annot/{id}.png",
    ),
    "a split in the folder's name": (
        {
            "train_img__aX.jpg": photo,
            "train_lab__aX.png": drawing,
            "val_img__bX.jpg": photo,
            "val_lab__bX.png": drawing,
        },
        "1 2",
        "{split}_img/{id}.jpg {split}_lab/{id}.png",
    ),
}
NOTHING = {
    "pictures of two visits": ({"v1__X.png": photo, "v2__X.png": photo}, "0 1 2"),
    "two kinds of pictures": ({"left__X.png": photo, "right__X.png": photo}, "0 1 2"),
    "two kinds of scans": ({"T1__sX.nii.gz": scan, "T2__sX.nii.gz": scan}, "0 1 2"),
    "a scan of one patient and a label of another": ({"p1__ctX.nii.gz": scan, "p2__roiX.nii.gz": label}, "5"),
}


def patterns_of(root: Path) -> list[str]:
    found = suggest_patterns(LocalFiles(root), LayoutOptions(), "pairs")
    return [" ".join(one.words[1::2]) for one in found]


@pytest.mark.parametrize("name", [*SCANS, *PICTURES])
def test_patterns_are_made_from_the_paths_of_any_source(tmp_path, name):
    files, ids, expected = {**SCANS, **PICTURES}[name]
    draw(tmp_path, ids, **files)
    assert patterns_of(tmp_path)[:1] == [expected]


@pytest.mark.parametrize("name", NOTHING)
def test_no_pattern_pairs_two_patients_or_two_pictures(tmp_path, name):
    files, ids = NOTHING[name]
    draw(tmp_path, ids, **files)
    assert patterns_of(tmp_path) == []


def test_files_of_two_patients_with_all_files_in_common_are_paired_within_each(tmp_path):
    draw(tmp_path, "1 2", **{"pX__a__ct.nii.gz": scan, "pX__a__roi.nii.gz": label, "pX__b.nii.gz": scan})
    for found in patterns_of(tmp_path):
        image_pattern, label_pattern = found.split()
        assert not re.search("p[12]", image_pattern + label_pattern)


@pytest.mark.parametrize("name", ["a folder for each patient", "words before the number"])
def test_what_a_suggestion_says_is_what_a_conversion_does(tmp_path, name):
    files, ids, _ = SCANS[name]
    draw(tmp_path / "source", ids, **files)
    words = ["--source", tmp_path / "source", *["--depth", "4", "--height", "8", "--width", "8"]]
    (output,) = type_suggestions(words, tmp_path).values()
    assert re.search(r"train +2 records", output)


def test_a_second_kind_of_labels_is_noted_with_patterns_that_take_it(tmp_path):
    draw(
        tmp_path,
        "21 22 23",
        training__images__X_training=lambda path: photo(path.with_suffix(".png")),
        training__mask__X_training_mask=lambda path: drawing(path.with_suffix(".png")),
        training__vessels__X_manual1=lambda path: drawing(path.with_suffix(".png")),
    )
    files = LocalFiles(tmp_path)
    labeled = [one for one in list_references(files, files, None, LayoutOptions()) if one.mask]
    assert len(labeled) == 3
    assert all("--label-pattern 'training/vessels/{id}_manual1.png'" in one.notes[0] for one in labeled)


def test_masks_of_objects_are_no_label_images(tmp_path):
    for picture in ("1f", "2e", "3d"):
        photo(tmp_path / picture / "images" / f"{picture}.png")
        for number in range(3):
            name = (
                f"{'gqt'[number]}{7919 * (number + 2 * ord(picture[0]))}"  # names that belong to no picture
            )
            drawing(tmp_path / picture / "masks" / f"{name}.png")
    files = LocalFiles(tmp_path)
    assert not suggest_patterns(files, LayoutOptions(), "pairs")
    assert "3 files in 1f/masks, such as one for each object" in several_labels(files, list(files.sizes()))
