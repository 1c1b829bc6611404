"""Synthetic DICOM files for tests: slices, series and multi-frame files, in any transfer syntax that can be written.

Everything is in DICOM's own terms (left, posterior, superior; stored values), except `write_volume`, which takes
a volume as the rest of halofeed knows it.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gdcm
import numpy as np
import pydicom
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    CTImageStorage,
    EnhancedCTImageStorage,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
ENCODERS = {RLELossless: "pylibjpeg", JPEGLSLossless: "pyjpegls", JPEG2000Lossless: "pylibjpeg"}


def item(**elements: Any) -> Dataset:
    """A data set of elements by keyword, such as a sequence holds."""
    made = Dataset()
    made.update(elements)
    return made


def floats(values: Sequence[float] | None) -> list[float] | None:
    """Numbers of Python's own type, which pydicom asks for."""
    return None if values is None else [float(value) for value in values]


def image_dataset(
    pixels: NDArray[Any],
    *,
    position: Sequence[float] | None = (0.0, 0.0, 0.0),
    orientation: Sequence[float] | None = AXIAL,
    spacing: Sequence[float] = (1.0, 1.0),
    thickness: float | None = 1.0,
    series: str = "1.2.3",
    patient: str = "P1",
    modality: str = "CT",
    rescale: tuple[float, float] | None = (1, -1024),
    rescale_type: str | None = None,
    bits_stored: int | None = None,
    more: Mapping[str, Any] | None = None,
) -> Dataset:
    """A data set of one image, without its file's meta information.

    Args:
        pixels: stored words, uint8, int8, uint16 or int16, [height, width], or [frame, height, width].
        rescale: (slope, intercept); None leaves both out.
        more: further elements by keyword; None as a value leaves one out.
    """
    bits, (rows, columns) = 8 * pixels.dtype.itemsize, pixels.shape[-2:]
    slope, intercept = rescale or (None, None)
    elements = {
        "SOPClassUID": CTImageStorage,
        "SOPInstanceUID": pydicom.uid.generate_uid(),
        "Modality": modality,
    }
    elements |= {"PatientID": patient, "StudyInstanceUID": "1.2", "SeriesInstanceUID": series}
    elements |= {"ImageType": ["ORIGINAL", "PRIMARY", "AXIAL"], "FrameOfReferenceUID": "1.2.9"}
    elements |= {"ImagePositionPatient": floats(position), "ImageOrientationPatient": floats(orientation)}
    elements |= {"PixelSpacing": floats(spacing), "SliceThickness": thickness}
    elements |= {"Rows": rows, "Columns": columns}
    elements |= {"SamplesPerPixel": 1, "PhotometricInterpretation": "MONOCHROME2", "BitsAllocated": bits}
    elements |= {"BitsStored": bits_stored or bits, "HighBit": (bits_stored or bits) - 1}
    elements |= {"RescaleSlope": slope, "RescaleIntercept": intercept, "RescaleType": rescale_type}
    elements["PixelRepresentation"] = int(pixels.dtype.kind == "i")
    elements["PixelData"] = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
    elements |= more or {}
    dataset = item(**{keyword: value for keyword, value in elements.items() if value is not None})
    if "PixelData" in dataset:
        dataset["PixelData"].VR = "OW" if bits > 8 else "OB"
    return dataset


def save(dataset: Dataset, path: Path, syntax: str = ExplicitVRLittleEndian) -> Path:
    """Write a data set of uncompressed pixels in any transfer syntax of `ENCODERS`, JPEG lossless or baseline."""
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    path.parent.mkdir(parents=True, exist_ok=True)
    if syntax in ENCODERS:
        dataset.compress(syntax, encoding_plugin=ENCODERS[syntax], generate_instance_uid=False)
    elif syntax == JPEGBaseline8Bit:
        pixels = np.frombuffer(dataset.PixelData, "u1").reshape(dataset.Rows, dataset.Columns)
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, "JPEG", quality=95)
        dataset.PixelData = encapsulate([encoded.getvalue()])
        dataset["PixelData"].VR, dataset["PixelData"].is_undefined_length = "OB", True
    elif syntax == ExplicitVRBigEndian and dataset.BitsAllocated == 16:
        dataset.PixelData = np.frombuffer(dataset.PixelData, "<u2").astype(">u2").tobytes()
    if syntax != JPEGLosslessSV1:
        dataset.file_meta.TransferSyntaxUID = syntax
        dataset.save_as(path, enforce_file_format=True)
        return path
    dataset.save_as(path, enforce_file_format=True)
    reader = gdcm.ImageReader()
    reader.SetFileName(str(path))
    assert reader.Read()
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer = gdcm.ImageWriter()
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    writer.SetFileName(str(path))
    assert writer.Write()
    return path


