"""The raw data sets of nnU-Net, versions 1 and 2, and of the Medical Segmentation Decathlon."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.layouts import LayoutOptions, msd, nnunet
from halofeed.prep.sources.files import LocalFiles
from tests.support.layout_references import by_source, outcome, write_files

read = partial(by_source, "nnunet")


def write(root: Path, training: int, /, *paths: str, **more: Any) -> LocalFiles:
    content = {
        "channel_names": {"0": "T1", "1": "FLAIR"},
        "labels": {"background": 0, "edema": 1, "core": 3},
        "numTraining": training,
        "file_ending": ".nii.gz",
        **more,
    }
    text = json.dumps({key: value for key, value in content.items() if value is not None})
    return write_files(root, {"dataset.json": text, **dict.fromkeys(paths, "x")})


def case(name: str, folder: str = "imagesTr", channels: int = 2) -> list[str]:
    return [f"{folder}/{name}_{number:04d}.nii.gz" for number in range(channels)]


def test_channels_labels_and_test_cases_come_together(tmp_path):
    root = tmp_path / "Dataset007_Brain"
    paths = [*case("a"), *case("a_b"), "labelsTr/a.nii.gz", "labelsTr/a_b.nii.gz", *case("c", "imagesTs")]
    files = write(root, 2, *paths)
    references = read(files)
    assert {source: (one.channels, one.mask, one.split) for source, one in references.items()} == {
        "imagesTr/a_0000.nii.gz": (("imagesTr/a_0001.nii.gz",), "labelsTr/a.nii.gz", "train"),
        "imagesTr/a_b_0000.nii.gz": (("imagesTr/a_b_0001.nii.gz",), "labelsTr/a_b.nii.gz", "train"),
        "imagesTs/c_0000.nii.gz": (("imagesTs/c_0001.nii.gz",), None, "test"),
    }
    values = {0: "background", 1: "edema", 3: "core"}
    assert nnunet.label_values(files, files, None, LayoutOptions()) == values
    assert nnunet.channel_names(files, None) == ("T1", "FLAIR")
    above = LocalFiles(tmp_path)
    assert read(above)["Dataset007_Brain/imagesTr/a_0000.nii.gz"].mask == "Dataset007_Brain/labelsTr/a.nii.gz"


def test_every_file_of_its_folders_is_accounted_for(tmp_path):
    files = write(
        tmp_path,
        4,
        *(*case("good"), "labelsTr/good.nii.gz"),
        *("imagesTr/second_0001.nii.gz", "labelsTr/second.nii.gz"),
        *(*case("third", channels=3), "labelsTr/third.nii.gz"),
        *(*case("alone"), "labelsTr/left.nii.gz"),
        *("imagesTr/nonumber.nii.gz", "imagesTr/good_0000.nii", "labelsTr/good.nii", "imagesTr/notes.txt"),
        *(*case("t", "imagesTs"), *case("u", "imagesTs"), "labelsTs/t.nii.gz"),
    )
    references = read(files)
    assert outcome(references) == {
        "imagesTr/good_0000.nii.gz": "labelsTr/good.nii.gz",
        "imagesTr/second_0001.nii.gz": "channel is missing",
        "imagesTr/third_0000.nii.gz": "channel is not in dataset.json",
        "imagesTr/alone_0000.nii.gz": "image has no label",
        "labelsTr/left.nii.gz": "label has no image",
        "imagesTr/nonumber.nii.gz": "file is no channel of a case",
        "imagesTr/good_0000.nii": "file is no channel of a case",
        "labelsTr/good.nii": "file is no label of a case",
        "imagesTs/t_0000.nii.gz": "labelsTs/t.nii.gz",
        "imagesTs/u_0000.nii.gz": "image has no label",
    }
    problem = references["imagesTr/second_0001.nii.gz"].problem
    assert problem == ("annotation", "channel is missing", "second: 0000 (T1)")
    kept = read(files, missing_masks="prediction")
    assert kept["imagesTr/alone_0000.nii.gz"].problem is None is kept["imagesTs/u_0000.nii.gz"].mask


def test_pictures_are_cases_too_and_labels_of_no_case_make_none_for_prediction(tmp_path):
    image, label = "imagesTr/a_0000.png", "labelsTr/a.png"
    files = write(tmp_path, 1, image, label, file_ending=".png", channel_names={"0": "rgb"})
    assert outcome(read(files)) == {image: label}
    files = write(tmp_path / "b", 0, *case("t", "imagesTs"), "labelsTs/t.nii")
    assert outcome(read(files)) == {
        "imagesTs/t_0000.nii.gz": "image has no label",
        "labelsTs/t.nii": "file is no label of a case",
    }


@pytest.mark.parametrize("channels", [3, 1])
def test_a_color_picture_holds_the_three_channels_of_its_case(tmp_path, channels):
    """The names alone could be those of a case whose other channels are lost."""
    names = {"0": "R", "1": "G", "2": "B"}
    image, label = "imagesTr/a_0000.png", "labelsTr/a.png"
    files = write(tmp_path, 1, image, label, file_ending=".png", channel_names=names)
    cv2.imwrite(str(tmp_path / image), np.full((4, 4, channels), 9, np.uint8))
    assert outcome(read(files)) == {image: label if channels == 3 else "channel is missing"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"labels": {"0": "background", "x": "edema"}}, "expected a whole number"),
        ({"labels": {"background": 0, "edema": 1.5}}, "expected a whole number"),
        ({"labels": {"background": 0, "a": 1, "b": 1}}, "is there twice"),
        ({"channel_names": {"1": "CT"}}, "without gaps"),
        ({"file_ending": ".brik"}, "'.brik' is not read; known: .nii.gz .nii .nrrd .mha"),
        ({"file_ending": None}, "file_ending: expected such as .nii.gz; found channel_names"),
        ({"numTraining": True}, "numTraining: expected the number"),
        ({"numTraining": 3}, "numTraining is 3, and imagesTr holds 1 case"),
        ({"dataset": []}, "dataset: expected"),
        ({"dataset": {}}, "numTraining is 1, and dataset lists 0 cases"),
    ],
)
def test_what_dataset_json_says_amiss_is_refused_with_the_cure(tmp_path, more, words):
    with pytest.raises(AnnotationsError, match=words):
        read(write(tmp_path, 1, *case("a"), "labelsTr/a.nii.gz", **more))


def test_regions_are_refused_or_their_values_named_by_all_that_hold_them(tmp_path):
    regions = {"background": 0, "whole": [1, 2, 3, 4], "core": [2, 3], "enhancing": 3, "ignore": 9}
    files = write(tmp_path, 1, *case("a"), "labelsTr/a.nii.gz", labels=regions, regions_class_order=[1, 2, 3])
    with pytest.raises(AnnotationsError, match=r"whole, core: a region is several values.*--regions combine"):
        read(files)
    assert outcome(read(files, regions="combine")) == {"imagesTr/a_0000.nii.gz": "labelsTr/a.nii.gz"}
    values = {
        0: "background",
        1: "whole 1",
        2: "whole+core",
        3: "whole+core+enhancing",
        4: "whole 4",
        9: "ignore",
    }
    assert nnunet.label_values(files, files, None, LayoutOptions(regions="combine")) == values


VERSION_1 = {
    "channel_names": None,
    "file_ending": None,
    "modality": {"0": "T1", "1": "FLAIR"},
    "labels": {"0": "background", "1": "edema"},
    "training": [{"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}],
    "test": ["./imagesTs/t.nii.gz"],
}


def test_version_1_is_read_as_version_2_and_the_decathlon_is_not(tmp_path, test_data):
    real = [f"c_00{number}" for number in (1, 2)]
    assert outcome(read(test_data / "cases" / "nnunet_v1")) == {
        f"imagesTr/{name}_0000.nii.gz": f"labelsTr/{name}.nii.gz" for name in real
    }
    files = write(tmp_path / "a", 1, *case("a"), "labelsTr/a.nii.gz", *case("t", "imagesTs"), **VERSION_1)
    references = read(files)
    assert outcome(references) == {
        "imagesTr/a_0000.nii.gz": "labelsTr/a.nii.gz",
        "imagesTs/t_0000.nii.gz": None,
    }
    assert references["imagesTr/a_0000.nii.gz"].channels == ("imagesTr/a_0001.nii.gz",)
    assert nnunet.label_values(files, files, None, LayoutOptions()) == {0: "background", 1: "edema"}
    assert nnunet.channel_names(files, None) == ("T1", "FLAIR")
    with pytest.raises(AnnotationsError, match="take --layout nnunet"):
        by_source("pairs", files)
    # Its lists are compared with the files: b is in the folder alone, t in the list alone, and c has a's label.
    entries = [*VERSION_1["training"], {"image": "imagesTr/c.nii.gz", "label": "labelsTr\\a.nii.gz"}]
    paths = [path for name in "abc" for path in (*case(name), f"labelsTr/{name}.nii.gz")]
    compared = by_source("nnunet", write(tmp_path / "c", 3, *paths, **VERSION_1 | {"training": entries}))
    assert outcome(compared) == {
        "imagesTr/a_0000.nii.gz": "labelsTr/a.nii.gz",
        "imagesTr/b_0000.nii.gz": "case is not in dataset.json",
        "imagesTr/c_0000.nii.gz": "listed label is that of another case",
        "./imagesTs/t.nii.gz": "listed case has no file",
    }
    # An id of 4 digits is no channel where the lists name the files themselves.
    paths = ("imagesTr/a_0000.nii.gz", "labelsTr/a_0000.nii.gz")
    training = [dict(zip(("image", "label"), paths, strict=True))]
    decathlon = write(tmp_path / "b", 1, *paths, **VERSION_1 | {"training": training})
    with pytest.raises(AnnotationsError, match="use --layout msd"):
        read(decathlon)
    assert outcome(by_source("msd", decathlon)) == {
        paths[0]: paths[1],
        "./imagesTs/t.nii.gz": "image file not found",
    }


@pytest.mark.parametrize("stem", ["a", "case_0001"])
def test_a_file_of_the_one_channel_without_its_number_is_a_case_if_its_label_says_so(tmp_path, stem):
    image, label, one = f"imagesTr/{stem}.nii.gz", f"labelsTr/{stem}.nii.gz", {"channel_names": {"0": "CT"}}
    files = write(tmp_path / "a", 1, image, label, "imagesTs/t.nii.gz", **one)
    assert outcome(read(files)) == {image: label, "imagesTs/t.nii.gz": None}
    two = write(tmp_path / "b", 1, "imagesTr/a.nii.gz", "labelsTr/a.nii.gz")
    with pytest.raises(AnnotationsError, match=r"imagesTr/a.nii.gz: expected .*a_0000.nii.gz"):
        read(two)
    mixed = write(
        tmp_path / "c", 1, "imagesTr/b_0000.nii.gz", "labelsTr/b.nii.gz", "imagesTr/a.nii.gz", **one
    )
    assert outcome(read(mixed))["imagesTr/a.nii.gz"] == "file is no channel of a case"


read_msd = partial(by_source, "msd")


def write_msd(root: Path, content: Any, *paths: str) -> LocalFiles:
    text = content if isinstance(content, str) else json.dumps(content)
    return write_files(root, {"dataset.json": text, **dict.fromkeys(paths, "x")})


def document(training: list[Any], test: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    labels = {"0": "background", "1": "spleen"}
    return {"modality": {"0": "CT"}, "labels": labels, "training": training, "test": test or [], **more}


def entry(name: str) -> dict[str, str]:
    return {"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"}


def files_of(*names: str) -> list[str]:
    return [f"{folder}/{name}.nii.gz" for name in names for folder in ("imagesTr", "labelsTr")]


def test_real_hippocampus_scans_under_a_dataset_json(test_data, tmp_path):
    source = test_data / "volumes" / "hippocampus"
    (tmp_path / "imagesTr").symlink_to(source / "images")
    (tmp_path / "labelsTr").symlink_to(source / "labels")
    names = sorted(path.name.removesuffix(".nii.gz") for path in (source / "images").iterdir())
    files = write_msd(tmp_path, document([entry(name) for name in names]))
    assert outcome(read_msd(files)) == {f"imagesTr/{n}.nii.gz": f"labelsTr/{n}.nii.gz" for n in names}


def test_lists_of_the_decathlon_give_splits_wherever_its_dataset_json_lies(tmp_path):
    content = document([entry("a"), entry("b")], ["./imagesTs/c.nii.gz"])
    files = write_msd(tmp_path, content, *files_of("a", "b"), "imagesTs/c.nii.gz", "imagesTs/._c.nii.gz")
    references = read_msd(files)
    assert {source: (one.split, one.mask) for source, one in references.items()} == {
        "imagesTr/a.nii.gz": ("train", "labelsTr/a.nii.gz"),
        "imagesTr/b.nii.gz": ("train", "labelsTr/b.nii.gz"),
        "imagesTs/c.nii.gz": ("test", None),
    }
    assert all(one.problem is None and one.group is None for one in references.values())
    assert msd.label_values(files, files, None, LayoutOptions()) == {0: "background", 1: "spleen"}
    assert msd.channel_names(files, None) == ("CT",)
    write_msd(tmp_path / "b" / "Task09_Spleen", document([entry("a")]), *files_of("a"))
    files = LocalFiles(tmp_path / "b")
    one = {"Task09_Spleen/imagesTr/a.nii.gz": "Task09_Spleen/labelsTr/a.nii.gz"}
    assert outcome(read_msd(files)) == one == outcome(read_msd(files, "Task09_Spleen/dataset.json"))
    write_msd(tmp_path / "b" / "Task10", document([]))
    with pytest.raises(AnnotationsError, match="name one of their folders"):
        read_msd(LocalFiles(tmp_path / "b"))


def test_a_label_of_another_listed_case_is_refused_and_another_number_of_cases_is_said(tmp_path):
    def listed(label_of_a: str) -> dict[str, Any]:
        return {"image": "imagesTr/a.nii.gz", "label": f"labelsTr/{label_of_a}.nii.gz"}

    swapped = [listed("b"), {"image": "imagesTr/b.nii.gz", "label": "labelsTr/a.nii.gz"}]
    files = write_msd(tmp_path / "s", document(swapped), *files_of("a", "b"))
    assert set(outcome(read_msd(files)).values()) == {"listed label is that of another case"}
    other = [listed("segmentation-a"), entry("b")]
    content = document(other) | {"numTraining": 3}
    files = write_msd(tmp_path / "o", content, *files_of("a", "b"), "labelsTr/segmentation-a.nii.gz")
    found = read_msd(files)
    assert outcome(found)["imagesTr/a.nii.gz"] == "labelsTr/segmentation-a.nii.gz"
    assert found["imagesTr/a.nii.gz"].notes == (
        "dataset.json: numTraining is 3, and training lists 2 images",
    )


def test_every_entry_and_every_file_is_accounted_for(tmp_path):
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
    files = write_msd(
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
        **dict.fromkeys(("dataset.json#training[9]", "dataset.json#training[10]"), "entry names no image"),
        **dict.fromkeys(files_of("extra"), "file is not in dataset.json"),
    }
    assert outcome(read_msd(files)) == expected
    assert outcome(read_msd(files, missing_masks="prediction")) == {**expected, "imagesTr/bare.nii.gz": None}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not readable as JSON"),
        ("[]", "expected a JSON object, got list"),
        ({"labels": {"1": "a"}}, "training: expected a list"),
        (document({}), "training: expected a list"),
        (document([], labels={"1": "a", "01": "b"}), "is there twice"),
        (document([], labels={"1": "a", "2": "a"}), "is there twice"),
        (document([], labels={"1": "a", "x": "b"}), "'x' of 'b': expected a whole number"),
        (document([], labels={"0": "background"}), "at least one class"),
        (document([], labels={"1": 5}), "expected a text"),
        (document([], labels=["a"]), "labels: expected"),
    ],
)
def test_a_file_that_is_not_the_decathlons_is_refused_with_the_reason(tmp_path, content, words):
    with pytest.raises(AnnotationsError, match=words):
        read_msd(write_msd(tmp_path, content))


def test_a_missing_file_and_channels_with_gaps_are_refused(tmp_path):
    with pytest.raises(AnnotationsError, match=r"expected dataset\.json in it; found none"):
        read_msd(LocalFiles(tmp_path))
    files = write_msd(tmp_path, document([], modality={"0": "T1", "2": "T2"}))
    with pytest.raises(AnnotationsError, match="modality: expected"):
        msd.channel_names(files, None)


def test_listed_files_of_cases_lie_in_any_folder(tmp_path, monkeypatch):
    """nnU-Net's key `dataset`: paths relative to dataset.json, with variables of the environment."""
    monkeypatch.setenv("SCANS", "scans")
    listed = {
        "a": {"images": ["scans/a/t1.nii.gz", "./scans/a/flair.nii.gz"], "label": "drawn/a.nii.gz"},
        "b": {
            "images": ["$SCANS/b/t1.nii.gz", str(tmp_path / "scans/b/flair.nii.gz")],
            "label": "drawn/b.nii.gz",
        },
        "one": {"images": ["scans/e/t1.nii.gz"], "label": "drawn/e.nii.gz"},
        "gone": {"images": ["scans/c/t1.nii.gz", "scans/c/flair.nii.gz"], "label": "drawn/c.nii.gz"},
        "text": {"images": "scans/a/t1.nii.gz", "label": "drawn/a.nii.gz"},
        "unlabeled": {"images": ["scans/d/t1.nii.gz", "scans/d/flair.nii.gz"]},
    }
    scans = [f"scans/{name}/{channel}.nii.gz" for name in "abd" for channel in ("t1", "flair")]
    scans += ["scans/e/t1.nii.gz", "drawn/e.nii.gz"]
    files = write(
        tmp_path,
        6,
        *scans,
        "drawn/a.nii.gz",
        "drawn/b.nii.gz",
        "other.nii.gz",
        *case("t", "imagesTs"),
        dataset=listed,
    )
    references = read(files)
    good = {source: (one.channels, one.mask) for source, one in references.items() if one.problem is None}
    assert good == {
        "scans/a/t1.nii.gz": (("scans/a/flair.nii.gz",), "drawn/a.nii.gz"),
        "scans/b/t1.nii.gz": (("scans/b/flair.nii.gz",), "drawn/b.nii.gz"),
        "imagesTs/t_0000.nii.gz": (("imagesTs/t_0001.nii.gz",), None),
    }
    problems = {source: one.problem[1] for source, one in references.items() if one.problem is not None}
    assert problems == {
        "dataset.json#dataset[gone]": "image file not found",
        "dataset.json#dataset[text]": "entry names no image",
        "scans/d/t1.nii.gz": "image has no label",
        "other.nii.gz": "file is not in dataset.json",
        "scans/e/t1.nii.gz": "channel is missing",
    }
