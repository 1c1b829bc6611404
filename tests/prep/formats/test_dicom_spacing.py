"""The spacing and the words of a DICOM picture come from whichever of its elements states them."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.uid import ImplicitVRLittleEndian, XRayAngiographicImageStorage

from halofeed.prep.convert.picture_records import stated_features
from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.prep.formats.picture.image import SPACING_AT_DETECTOR
from halofeed.prep.formats.picture.picture_formats import open_picture
from halofeed.prep.geometry.resize import ResizePlan
from tests.support.dicom_writer import file_bytes, image_dataset, item

HEIGHT, WIDTH = 20, 30


def picture(frames: int = 1, **more: Any) -> Dataset:
    shape = (HEIGHT, WIDTH) if frames == 1 else (frames, HEIGHT, WIDTH)
    elements = {"SOPClassUID": XRayAngiographicImageStorage, "PixelSpacing": None} | more
    if frames > 1:
        elements["NumberOfFrames"] = frames
    return image_dataset(
        np.zeros(shape, np.uint8), position=None, orientation=None, modality="XA", rescale=None, more=elements
    )


def region(x: float = 0.02, y: float = 0.01, *, box=(0, 0, WIDTH - 1, HEIGHT - 1), units=(3, 3), form=1):
    corners = dict(
        zip(
            (
                "RegionLocationMinX0",
                "RegionLocationMinY0",
                "RegionLocationMaxX1",
                "RegionLocationMaxY1",
            ),
            box,
            strict=True,
        )
    )
    directions = {"PhysicalUnitsXDirection": units[0], "PhysicalUnitsYDirection": units[1]}
    return item(
        RegionSpatialFormat=form,
        RegionDataType=1,
        PhysicalDeltaX=x,
        PhysicalDeltaY=y,
        **directions,
        **corners,
    )


def regions(*found: Dataset) -> dict[str, Any]:
    return {"SequenceOfUltrasoundRegions": list(found)}


HALF = (0, 0, WIDTH // 2, HEIGHT - 1)
IMAGER = {"ImagerPixelSpacing": [0.2, 0.4]}
TWICE = {"EstimatedRadiographicMagnificationFactor": "2"}
CALIBRATED = {"PixelSpacingCalibrationType": "GEOMETRY", "PixelSpacingCalibrationDescription": "x"}
SPACINGS = {
    "none": ({}, None, False),
    "in the patient": ({"PixelSpacing": [0.3, 0.25]}, (0.3, 0.25), False),
    "at the detector": (IMAGER, (0.2, 0.4), True),
    "magnified": (IMAGER | TWICE, (0.1, 0.2), False),
    "corrected": ({"PixelSpacing": [0.15, 0.3]} | IMAGER | TWICE, (0.15, 0.3), False),
    "repeats the detector's": ({"PixelSpacing": [0.2, 0.4]} | IMAGER | TWICE, (0.1, 0.2), False),
    "calibrated and equal": ({"PixelSpacing": [0.2, 0.4]} | IMAGER | TWICE | CALIBRATED, (0.2, 0.4), False),
    "factor below 1": (IMAGER | {"EstimatedRadiographicMagnificationFactor": "0"}, (0.2, 0.4), True),
    "scanner": ({"NominalScannedPixelSpacing": [0.05, 0.06]}, (0.05, 0.06), False),
    "ultrasound": (regions(region()), (0.1, 0.2), False),
    "values fall": (regions(region(y=-0.01)), (0.1, 0.2), False),
    "part of the picture": (regions(region(box=HALF)), (0.1, 0.2), False),
    "equal parts": (regions(region(box=HALF), region(box=HALF)), (0.1, 0.2), False),
    "parts that differ": (regions(region(box=HALF), region(0.03, box=HALF)), None, False),
    "one covers all": (regions(region(), region(0.03, box=HALF)), (0.1, 0.2), False),
    "motion beside it": (regions(region(box=HALF), region(box=HALF, units=(4, 3), form=2)), None, False),
    "waveform beside it": (regions(region(box=HALF), region(units=(4, 0), form=4)), (0.1, 0.2), False),
    "seconds": (regions(region(units=(4, 3))), None, False),
    "no region": (regions(), None, False),
    "zero": ({"PixelSpacing": [0, 0]} | IMAGER | TWICE, (0.1, 0.2), False),
    "one number": ({"ImagerPixelSpacing": [0.2]}, None, False),
    "shared group": (
        {"SharedFunctionalGroupsSequence": [item(PixelMeasuresSequence=[item(PixelSpacing=[0.5, 0.6])])]},
        (0.5, 0.6),
        False,
    ),
    "center of the beam": (
        {
            "SharedFunctionalGroupsSequence": [
                item(
                    XRayGeometrySequence=[item(**TWICE)],
                    FramePixelDataPropertiesSequence=[
                        item(ObjectPixelSpacingInCenterOfBeam=[0.3, 0.3], **IMAGER)
                    ],
                )
            ]
        },
        (0.3, 0.3),
        False,
    ),
    "enhanced and magnified": (
        {
            "SharedFunctionalGroupsSequence": [
                item(
                    XRayGeometrySequence=[item(**TWICE)],
                    FramePixelDataPropertiesSequence=[item(**IMAGER)],
                )
            ]
        },
        (0.1, 0.2),
        False,
    ),
}


@pytest.mark.parametrize("name", SPACINGS)
def test_the_spacing_is_that_in_the_patient_where_the_file_tells_it(name):
    elements, expected, at_detector = SPACINGS[name]
    image = read_image(file_bytes(picture(**elements)), ReadOptions(channels=1))
    assert image.stated.spacing_mm == pytest.approx(expected)
    assert (SPACING_AT_DETECTOR in image.notes) == at_detector


def test_each_frame_has_its_own_spacing():
    groups = [item(PixelMeasuresSequence=[item(PixelSpacing=[side, side])]) for side in (0.5, 0.25)]
    data = file_bytes(picture(2, PerFrameFunctionalGroupsSequence=groups))
    found = [open_picture(data, ReadOptions(), frame).stated.spacing_mm for frame in range(2)]
    assert found == [(0.5, 0.5), (0.25, 0.25)]


def test_regions_are_read_without_value_representations():
    dataset = picture(**regions(region()))
    dataset.ensure_file_meta()
    dataset.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    stream = io.BytesIO()
    pydicom.dcmwrite(stream, dataset, implicit_vr=True, little_endian=True, enforce_file_format=True)
    image = read_image(stream.getvalue(), ReadOptions(channels=1))
    assert image.stated.spacing_mm == pytest.approx((0.1, 0.2))


def code(value: str) -> list[Dataset]:
    return [item(CodeValue=value, CodingSchemeDesignator="SCT", CodeMeaning="x")]


WORDS = {
    "none": ({}, {}),
    "image before series": ({"ImageLaterality": "L", "Laterality": "R"}, {"laterality": "L"}),
    "series": ({"Laterality": "R"}, {"laterality": "R"}),
    "view": ({"ViewPosition": "MLO", "ViewCodeSequence": code("399162004")}, {"view": "MLO"}),
    "code of the view": ({"ViewCodeSequence": code("399162004")}, {"view": "CC"}),
    "retired code": ({"ViewCodeSequence": code("R-10226")}, {"view": "MLO"}),
    "unknown code": ({"ViewCodeSequence": code("JOHN")}, {}),
    "body part": ({"BodyPartExamined": "CHEST"}, {"body_part": "CHEST"}),
    "names of persons": ({"BodyPartExamined": "SMITH", "ViewPosition": "JOHN", "Laterality": "J"}, {}),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_are_those_of_the_standard(name):
    elements, expected = WORDS[name]
    image = read_image(file_bytes(picture(**elements)), ReadOptions(channels=1))
    assert dict(image.stated.words) == expected


def test_an_orientation_exchanges_the_sides_and_a_resize_divides_them():
    image = read_image(file_bytes(picture(PixelSpacing=[0.3, 0.25])), ReadOptions(channels=1))
    turned = replace(image, orientation=6)
    plan = ResizePlan(source_size=(WIDTH, HEIGHT), resized_size=(15, 40), output_size=(50, 60))
    np.testing.assert_allclose(stated_features(image, plan)["image/spacing_mm"], (0.6, 0.125))
    np.testing.assert_allclose(stated_features(turned, plan)["image/spacing_mm"], (0.5, 0.15))
