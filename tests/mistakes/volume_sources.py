"""Small sources of volumes in files and of their labels."""

from pathlib import Path

from tests.pipelines.test_volume_labels import seg_of as segments
from tests.support.dicom_writer import write_volume
from tests.support.mistakes import Prepare, preparing
from tests.support.small_scans import AFFINE, image, mask, msd_document, write_json
from tests.support.volume_support import save_nifti

SIZE = ("--depth", 5, "--height", 8, "--width", 9)
MSD = msd_document("a.nii.gz")
PATTERNS = ("--image-pattern", "{id}/ct.nii.gz", "--label-pattern", "{id}/seg.nii.gz")


def pair(root: Path, image_name: str, mask_name: str) -> None:
    save_nifti(root / image_name, image(), AFFINE)
    save_nifti(root / mask_name, mask(), AFFINE)


@preparing
def medical(source: Path, layout: str, document, *more: object, channel: str = "") -> list[object]:
    """An MSD or nnU-Net folder of one case."""
    pair(source, f"imagesTr/a{channel}.nii.gz", "labelsTr/a.nii.gz")
    write_json(source, document)
    return ["--layout", layout, "--source", source, *SIZE, *more]


@preparing
def pairs(source: Path, *more: object) -> list[object]:
    """A folder for each case, ct.nii.gz and seg.nii.gz in it."""
    pair(source, "p1/ct.nii.gz", "p1/seg.nii.gz")
    return ["--layout", "pairs", "--source", source, *SIZE, *(more or PATTERNS)]


def seg_of(series: str, *names: str) -> bytes:
    """A SEG of the mask's classes, under these names."""
    return segments({name: mask() == number for number, name in enumerate(names, start=1)}, series)


@preparing
def dicom(source: Path, *more: object, **segs: bytes) -> list[object]:
    """A series with SEG files beside it."""
    write_volume(source / "ct", image(), AFFINE, series="1.2.1")
    for name, data in segs.items():
        (source / f"{name}.dcm").write_bytes(data)
    return ["--layout", "dicom", "--source", source, *SIZE, *more]


@preparing
def label_map(source: Path, prepare: Prepare, text: str, name: str = "map.txt") -> list[object]:
    """The same with a label map."""
    (source.parent / name).write_text(text)
    return [*prepare(source), "--label-map", source.parent / name]
