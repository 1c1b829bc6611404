"""Write a level of a DICOM whole-slide image (PS3.3 A.32.8) from encoded tiles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pydicom
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate_extended
from pydicom.sequence import Sequence
from pydicom.uid import JPEGBaseline8Bit, VLWholeSlideMicroscopyImageStorage

_ROOT = "1.2.826.0.1.3680043.8.498.44"


@dataclass(frozen=True, kw_only=True)
class SlideLevel:
    """Size of a level, the side of its tiles, its spacing, and its number from the largest."""

    height: int
    width: int
    side: int
    spacing_mm: float
    number: int


def _item(**values: object) -> Dataset:
    data = Dataset()
    for name, value in values.items():
        setattr(data, name, value)
    return data


def _code(value: str, scheme: str, meaning: str) -> Dataset:
    return _item(CodeValue=value, CodingSchemeDesignator=scheme, CodeMeaning=meaning)


def write_level(file: Path, level: SlideLevel, tiles: Iterable[bytes]) -> None:
    """Write a file with the tiles as frames in row order (TILED_FULL), padded at the right and at the bottom."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = VLWholeSlideMicroscopyImageStorage
    meta.MediaStorageSOPInstanceUID = f"{_ROOT}.3.{level.number}"
    meta.TransferSyntaxUID = JPEGBaseline8Bit
    data = FileDataset(file, {}, file_meta=meta, preamble=b"\0" * 128)
    frames, offsets, lengths = encapsulate_extended(list(tiles))
    derived = ["DERIVED", "PRIMARY", "VOLUME", "RESAMPLED"]
    measures = _item(PixelSpacing=[level.spacing_mm] * 2, SliceThickness=0.001)
    origin = _item(XOffsetInSlideCoordinateSystem=20.0, YOffsetInSlideCoordinateSystem=40.0)
    values: dict[str, object] = {
        "SOPClassUID": meta.MediaStorageSOPClassUID,
        "SOPInstanceUID": meta.MediaStorageSOPInstanceUID,
        "StudyInstanceUID": f"{_ROOT}.1",
        "SeriesInstanceUID": f"{_ROOT}.2",
        "FrameOfReferenceUID": f"{_ROOT}.4",
        "PatientID": "drawn",
        "PatientName": "Drawn^Slide",
        "Modality": "SM",
        "ImageType": derived if level.number else ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"],
        "InstanceNumber": level.number + 1,
        "Rows": level.side,
        "Columns": level.side,
        "NumberOfFrames": len(offsets) // 8,
        "TotalPixelMatrixRows": level.height,
        "TotalPixelMatrixColumns": level.width,
        "TotalPixelMatrixFocalPlanes": 1,
        "NumberOfOpticalPaths": 1,
        "ImagedVolumeHeight": level.height * level.spacing_mm,
        "ImagedVolumeWidth": level.width * level.spacing_mm,
        "ImagedVolumeDepth": 1.0,  # micrometers
        "ImageOrientationSlide": [0, -1, 0, -1, 0, 0],
        "TotalPixelMatrixOriginSequence": [origin],
        "SamplesPerPixel": 3,
        "PhotometricInterpretation": "YBR_FULL_422",
        "PlanarConfiguration": 0,
        "BitsAllocated": 8,
        "BitsStored": 8,
        "HighBit": 7,
        "PixelRepresentation": 0,
        "LossyImageCompression": "01",
        "LossyImageCompressionMethod": "ISO_10918_1",
        "LossyImageCompressionRatio": 10.0,
        "BurnedInAnnotation": "NO",
        "SpecimenLabelInImage": "NO",
        "FocusMethod": "AUTO",
        "ExtendedDepthOfField": "NO",
        "VolumetricProperties": "VOLUME",
        "ContainerIdentifier": "drawn",
        "DimensionOrganizationType": "TILED_FULL",
        "DimensionOrganizationSequence": [_item(DimensionOrganizationUID=f"{_ROOT}.5")],
        "OpticalPathSequence": [
            _item(
                OpticalPathIdentifier="1",
                IlluminationTypeCodeSequence=Sequence([_code("111744", "DCM", "Brightfield illumination")]),
                IlluminationColorCodeSequence=Sequence([_code("11744", "SCT", "Brightfield illumination")]),
            )
        ],
        "SharedFunctionalGroupsSequence": [
            _item(
                PixelMeasuresSequence=Sequence([measures]),
                WholeSlideMicroscopyImageFrameTypeSequence=Sequence(
                    [_item(FrameType=derived if level.number else ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"])]
                ),
                OpticalPathIdentificationSequence=Sequence([_item(OpticalPathIdentifier="1")]),
            )
        ],
        "PixelData": frames,
        "ExtendedOffsetTable": offsets,
        "ExtendedOffsetTableLengths": lengths,
    }  # fmt: skip
    for name, value in values.items():
        setattr(data, name, Sequence(value) if name.endswith("Sequence") else value)
    data["PixelData"].is_undefined_length = True
    pydicom.dcmwrite(file, data, enforce_file_format=True)
