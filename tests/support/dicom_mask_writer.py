"""DICOM segmentations and structure sets for tests, written with pydicom alone."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian, generate_uid

from tests.support.dicom_writer import ENCODERS, item

SEGMENTATION, LABEL_MAP = "1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7"
STRUCTURE_SET = "1.2.840.10008.5.1.4.1.1.481.3"
SECRETS = {"PatientName": "Quixote^Alonso", "PatientID": "MRN-4711-0815", "PatientBirthDate": "19470921"}
SECRETS |= {"InstitutionName": "St. Elsewhere", "StudyDescription": "Follow-up of Quixote"}
SECRETS |= {"ReferringPhysicianName": "Panza^Sancho", "StudyDate": "20050116"}
"""What must never leave a file."""
LPS = np.array([-1.0, -1.0, 1.0])


def frames_of(labels: NDArray[Any], value: int) -> dict[int, NDArray[Any]]:
    """The slices of one class that are not empty, by their index along depth: uint8 [height, width]."""
    inside = labels == value
    return {int(index): inside[index].astype(np.uint8) for index in np.flatnonzero(inside.any(axis=(1, 2)))}


def segmentation(
    frames: Sequence[tuple[int, int, NDArray[Any]]],
    affine: NDArray[np.float64],
    names: Mapping[int, str],
    *,
    kind: str = "BINARY",
    bits: int | None = None,
    largest: int = 255,
    syntax: str = ExplicitVRLittleEndian,
    shared: Sequence[str] = ("orientation", "measures"),
    spacing_between: bool = True,
) -> Dataset:
    """A segmentation.

    Args:
        frames: (segment number, depth index, stored values [height, width]).
        affine: of the grid whose depth index the frames name, to millimeters right, anterior, superior.
        bits: per stored pixel; 1 for BINARY and 8 for others if not given.
        shared: which of orientation, measures, position and segment are said once for all frames.
    """
    bits = bits or (1 if kind == "BINARY" else 8)
    dataset = _dataset(LABEL_MAP if kind == "LABELMAP" else SEGMENTATION, "SEG", syntax)
    rows, columns = frames[0][2].shape
    size = {"Rows": rows, "Columns": columns, "NumberOfFrames": len(frames), "SamplesPerPixel": 1}
    stored = {"BitsAllocated": bits, "BitsStored": bits, "HighBit": bits - 1, "PixelRepresentation": 0}
    dataset.update({**size, **stored, "PhotometricInterpretation": "MONOCHROME2", "SegmentationType": kind})
    if kind == "FRACTIONAL":
        dataset.MaximumFractionalValue, dataset.SegmentationFractionalType = largest, "PROBABILITY"
    segments = [item(SegmentNumber=number, SegmentLabel=name) for number, name in names.items()]
    dataset.SegmentSequence = segments
    row_mm, column_mm = np.linalg.norm(affine[:3, 1]), np.linalg.norm(affine[:3, 2])
    direction = np.concatenate([affine[:3, 2] / column_mm * LPS, affine[:3, 1] / row_mm * LPS])
    measures = item(PixelSpacing=[_decimal(row_mm), _decimal(column_mm)])
    if spacing_between:
        measures.SpacingBetweenSlices = _decimal(np.linalg.norm(affine[:3, 0]))
    groups = []
    for number, depth, _ in frames:
        position = (affine[:3, 3] + depth * affine[:3, 0]) * LPS
        placed, turned = _decimals(position), _decimals(direction)
        groups.append(
            {
                "orientation": ("PlaneOrientationSequence", item(ImageOrientationPatient=turned)),
                "measures": ("PixelMeasuresSequence", measures),
                "position": ("PlanePositionSequence", item(ImagePositionPatient=placed)),
                "segment": ("SegmentIdentificationSequence", item(ReferencedSegmentNumber=number)),
            }
        )
    if kind == "LABELMAP":
        for group in groups:
            del group["segment"]

    def said(group: Mapping[str, tuple[str, Dataset]], once: bool) -> Dataset:
        return item(**{keyword: [one] for key, (keyword, one) in group.items() if (key in shared) == once})

    dataset.SharedFunctionalGroupsSequence = [said(groups[0], once=True)]
    dataset.PerFrameFunctionalGroupsSequence = [said(group, once=False) for group in groups]
    _store(dataset, np.stack([pixels for _, _, pixels in frames]), bits, syntax)
    return dataset


def structure_set(
    structures: Mapping[int, tuple[str, Sequence[tuple[str, NDArray[np.float64]]]]],
    *,
    syntax: str = ImplicitVRLittleEndian,
) -> Dataset:
    """A structure set of {number: (name, [(kind, points [n, 3] in mm right, anterior, superior)])}."""
    dataset = _dataset(STRUCTURE_SET, "RTSTRUCT", syntax)
    rois, contours_of = [], []
    for number, (name, contours) in structures.items():
        rois.append(item(ROINumber=number, ROIName=name))
        sequence = []
        for kind, points in contours:
            data = _decimals((np.asarray(points) * LPS).ravel())
            count = {"NumberOfContourPoints": len(points), "ContourData": data}
            sequence.append(item(ContourGeometricType=kind, **count))
        contours_of.append(item(ReferencedROINumber=number, ContourSequence=sequence))
    dataset.StructureSetROISequence, dataset.ROIContourSequence = rois, contours_of
    return dataset


def saved(dataset: Dataset) -> bytes:
    stream = io.BytesIO()
    dataset.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def _store(dataset: Dataset, pixels: NDArray[Any], bits: int, syntax: str) -> None:
    if bits == 1:
        data = np.packbits(pixels.astype(np.uint8).ravel(), bitorder="little").tobytes()
    else:
        data = pixels.astype(f"<u{bits // 8}").tobytes()
    dataset.PixelData = data + b"\0" * (len(data) % 2)
    dataset["PixelData"].VR = "OW" if bits == 16 else "OB"
    if syntax in ENCODERS:
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.compress(syntax, encoding_plugin=ENCODERS[syntax], generate_instance_uid=False)


def _dataset(sop_class: str, modality: str, syntax: str) -> Dataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = sop_class, syntax
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["a mask"])
    dataset = Dataset()
    dataset.file_meta = meta
    dataset.update({"SOPClassUID": sop_class, "SOPInstanceUID": meta.MediaStorageSOPInstanceUID, **SECRETS})
    dataset.Modality, dataset.SpecificCharacterSet = modality, "ISO_IR 192"
    return dataset


def _decimals(values: NDArray[np.float64]) -> list[str]:
    return [_decimal(value) for value in values.tolist()]


def _decimal(value: float) -> str:
    """As many digits as the 16 characters of a decimal string hold."""
    return next(text for digits in range(16, 1, -1) if len(text := f"{value:.{digits}g}") <= 16)


def inside_polygon(polygon: list[float], size: tuple[int, int]) -> NDArray[Any]:
    """Asks each pixel's center how many edges lie to its left."""
    points = list(zip(polygon[::2], polygon[1::2], strict=True))
    mask = np.zeros(size, np.uint8)
    for row, column in np.ndindex(size):
        x, y, crossings = column + 0.5, row + 0.5, 0
        for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
            if (y0 >= y + 0.0) != (y1 >= y + 0.0) and x0 + (y - y0) / (y1 - y0) * (x1 - x0) <= x:
                crossings += 1
        mask[row, column] = crossings % 2
    return mask
