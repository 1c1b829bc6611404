"""Does anything that identifies a patient leave the DICOM headers for records, manifest, rejects or terminal?"""

import subprocess
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.datadict import dictionary_VR, keyword_dict

from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from tests.support.conversions import all_bytes, convert_words, halofeed, halofeed_here
from tests.support.dicom_mask_writer import frames_of, saved, segmentation, structure_set
from tests.support.dicom_writer import write_volume
from tests.support.level_rows import levels
from tests.support.text_volume_writer import write_nrrd
from tests.support.volume_support import save_nifti

SHAPE = (6, 16, 18)
OPTIONS = {"layout": "dicom", "depth": 6, "height": 16, "width": 18}
AFFINE = np.array([[0, 0, -1.0, 9], [0, -1.5, 0, 12], [2.5, 0, 0, -40], [0, 0, 0, 1]])
TEXTS = ("PN", "LO", "SH", "LT", "ST", "UT", "UC")
KEPT = ("SegmentLabel", "ROIName", "Modality", "SpecificCharacterSet")
SENTINEL, DATE, TIME, UID_ROOT = "XqWv7", "19331207", "173129.331", "1.2.826.0.1.7733918."
SECRETS = (SENTINEL, DATE, TIME, "7733918")


def sentinels() -> dict[str, Any]:
    """A value for every attribute of the dictionary that may tell of a person, a place, a time or an object."""
    made: dict[str, Any] = {}
    for keyword in keyword_dict:
        kind = dictionary_VR(keyword)
        if kind in TEXTS and keyword not in KEPT:
            made[keyword] = f"{SENTINEL}^{keyword}"[: 16 if kind == "SH" else 64]
        elif kind in ("DA", "DT"):
            made[keyword] = DATE if kind == "DA" else DATE + TIME
        elif kind == "TM":
            made[keyword] = TIME
        elif kind == "IS" and keyword in ("SeriesNumber", "AcquisitionNumber"):
            made[keyword] = 7733918
    return {keyword: value for keyword, value in made.items() if dictionary_group(keyword) <= 0x0040}


def check(done: subprocess.CompletedProcess[str], *held: bytes | str) -> None:
    """Neither what a command said nor what is held tells a secret."""
    for text in (done.stdout, done.stderr, *held):
        data = text.encode() if isinstance(text, str) else text
        assert not [secret for secret in SECRETS if secret.encode() in data], data[:500]


def dictionary_group(keyword: str) -> int:
    return keyword_dict[keyword] >> 16


def tell_all(path: Path, patient: str, keep: tuple[str, ...] = ()) -> None:
    """Write sentinels into a file's every attribute that identifies."""
    dataset = pydicom.dcmread(path)
    for keyword, value in sentinels().items():
        if keyword not in keep and dictionary_group(keyword) > 2 and keyword not in ("RescaleType", "Units"):
            setattr(dataset, keyword, value)
    dataset.PatientID = f"{SENTINEL}{patient}"
    for keyword in ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID"):
        if keyword in dataset:
            # One UID for all files of a folder, so that a series stays together.
            dataset[keyword].value = f"{UID_ROOT}{len(keyword)}.{sum(path.parent.name.encode())}"
    dataset.SOPInstanceUID = f"{UID_ROOT}9.{sum(path.name.encode())}"
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    block = dataset.private_block(0x0011, f"{SENTINEL} PRIVATE", create=True)
    block.add_new(1, "LO", f"{SENTINEL} private")
    dataset.save_as(path, enforce_file_format=True)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory) -> Path:
    """Series with a SEG, with an RTSTRUCT, with a gap, of two sizes, with damaged pixels, and with none."""
    root = tmp_path_factory.mktemp("hospital")
    volume = np.random.default_rng(0).integers(-1000, 1000, SHAPE).astype(np.int16)
    mask = np.zeros(SHAPE, np.uint8)
    mask[2:4, 4:9, 5:11] = 1
    for name in ("with-seg", "with-struct", "gap", "sizes", "damaged", "plain"):
        paths = write_volume(root / name, volume, AFFINE, modality="CT")
        if name == "gap":
            next(path for path in paths if path.name.endswith("-3.dcm")).unlink()
        for number, path in enumerate(sorted((root / name).iterdir())):
            tell_all(path, name)
            if name == "damaged" and number == 2:
                path.write_bytes(path.read_bytes()[:-300])
            if name == "sizes" and number == 2:
                dataset = pydicom.dcmread(path)
                dataset.PixelSpacing = [3, 3]
                dataset.save_as(path)
    frames = [(1, depth, pixels) for depth, pixels in frames_of(mask, 1).items()]
    made = segmentation(frames, AFFINE, {1: "liver"})
    made.FrameOfReferenceUID = "1.2.9"
    (root / "with-seg/seg.dcm").write_bytes(saved(made))
    corners = np.array([[2, 4, 5], [2, 4, 11], [2, 9, 11], [2, 9, 5]])
    places = [np.add(corners, [depth, 0, 0]) @ AFFINE[:3, :3].T + AFFINE[:3, 3] for depth in (0, 1)]
    made = structure_set({1: ("liver", [("CLOSED_PLANAR", place) for place in places])})
    made.FrameOfReferenceUID = "1.2.9"
    (root / "with-struct/struct.dcm").write_bytes(saved(made))
    for folder, file in (("with-seg", "seg.dcm"), ("with-struct", "struct.dcm")):
        tell_all(root / folder / file, folder)
    return root


