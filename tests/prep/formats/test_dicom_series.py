"""Series of DICOM files: grouped, sorted by position, and put in the patient where other tools put them."""

from typing import Any

import numpy as np
import pytest
import SimpleITK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydicom.uid import JPEG2000Lossless, RTStructureSetStorage, SegmentationStorage

from halofeed.errors import AnnotationsError
from halofeed.prep.formats.dicom.series import group_series, open_series
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.geometry.scan import Scan
from halofeed.prep.sources.files import LocalFiles
from tests.support.dicom_folders import details, listed, open_folder, open_listed, refusal
from tests.support.dicom_writer import (
    AXIAL,
    image_dataset,
    item,
    multi_frame_dataset,
    save,
    write_series,
    write_volume,
)

RANDOM = np.random.default_rng(3)
HU = RANDOM.integers(-900, 1500, (5, 36, 33)).astype(np.int16)
STORED = (HU + 1024).astype(np.uint16)
LOCALIZER = {"ImageType": ["DERIVED", "PRIMARY", "LOCALIZER"]}
EVEN = [(0.0, 0.0, 2.0 * index) for index in range(5)]


def findings(scan: Scan) -> dict[str, str]:
    return {name: treatment for name, (treatment, _) in details(scan).items()}


def simple_itk(paths: list[str]) -> Any:
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(paths)
    return reader.Execute()


def assert_same_geometry(scan: Scan, image: Any) -> None:
    """Origin, spacing and direction of an independent reader: its axes are width, height, depth, its space LPS."""
    to_ras = np.diag([-1.0, -1.0, 1.0])
    direction = np.array(image.GetDirection()).reshape(3, 3)
    steps = to_ras @ (direction * np.array(image.GetSpacing()))[:, ::-1]
    np.testing.assert_allclose(scan.grid.affine[:3, :3], steps, atol=1e-6)
    np.testing.assert_allclose(scan.grid.affine[:3, 3], to_ras @ image.GetOrigin(), atol=1e-6)
    np.testing.assert_allclose(scan.grid.spacing_mm, image.GetSpacing()[::-1], atol=1e-6)


@pytest.mark.parametrize("name", ["torchio_17", "totalsegmentator_jpeg2000"])
def test_real_series_have_the_voxels_and_geometry_that_simple_itk_reads(test_data, name):
    files = LocalFiles(test_data / "dicom" / name)
    (series,), _ = group_series(files, files.sizes())
    scan = open_series(files, series.members)
    image = simple_itk([f"{files.root}/{path}" for path in series.members])
    assert_same_geometry(scan, image)
    voxels = scan.read()
    assert voxels.dtype == scan.dtype == "int16" and voxels.shape == (*scan.grid.shape, 1)
    np.testing.assert_array_equal(voxels[..., 0], SimpleITK.GetArrayFromImage(image))


def test_the_ge_head_series_has_its_tilt_and_its_gaps_found_and_named(test_data):
    folder = test_data / "dicom" / "ge_tilt_variable_spacing"
    scan = open_folder(folder)
    found = {finding.name: finding for finding in scan.findings}
    assert found["gantry tilt"].treatment == found["unequal gaps"].treatment == "corrected"
    assert found["gantry tilt"].detail.startswith("18.5 degrees")
    assert found["unequal gaps"].detail.startswith("1.1 to 35.0 mm; resampled every 3.91 mm")
    assert found["wide gaps"].detail.startswith("28.0, 35.0 mm")
    # The first and the last slice lie where their files say, in the sheared grid.
    ends = scan.grid.to_mm(np.array([[0, 0, 0], [scan.grid.shape[0] - 1, 0, 0]]))
    expected = [[125, 123.5404569, 22.7160586], [125, 123.5404569, 113.4960586]]
    np.testing.assert_allclose(ends, expected, atol=1e-6)
    voxels = scan.read()
    assert scan.unit == "HU" and voxels.min() >= -1024 and (voxels == -1000).sum() > 8 * 60_000
    for policy, reason in (("tilt", "gantry is tilted"), ("unequal_gaps", "gaps between slices are unequal")):
        assert refusal(folder, **{policy: "refuse"}).reason == reason


