"""The Medical Segmentation Decathlon's dataset.json."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from halofeed.prep.layouts import LayoutOptions
from halofeed.prep.layouts.msd import channel_names, label_values
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import AnnotationsError
from tests.support.layout_references import by_source, outcome, write_files

read = partial(by_source, "msd")


def write(root: Path, content: Any, *paths: str) -> LocalFiles:
    text = content if isinstance(content, str) else json.dumps(content)
    return write_files(root, {"dataset.json": text, **dict.fromkeys(paths, "x")})


def document(training: list[Any], test: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    labels = {"0": "background", "1": "spleen"}
    return {"modality": {"0": "CT"}, "labels": labels, "training": training, "test": test or [], **more}


def entry(name: str) -> dict[str, str]:
    return {"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"}


def files_of(*names: str) -> list[str]:
    return [f"{folder}/{name}.nii.gz" for name in names for folder in ("imagesTr", "labelsTr")]


def test_real_hippocampus_scans_under_a_dataset_json(test_data: Path, tmp_path: Path) -> None:
    source = test_data / "volumes" / "hippocampus"
    (tmp_path / "imagesTr").symlink_to(source / "images")
    (tmp_path / "labelsTr").symlink_to(source / "labels")
    names = sorted(path.name.removesuffix(".nii.gz") for path in (source / "images").iterdir())
    files = write(tmp_path, document([entry(name) for name in names]))
    assert outcome(read(files)) == {f"imagesTr/{name}.nii.gz": f"labelsTr/{name}.nii.gz" for name in names}


def test_training_and_test_lists_give_splits_and_test_cases_are_for_prediction(tmp_path: Path) -> None:
    content = document([entry("a"), entry("b")], ["./imagesTs/c.nii.gz"])
    files = write(tmp_path, content, *files_of("a", "b"), "imagesTs/c.nii.gz", "imagesTs/._c.nii.gz")
    references = read(files)
    assert {source: (one.split, one.mask) for source, one in references.items()} == {
        "imagesTr/a.nii.gz": ("train", "labelsTr/a.nii.gz"),
        "imagesTr/b.nii.gz": ("train", "labelsTr/b.nii.gz"),
        "imagesTs/c.nii.gz": ("test", None),
    }
    assert all(one.problem is None and one.group is None for one in references.values())
    assert label_values(files, files, None, LayoutOptions()) == {0: "background", 1: "spleen"}
    assert channel_names(files, None) == ("CT",)


def test_every_entry_and_every_file_is_accounted_for(tmp_path: Path) -> None:
    training = [
        *(entry(name) for name in ("good", "unlabelled", "missing", "twice", "twice", "leaked")),
        {"image": "./imagesTr/._good.nii.gz", "label": "./labelsTr/._good.nii.gz"},
        {"image": "imagesTr/bare.nii.gz"},
        {"image": "imagesTr/self.nii.gz", "label": "imagesTr/self.nii.gz"},
        {"label": "labelsTr/good.nii.gz"},
        7,
    ]
    tested = {"image": "imagesTs/d.nii.gz", "label": "labelsTs/d.nii.gz"}
    content = document(training, ["imagesTr/leaked.nii.gz", tested])
    files = write(
        tmp_path,
        content,
        *files_of("good", "twice", "leaked", "extra"),
        *(f"imagesTr/{name}.nii.gz" for name in ("unlabelled", "bare", "self")),
        *("labelsTr/missing.nii.gz", "imagesTs/d.nii.gz", "labelsTs/d.nii.gz", "README.txt"),
    )
    expected = {
        "imagesTr/good.nii.gz": "labelsTr/good.nii.gz",
        tested["image"]: tested["label"],
        "imagesTr/unlabelled.nii.gz": "label file not found",
        "./imagesTr/missing.nii.gz": "image file not found",
        **{f"imagesTr/{name}.nii.gz": "image is listed several times" for name in ("twice", "leaked")},
        "imagesTr/bare.nii.gz": "image has no label",
        "imagesTr/self.nii.gz": "image and label are one file",
        **{f"dataset.json#training[{number}]": "entry names no image" for number in (9, 10)},
        **dict.fromkeys(files_of("extra"), "file is not in dataset.json"),
    }
    assert outcome(read(files)) == expected
    assert outcome(read(files, missing_masks="prediction")) == {**expected, "imagesTr/bare.nii.gz": None}


def test_dataset_json_may_lie_one_folder_deeper_or_be_named(tmp_path: Path) -> None:
    write(tmp_path / "Task09_Spleen", document([entry("a")]), *files_of("a"))
    files = LocalFiles(tmp_path)
    one = {"Task09_Spleen/imagesTr/a.nii.gz": "Task09_Spleen/labelsTr/a.nii.gz"}
    assert outcome(read(files)) == one == outcome(read(files, "Task09_Spleen/dataset.json"))
    write(tmp_path / "Task10", document([]))
    with pytest.raises(AnnotationsError, match="name one of their folders"):
        read(LocalFiles(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not readable as JSON"),
        ("[]", "expected a JSON object, got list"),
        ({"labels": {"1": "a"}}, "training: expected a list"),
        (document({}), "training: expected a list"),  # type: ignore[arg-type]
        (document([], labels={"background": 0, "spleen": 1}), "say --layout nnunet"),
        (document([], labels={"1": "a", "01": "b"}), "is there twice"),
        (document([], labels={"1": "a", "2": "a"}), "is there twice"),
        (document([], labels={"1": "a", "x": "b"}), "'x' of 'b': expected a whole number"),
        (document([], labels={"0": "background"}), "at least one class"),
        (document([], labels={"1": 5}), "expected a text"),
        (document([], labels=["a"]), "labels: expected"),
    ],
)
def test_a_file_that_is_not_the_decathlons_is_refused_with_the_reason(
    tmp_path: Path, content: Any, words: str
) -> None:
    with pytest.raises(AnnotationsError, match=words):
        read(write(tmp_path, content))


def test_a_missing_file_and_channels_with_gaps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AnnotationsError, match=r"expected dataset\.json in it; found none"):
        read(LocalFiles(tmp_path))
    files = write(tmp_path, document([], modality={"0": "T1", "2": "T2"}))
    with pytest.raises(AnnotationsError, match="modality: expected"):
        channel_names(files, None)
