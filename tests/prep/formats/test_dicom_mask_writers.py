"""Masks of other software come back voxel for voxel, and those that name another scan are refused."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom.mask_files import open_dicom_mask
from halofeed.prep.formats.dicom.series import open_series
from halofeed.prep.geometry.scan import Grid, MaskScan
from halofeed.prep.sources.files import LocalFiles
from tests.support.dicom_folders import open_folder
from tests.support.dicom_mask_writer import saved, segmentation, structure_set
from tests.support.dicom_writer import image_dataset, item, save, write_series
from tests.support.nifti_writer import MemoryFiles
from tests.support.phantom import dice

SHAPE = (6, 40, 48)
STUDY = {
    **dict.fromkeys(("PatientBirthDate", "PatientSex", "AccessionNumber", "ReferringPhysicianName"), ""),
    **dict.fromkeys(("StudyDescription", "SeriesDescription", "Manufacturer"), ""),
    **dict.fromkeys(("StudyDate", "ContentDate"), "20200101"),
    **dict.fromkeys(("StudyTime", "ContentTime"), "000000"),
    **dict.fromkeys(("StudyID", "SeriesNumber"), "1"),
    **dict.fromkeys(("PatientName", "PatientAge", "PositionReferenceIndicator"), ""),
}
"""What rt-utils and highdicom want of the scan."""


def write_scan(folder: Path, spacing: float = 0.703125, shape: tuple[int, ...] = SHAPE) -> None:
    """An axial series whose grid is at no round numbers."""
    positions = [(-171.3, -163.7, -412.25 + 2.5 * index) for index in range(shape[0])]
    volume = np.zeros(shape, np.uint16)
    write_series(folder, volume, positions, spacing=(spacing, spacing), thickness=2.5, more=STUDY)


def blobs(seed: int, share: float = 0.5) -> NDArray[np.bool_]:
    """Ragged regions with holes, islands in them, thin lines and single voxels, up to the border."""
    import cv2

    generator = np.random.default_rng(seed)
    noise = generator.normal(size=SHAPE)
    smooth = np.stack([cv2.GaussianBlur(plane, (0, 0), 1.5) for plane in noise])
    return np.asarray(smooth > np.quantile(smooth, 1 - share), np.bool_)


def opened(folder: Path, name: str) -> MaskScan:
    files = LocalFiles(folder)
    members = tuple(path for path in files.sizes() if path != name)
    grid = open_series(files, members).grid
    return open_dicom_mask(files, name, grid)


def write_structures(folder: Path, masks: dict[str, NDArray[np.bool_]], **options: Any) -> None:
    """An RTSTRUCT of rt-utils beside the series."""
    from rt_utils import RTStructBuilder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = RTStructBuilder.create_new(dicom_series_path=str(folder))
        for name, mask in masks.items():
            made.add_roi(mask=np.moveaxis(mask, 0, -1), name=name, **options)
        made.save(str(folder / "rt.dcm"))


@pytest.mark.parametrize("spacing", [0.703125, 1.0, 0.9765625])
@pytest.mark.parametrize("approximate", [True, False])
def test_a_structure_set_of_rt_utils_comes_back_voxel_for_voxel(tmp_path, spacing, approximate):
    write_scan(tmp_path, spacing)
    organ = blobs(1)
    write_structures(tmp_path, {"organ": organ}, approximate_contours=approximate)
    mask = opened(tmp_path, "rt.dcm")
    assert dice(mask.read() == 1, organ) == 1.0


def test_thin_lines_single_voxels_holes_and_neighbors_of_rt_utils_come_back(tmp_path):
    write_scan(tmp_path)
    organ = np.zeros(SHAPE, bool)
    organ[0, 5, 7] = organ[1, 5, 7:20] = True
    organ[2, 3:30, 11] = organ[3, 2:9, 2:9] = organ[3, 20:30, 40:48] = True
    organ[3, 5, 5] = False  # a hole of one voxel
    organ[4, 30:40, 0:9] = True
    organ[4, 33:37, 3:7] = False
    organ[4, 34, 4] = True  # an island in it
    diagonal = np.arange(10)
    organ[5, 3 + diagonal, 4 + diagonal] = True
    row, column = np.indices(SHAPE[1:])
    organ[5] |= abs(row - 25) + abs(column - 30) == 7  # a ring whose two contours are one
    write_structures(tmp_path, {"organ": organ})
    assert dice(opened(tmp_path, "rt.dcm").read() == 1, organ) == 1.0
    write_scan(tmp_path / "b")
    rng = np.random.default_rng(2)
    labels = np.where(blobs(3, 0.7), rng.integers(1, 4, SHAPE), 0)
    write_structures(tmp_path / "b", {f"class {value}": labels == value for value in (1, 2, 3)})
    assert np.array_equal(opened(tmp_path / "b", "rt.dcm").read(), labels)


def write_segmentation(folder: Path, pixels: NDArray[Any], kind: str, count: int, **options: Any) -> None:
    """A SEG of highdicom beside the series: [slice, row, column] of numbers, or [..., segment] of shares."""
    import highdicom
    from pydicom.sr.codedict import codes

    sources = [pydicom.dcmread(path) for path in sorted(folder.iterdir())]
    sources.sort(key=lambda source: float(source.ImagePositionPatient[2]))
    described = [
        highdicom.seg.SegmentDescription(
            segment_number=number,
            segment_label=f"class {number}",
            segmented_property_category=codes.SCT.Organ,
            segmented_property_type=codes.SCT.Organ,
            algorithm_type="MANUAL",
        )
        for number in range(1, count + 1)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = highdicom.seg.Segmentation(
            source_images=sources,
            pixel_array=pixels,
            segmentation_type=kind,
            segment_descriptions=described,
            series_instance_uid=highdicom.UID(),
            series_number=2,
            sop_instance_uid=highdicom.UID(),
            instance_number=1,
            manufacturer="none",
            manufacturer_model_name="none",
            software_versions="1",
            device_serial_number="1",
            **options,
        )
        made.save_as(folder / "seg.dcm")


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_segmentation_of_highdicom_comes_back_voxel_for_voxel(tmp_path, kind, sparse):
    write_scan(tmp_path)
    labels = np.where(blobs(1), np.random.default_rng(0).integers(1, 4, SHAPE), 0).astype(np.uint8)
    labels[[0, 2, 5]] = 0  # slices that a sparse file leaves out
    write_segmentation(tmp_path, labels, kind, 3, omit_empty_frames=sparse)
    mask = opened(tmp_path, "seg.dcm")
    assert mask.names == {number: f"class {number}" for number in (1, 2, 3)}
    assert np.array_equal(mask.read(), labels)
    assert [finding.name for finding in mask.findings] == ["fractional segmentation"] * (kind == "FRACTIONAL")


def test_fractions_of_highdicom_count_from_one_half(tmp_path):
    write_scan(tmp_path)
    shares = np.random.default_rng(0).choice([0, 0.25, 0.49, 0.51, 1], (*SHAPE, 1)).astype(np.float32)
    write_segmentation(tmp_path, shares, "FRACTIONAL", 1, fractional_type="PROBABILITY")
    assert np.array_equal(opened(tmp_path, "seg.dcm").read(), shares[..., 0] > 0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (2.5, -0.125), (-1e-6, 3.0)])
def test_a_parametric_map_of_highdicom_comes_back_voxel_for_voxel(tmp_path, dtype, slope, intercept):
    import highdicom
    from pydicom.sr.codedict import codes

    write_scan(tmp_path / "scan")
    sources = [pydicom.dcmread(path) for path in sorted((tmp_path / "scan").iterdir())]
    sources.sort(key=lambda source: float(source.ImagePositionPatient[2]))
    values = np.random.default_rng(0).normal(size=SHAPE).astype(dtype)
    (tmp_path / "map").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mapping = highdicom.pm.RealWorldValueMapping(
            "label", "map", codes.UCUM.NoUnits, (-9.0, 9.0), slope=slope, intercept=intercept
        )
        highdicom.pm.ParametricMap(
            sources,
            values,
            *(highdicom.UID(), 2, highdicom.UID(), 1, "none", "none", "1", "1", False, [mapping], 0, 6),
        ).save_as(tmp_path / "map/map.dcm")
    scan = open_folder(tmp_path / "map")
    expected = values.astype(np.float64) * slope + intercept
    np.testing.assert_allclose(scan.read()[..., 0], expected.astype(np.float32), rtol=1e-6, atol=1e-6)
    stored = open_folder(tmp_path / "map", real_world_values="stored")
    np.testing.assert_array_equal(stored.read()[..., 0], values.astype(np.float32))
    np.testing.assert_allclose(scan.grid.affine, open_folder(tmp_path / "scan").grid.affine, atol=1e-4)


AFFINE = np.array([[0, 0, -1.0, 0], [0, -1.0, 0, 0], [2.0, 0, 0, 0], [0, 0, 0, 1]])
PIXELS = np.ones((5, 6), np.uint8)
SQUARE = np.array([[1, 1, 1], [1, 1, 4], [1, 3, 4], [1, 3, 1]]) @ AFFINE[:3, :3].T


def write_named_scan(folder: Path, series: str = "1.2.3", frame: str = "1.2.9") -> None:
    """Four slices; that at place n has the UID of the series, a dot and n."""
    for at in range(4):
        named = {"SOPInstanceUID": f"{series}.{at}", "FrameOfReferenceUID": frame}
        pixels = np.full((5, 6), 1000 + at, np.uint16)
        dataset = image_dataset(pixels, position=(0, 0, 2.0 * at), series=series, more=named)
        save(dataset, folder / f"{at}.dcm")


def images(*uids: str) -> Sequence[Dataset]:
    return [item(ReferencedSOPInstanceUID=uid) for uid in uids]


def of_series(uid: str, *named: str, key: str = "ReferencedInstanceSequence") -> Dataset:
    return item(SeriesInstanceUID=uid, **({key: images(*named)} if named else {}))


def seg_of(*series: Dataset, frame: str = "", in_frames: str = "") -> Dataset:
    """A SEG that names series, a frame of reference or the image of each of its frames."""
    dataset = segmentation([(1, at, PIXELS) for at in range(4)], AFFINE, {1: "liver"})
    if series:
        dataset.ReferencedSeriesSequence = list(series)
    if frame:
        dataset.FrameOfReferenceUID = frame
    for group in dataset.PerFrameFunctionalGroupsSequence if in_frames else ():
        group.DerivationImageSequence = [item(SourceImageSequence=images(in_frames))]
    return dataset


def structures_of(*series: Dataset, frame: str = "1.2.9", in_contours: str = "") -> Dataset:
    """An RTSTRUCT that names series, a frame of reference or the image of its contour."""
    dataset = structure_set({1: ("liver", [("CLOSED_PLANAR", SQUARE)])})
    studies = {"RTReferencedStudySequence": [item(RTReferencedSeriesSequence=list(series))]} if series else {}
    if frame:
        dataset.ReferencedFrameOfReferenceSequence = [item(FrameOfReferenceUID=frame, **studies)]
    if in_contours:
        contour = dataset.ROIContourSequence[0].ContourSequence[0]
        contour.ContourImageSequence = images(in_contours)
    return dataset


CONTOURS = {"key": "ContourImageSequence"}
FITTING = {
    "a SEG without references": seg_of(),
    "its series": seg_of(of_series("1.2.3")),
    "one of its images": seg_of(of_series("1.2.3", "1.2.3.0", "1.2.3.99")),
    "one of its images, of a series renamed since": seg_of(of_series("1.2.77", "1.2.3.0")),
    "its series among others": seg_of(of_series("1.2.77"), of_series("1.2.3")),
    "an image of its frames": seg_of(in_frames="1.2.3.1"),
    "an RTSTRUCT without references": structures_of(frame=""),
    "the frame of an RTSTRUCT": structures_of(),
    "the series of an RTSTRUCT": structures_of(of_series("1.2.3", "1.2.3.2", **CONTOURS)),
    "an image of a contour": structures_of(in_contours="1.2.3.1"),
}
STRANGE = {
    "another series": (seg_of(of_series("1.2.4")), "SeriesInstanceUID"),
    "another series of one frame": (seg_of(of_series("1.2.4"), frame="1.2.9"), "SeriesInstanceUID"),
    "other images": (seg_of(of_series("1.2.4", "1.2.4.0", "1.2.4.1")), "none of the 2 images"),
    "other images of one series UID": (seg_of(of_series("1.2.3", "1.2.55.0")), "ReferencedSOPInstanceUID"),
    "other images of the frames": (seg_of(in_frames="1.2.4.1"), "none of the 1 image"),
    "another frame": (seg_of(frame="1.2.8"), "FrameOfReferenceUID"),
    "another series of an RTSTRUCT": (structures_of(of_series("1.2.4")), "SeriesInstanceUID"),
    "other images of an RTSTRUCT": (structures_of(of_series("1.2.4", "1.2.4.0", **CONTOURS)), "1 image"),
    "another frame of an RTSTRUCT": (structures_of(frame="1.2.8"), "FrameOfReferenceUID"),
    "other images of a contour": (structures_of(in_contours="1.2.4.1"), "1 image"),
}


@pytest.mark.parametrize("name", [*FITTING, *STRANGE])
def test_a_mask_is_taken_where_it_names_the_scan_and_refused_where_it_names_another(tmp_path, name):
    write_named_scan(tmp_path)
    scan = open_folder(tmp_path)
    made, words = STRANGE.get(name) or (FITTING[name], "")
    files = MemoryFiles({"mask.dcm": saved(made)})

    def read(**more):
        return open_dicom_mask(files, "mask.dcm", scan.grid, **more).read()

    assert isinstance(scan.grid, Grid) and read().any()
    if name in FITTING:
        assert read(scan=scan.origin).any()
        return
    with pytest.raises(SourceError, match="label was drawn on another scan") as caught:
        read(scan=scan.origin)
    assert words in caught.value.detail and "--mask-references ignore" in caught.value.detail
    assert "1.2." not in str(caught.value)
