"""Masks that were drawn on another scan than the one beside them, by the UIDs that they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom.dataset import Dataset

from halofeed.prep.formats.dicom.masks import open_dicom_mask
from halofeed.prep.geometry.scan import Grid
from halofeed.schemas.errors import SourceError
from tests.support.conversions import rejected_entries, run_convert
from tests.support.dicom_folders import open_folder
from tests.support.dicom_mask_writer import saved, segmentation, structure_set
from tests.support.dicom_writer import image_dataset, item, save
from tests.support.nifti_writer import MemoryFiles

AFFINE = np.array([[0, 0, -1.0, 0], [0, -1.0, 0, 0], [2.0, 0, 0, 0], [0, 0, 0, 1]])
PIXELS = np.ones((5, 6), np.uint8)
SQUARE = np.array([[1, 1, 1], [1, 1, 4], [1, 3, 4], [1, 3, 1]]) @ AFFINE[:3, :3].T


def write_scan(folder: Path, series: str = "1.2.3", frame: str = "1.2.9") -> None:
    """Four slices; that at place n has the UID of the series, a dot and n."""
    for at in range(4):
        named = {"SOPInstanceUID": f"{series}.{at}", "FrameOfReferenceUID": frame}
        pixels = np.full((5, 6), 1000 + at, np.uint16)
        dataset = image_dataset(pixels, position=(0, 0, 2.0 * at), series=series, more=named)
        save(dataset, folder / f"{at}.dcm")


def seg() -> Dataset:
    return segmentation([(1, at, PIXELS) for at in range(4)], AFFINE, {1: "liver"})


def structures() -> Dataset:
    return structure_set({1: ("liver", [("CLOSED_PLANAR", SQUARE)])})


def images(*uids: str) -> Sequence[Dataset]:
    return [item(ReferencedSOPInstanceUID=uid) for uid in uids]


def of_series(uid: str, *named: str, key: str = "ReferencedInstanceSequence") -> Dataset:
    return item(SeriesInstanceUID=uid, **({key: images(*named)} if named else {}))


def seg_of(*series: Dataset, frame: str | None = None) -> Callable[[], Dataset]:
    def made() -> Dataset:
        dataset = seg()
        dataset.ReferencedSeriesSequence = list(series)
        if frame:
            dataset.FrameOfReferenceUID = frame
        return dataset

    return made


def seg_by_frames(uid: str) -> Dataset:
    dataset = seg()
    for group in dataset.PerFrameFunctionalGroupsSequence:
        group.DerivationImageSequence = [item(SourceImageSequence=images(uid))]
    return dataset


def structures_of(*series: Dataset, frame: str = "1.2.9", in_contours: str = "") -> Callable[[], Dataset]:
    def made() -> Dataset:
        dataset = structures()
        study = item(RTReferencedSeriesSequence=list(series))
        frames = item(FrameOfReferenceUID=frame, **({"RTReferencedStudySequence": [study]} if series else {}))
        dataset.ReferencedFrameOfReferenceSequence = [frames]
        if in_contours:
            contour = dataset.ROIContourSequence[0].ContourSequence[0]
            contour.ContourImageSequence = images(in_contours)
        return dataset

    return made


CONTOURS = {"key": "ContourImageSequence"}
FITTING: dict[str, Callable[[], Dataset]] = {
    "a SEG without references": seg,
    "its series": seg_of(of_series("1.2.3")),
    "one of its images": seg_of(of_series("1.2.3", "1.2.3.0", "1.2.3.99")),
    "one of its images, of a series renamed since": seg_of(of_series("1.2.77", "1.2.3.0")),
    "its series among others": seg_of(of_series("1.2.77"), of_series("1.2.3")),
    "an image of its frames": lambda: seg_by_frames("1.2.3.1"),
    "an RTSTRUCT without references": structures,
    "the frame of an RTSTRUCT": structures_of(),
    "the series of an RTSTRUCT": structures_of(of_series("1.2.3", "1.2.3.2", **CONTOURS)),
    "an image of a contour": structures_of(in_contours="1.2.3.1"),
}
STRANGE: dict[str, tuple[Callable[[], Dataset], str]] = {
    "another series": (seg_of(of_series("1.2.4")), "SeriesInstanceUID"),
    "another series of one frame": (seg_of(of_series("1.2.4"), frame="1.2.9"), "SeriesInstanceUID"),
    "other images": (seg_of(of_series("1.2.4", "1.2.4.0", "1.2.4.1")), "none of the 2 images"),
    "other images of one series UID": (seg_of(of_series("1.2.3", "1.2.55.0")), "ReferencedSOPInstanceUID"),
    "other images of the frames": (lambda: seg_by_frames("1.2.4.1"), "none of the 1 images"),
    "another frame": (seg_of(frame="1.2.8"), "FrameOfReferenceUID"),
    "another series of an RTSTRUCT": (structures_of(of_series("1.2.4")), "SeriesInstanceUID"),
    "other images of an RTSTRUCT": (structures_of(of_series("1.2.4", "1.2.4.0", **CONTOURS)), "1 images"),
    "another frame of an RTSTRUCT": (structures_of(frame="1.2.8"), "FrameOfReferenceUID"),
    "other images of a contour": (structures_of(in_contours="1.2.4.1"), "1 images"),
}


@pytest.mark.parametrize("name", [*FITTING, *STRANGE])
def test_a_mask_is_taken_where_it_names_the_scan_and_refused_where_it_names_another(
    tmp_path: Path, name: str
) -> None:
    write_scan(tmp_path)
    scan = open_folder(tmp_path)
    made, words = STRANGE.get(name) or (FITTING[name], "")
    files = MemoryFiles({"mask.dcm": saved(made())})

    def read(**more: Any) -> Any:
        return open_dicom_mask(files, "mask.dcm", scan.grid, **more).read()

    assert isinstance(scan.grid, Grid) and read().any()
    if name in FITTING:
        assert read(scan=scan.origin).any()
        return
    with pytest.raises(SourceError, match="label was drawn on another scan") as caught:
        read(scan=scan.origin)
    assert words in caught.value.detail and "--mask-references ignore" in caught.value.detail
    assert "1.2." not in str(caught.value)


def test_a_table_that_pairs_a_scan_with_the_mask_of_another_is_refused_and_the_option_takes_it(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    for name, series in (("a", "1.2.3"), ("b", "1.2.4")):
        write_scan(source / name, series)
        (source / f"{name}_seg.dcm").write_bytes(saved(seg_of(of_series(series))()))
    (source / "t.csv").write_text("image,label\na,a_seg.dcm\nb,a_seg.dcm\n")
    options: dict[str, Any] = {"layout": "csv", "task": "segmentation", "classes": ("liver",)}
    options |= {"depth": 4, "height": 5, "width": 6}
    (source / "b_seg.dcm").unlink()
    out = run_convert(source, tmp_path / "out", **options)
    assert out.manifest.splits["train"].records == 1
    (entry,) = rejected_entries(out.folder)
    assert (entry["source"], entry["reason"]) == ("b", "label was drawn on another scan")
    taken = run_convert(source, tmp_path / "taken", mask_references="ignore", **options)
    assert taken.manifest.splits["train"].records == 2
