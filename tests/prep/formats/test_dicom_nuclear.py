"""Reconstructed SPECT images against SimpleITK, and the projections that are refused by their kind."""

import numpy as np
import pytest
import SimpleITK

from halofeed.errors import AnnotationsError
from tests.support.dicom_folders import listed_by_source, open_folder, open_listed
from tests.support.dicom_writer import AXIAL, image_dataset, item, save

VOXELS = np.arange(6 * 4 * 6, dtype=np.uint16).reshape(6, 4, 6)


def write_nuclear(path, kind="RECON TOMO", step=4.0, orientation=AXIAL, **more):
    detector = item(ImagePositionPatient=[10.0, 20.0, 30.0], ImageOrientationPatient=list(orientation))
    more = {"SliceVector": [1, 2, 3, 4, 5, 6], "DetectorInformationSequence": [detector], **more}
    more |= {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.20", "NumberOfFrames": 6, "SpacingBetweenSlices": step}
    more["ImageType"] = ["ORIGINAL", "PRIMARY", kind, "EMISSION"]
    options = {"position": None, "orientation": None, "spacing": (2, 3), "rescale": None, "modality": "NM"}
    return save(image_dataset(VOXELS, **options, more=more), path)


@pytest.mark.parametrize("step", [4.0, -4.0])
@pytest.mark.parametrize(
    "orientation", [AXIAL, (0.0, 1.0, 0.0, 0.0, 0.0, -1.0), (0.6, 0.8, 0.0, -0.8, 0.6, 0.0)]
)
def test_a_reconstructed_volume_lies_where_simpleitk_puts_it(tmp_path, step, orientation):
    image = SimpleITK.ReadImage(str(write_nuclear(tmp_path / "a.dcm", step=step, orientation=orientation)))
    scan = open_folder(tmp_path)
    voxels = scan.read()[..., 0]
    for at in ((0, 0, 0), (5, 3, 5), (1, 2, 3)):
        there = image.TransformPhysicalPointToIndex((scan.grid.to_mm(at) * (-1, -1, 1)).tolist())
        assert voxels[at] == image[there]


def test_gated_volumes_are_several_scans_and_others_are_named(tmp_path):
    for name, kind, step, words in (
        ("a", "TOMO", 4.0, "projections are no slices"),
        ("b", "STATIC", 4.0, "it has no slices"),
        ("c", "DYNAMIC", 4.0, "times of one view"),
        ("d", "RECON TOMO", None, "its header places no slice"),
    ):
        write_nuclear(tmp_path / name / "a.dcm", kind, step)
        with pytest.raises(AnnotationsError, match=words):
            listed_by_source(tmp_path / name)
    slots = {"SliceVector": [1, 2, 3, 1, 2, 3], "TimeSlotVector": [1, 1, 1, 2, 2, 2]}
    write_nuclear(tmp_path / "gated" / "a.dcm", "RECON GATED TOMO", **slots)
    scans = [open_listed(tmp_path / "gated", one) for one in listed_by_source(tmp_path / "gated").values()]
    assert [one.read()[..., 0].tolist() for one in scans] == [VOXELS[:3].tolist(), VOXELS[3:].tolist()]