def test_the_order_of_slices_is_their_position_and_one_slice_takes_its_thickness_as_spacing(tmp_path):
    write_series(tmp_path, STORED[::-1], EVEN[::-1])
    scan = open_folder(tmp_path)
    assert scan.findings == () and scan.unit == "HU" and scan.modality == "CT" and scan.dtype == "int32"
    np.testing.assert_array_equal(scan.read()[..., 0], HU)
    np.testing.assert_allclose(scan.grid.affine, [[0, 0, -1, 0], [0, -1, 0, 0], [2, 0, 0, 0], [0, 0, 0, 1]])
    write_series(tmp_path / "b" / "a", STORED[:1], EVEN[:1], thickness=3.0)
    scan = open_folder(tmp_path / "b" / "a")
    assert scan.grid.spacing_mm == (3, 1, 1) and findings(scan) == {"single slice": "noted"}
    write_series(tmp_path / "b", STORED[:1], EVEN[:1], thickness=None)
    assert refusal(tmp_path / "b").reason == "slice spacing is unknown"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    angles=st.tuples(*[st.floats(-3.1, 3.1)] * 3),
    sides=st.tuples(*[st.floats(0.5, 5.0)] * 3),
    mirrored=st.booleans(),
)
def test_every_orientation_is_put_where_simple_itk_puts_it(tmp_path_factory, angles, sides, mirrored):
    folder = tmp_path_factory.mktemp("series")
    x, y, z = angles
    turn_x = np.array([[1, 0, 0], [0, np.cos(x), -np.sin(x)], [0, np.sin(x), np.cos(x)]])
    turn_y = np.array([[np.cos(y), 0, np.sin(y)], [0, 1, 0], [-np.sin(y), 0, np.cos(y)]])
    turn_z = np.array([[np.cos(z), -np.sin(z), 0], [np.sin(z), np.cos(z), 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3] = (turn_x @ turn_y @ turn_z)[:, ::-1] * np.array(sides)
    affine[:3, 0] *= -1 if mirrored else 1
    affine[:3, 3] = [10.5, -20.25, 30.125]
    write_volume(folder, HU, affine)
    files = LocalFiles(folder)
    (series,), _ = group_series(files, files.sizes())
    scan = open_series(files, series.members)
    assert_same_geometry(scan, simple_itk([f"{folder}/{path}" for path in series.members]))
    # Every voxel lies where it was written, though the slices may come in the other order.
    voxels = np.stack(np.meshgrid(*map(np.arange, HU.shape), indexing="ij"), -1).reshape(-1, 3)
    matrix = np.linalg.inv(scan.grid.affine) @ affine
    back = voxels @ matrix[:3, :3].T + matrix[:3, 3]
    places = np.rint(back).astype(int)
    np.testing.assert_allclose(back, places, atol=1e-3)
    np.testing.assert_array_equal(scan.read()[tuple(places.T)][:, 0], HU.reshape(-1))


def test_an_enhanced_file_is_the_scan_of_its_slices_and_each_frame_may_have_its_own_rescale(tmp_path):
    write_series(tmp_path / "slices", STORED, EVEN)
    order = [3, 0, 4, 1, 2]
    dataset = multi_frame_dataset(STORED[order], [EVEN[index] for index in order])
    save(dataset, tmp_path / "one" / "frames.dcm")
    save(dataset, tmp_path / "compressed" / "frames.dcm", JPEG2000Lossless)
    slices = open_folder(tmp_path / "slices")
    for name in ("one", "compressed"):
        scan = open_folder(tmp_path / name)
        np.testing.assert_array_equal(scan.read(), slices.read())
        np.testing.assert_array_equal(scan.grid.affine, slices.grid.affine)
        assert scan.unit == "HU" and scan.files == ("frames.dcm",)
    rescales = [(index + 1, -100 * index) for index in range(5)]
    path = save(multi_frame_dataset(STORED, EVEN, rescales=rescales), tmp_path / "b" / "frames.dcm")
    scan = open_folder(tmp_path / "b")
    expected = [STORED[index].astype(np.int64) * slope + low for index, (slope, low) in enumerate(rescales)]
    np.testing.assert_array_equal(scan.read()[..., 0], expected)
    assert findings(scan) == {"slices differ in rescale": "noted"}
    save(image_dataset(STORED, more={"NumberOfFrames": 5}), path)
    assert str(refusal(tmp_path / "b")) == "read: no DICOM series (1 x image without position)"


def test_files_are_grouped_and_what_is_no_slice_is_listed_apart(tmp_path):
    write_series(tmp_path / "mixed", STORED, EVEN, series="1.2.3", patient="Alice")
    write_series(tmp_path / "mixed", STORED[:2], EVEN[:2], series="1.2.4", patient="Bob", names=["x", "y"])
    mosaic = {"ImageType": ["ORIGINAL", "PRIMARY", "M", "ND", "MOSAIC"]}
    color = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    segmentation = image_dataset(np.zeros((6, 7), np.uint8), modality="SEG", series="1.2.5")
    segmentation.SOPClassUID = SegmentationStorage
    segmentation.ReferencedSeriesSequence = [item(SeriesInstanceUID="1.2.3")]
    structures = item(SOPClassUID=RTStructureSetStorage, SOPInstanceUID="1.2.8")
    structures.Modality, structures.SeriesInstanceUID = "RTSTRUCT", "1.2.6"
    study = item(RTReferencedSeriesSequence=[item(SeriesInstanceUID="1.2.4")])
    structures.ReferencedFrameOfReferenceSequence = [item(RTReferencedStudySequence=[study])]
    others = {
        "localizer": image_dataset(STORED[0], more=LOCALIZER),
        "image without position": image_dataset(STORED[0], position=None),
        "mosaic": image_dataset(STORED[0], modality="MR", more=mosaic),
        "color image": image_dataset(np.zeros((6, 21), np.uint8), more=color),
        "segmentation": segmentation,
        "structure set": structures,
    }
    for kind, dataset in others.items():
        save(dataset, tmp_path / kind)
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "empty").write_bytes(b"")
    files = LocalFiles(tmp_path)
    found, apart = group_series(files, files.sizes(), SeriesPolicy(salt="pepper"))
    by_slices = {series.slices: series for series in found}
    assert set(by_slices) == {5, 2}
    assert all(series.size == (36, 33) and series.modality == "CT" for series in found)
    assert by_slices[5].group != by_slices[2].group and len(by_slices[5].group or "") == 16
    assert by_slices[2].members == ("mixed/x", "mixed/y")
    kinds = {item.path: item.kind for item in apart}
    assert kinds == {kind: kind for kind in others} | dict.fromkeys(("notes.txt", "empty"), "not DICOM")
    refers = {item.path: item.refers_to for item in apart if item.refers_to}
    assert refers == {"segmentation": (by_slices[5].series,), "structure set": (by_slices[2].series,)}
    again, _ = group_series(files, files.sizes(), SeriesPolicy(salt="other"))
    assert {series.group for series in again}.isdisjoint(series.group for series in found)


def test_one_uid_makes_several_series_by_size_and_none_goes_by_folder(tmp_path):
    write_series(tmp_path / "a", STORED, EVEN)
    write_series(tmp_path / "b", STORED[:, :4], EVEN)
    write_series(tmp_path / "c", STORED, EVEN, orientation=(0, 1, 0, 0, 0, -1))
    write_series(tmp_path / "d", STORED, EVEN, series="1.2.4", modality="MR", more={"EchoNumbers": 1})
    write_series(tmp_path / "e", STORED, EVEN, series="1.2.4", modality="MR", more={"EchoNumbers": 2})
    files = LocalFiles(tmp_path)
    found, _ = group_series(files, files.sizes())
    assert [{path[0] for path in series.members} for series in found] == [{"a"}, {"b"}, {"c"}, {"d"}, {"e"}]
    assert len({series.key for series in found}) == 5 and len({series.series for series in found}) == 2
    assert refusal(tmp_path).reason == "several series, or several stacks in one"
    for folder in "ab":
        write_series(tmp_path / "b" / "none" / folder, STORED, EVEN, more={"SeriesInstanceUID": ""})
    files = LocalFiles(tmp_path / "b" / "none")
    found, _ = group_series(files, files.sizes())
    assert [series.slices for series in found] == [5, 5] and found[0].key != found[1].key
    assert all(series.series is None for series in found)
    other = {"ImageType": ["ORIGINAL", "X"]}
    write_series(tmp_path / "b" / "one", STORED[::2], EVEN[::2], names=list("ace"))
    write_series(tmp_path / "b" / "one", STORED[1::2], EVEN[1::2], names=list("bd"), more=other)
    np.testing.assert_array_equal(open_folder(tmp_path / "b" / "one").read()[..., 0], HU)


def write_nuclear(path, kind="RECON TOMO", step=4.0, orientation=AXIAL, slots=(1,) * 6):
    detector = item(ImagePositionPatient=[10.0, 20.0, 30.0], ImageOrientationPatient=list(orientation))
    more = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.20", "NumberOfFrames": 6, "SpacingBetweenSlices": step}
    more |= {
        "DetectorInformationSequence": [detector],
        "ImageType": ["ORIGINAL", "PRIMARY", kind, "EMISSION"],
    }
    more |= {
        "TimeSlotVector": list(slots),
        "SliceVector": [slots[:at].count(one) + 1 for at, one in enumerate(slots)],
    }
    options = {"position": None, "orientation": None, "spacing": (2, 3), "rescale": None, "modality": "NM"}
    return save(
        image_dataset(np.arange(6 * 20, dtype=np.uint16).reshape(6, 4, 5), **options, more=more), path
    )


@pytest.mark.parametrize("step", [4.0, -4.0])
@pytest.mark.parametrize(
    "orientation", [AXIAL, (0.0, 1.0, 0.0, 0.0, 0.0, -1.0), (0.6, 0.8, 0.0, -0.8, 0.6, 0.0)]
)
def test_a_reconstructed_spect_lies_where_simpleitk_puts_it(tmp_path, step, orientation):
    image = SimpleITK.ReadImage(str(write_nuclear(tmp_path / "a.dcm", step=step, orientation=orientation)))
    scan = open_folder(tmp_path)
    for at in ((0, 0, 0), (5, 3, 4), (1, 2, 3)):
        there = image.TransformPhysicalPointToIndex((scan.grid.to_mm(at) * (-1, -1, 1)).tolist())
        assert scan.read()[..., 0][at] == image[there]


def test_gated_spect_is_several_scans_and_other_nuclear_images_are_named(tmp_path):
    for kind, step, words in (
        ("TOMO", 4.0, "projections are no slices"),
        ("STATIC", 4.0, "it has no slices"),
        ("DYNAMIC", 4.0, "times of one view"),
        ("RECON TOMO", None, "its header places no slice: .*3D Slicer"),
    ):
        write_nuclear(tmp_path / "a.dcm", kind, step)
        with pytest.raises(AnnotationsError, match=words):
            listed(tmp_path)
    write_nuclear(tmp_path / "a.dcm", "RECON GATED TOMO", slots=(1, 1, 1, 2, 2, 2))
    first, second = (open_listed(tmp_path, one).read()[..., 0] for one in listed(tmp_path))
    assert [first[2, 0, 0], second[2, 0, 0]] == [40, 100]
