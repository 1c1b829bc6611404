"""Advice about DICOM pictures: windows, patients, and slices that are no pictures."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydicom.uid import ComputedRadiographyImageStorage

from tests.mistakes.dicom_sources import drawn
from tests.support.advice import Advice, noted, refused, usage
from tests.support.dicom_writer import image_dataset, save

FOLDERS = "--layout folders --height 16 --width 16"
PIXELS = np.arange(300, dtype=np.uint16).reshape(15, 20)


RADIOGRAPH: dict[str, Any] = {"position": None, "modality": "CR", "rescale": None, "bits_stored": 12}
NO_PATIENT = {"SOPClassUID": ComputedRadiographyImageStorage, "PatientID": None}


def radiographs(source: Path, **more: Any) -> None:
    """Two classes of radiographs of 12 bits, of which the values use a small part."""
    for name in "ab":
        elements = {"SOPClassUID": ComputedRadiographyImageStorage, **more}
        dataset = image_dataset(PIXELS, **RADIOGRAPH, more=elements)
        save(dataset, source / name / "1.dcm")


def windowed(source: Path, **more: Any) -> None:
    radiographs(source, WindowCenter=[100, 200], WindowWidth=[100, 300], **more)


def cubic(source: Path) -> None:
    windowed(source, VOILUTFunction="CUBIC")


def without_patients(source: Path) -> None:
    radiographs(source, PatientID=None)
    for number in range(2, 9):
        for name in "ab":
            save(image_dataset(PIXELS, **RADIOGRAPH, more=NO_PATIENT), source / name / f"{number}.dcm")


def series(source: Path) -> None:
    for name in "ab":
        for at in range(4):
            dataset = image_dataset(PIXELS.astype(np.int16), position=(0, 0, at), series=f"1.2.{ord(name)}")
            save(dataset, source / name / f"{at}.dcm")


def png(source: Path) -> None:
    for name in "ab":
        (source / name).mkdir()
        Image.new("L", (20, 20), 90).save(source / name / "1.png")


ADVICE: dict[str, Advice] = {
    "several windows": noted(drawn(windowed, FOLDERS), "(--window 2) takes"),
    "a window that the file lacks": refused(
        drawn(windowed, FOLDERS, "--window 3"), "take (--window 1)", "take (--window) 1 to 2, or (none)"
    ),
    "a window of files without one": refused(
        drawn(radiographs, FOLDERS, "--window 1"), "leave (--window) out", "or take (--window none)"
    ),
    "an unknown function of windows": refused(drawn(cubic, FOLDERS), "(--window none) leaves"),
    "a window for other pictures": usage(drawn(png, FOLDERS, "--window 2"), "leave (--window) out"),
    "values of a narrow range": noted(
        drawn(radiographs, FOLDERS), "(--window) CENTER/WIDTH", more=("150/300",)
    ),
    "values of a narrow range in 16 bits": noted(drawn(radiographs, FOLDERS), "(--dtype uint16) keeps"),
    "slices in class folders": refused(
        drawn(series, FOLDERS, "--dtype uint16"), "use (--folders-are-classes)"
    ),
    "single pictures as a volume": refused(
        drawn(radiographs, "--layout dicom --depth 4 --height 16 --width 16"),
        r"leave (--depth) out, and take (--layout folders)",
    ),
    "pictures without a patient": noted(
        drawn(without_patients, FOLDERS, "--split-shares train=0.5,test=0.5"),
        "use (--group-pattern)",
        more=("([0-9]+)[.]dcm",),
    ),
}
