"""Advice about DICOM: which files are one scan, which masks are its, and what is no scan."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.uid import (
    NuclearMedicineImageStorage,
    ParametricMapStorage,
    RTDoseStorage,
    SecondaryCaptureImageStorage,
)

from tests.mistakes.dicom_sources import (
    drawn,
    half_of_it_in_train,
    own_series_each,
    scan,
    segmentation_of_another_series,
)
from tests.mistakes.volume_sources import PATTERNS, SIZE, dicom, label_map, seg_of
from tests.support.advice import Advice, noted, refused
from tests.support.conversions import draw_folders
from tests.support.dicom_mask_writer import saved, structure_set
from tests.support.dicom_writer import image_dataset, item, save, write_series, write_volume
from tests.support.mistakes import preparing
from tests.support.small_scans import AFFINE, image, mask, reference_to
from tests.support.volume_support import save_nifti, write_table

MOSAIC = {"ImageType": ["ORIGINAL", "PRIMARY", "MOSAIC"]}
VOLUME = np.arange(80, dtype=np.uint16).reshape(4, 4, 5) + 1000


def stack(folder: Path, name: str = "a", at: float = 0, count: int = 4, shade: int = 0, **options) -> None:
    """Slices of the series 1.2.3 from a height on; the files are called by a letter and a number."""
    places = [(0, 0, at + 2.0 * number) for number in range(count)]
    names = [f"{name}{number}" for number in range(count)]
    write_series(folder, VOLUME[:count] + np.uint16(shade), places, names=names, series="1.2.3", **options)


def two(folder: Path, beside: str = "b", **options: Any) -> None:
    """Two stacks of one series, each in its folder, or in one."""
    stack(folder / "a")
    stack(folder / beside, "b", **{"shade": 300, **options})


def echoes(folder: Path, apart: float = 0, **options: Any) -> None:
    for echo in range(2):
        places = [(apart * echo, 0, 2.0 * at) for at in range(4)]
        more = {"EchoTime": 2.0 + echo}
        write_series(folder / f"echo{echo}", VOLUME, places, series="1.2.3", more=more, **options)


def into_folders(source: Path) -> None:
    """Put the files of each scan into a folder of their own."""
    for file in sorted(source.rglob("*")):
        if file.is_file():
            (source / f"of {file.name[0]}").mkdir(exist_ok=True)
            file.rename(source / f"of {file.name[0]}" / file.name)


def alternating(folder: Path) -> None:
    rng = np.random.default_rng(0)
    volume = np.stack([np.full((8, 8), 1000 + at % 2 * 800) + rng.integers(0, 9, (8, 8)) for at in range(16)])
    write_series(folder, volume.astype(np.uint16), [(0, 0, 2.0 * at) for at in range(16)], thickness=4)


def without_a_slice(folder: Path) -> None:
    scan(folder, 8, names=list("abcdefgh"))
    (folder / "d").unlink()


def parametric(folder: Path) -> None:
    for at in range(4):
        made = image_dataset(
            VOLUME[at], position=(0, 0, at), more={"SOPClassUID": ParametricMapStorage, "BitsAllocated": 64}
        )
        del made.PixelData
        made.FloatPixelData = VOLUME[at].astype("<f4").tobytes()
        save(made, folder / f"{at}.dcm")


def as_nifti(source: Path) -> None:
    save_nifti(source / "p1/ct.nii.gz", image(), AFFINE)
    save_nifti(source / "p1/seg.nii.gz", mask(), AFFINE)


@preparing
def table(root: Path, **masks: bytes) -> list[object]:
    """A table that pairs the series 1.2.3 with the first of these masks."""
    write_volume(root / "ct", image(), AFFINE, series="1.2.3")
    for name, data in masks.items():
        (root / f"{name}.dcm").write_bytes(data)
    rows = write_table(root, [("a", "ct", "seg.dcm")])
    return ["--layout", "csv", "--task", "segmentation", "--source", rows, *SIZE, "--classes", "liver"]


def contours(height: float) -> bytes:
    """A structure on a slice, and one at a height between slices."""
    corners = [(2, 2), (2, 6), (6, 6), (6, 2)]
    drawn = [
        (name, [("CLOSED_PLANAR", np.array([(AFFINE @ (at, *corner, 1))[:3] for corner in corners]))])
        for name, at in (("liver", 2.0), ("stray", height))
    ]
    made = structure_set(dict(enumerate(drawn, start=1)))
    made.ReferencedFrameOfReferenceSequence = [
        item(RTReferencedStudySequence=[item(RTReferencedSeriesSequence=[reference_to("1.2.1")])])
    ]
    return saved(made)


def structures(folder: Path) -> None:
    write_volume(folder / "ct", image(), AFFINE, series="1.2.1")
    (folder / "rt.dcm").write_bytes(contours(2.5))
    (folder / "map.json").write_text('{"liver": 1, "stray": 2}')


def changed(folder: Path) -> None:
    """Two series, and a mask that refers to another."""
    for number, name in enumerate("AB"):
        write_volume(folder / name, image(), AFFINE, series=f"1.2.{number}")
    (folder / "masks").mkdir()
    (folder / "masks/A_x.dcm").write_bytes(seg_of("1.2.99", "liver", "spleen"))
    (folder / "map.txt").write_text("background\nliver\nspleen\n")


def labelled(folder: Path, label: str = "seg.nii.gz", under: str = "") -> None:
    """Two series, A and B, and a label."""
    for number, name in enumerate("AB"):
        more = {"SeriesDescription": name}
        write_volume(folder / name / under, image(), AFFINE, series=f"1.2.{number}", patient=name, more=more)
    save_nifti(folder / label, mask(), AFFINE)


def half_named(folder: Path) -> None:
    """A label that names its classes, and one that does not."""
    labelled(folder, "B/seg.nii.gz")
    (folder / "A/seg.dcm").write_bytes(seg_of("1.2.0", "liver", "spleen"))


def nuclear(folder: Path) -> None:
    more = {"SOPClassUID": NuclearMedicineImageStorage}
    save(image_dataset(VOLUME[0], position=None, modality="NM", more=more), folder / "nm.dcm")


def dose(folder: Path) -> None:
    scan(folder / "ct")
    save(image_dataset(VOLUME[0], modality="RTDOSE", more={"SOPClassUID": RTDoseStorage}), folder / "d.dcm")


def as_table(source: Path) -> None:
    """A dose in NIfTI, as a scan of its own."""
    as_nifti(source)
    write_table(source, [("a", "p1/ct.nii.gz", "p1/seg.nii.gz")])


def largest(folder: Path) -> None:
    for number, name in enumerate("AB"):
        more = {"SeriesDescription": name, "Modality": ("CT", "MR")[number]}
        scan(folder / name, series=f"1.2.{number}", more=more)


def below(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "empty/notes.txt").write_text("see the other disk")
    scan(folder / "ct")


def label_slices(folder: Path) -> None:
    """A series, and one of label slices."""
    write_volume(folder / "p1/ct", image(), AFFINE, series="1.2.1")
    write_volume(folder / "p1/mask", mask().astype(int) - 1024, AFFINE, series="1.2.2")


ADVICE: dict[str, Advice] = {
    # which files are one scan
    "a series UID for each slice": refused(
        drawn(own_series_each), "if each is a scan, (--min-slices 1)", proves=r"train +5 records"
    ),
    "a series UID for each slice of one scan": refused(
        drawn(own_series_each), "1 of at least 3; 5 series of its folder .* use (--series-identity folder)"
    ),
    "more slices at least than any series has": refused(
        drawn(scan, "--min-slices 100"), "series has too few slices.* 4 of at least 100; (--min-slices 4)"
    ),
    "a split for some patients alone": refused(
        drawn(half_of_it_in_train), "train/p1 names a split and p2.*use (--split-folders no)"
    ),
    "echoes to be refused": refused(
        drawn(echoes, "--series-split refuse"), "(--series-split volumes) takes", proves=r"train +2 records"
    ),
    "files that contradict each other": refused(
        drawn(partial(two, beside="a", patient="P2", count=2)),
        "and use (--series-identity folder);",
        first=into_folders,
        more=("--min-slices 2",),
        proves=r"train +2 records",
    ),
    "files that contradict each other and are one scan": refused(
        drawn(partial(two, at=8, patient="P2", count=2)), "(--series-identity uid)", proves=r"train +1 record"
    ),
    "folders that hold a scan each": refused(
        drawn(partial(two, at=8)), "(--series-identity folder) takes each", "(--series-identity uid) all"
    ),
    "two slices at one place": refused(
        drawn(partial(two, beside="a")),
        "and use (--series-identity folder)",
        first=into_folders,
        proves=r"train +2 records",
    ),
    "two slices at one place in two folders": refused(
        drawn(two), "(--series-identity folder) takes the files", proves=r"train +2 records"
    ),
    "two stacks": refused(
        drawn(partial(two, beside="a", at=300)),
        "and use (--series-identity folder)",
        first=into_folders,
        proves=r"train +2 records",
    ),
    "slices that are missing": refused(
        drawn(without_a_slice), "(--fill-missing-slices) interpolates", proves=r"train +1 record "
    ),
    "slices of two scans": refused(drawn(alternating), "use (--alternating-slices keep)"),
    "channels on two grids": refused(
        drawn(partial(echoes, apart=1), "--series-split channels"),
        "(--series-split volumes) takes",
        proves=r"train +2 records",
    ),
    # masks
    "label slices by a pattern that fits the images too": refused(
        drawn(label_slices, *SIZE, "--label-pattern {id}/*"),
        "every series fits it.* state with (--image-pattern) which",
        more=("{id}/ct",),
        proves=r"segmentation, 3 classes",
    ),
    "a mask of another series": refused(
        drawn(segmentation_of_another_series),
        r"(?s)label has no image.*alone\.dcm: the series that it was drawn on is not below the folder"
        ".*(--missing-masks prediction)",
    ),
    "two drawings of one series": refused(
        label_map(
            dicom(one=seg_of("1.2.1", "liver", "spleen"), two=seg_of("1.2.1", "liver", "spleen")),
            "background\nliver\nspleen\n",
        ),
        r"use (--label-pattern) '(\S+)', which takes one\.dcm",
        r"use (--label-pattern) '(\S+)', which takes two\.dcm",
        r"or (--several-masks merge) takes",
        proves=r"3 classes",
    ),
    "a mask whose UIDs were not changed with its scan's": refused(
        label_map(dicom(seg=seg_of("1.2.99", "liver", "spleen")), "background\nliver\nspleen\n"),
        "(--mask-references ignore) uses it for ct",
        proves=r"3 classes",
    ),
    "such a mask near several series": refused(
        drawn(changed, *SIZE, "--label-map {source}/map.txt"),
        (
            r"(--mask-references ignore) with (--label-pattern)",
            "masks/{id}_x.dcm",
            "--missing-masks prediction",
        ),
        proves=r"train +1 record ",
    ),
    "such a mask near several series, in a table": refused(
        drawn(changed, *SIZE, "--label-map {source}/map.txt"),
        r"(--mask-references ignore) with --label-pattern, or a table \((--layout csv)\)",
        first=lambda source: write_table(source, [("a", "A", "masks/A_x.dcm")]),
        more=("--task segmentation",),
        proves=r"3 classes",
    ),
    "a label map without a class of the SEG": refused(
        label_map(dicom(seg=seg_of("1.2.1", "liver", "spleen")), "background\nliver\n"),
        r"(?s)unknown labels.*(--map-classes) '(spleen=background)'",
    ),
    "a mask of another scan in a table": refused(
        table(seg=seg_of("1.2.99", "liver")), "use (--mask-references ignore)", proves=r"2 classes"
    ),
    "a mask of another scan, of the layout that knows": refused(
        table(seg=seg_of("1.2.99", "liver"), right=seg_of("1.2.3", "liver")),
        "which (--layout dicom) finds",
        without=("--source", "--task"),
        more=("--source {source}",),
        first=lambda source: (source / "seg.dcm").unlink(),
    ),
    "contours between the slices": refused(
        drawn(structures, *SIZE, "--label-map {source}/map.json"), r"(--map-classes) '(\S+)' leaves"
    ),
    "a vague label": refused(drawn(labelled, *SIZE), "choose one by (--series-description)", more=("^A$",)),
    "a label of several series in a table": refused(
        drawn(labelled, *SIZE),
        r"in a table \((--layout csv)\)",
        first=lambda source: write_table(source, [("a", "A", "seg.nii.gz")]),
        more=("--task segmentation",),
        proves=r"segmentation, 3 classes",
    ),
    "a label in no series' folder": refused(
        drawn(partial(labelled, label="masks/A_mask.nii.gz"), *SIZE),
        "(--label-pattern) says",
        more=("masks/{id}_mask.nii.gz", "--missing-masks prediction"),
    ),
    "unnumbered classes": noted(drawn(half_named, *SIZE), "them with (--classes),", more=("liver,spleen",)),
    "a mask whose classes a label map numbers": noted(
        drawn(half_named, *SIZE),
        "with (--label-map)",
        more=("{source}/map.json",),
        first=lambda source: (source / "map.json").write_text('{"liver": 1, "spleen": 2}'),
    ),
    "{id} of a part of the folder": noted(
        drawn(
            partial(labelled, label="A.nii.gz", under="CT"),
            *SIZE,
            "--label-pattern {id}.nii.gz --missing-masks prediction",
        ),
        r"(--image-pattern) '(\S+)' says",
    ),
    # what is no scan
    "secondary captures": refused(
        drawn(partial(scan, more={"SOPClassUID": SecondaryCaptureImageStorage})),
        "(--secondary-captures take) takes",
        proves=r"train +1 record ",
    ),
    "a survey": refused(
        drawn(partial(scan, more={"SeriesDescription": "Survey"})), "(--series-description)", more=("Survey",)
    ),
    "mosaics": refused(
        drawn(partial(scan, more=MOSAIC, modality="MR")),
        "found 4 x mosaic.*then (--layout pairs)",
        first=as_nifti,
        more=PATTERNS,
    ),
    "nuclear medicine": refused(drawn(nuclear), "then (--layout pairs)", first=as_nifti, more=PATTERNS),
    "a dose": noted(
        drawn(dose),
        r"further channel \((--layout csv)\)",
        first=as_table,
        without=("--source",),
        more=("--source {source}/table.csv",),
    ),
    "a file of a series": refused(
        drawn(partial(scan, names=list("abcd")), "--source {source}/a"), "use (--source)", more=("{source}",)
    ),
    "a table as DICOM": refused(drawn(as_table, "--source {source}/table.csv"), "table (--layout csv)"),
    "several largest series of a study": refused(
        drawn(largest, "--series-choice largest"), "choose by (--series-modality)", more=("CT",)
    ),
    "largest series by description": refused(
        drawn(largest, "--series-choice largest"), "or (--series-description)", more=("A",)
    ),
    "an image pattern alone": refused(
        drawn(partial(labelled, label="A.nii.gz"), "--image-pattern {id}"),
        "with (--label-pattern) it",
        more=("{id}.nii.gz",),
    ),
    "volumes as DICOM": refused(drawn(as_nifti), "take (--layout pairs)", more=PATTERNS, proves=r"3 classes"),
    "pictures as DICOM": refused(
        drawn(partial(draw_folders, images=2)),
        r"found 2 x \.jpg; pictures: take (--layout folders), ",
        without=("--depth",),
    ),
    "an empty folder of DICOM": refused(
        drawn(below, "--source {source}/empty"), "found no file; name with (--source)", more=("{source}/ct",)
    ),
    "a parametric map": refused(
        drawn(parametric), "then (--layout pairs)", first=as_nifti, more=PATTERNS, proves=r"3 classes"
    ),
}