def test_the_headers_are_full_of_sentinels(hospital):
    dataset = pydicom.dcmread(next((hospital / "plain").iterdir()))
    assert len([element for element in dataset if SENTINEL in str(element.value)]) > 300
    assert str(dataset.PatientName).startswith(SENTINEL) and dataset.PatientBirthDate == DATE


@pytest.mark.parametrize(
    "more", levels(["--debug"], long=[["--refuse-flaws", "padding,tilt", "--salt", "s"]], exhaustive=[[]])
)
def test_no_sentinel_leaves_the_headers(hospital, tmp_path, more):
    (tmp_path / "map.json").write_text('{"background": 0, "liver": 1}')
    options = OPTIONS | {"missing_masks": "prediction", "split_shares": "train=0.5,test=0.5"}
    options["label_map"] = str(tmp_path / "map.json")
    done = halofeed(*convert_words(hospital, tmp_path / "out", workers=1, **options), *more)
    assert done.returncode == 0, done.stderr
    files = all_bytes(tmp_path / "out")
    assert any(name.endswith("rejected.jsonl") and data.count(b"\n") >= 3 for name, data in files.items())
    assert sum(b"with-s" in data for name, data in files.items() if "tfrecord" in name) >= 1
    check(done, *files, *files.values())
    for command in ("inspect", "verify", "report"):
        check(halofeed_here(command, tmp_path / "out/set/1.0.0"))
    after = all_bytes(tmp_path / "out")
    assert len(after) > len(files), "the report is there too"
    check(done, *after.values())


def test_a_failing_job_tells_nothing_either(hospital, tmp_path):
    words = convert_words(hospital, tmp_path / "out", max_rejected=0, debug=True, workers=1, **OPTIONS)
    done = halofeed_here(*words)
    assert done.returncode == 1
    left = all_bytes(tmp_path / "out")
    check(done, *left, *left.values())
    folders = {name.rpartition("/")[0] for name in left}
    assert folders == {"set/1.0.0/.incomplete"}
    assert (tmp_path / "out" / folders.pop()).stat().st_mode & 0o777 == 0o700
    patients = [f"{SENTINEL}{folder.name}".encode() for folder in hospital.iterdir()]
    hashes = [SeriesPolicy().key(patient) for patient in patients]
    assert not [found for found in hashes if any(found.encode() in data for data in left.values())]


def test_descriptions_of_nifti_and_nrrd_stay_behind_in_sound_files_and_in_damaged_ones(tmp_path):
    path = save_nifti(tmp_path / "s/a.nii", np.arange(24, dtype=np.int16).reshape(2, 3, 4))
    image = nibabel.load(path)
    image.header["descrip"] = SENTINEL.encode()
    image.header["db_name"] = SENTINEL.encode()
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", SENTINEL.encode() * 3))
    nibabel.save(image, tmp_path / "s/b.nii")
    path.unlink()
    sound = write_nrrd(np.zeros((4, 3, 2), np.int16), content=SENTINEL)
    sound = sound.replace(b"key:=value", f"Patient:={SENTINEL}\n# {SENTINEL}".encode())
    (tmp_path / "s/c.nrrd").write_bytes(sound)
    (tmp_path / "s/d.nrrd").write_bytes(sound.replace(b"Patient:=", b"Patient "))
    (tmp_path / "s/table.csv").write_text("id,image,label\nb,b.nii,\nc,c.nrrd,\nd,d.nrrd,\n")
    options = {"layout": "csv", "task": "segmentation", "depth": 2, "height": 3, "width": 4, "workers": 1}
    done = halofeed_here(*convert_words(tmp_path / "s", tmp_path / "out", **options))
    assert done.returncode == 0 and "2 records" in done.stdout, done.stdout + done.stderr
    check(done, *all_bytes(tmp_path / "out").values())
