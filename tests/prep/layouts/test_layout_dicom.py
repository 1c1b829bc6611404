"""Folders of DICOM series, their masks and their patients."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom.dataset import Dataset
from pydicom.uid import generate_uid

from halofeed.errors import AnnotationsError, SourceError
from halofeed.pipelines.job import reference_from_json, reference_to_json
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.layouts import LayoutOptions, SourceExample
from halofeed.prep.sources.files import LocalFiles
from tests.support import dicom_writer
from tests.support.dicom_writer import write_series
from tests.support.layout_references import by_source, list_references, make, outcome, series_at

SECRETS = ("Doe^Jane", "PAT-4711", "19500101", "General Hospital")
PATIENT = {"PatientName": SECRETS[0], "PatientBirthDate": SECRETS[2], "InstitutionName": SECRETS[3]}
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
SEG, RTSTRUCT = "1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.481.3"
SALTED = SeriesPolicy(salt="s")
NO_LABEL = "image has no label"
touch = partial(make, content="no DICOM at all")


def save(
    path: Path, sop_class: str, series: str, patient: str = SECRETS[1], frame: str = "1.9.1", **more: Any
) -> None:
    named = {"SOPClassUID": sop_class, "SOPInstanceUID": generate_uid(entropy_srcs=[str(path)])}
    named |= {"SeriesInstanceUID": series, "FrameOfReferenceUID": frame, "PatientID": patient}
    dataset = Dataset()
    dataset.update({**named, **PATIENT, **more})
    dicom_writer.save(dataset, path)


def save_series(folder, series, names=("b", "a", "c"), patient=SECRETS[1], frame="1.9.1", **more):
    volume = np.stack([np.full((2, 3), depth, np.int16) for depth in range(len(names))])
    positions = [(0, 0, 2 * depth) for depth in range(len(names))]
    more = {**PATIENT, "FrameOfReferenceUID": frame, **more}
    write_series(folder, volume, positions, names=names, series=series, patient=patient, more=more)


def save_segmentation(path: Path, of: str | None, **more: Any) -> None:
    item = Dataset()
    item.SeriesInstanceUID = of
    references = {"ReferencedSeriesSequence": [item]} if of else {}
    save(path, SEG, "1.5.1", **{"Modality": "SEG", **references, **more})


def save_structures(path: Path, of: str) -> None:
    frame, study, series = Dataset(), Dataset(), Dataset()
    series.SeriesInstanceUID = of
    study.RTReferencedSeriesSequence = [series]
    frame.RTReferencedStudySequence = [study]
    save(path, RTSTRUCT, "1.5.2", Modality="RTSTRUCT", ReferencedFrameOfReferenceSequence=[frame])


def read(root: Path, **options: Any) -> dict[str, SourceExample]:
    found = by_source("dicom", root, **options)
    assert list(found) == sorted(found)
    assert not any(secret in reference_to_json(one) for secret in SECRETS for one in found.values())
    accounted = {path for one in found.values() for path in one.paths}
    details = " ".join(one.problem[2] for one in found.values() if one.problem)
    files = LocalFiles(root).sizes()
    assert all(path in accounted or path in details for path in files if not path.endswith("LICENSE"))
    return found


def test_real_series_are_found_whole_and_one_at_the_root_is_called_by_a_dot(test_data):
    references = list_references("dicom", test_data / "dicom")
    counts = {one.source: len(one.members) for one in references if one.problem is None}
    assert counts["totalsegmentator_jpeg2000"] == 20 and counts["torchio_17"] == 17
    assert counts["ge_tilt_variable_spacing"] == 8
    assert not any(one.is_labelled for one in references)
    root = test_data / "dicom" / "torchio_17"
    (found,) = [one for one in list_references("dicom", root) if one.problem is None]
    assert found.source == "." and len(found.members) == 17
    assert series_at(root, ".", LayoutOptions()).members == found.members


def test_each_kind_of_mask_finds_its_series(tmp_path):
    for number, folder in enumerate(["p1/ct", "p2/ct", "p3/ct", "p4", "p5/ct", "p6/ct"]):
        save_series(tmp_path / folder, f"1.2.{number}", frame=f"1.9.{number}")
    save_segmentation(tmp_path / "masks" / "1", "1.2.0", frame="1.9.7")
    save_structures(tmp_path / "masks" / "2.dcm", "1.2.1")
    touch(tmp_path, "p3/ct/any.nii.gz", "elsewhere/p4.nii.gz", "p5/mask.nii", "LICENSE")
    save_segmentation(tmp_path / "p6" / "seg", None, frame="1.9.5")
    references = read(tmp_path)
    masks = {"p1/ct": "masks/1", "p2/ct": "masks/2.dcm", "p3/ct": "p3/ct/any.nii.gz"}
    masks |= {"p4": "elsewhere/p4.nii.gz", "p5/ct": "p5/mask.nii", "p6/ct": "p6/seg"}
    assert outcome(references) == masks
    assert references["p1/ct"].members == ("p1/ct/a", "p1/ct/b", "p1/ct/c")


def test_several_series_of_a_folder_are_told_apart_without_their_uids(tmp_path):
    save_series(tmp_path / "all", "1.2.1", ("1", "3", "5"))
    save_series(tmp_path / "all", "1.2.2", ("2", "4", "6"))
    save_segmentation(tmp_path / "seg", "1.2.2")
    touch(tmp_path, "all/which.nii")
    references = read(tmp_path, missing_masks="prediction", series=SALTED)
    first, second, mask = references.values()
    by_members = {one.members: one for one in (first, second)}
    assert by_members["all/2", "all/4", "all/6"].mask == "seg"
    assert by_members["all/1", "all/3", "all/5"].mask is None
    assert mask.problem is not None and mask.problem[1] == "label fits several series"
    assert "1.2." not in "".join(references) and all(one.source.startswith("all#") for one in (first, second))
    with pytest.raises(SourceError, match=r"several DICOM series \(write one of all#"):
        series_at(tmp_path, "all", LayoutOptions(series=SALTED))
    assert series_at(tmp_path, first.source, LayoutOptions(series=SALTED)).members == first.members


def test_patients_are_groups_by_a_salted_hash(tmp_path):
    save_series(tmp_path / "a", "1.2.1", patient="PAT-4711")
    save_series(tmp_path / "b", "1.2.2", patient=" PAT-4711 ")
    save_series(tmp_path / "c", "1.2.3", patient="other")
    save_series(tmp_path / "d", "1.2.4", patient="")
    groups = [one.group for one in read(tmp_path, series=SALTED).values()]
    assert groups[0] == groups[1] != groups[2] and groups[0] is not None and groups[3] is None
    assert groups[0] not in [one.group for one in read(tmp_path, series=SeriesPolicy(salt="t")).values()]
    assert "s3cret" not in repr(LayoutOptions(series=SeriesPolicy(salt="s3cret")))


def test_what_is_no_slice_is_named_and_a_damaged_file_stops_the_series_beside_it(tmp_path):
    save_series(tmp_path / "p1", "1.2.1")
    save_series(tmp_path / "p2", "1.2.2")
    save_series(tmp_path / "p3", "1.2.3", ("1",), ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    save(tmp_path / "p1" / "capture", SECONDARY_CAPTURE, "1.2.9", Modality="SC")
    whole = (tmp_path / "p2" / "a").read_bytes()
    (tmp_path / "p2" / "cut").write_bytes(whole[:300])
    touch(tmp_path, "p1/DICOMDIR2", "p4/broken.dcm", "p1/preview.png")
    save_segmentation(tmp_path / "seg", "1.2.77")
    references = read(tmp_path)
    reasons = outcome(references)
    assert reasons["p1"] == "image has no label" and len(references["p1"].members) == 3
    assert reasons["p2"] == "damaged file among the slices" and "p2/cut" not in references
    assert reasons["p3/1"] == reasons["p1/DICOMDIR2"] == "file is no slice of a volume"
    assert reasons["p1/capture"] == "file is no slice of a volume"
    assert reasons["p4/broken.dcm"] == "file is not DICOM"
    assert reasons["p1/preview.png"] == "file is neither image nor label by its name"
    assert reasons["seg"] == "label has no image"
    with pytest.raises(SourceError, match="damaged file among the slices"):
        series_at(tmp_path, "p2", LayoutOptions())


def test_a_series_without_mask_is_refused_where_others_have_one(tmp_path):
    save_series(tmp_path / "train" / "p1", "1.2.1")
    save_series(tmp_path / "test" / "p2", "1.2.2")
    assert outcome(read(tmp_path)) == {"test/p2": None, "train/p1": None}
    touch(tmp_path, "masks/p1.nii.gz", "masks/p9.nii.gz")
    expected = {"train/p1": "masks/p1.nii.gz", "test/p2": NO_LABEL, "masks/p9.nii.gz": "label has no image"}
    references = read(tmp_path)
    assert outcome(references) == expected and references["test/p2"].split == "test"
    assert outcome(read(tmp_path, missing_masks="prediction")) == {**expected, "test/p2": None}
    with_pattern = read(tmp_path, label_pattern="masks/{id}.nii.gz")
    assert with_pattern["train/p1"].mask is None, "{id} is the whole folder: train/p1"


def test_an_image_pattern_says_which_part_of_a_series_folder_the_id_is(tmp_path):
    """It was taken and changed nothing, and the label was said to belong to no series below the folder."""
    save_series(tmp_path / "p1" / "ct", "1.2.1")
    save_series(tmp_path / "p2" / "ct", "1.2.2")
    touch(tmp_path, "p1/organs.nii.gz", "masks/p2.nii.gz")
    problem = read(tmp_path, label_pattern="masks/{id}.nii.gz")["masks/p2.nii.gz"].problem
    assert problem is not None and problem[1] == "label has no image"
    assert "{id} is 'p2', and that of a series 'p1/ct', 'p2/ct'; --image-pattern" in problem[2]
    for image_pattern in ("{id}/ct", "{id}/ct/*", "**/{id}/ct"):
        references = read(tmp_path, image_pattern=image_pattern, label_pattern="masks/{id}.nii.gz")
        assert references["p2/ct"].mask == "masks/p2.nii.gz"
    references = read(tmp_path, image_pattern="{id}/ct", label_pattern="{id}/organs.nii.gz")
    assert references["p1/ct"].mask == "p1/organs.nii.gz"
    with pytest.raises(AnnotationsError, match=r"--image-pattern \{id\}/mr: no .* fits it; found 'p1/ct'"):
        read(tmp_path, image_pattern="{id}/mr", label_pattern="masks/{id}.nii.gz")


def test_two_masks_for_one_series_are_refused_unless_they_are_of_two_patients(tmp_path):
    touch(tmp_path, "p1/one", "p1/a.nii")
    save_series(tmp_path / "p1", "1.2.1")
    save_segmentation(tmp_path / "p1" / "seg", "1.2.1")
    reasons = outcome(read(tmp_path))
    assert reasons["p1"] == "several labels for one image"
    for name, patient in (("a", "PAT-1"), ("b", "PAT-2")):
        save_series(tmp_path / "b" / name, "1.2.1", ("x", "y", "z"), patient=patient)
        save_segmentation(tmp_path / "b" / f"{name}_seg", "1.2.1", PatientID=patient)
    found = read(tmp_path / "b")
    assert {one.source: one.mask for one in found.values()} == {"a": "a_seg", "b": "b_seg"}


def test_a_table_names_series_by_folder_or_by_folder_and_mark(tmp_path):
    save_series(tmp_path / "p1", "1.2.1", ("x", "y", "z"))
    save_series(tmp_path / "p2", "1.2.2", ("1", "2", "4"))
    save_series(tmp_path / "p2", "1.2.3", ("3", "5", "6"), patient="other")
    save_segmentation(tmp_path / "seg" / "only", "1.2.1")
    (marked,) = [source for source, one in read(tmp_path).items() if "p2/3" in one.members]
    rows = ["image,label", "p1/,seg", f"{marked},", "p2,", "p7,", "p1/x,", "p2#0,"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    references = {one.source: one for one in list_references("csv", tmp_path, task="segmentation")}
    assert references["p1"].members == ("p1/x", "p1/y", "p1/z") and references["p1"].mask == "seg/only"
    assert references[marked].members == ("p2/3", "p2/5", "p2/6")
    groups = {references["p1"].group, references[marked].group}
    assert len(groups) == 2 and None not in groups
    assert references["p1/x"].members == ("p1/x",)
    assert outcome(references) == {
        "p1": "seg/only",
        marked: None,
        "p2": "folder holds several DICOM series",
        "p7": "image file not found",
        "p1/x": None,
        "p2#0": "folder holds no such DICOM series",
    }


def test_labels_that_fit_no_series_or_several_do_not_make_scans_for_prediction(tmp_path):
    save_series(tmp_path / "p1", "1.2.1", frame="1.9.1")
    save_series(tmp_path / "p2", "1.2.2", frame="1.9.2")
    for label, write, reason in (
        ("seg", lambda path: save_segmentation(path, "1.2.77", frame="1.9.77"), "label has no image"),
        ("rtstruct", lambda path: save_structures(path, "1.2.77"), "label has no image"),
        ("masks/p7.nii.gz", lambda path: touch(path.parent, path.name), "label has no image"),
        ("p1/a.npy", lambda path: touch(path.parent, path.name), "not a volume format that is read"),
    ):
        write(tmp_path / label)
        assert outcome(read(tmp_path)) == {"p1": NO_LABEL, "p2": NO_LABEL, label: reason}
        kept = read(tmp_path, missing_masks="prediction")
        assert outcome(kept) == {"p1": None, "p2": None, label: reason}
        (tmp_path / label).unlink()
    assert outcome(read(tmp_path)) == {"p1": None, "p2": None}
    with pytest.raises(AnnotationsError, match=r"--label-pattern .*: no volume file fits it.*such as 'p1'"):
        read(tmp_path, label_pattern="{id}/mask.nii.gz")
    save_series(tmp_path / "b" / "p1", "1.2.1")
    save_series(tmp_path / "b" / "p2", "1.2.2")
    save_segmentation(tmp_path / "b" / "seg", None)
    references = read(tmp_path / "b")
    assert outcome(references) == {"p1": NO_LABEL, "p2": NO_LABEL, "seg": "label fits several series"}


def test_several_folders_in_a_row_are_channels_of_one_patient(tmp_path):
    for number, name in enumerate(("t1", "t2", "other"), start=1):
        patient = "PAT-2" if name == "other" else "PAT-1"
        save_series(tmp_path / name, f"1.2.{number}", ("x", "y", "z"), patient=patient)
    make(tmp_path, "c.nii")
    problems = {
        "t1;t2": None,
        "t2;other": "channels are of different patients (PatientID)",
        "other;other": "channel is listed twice",
        "other;c.nii": "channels are DICOM folders and files",
    }
    for images, problem in problems.items():
        (tmp_path / "t.csv").write_text(f"id,image,label\nrow,{images},\n")
        references = list_references("csv", tmp_path, "t.csv", task="segmentation")
        (one,) = (one for one in references if one.key == "row" or "t.csv" in str(one.problem))
        assert (one.problem and one.problem[1]) == problem
        if problem is None:
            assert one.source == "t1" and one.channels == ("t2",)
            assert set(one.paths) == {f"{folder}/{name}" for folder in ("t1", "t2") for name in "xyz"}
            assert reference_from_json(reference_to_json(one)) == one


def test_dicom_files_named_img_are_slices_where_no_header_lies_beside_them(tmp_path):
    save_series(tmp_path, "1.2.1", ("1.img", "2.img", "3.img"))
    make(tmp_path, "pair.hdr", "pair.img")
    found = read(tmp_path)
    assert len(found["."].members) == 3
    (tmp_path / "pair.hdr").unlink()
    (tmp_path / "pair.img").unlink()
    with pytest.raises(AnnotationsError, match=r"1\.img is DICOM: take --layout dicom"):
        list_references("pairs", tmp_path)


def test_a_dose_is_told_a_way_that_works(tmp_path):
    save_series(tmp_path / "ct", "1.2.1")
    save(tmp_path / "dose", "1.2.840.10008.5.1.4.1.1.481.2", "1.2.5", Modality="RTDOSE")
    details = {one.source: (one.problem or ("", "", ""))[2] for one in read(tmp_path).values()}
    assert "plastimatch convert" in details["dose"] and "--layout csv" in details["dose"]


def test_a_label_pattern_takes_one_of_several_drawings_of_a_series_and_the_advice_names_such_patterns(
    tmp_path,
):
    for number in range(2):
        folder = tmp_path / f"P{number}/st"
        save_series(folder / "ct", f"1.2.{number}", patient=f"p{number}")
        save_structures(folder / f"0-NA-{number}7/1-1.dcm", f"1.2.{number}")
        save_segmentation(folder / f"300-Segmentation-{number}5/1-1.dcm", f"1.2.{number}")
    (problem,) = {one.problem[1:] for name, one in read(tmp_path).items() if "P0" in name}
    assert problem[0] == "several labels for one image"
    patterns = re.findall(
        r"--label-pattern '([^']*)', which takes (the \w+), one for each of 2 series", problem[1]
    )
    assert patterns == [
        ("**/300-Segmentation-*5/1-1.dcm", "the SEG"),
        ("**/0-NA-*7/1-1.dcm", "the RTSTRUCT"),
    ]
    assert problem[1].index("--label-pattern") < problem[1].index("--several-masks merge")
    for (pattern, _), folder in zip(patterns, ("300-Segmentation-{0}5", "0-NA-{0}7"), strict=True):
        found = read(tmp_path, label_pattern=pattern)
        names = {f"P{n}/st/ct": f"P{n}/st/{folder.format(n)}/1-1.dcm" for n in range(2)}
        assert {name: found[name].mask for name in names} == names
        assert {found[name].problem[1] for name in found.keys() - names.keys()} == {
            "mask is not chosen by --label-pattern"
        }


def test_two_readers_of_one_series_are_told_apart_by_a_pattern_too(tmp_path):
    for number in range(2):
        save_series(tmp_path / f"p{number}/ct", f"1.2.{number}")
        for reader in "ab":
            save_segmentation(tmp_path / f"p{number}/seg_{reader}.dcm", f"1.2.{number}")
    detail = read(tmp_path)["p1/ct"].problem[2]
    assert "--label-pattern '**/seg_a.dcm', which takes seg_a.dcm, one for each of 2 series" in detail
    assert outcome(read(tmp_path, label_pattern="**/seg_b.dcm"))["p1/ct"] == "p1/seg_b.dcm"


def test_masks_that_refer_to_other_uids_are_paired_by_place_only_where_references_are_ignored(tmp_path):
    for number in range(2):
        save_series(tmp_path / f"p{number}/ct", f"1.2.{number}", patient=f"p{number}", frame=f"1.9.{number}")
    save_segmentation(tmp_path / "p0/seg/s.dcm", "1.7.0", frame="1.8.0")
    save_structures(tmp_path / "p1/rt.dcm", "1.7.1")
    kept = {name: one.problem for name, one in read(tmp_path).items()}
    assert "--mask-references ignore uses it for p0/ct, which lies nearest" in kept["p0/seg/s.dcm"][2]
    assert kept["p0/ct"][1] == NO_LABEL
    found = outcome(read(tmp_path, mask_references="ignore"))
    assert found == {"p0/ct": "p0/seg/s.dcm", "p1/ct": "p1/rt.dcm"}


def test_a_mask_near_several_series_is_of_its_patient_or_named_by_a_pattern(tmp_path):
    for number in range(2):
        save_series(tmp_path / f"ct/{number}", f"1.2.{number}", patient=f"p{number}", frame=f"1.9.{number}")
    save_segmentation(tmp_path / "seg/x.dcm", "1.7.0", patient="p1", frame="1.8.0")
    save_segmentation(tmp_path / "seg/0.dcm", "1.7.0", patient="", frame="1.8.0")
    ignored = {"mask_references": "ignore"}
    assert outcome(read(tmp_path, **ignored)) == {"ct/0": "seg/0.dcm", "ct/1": "seg/x.dcm"}
    (tmp_path / "seg/0.dcm").rename(tmp_path / "seg/y.dcm")
    assert "--label-pattern" in read(tmp_path)["seg/y.dcm"].problem[2]
    assert read(tmp_path, **ignored)["seg/y.dcm"].problem[1] == "label fits several series"
    (tmp_path / "seg/y.dcm").rename(tmp_path / "seg/0.dcm")
    (tmp_path / "seg/x.dcm").rename(tmp_path / "seg/1.dcm")
    chosen = read(tmp_path, image_pattern="ct/{id}", label_pattern="seg/{id}.dcm", **ignored)
    assert outcome(chosen) == {"ct/0": "seg/0.dcm", "ct/1": "seg/1.dcm"}
