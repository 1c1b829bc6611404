"""Advice about the grids, headers, values and memory of volumes in files."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from tests.mistakes.option_advice import label_images
from tests.mistakes.test_command_mistakes import SIZE as SMALL
from tests.mistakes.test_command_mistakes import volumes
from tests.mistakes.volume_sources import PATTERNS, SIZE, dicom, medical, pairs
from tests.support.advice import Advice, noted, refused, run, usage
from tests.support.mistakes import Prepare, preparing
from tests.support.small_scans import AFFINE, FLIPPED, image, mask, msd_document
from tests.support.volume_support import save_nifti

SHIFT = np.zeros((4, 4))
SHIFT[0, 3] = 1.5
"""A voxel to the right."""


@preparing
def one(
    root: Path,
    *more: object,
    scan: NDArray[Any] | None = None,
    label: NDArray[Any] | None = None,
    grid: NDArray[np.float64] = AFFINE,
    **sides: bytes,
) -> list[object]:
    """A scan and its label, on a grid of its own; or the bytes of a file."""
    save_nifti(root / "p1/ct.nii", image() if scan is None else scan, AFFINE)
    save_nifti(root / "p1/seg.nii", mask() if label is None else label, grid)
    for name, data in sides.items():
        (root / f"p1/{name}.nii").write_bytes(data)
    patterns = [word.replace(".gz", "") for word in PATTERNS]
    return ["--layout", "pairs", "--source", root, *SIZE, *patterns, *more]


@preparing
def lesions(root: Path) -> list[object]:
    """A scan whose lesions are in files of their own."""
    save_nifti(root / "p1/ct.nii", image(), AFFINE)
    for number in range(2):
        save_nifti(root / f"p1/lesion_{number}.nii", (mask() == number + 1).astype(np.uint8), AFFINE)
    patterns = ["--image-pattern", "{id}/ct.nii", "--label-pattern", "{id}/{class}_*.nii"]
    return ["--layout", "class-masks", "--source", root, *SIZE, *patterns]


HOT = np.stack([mask() == number for number in range(3)], axis=-1).astype(np.uint8)
"""A channel per class, which is also three colors."""
COLORS = "010000=background,000100=a,000001=b"


@preparing
def color_labels(root: Path) -> list[object]:
    words = label_images()(root)
    for path in (root / "labels").iterdir():
        Image.fromarray(np.asarray(Image.open(path))[..., None] * np.array([0, 255, 0], np.uint8)).save(path)
    return words


@preparing
def channels(root: Path, second: NDArray[Any], *more: object, apart: float = 0) -> list[object]:
    """Two channels, the second of other values, or so many voxels apart."""
    for number in range(2):
        save_nifti(
            root / f"ct/a_{number}.nii", second if number else image(), AFFINE + number * apart * SHIFT
        )
    save_nifti(root / "seg/a.nii", mask(), AFFINE)
    patterns = ["--image-pattern", "ct/{id}_{channel}.nii", "--label-pattern", "seg/{id}.nii"]
    return ["--layout", "pairs", "--source", root, *SIZE, *patterns, "--channels", 2, *more]


@preparing
def like(root: Path, prepare: Prepare, *more: object) -> list[object]:
    """A conversion whose values another one gives."""
    earlier = root.parent / "earlier"
    earlier.mkdir()
    words = [*map(str, one()(earlier)), "--out", str(root.parent / "values"), "--name", "set"]
    assert run(["convert", *words], earlier)[0] == 0
    return [*prepare(root), *more, "--normalize-like", root.parent / "values/set/1.0.0"]


@preparing
def some_channels(root: Path) -> list[object]:
    """Scans of two channels, one of which lacks the second."""
    given = channels(image())(root)
    save_nifti(root / "ct/b_0.nii", image(), AFFINE)
    save_nifti(root / "seg/b.nii", mask(), AFFINE)
    return given


def draw_arrays(root: Path) -> Path:
    for folder, array in {"images": image(), "labels": mask()}.items():
        (root / folder).mkdir()
        np.save(root / folder / "a.npy", np.ascontiguousarray(array))
    return root


@preparing
def arrays(root: Path) -> list[object]:
    return ["--layout", "pairs", "--source", draw_arrays(root), *SIZE]


@preparing
def arrays_without_a_layout(root: Path) -> list[object]:
    return ["--source", draw_arrays(root), *SIZE]


@preparing
def stack(root: Path, *more: object, spacing: str = "") -> list[object]:
    """A stack of TIFF pages and its label; a file beside each states the voxel size where it is given."""
    for folder, array in {"images": image(), "labels": mask()}.items():
        (root / folder).mkdir()
        tifffile.imwrite(root / folder / "a.tif", array, photometric="minisblack")
        if spacing:
            (root / folder / "a.json").write_text(f'{{"spacing": {spacing}}}')
    return ["--layout", "pairs", "--source", root, *more]


@preparing
def datalists(root: Path) -> list[object]:
    """Two datalists of MONAI that list one scan."""
    save_nifti(root / "ct.nii", image(), AFFINE)
    save_nifti(root / "seg.nii", mask(), AFFINE)
    for name in ("a", "b"):
        (root / f"{name}.json").write_text('{"training": [{"image": "ct.nii", "label": "seg.nii"}]}')
    return ["--layout", "monai", "--source", root, *SIZE]


@preparing
def shifted(root: Path, *more: object) -> list[object]:
    """A CT of a body in air, stored as HU + 1024."""
    body = np.full(image().shape, 24, np.int16)
    body[1:-1, 2:-2, 2:-2] = 1024 + image()[1:-1, 2:-2, 2:-2] % 90
    return [*one(scan=body)(root), *more]


@preparing
def overlapping(root: Path) -> list[object]:
    """A scan and the masks of two classes that share a voxel."""
    save_nifti(root / "p1/ct.nii", image(), AFFINE)
    for name in ("liver", "spleen"):
        save_nifti(root / f"p1/segmentations/{name}.nii", mask(classes=2), AFFINE)
    return ["--layout", "class-masks", "--source", root, *SIZE]


def header(sform, qform, data: NDArray[Any] | None = None) -> bytes:
    """A scan as NIfTI with these affines, whose code is 0 where there is none."""
    made = nibabel.Nifti1Image(np.ascontiguousarray((image() if data is None else data).T), None)
    for affine, put in ((sform, made.set_sform), (qform, made.set_qform)):
        put(None if affine is None else affine[:, [2, 1, 0, 3]], int(affine is not None))
    return bytes(made.to_bytes())


def report(out: Path) -> str:
    """The page of a data set."""
    page = out.parent / "report.html"
    assert run(["report", str(out / "set/1.0.0"), "--output", str(page)], out)[0] == 0
    return page.read_text()


NOWHERE = {"ct": header(None, None), "seg": header(None, None, mask())}
FLOATS = image().astype(np.float32) / 7
NAN = np.where(mask() == 1, np.nan, image()).astype(np.float32)
NAN_LABEL = np.where(mask() == 1, np.nan, mask()).astype(np.float32)

ADVICE: dict[str, Advice] = {
    # grids
    "a mask a voxel off": refused(one(grid=AFFINE + SHIFT), "(--mask-grid voxels)", "(--mask-grid resample)"),
    "a mask slightly off": refused(one(grid=AFFINE + SHIFT / 10), r"(--mask-grid-tolerance \S+) accepts it"),
    "a mask whose axes are turned": refused(one(grid=FLIPPED + SHIFT), "(--mask-grid resample) takes"),
    "channels slightly apart": refused(channels(image(), apart=0.1), r"(--mask-grid-tolerance \S+) accepts"),
    "channels on different grids": refused(
        channels(image()[::2], apart=0.1), "(--channel-grid resample)", proves="train +1 record"
    ),
    "a channel of another name": refused(
        channels(image()[::2], "--channel-grid resample:pet", apart=0.1),
        "of (--channel-grid) resample:pet",
        without=("--channel-grid",),
        more=("resample:1", "--mask-grid", "resample"),
        proves="train +1 record",
    ),
    "no rule for channels on other grids": usage(
        channels(image()[::2], "--channel-grid=align", apart=0.1),
        "(--channel-grid) align: expected refuse, resample",
        without=("--channel-grid=align",),
        more=("resample",),
    ),
    "a stack of pages as a picture": usage(
        stack(spacing="[3, 2, 1.5]"),
        r"use (--depth \d+ --height \d+ --width \d+), or",
        proves=r"train +1 record",
    ),
    "a stack of pages without a voxel size": refused(
        stack(*SIZE), r"(--array-spacing-mm 2\.5,0\.8,0\.8) for", proves=r"train +1 record"
    ),
    "two datalists": refused(
        datalists(),
        ("one with (--source)", "{source}/a.json", "--images", "{source}"),
        ("its folder with (--images)", "{source}", "--source", "{source}/b.json"),
        proves=r"train +1 record",
    ),
    "a CT stored with an offset": refused(
        shifted("--window abdomen"), r"use (--offset-hu=-1024)", proves=r"train +1 record"
    ),
    "an offset for channels": refused(
        channels(image(1), "--offset-hu -1024"), "leave (--offset-hu) out", proves=r"train +1 record"
    ),
    "an offset for a series": refused(dicom("--offset-hu -1024"), "leave (--offset-hu) out"),
    "an offset that is no number": usage(
        one("--offset-hu nan"), "such as (--offset-hu=-1024)", without=("--offset-hu",)
    ),
    "several masks of one class": refused(lesions(), "(--several-masks merge) joins", proves=r"2 classes"),
    "a vote and sets of classes": usage(
        one("--several-masks majority --class-overlap channels --classes 1,2"),
        "(--several-masks) majority and .*leave one out",
        "and (--class-overlap) channels",
        without=("--several-masks", "--class-overlap"),
        more=("last",),
    ),
    "a channel of some scans": noted(
        some_channels(), "(--channel-order) takes", more=("0", "--channels 1"), proves=r"train +2 records"
    ),
    "a spacing in meters": refused(
        pairs(*PATTERNS, "--spacing-mm 0.000002,0.0000015,0.0000015"), "(--spacing-mm) is", more=("3,2,1.5",)
    ),
    "masks that overlap": refused(overlapping(), "(--class-overlap last) or", proves=r"3 classes"),
    # headers
    "a qform that differs": noted(
        one("--mask-grid voxels", ct=header(AFFINE, AFFINE + SHIFT)), "(--sform-qform qform)", read=report
    ),
    "no orientation": noted(one(**NOWHERE), "with (--unoriented neurological) if", read=report),
    "a qform that differs, to be refused": refused(
        one("--sform-qform refuse", ct=header(AFFINE, AFFINE + SHIFT)), "(--sform-qform sform) or"
    ),
    "an sform of nothing, to be refused": refused(
        one("--sform-qform refuse", ct=header(AFFINE * 0, AFFINE)), "(--sform-qform qform) takes the qform"
    ),
    "arrays without a layout": refused(arrays_without_a_layout(), r"(--array-spacing-mm), such as (\S+) for"),
    "arrays": refused(arrays(), r"(--array-spacing-mm), such as (\S+) for"),
    "unoriented": refused(one("--unoriented refuse", **NOWHERE), "(--unoriented radiological) or"),
    "more voxels than allowed": refused(one("--max-voxels 100"), r"(--max-voxels \d+) allows it"),
    "more memory than allowed": refused(
        one("--max-memory 1", scan=np.zeros((60, 80, 90), np.int16), label=np.zeros((60, 80, 90), np.uint8)),
        r"such as (--max-memory \d+)",
    ),
    # labels of a channel or a color per class
    "a label with a channel per class": refused(
        one(label=HOT), "in order with (--label-channels), such", more=("background,a,b",), proves="3 classes"
    ),
    "a label in color": refused(one(label=HOT), "(--label-colors), such", more=(COLORS,), proves="3 classes"),
    "a color without a class": refused(
        one("--label-colors 000100=a,000001=b", label=HOT), "010000=CLASS to (--label-colors)", more=(COLORS,)
    ),
    "channels and colors": usage(
        one(f"--label-channels background,a,b --label-colors {COLORS}", label=HOT),
        "(--label-channels) and.*leave one out",
        "(--label-colors): .*leave one out",
    ),
    "a channel named twice": usage(
        one("--label-channels a,b,b", label=HOT),
        "name it once, and join classes with (--map-classes)",
        more=("b=a", "--label-channels", "background,a,b"),
        without=("--label-channels",),
    ),
    "label images in color": refused(
        color_labels(), "which class with (--label-colors)", more=("00ff00=a",), proves="2 classes"
    ),
    "colors of gray label images": refused(
        label_images("--label-colors 00ff00=a"), "(--label-colors) is for label images.* leave it out"
    ),
    # values
    "NaN": refused(one(scan=NAN), "(--non-finite-value), such as (-1024)", proves=r"train +1 record "),
    "a label with NaN": refused(one(label=NAN_LABEL), "(--non-finite-labels background) takes"),
    "fractions as integers": refused(one("--dtype int16", scan=FLOATS / 1000), "take (--dtype float32)"),
    "fractions in a window of their own": refused(
        one("--dtype int16", scan=FLOATS / 1000), "or (--window-percentiles 0.5,99.5)", without=("--dtype",)
    ),
    "fractions in a narrow window": refused(
        one("--dtype int16 --window-hu 0,1 --window-unit any", scan=FLOATS / 1000), "take (--dtype float32)"
    ),
    "values beyond int16": refused(
        one(scan=image() * np.int32(1000)), "take (--dtype float32)", "or (--window-percentiles 0.5,99.5)"
    ),
    "values of no unit": refused(one("--window lung", scan=abs(image()) % 150), "or use (--window-unit any)"),
    "a window for values that are no Hounsfield units": refused(
        one("--window lung", scan=abs(image())), "(--window-percentiles 0.5,99.5)", without=("--window",)
    ),
    "a flat scan": refused(one("--window-percentiles 1,99", scan=0 * mask()), "leave (--window-percentiles)"),
    "a flat scan normalized": refused(
        one("--normalize scan", scan=np.zeros_like(image())), "leave .* and (--normalize) scan out"
    ),
    "channels called MR": usage(
        medical("msd", msd_document("a.nii.gz", channels=("T1",)), "--window lung"),
        "take (--window-percentiles 0.5,99.5)",
        without=("--window",),
    ),
    "one window for two channels": refused(
        channels(image() / np.float32(10), "--window-hu=-9000,9000"),
        "take (--window-percentiles 0.5,99.5) in place",
        without=("--window-hu=-9000,9000",),
    ),
    "a narrow window for two channels": refused(
        channels(image() / np.float32(10), "--window-hu=-9000,9000"),
        "or (--dtype float32) without it",
        without=("--window-hu=-9000,9000",),
    ),
    # another conversion's values
    "another set's values": usage(like(label_images()), "(--normalize-like) is for.*leave it out"),
    "another conversion's values without a shape": usage(
        like(volumes(*SMALL[2:])), "or add (--depth)", more=(4, *SMALL[2:]), without=("--height", "--width")
    ),
    "another conversion's values and a normalization": usage(
        like(pairs(*PATTERNS), *SIZE, "--normalize scan"), "leave .* and (--normalize) out"
    ),
    **{
        f"another conversion's values and {option}": usage(
            like(pairs(*PATTERNS), *SIZE, option, value), f"leave .*({option})[, ].* out"
        )
        for option, value in {
            "--window": "lung",
            "--window-hu": "0,100",
            "--window-percentiles": "1,99",
        }.items()
    },
    "a label pattern that matches nothing": refused(
        pairs("--image-pattern", PATTERNS[1], "--label-pattern {id}/label.nii.gz"),
        "image has no label.*(--missing-masks prediction)",
    ),
    "DICOM as pairs": refused(
        lambda source: [*dicom()(source)[:1], "pairs", *dicom()(source)[2:]],
        "no volume, picture or clip.*take (--layout dicom)",
    ),
}