def file_bytes(dataset: Dataset, syntax: str = ExplicitVRLittleEndian) -> bytes:
    """The file of a data set, as `save` writes it."""
    with TemporaryDirectory() as folder:
        return save(dataset, Path(folder) / "a.dcm", syntax).read_bytes()


def write_series(
    folder: Path,
    volume: NDArray[Any],
    positions: Sequence[Sequence[float]],
    *,
    syntax: str = ExplicitVRLittleEndian,
    names: Sequence[str] | None = None,
    **options: Any,
) -> list[Path]:
    """Write one file for each slice of stored values [depth, height, width]; names and instance numbers say nothing
    about the order of the slices."""
    count = len(volume)
    names = names or [f"{(index * 7 + 3) % 1009:04d}-{index}.dcm" for index in range(count)]
    paths = []
    for index, (pixels, position, name) in enumerate(zip(volume, positions, names, strict=True)):
        more = {"InstanceNumber": (index * 5 + 2) % count + 1, **(options.get("more") or {})}
        dataset = image_dataset(pixels, position=position, **{**options, "more": more})
        paths.append(save(dataset, folder / name, syntax))
    return paths


def write_volume(folder: Path, volume: NDArray[Any], affine: NDArray[Any], **options: Any) -> list[Path]:
    """Write a volume of Hounsfield units [depth, height, width] as a series, slice after slice along its depth.

    Args:
        affine: [4, 4], voxel (depth, height, width, 1) to millimeters (right, anterior, superior).
    """
    to_lps = np.diag([-1.0, -1.0, 1.0])
    steps, origin = to_lps @ affine[:3, :3], to_lps @ affine[:3, 3]
    sides = np.linalg.norm(steps, axis=0)
    orientation = [*(steps[:, 2] / sides[2]), *(steps[:, 1] / sides[1])]
    positions = [origin + index * steps[:, 0] for index in range(len(volume))]
    stored = (np.rint(volume) + 1024).astype(np.uint16)
    place = {"orientation": orientation, "spacing": (sides[1], sides[2]), "thickness": float(sides[0])}
    return write_series(folder, stored, positions, **place, **options)


def draw_series(root: Path, series: int, slices: int) -> Path:
    """So many series of so many small slices, each of a patient and a folder of its own."""
    affine = np.array([[0, 0, 1.0, -5], [0, 2.0, 0, 7], [3.0, 0, 0, 11], [0, 0, 0, 1]])
    for number in range(series):
        volume = np.random.default_rng(number).integers(-1000, 1000, (slices, 6, 7))
        options = {"series": f"1.2.{number + 1}", "patient": f"P{number}"}
        write_volume(root / f"patient {number}", volume, affine, **options)
    return root


def multi_frame_dataset(
    volume: NDArray[Any],
    positions: Sequence[Sequence[float]],
    *,
    rescales: Sequence[tuple[float, float]] | None = None,
    orientation: Sequence[float] = AXIAL,
    spacing: Sequence[float] = (1.0, 1.0),
    **options: Any,
) -> Dataset:
    """An enhanced CT: orientation and spacing shared by all frames, positions and rescale of each."""
    rescales = rescales or [(1, -1024)] * len(volume)
    of_frames = dict.fromkeys(("position", "orientation", "rescale", "thickness"))
    dataset = image_dataset(volume, spacing=spacing, **of_frames, **options)
    del dataset.PixelSpacing
    dataset.SOPClassUID = EnhancedCTImageStorage
    dataset.NumberOfFrames = len(volume)
    orientation_item = item(ImageOrientationPatient=list(orientation))
    measures = item(PixelSpacing=list(spacing), SliceThickness=1.0)
    shared = item(PlaneOrientationSequence=[orientation_item], PixelMeasuresSequence=[measures])
    frames = []
    for position, (slope, intercept) in zip(positions, rescales, strict=True):
        place = item(ImagePositionPatient=floats(position))
        values = item(RescaleSlope=slope, RescaleIntercept=intercept, RescaleType="HU")
        frames.append(item(PlanePositionSequence=[place], PixelValueTransformationSequence=[values]))
    dataset.SharedFunctionalGroupsSequence, dataset.PerFrameFunctionalGroupsSequence = [shared], frames
    return dataset
