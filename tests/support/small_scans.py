"""The scans of a few voxels that tests convert, and the dataset.json that goes with them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import Dataset

from tests.support.dicom_writer import item

SHAPE = (5, 8, 9)
SIZE = {"depth": 5, "height": 8, "width": 9}
AFFINE = np.array([[0, 0, 1.5, -5], [0, 2.0, 0, 7], [3.0, 0, 0, 11], [0, 0, 0, 1]])
FLIPPED = AFFINE @ np.array([[-1, 0, 0, 4], [0, 1, 0, 0], [0, 0, -1, 8], [0, 0, 0, 1]])
"""The same voxels stored from the top and from the right."""
LABELS = ("liver", "spleen")


def image(seed: int = 0) -> Any:
    """Random Hounsfield units, int16 [depth, height, width]."""
    return np.random.default_rng(seed).integers(-900, 900, SHAPE).astype(np.int16)


def mask(seed: int = 0, classes: int = 3) -> Any:
    """Random classes from 0, uint8 [depth, height, width]."""
    return np.random.default_rng(1000 + seed).integers(0, classes, SHAPE).astype(np.uint8)


def reference_to(series: str) -> Dataset:
    """The item by which DICOM's masks name a series."""
    return item(SeriesInstanceUID=series)


def write_json(root: Path, document: Mapping[str, Any]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "dataset.json").write_text(json.dumps(document))


def msd_document(*cases: str, test=(), labels: Sequence[str] = LABELS, channels=("CT",)) -> dict[str, Any]:
    """The Decathlon's: files of the cases in imagesTr and labelsTr; labels from 1, the background before them."""
    return {
        "modality": {str(number): name for number, name in enumerate(channels)},
        "labels": {str(number): name for number, name in enumerate(("background", *labels))},
        "training": [{"image": f"./imagesTr/{case}", "label": f"./labelsTr/{case}"} for case in cases],
        "test": [f"./imagesTs/{case}" for case in test],
    }


def nnunet_document(training: int = 1, *, labels=LABELS, channels=("CT",), **changes: Any) -> dict[str, Any]:
    """nnU-Net's, of so many training cases."""
    return {
        "channel_names": {str(number): name for number, name in enumerate(channels)},
        "labels": {name: number for number, name in enumerate(("background", *labels))},
        "numTraining": training,
        "file_ending": ".nii.gz",
        **changes,
    }
