"""BIDS data sets: images, labels, subjects, sessions and the ambiguities of their names."""

import shlex

import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.layouts import LayoutOptions, bids
from tests.support.layout_references import by_source, make, outcome, write_files


def path_of(short: str) -> str:
    """The path of a short form: sub-1/anat/sub-1_T1w.nii.gz of 1_T1w, below derivatives/m of m:1_T1w."""
    pipeline, _, name = short.rpartition(":")
    subject, *rest = name.split("_")
    folder = f"derivatives/{pipeline}/" * bool(pipeline)
    sessions = "".join(f"{part}/" for part in rest if part.startswith("ses-"))
    return f"{folder}sub-{subject}/{sessions}anat/sub-{name}.nii.gz"


def test_real_sessions_find_their_labels_and_those_of_a_subject_are_one_group(test_data):
    found = by_source("bids", test_data / "cases" / "bids_two_sessions")
    scans = [f"0{n}_ses-{k}_T2w" for n in range(1, 9) for k in (1, 2)]
    assert outcome(found) == {path_of(one): path_of(f"labels:{one}_dseg") for one in scans}
    assert all(one.group == source[:6] and one.split == "train" for source, one in found.items())


RUNS = "1_run-1_T1w 1_run-2_T1w m:1_run-2_dseg"
TAKE_1, TAKE_2 = ({"image_pattern": f"**/{{id}}_run-{run}_T1w.nii.gz"} for run in (1, 2))
PLAIN, SPACE = ({"label_pattern": pattern} for pattern in ("**/{id}_dseg.*", "**a_dseg.nii.gz"))
T1W, RUN_1, ACQ_A = ({"channel_order": [name]} for name in ("T1w", "run-1_T1w", "acq-a_T1w"))
CASES = [
    ("1_FLAIR 1_T1w m:1_dseg", {}, "1_FLAIR=m:1_dseg"),
    ("1_FLAIR 1_T1w 2_T1w 1_dseg", {}, "1_FLAIR=no-channel 1_T1w=1_dseg 2_T1w=no-label"),
    ("1_FLAIR 1_T1w 1_T1w_dseg", {}, "1_FLAIR=no-channel 1_T1w=1_T1w_dseg"),
    (RUNS, {}, "1_run-1_T1w=several-images"),
    (RUNS, TAKE_2, "1_run-1_T1w=not-chosen 1_run-2_T1w=m:1_run-2_dseg"),
    (RUNS, TAKE_1, "1_run-1_T1w=no-label 1_run-2_T1w=not-chosen m:1_run-2_dseg=not-taken"),
    (RUNS, RUN_1, "1_run-1_T1w=no-label 1_run-2_T1w=left-out m:1_run-2_dseg=not-taken"),
    ("1_T1w 1_run-2_T1w 1_dseg", T1W, "1_T1w=1_dseg 1_run-2_T1w=left-out"),
    ("1_acq-a_T1w 1_acq-b_T1w 1_dseg", ACQ_A, "1_acq-a_T1w=may-be-of-several 1_acq-b_T1w=left-out"),
    ("1_T1w 1_desc-a_dseg 1_dseg", {}, "1_T1w=several-labels"),
    ("1_T1w 1_desc-a_dseg 1_dseg", PLAIN, "1_T1w=1_dseg 1_desc-a_dseg=not-chosen"),
    ("1_T1w m:1_space-M_dseg m:1_space-orig_dseg", {}, "1_T1w=m:1_space-orig_dseg m:1_space-M_dseg=another"),
    ("1_T1w 1_dseg m:1_desc-pre_T1w", {}, "1_T1w=1_dseg m:1_desc-pre_T1w=neither"),
    ("1_T1w 1_space-a_dseg", SPACE, "1_T1w=1_space-a_dseg"),
    ("1_ses-a_T1w 1_ses-b_dseg", {}, "1_ses-a_T1w=no-label 1_ses-b_dseg=no-image"),
]


@pytest.mark.parametrize(("paths", "options", "expected"), CASES)
def test_names_decide_what_belongs_together_or_nothing_does(tmp_path, paths, options, expected):
    found = outcome(by_source("bids", make(tmp_path, *map(path_of, paths.split())), **options))
    pairs = dict(word.split("=") for word in expected.split())
    assert found.keys() == set(map(path_of, pairs))
    for one, what in pairs.items():
        assert (path_of(what) if "_" in what else what.replace("-", " ")) in found[path_of(one)]


ADVISED = [  # names, and the option that finds their labels
    ("{n}_T1w m:{n}_desc-lesion_mask", "--label-pattern 'derivatives/m/**/{id}_desc-lesion_mask.nii.gz'"),
    (
        "{n}_run-1_T1w {n}_run-2_T1w m:{n}_run-1_T1w_seg-manual",
        "--layout pairs --image-pattern '{id}.nii.gz' --label-pattern 'derivatives/m/{id}_seg-manual.nii.gz'",
    ),
]


@pytest.mark.parametrize(("names", "advice"), ADVISED)
def test_labels_of_other_names_are_found_by_an_option_that_was_tried(tmp_path, names, advice):
    paths = [path_of(name.replace("{n}", str(number))) for number in (1, 2) for name in names.split()]
    files = make(tmp_path, *paths)
    with pytest.raises(AnnotationsError) as refused:
        by_source("bids", files)
    assert f"use {advice}, which pairs 2 images with labels" in str(refused.value)
    words = shlex.split(advice)
    given = {
        key.lstrip("-").replace("-", "_"): value for key, value in zip(words[::2], words[1::2], strict=True)
    }
    found = outcome(by_source(given.pop("layout", "bids"), files, **given))
    assert sum(str(one).startswith("derivatives/m") for one in found.values()) == 2
    kept = by_source("bids", files, missing_masks="prediction")
    assert not any(one.is_labelled for one in kept.values())


def test_masks_tables_of_names_and_splits_are_read(tmp_path):
    contents = dict.fromkeys(
        map(path_of, ("1_T1w", "2_T1w", "m:1_label-L_mask", "m:1_label-edema_mask")), "x"
    )
    contents["participants.tsv"] = "participant_id\tsplit\nsub-1\tval\n"
    source = write_files(tmp_path, contents)
    first, second = by_source("bids", source).values()
    masks = {name: path_of(f"m:1_label-{name}_mask") for name in ("L", "edema")}
    assert (first.split, dict(first.class_masks)) == ("val", masks) and "has no split" in second.problem[1]
    assert bids.label_values(source, source, None, LayoutOptions()) == {0: "background", 1: "L", 2: "edema"}


def test_a_table_names_the_values_of_the_labels_below_it_and_two_that_differ_are_refused(tmp_path):
    names = {path_of(one): "x" for one in ("1_T1w", "m:1_dseg", "2_T1w", "m:2_dseg")}
    names["derivatives/m/dseg.tsv"] = "index\tname\tmapping\n0\tBG\t0\n9\tLeft Lesion\t7\n"
    files = write_files(tmp_path, names)
    assert bids.label_values(files, files, None, LayoutOptions()) == {9: "Left Lesion"}
    nearer = {path_of("m:2_dseg").replace(".nii.gz", ".tsv"): "index\tname\n9\tOther\n"}
    files = write_files(tmp_path, {**nearer, "sub-2/anat/sub-1_T2w.nii.gz": "x"})
    assert "sub-2 holds a file of sub-1" in by_source("bids", files)["sub-2/anat/sub-1_T2w.nii.gz"].problem[2]
    with pytest.raises(AnnotationsError, match=r"dseg.tsv and .*sub-2_dseg.tsv name different classes"):
        bids.label_values(files, files, None, LayoutOptions())
