"""Advice about options that contradict each other or have no effect, given before a source is read."""

from pathlib import Path

import numpy as np
from PIL import Image

from tests.mistakes.picture_sources import coco, folders, source
from tests.mistakes.test_command_mistakes import SIZE, pictures, volumes
from tests.mistakes.volume_sources import SIZE as WHOLE
from tests.mistakes.volume_sources import pair
from tests.support.advice import Advice, refused, usage
from tests.support.annotation_writer import draw
from tests.support.clip_mask_writer import draw_masked, write_masks
from tests.support.clip_writer import write_class_folders, write_folder
from tests.support.mistakes import Prepare, preparing
from tests.support.small_scans import nnunet_document, write_json

SIDES = ("--height", 16, "--width", 24)


@preparing
def unframed_clips(root: Path, *more: object) -> list[object]:
    write_class_folders(root, 1, frames=4)
    return ["--layout", "folders", "--source", root, *SIDES, *more]


def clips(*more: object) -> Prepare:
    return unframed_clips("--frames", 2, *more)


@preparing
def masked_clips(root: Path, *more: object) -> list[object]:
    frames, masks = draw_masked(np.random.default_rng(0), 2)
    write_folder(root / "images/a", frames)
    write_masks(root / "labels/a", masks, "folder")
    return ["--layout", "pairs", "--source", root, "--frames", 2, *SIDES, *more]


@preparing
def channels(root: Path, pattern: str, *more: object) -> list[object]:
    """Scans whose two channels are files of their own."""
    for number in range(2):
        pair(root, f"images/a_{number}.nii.gz", "labels/a.nii.gz")
    patterns = ["--image-pattern", pattern, "--label-pattern", "labels/{id}.nii.gz"]
    return ["--layout", "pairs", "--source", root, *patterns, *WHOLE, "--channels", 2, *more]


def write_label(path: Path, values: tuple[int, ...] = (0, 1), shape: tuple[int, int] = (16, 24)) -> None:
    """A label image of stripes of these values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.resize(np.repeat(values, 4), shape).astype(np.uint8)).save(path)


@preparing
def ordered_palettes(root: Path, *more: object) -> list[object]:
    """Label images whose palettes have the same colors in different orders, as optimizers write them."""
    draw(root, "images/a.png", "images/b.png")
    for name, order in (("a", (0, 1, 2)), ("b", (0, 2, 1))):
        path = root / f"labels/{name}.png"
        write_label(path, (0, 1, 2))
        with Image.open(path) as picture:
            colored = picture.convert("L")
        colors = dict(zip(order, ((0, 0, 0), (255, 0, 0), (0, 255, 0)), strict=True))
        colored.putpalette([value for place in range(3) for value in colors[place]])
        colored.save(path)
    return ["--layout", "pairs", "--source", root, *SIDES, *more]


@preparing
def label_images(root: Path, *more: object, values: tuple[int, ...] = (0, 1)) -> list[object]:
    draw(root, "images/a.png", "images/b.png")
    for name in "ab":
        write_label(root / f"labels/{name}.png", values)
    return ["--layout", "pairs", "--source", root, *SIDES, *more]


@preparing
def table(root: Path, *more: object) -> list[object]:
    """Classes and boxes of two pictures."""
    draw(root, "a.png", "b.png")
    (root / "boxes.csv").write_text("filename,class,xmin,ymin,xmax,ymax\na.png,a,1,2,9,9\nb.png,b,1,2,9,9\n")
    return ["--layout", "csv", "--source", root / "boxes.csv", *SIDES, *more]


@preparing
def plain(root: Path, *more: object) -> list[object]:
    """Class folders, without a size."""
    folders(root)
    return ["--layout", "folders", "--source", root, *more]


def as_table(root: Path) -> None:
    (root / "classes.csv").write_text("filename,class\nhat/a.png,hat\ncoat/b.png,coat\n")


@preparing
def regions(root: Path, *more: object) -> list[object]:
    """A case of nnU-Net, one of whose classes is a region of two values."""
    pair(root, "imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz")
    labels = {"background": 0, "whole": [1, 2], "core": 2}
    write_json(root, nnunet_document(labels=[]) | {"labels": labels, "regions_class_order": [1, 2]})
    return ["--layout", "nnunet", "--source", root, *WHOLE, *more]


STRETCHED = ("--height", "--width")
FULL = (4, *SIZE[2:])

ADVICE: dict[str, Advice] = {
    # clips
    "short clips": refused(unframed_clips("--frames", 9), "take a smaller (--frames)", more=(4,)),
    "short clips to repeat": refused(unframed_clips("--frames", 9), "or (--short-clips repeat)"),
    "colors of palettes": refused(ordered_palettes(), "; (--label-colors [^ ]+), with your names"),
    "numbers of palettes": refused(ordered_palettes(), "(--label-values stored) takes the numbers"),
    "a depth of clips": usage(clips("--depth 2"), "(--depth) for volumes; leave one"),
    "frames of volumes": usage(volumes(*SIZE, "--frames 2"), "(--frames) is for clips.*leave one"),
    "frames of boxes": usage(source("coco", coco, "--frames 2"), "(--frames) is for clips.*leave it out"),
    "clips for detection": usage(clips("--task detection"), "goes with (--task classification)"),
    "frames for detection": usage(table("--task detection --frames 2"), "leave (--frames) out"),
    "clip sets": usage(clips("--class-overlap channels"), "(--class-overlap) channels is for.*leave it out"),
    "clips as JPEG": usage(clips("--encoding jpeg"), "--encoding jpeg: clips.*take (--encoding packed)"),
    "clips of 16 bits": usage(clips("--dtype uint16"), "(--dtype) uint16: clips.*leave it out"),
    "gray clips": usage(clips("--channels 1"), "(--channels) 1: clips.*leave it out"),
    "unsized clips": usage(clips("--resize none"), "take (--resize keep-aspect --pad)", without=STRETCHED),
    "clips of any size": usage(clips("--resize none"), "or (--resize fixed-shape)"),
    "mask sets": usage(masked_clips("--class-overlap channels"), "of masks take (--class-overlap last)"),
    # pictures
    "floats": usage(volumes("--dtype float32", *SIZE[2:]), "give (--depth)", more=FULL, without=STRETCHED),
    "limits of sides exchanged": usage(
        plain("--resize keep-aspect --min-dimension 32 --max-dimension 16 --pad"),
        "swap them: (--min-dimension 16 --max-dimension 32)",
    ),
    "sets of classes of pictures": usage(
        label_images("--class-overlap channels"),
        "take (--class-overlap last)",
        "(--class-overlap) channels is for.*leave it out",
    ),
    "stretched and padded": usage(pictures("--pad"), "take (--resize keep-aspect --pad)", without=STRETCHED),
    "padding of stretched pictures left out": usage(pictures("--pad"), "leave (--pad) out"),
    "raw padding": usage(pictures("--resize none"), "take (--resize keep-aspect --pad)", without=STRETCHED),
    "raw pictures of their own sizes": usage(pictures("--resize none"), ", (--resize fixed-shape)"),
    "raw pictures as they are": usage(plain("--resize none"), "or (--encoding jpeg)"),
    "packed pictures as they are": usage(plain("--resize none --encoding packed"), "or (--encoding jpeg)"),
    "color planes of odd sizes": usage(
        plain("--encoding yuv420 --height 15 --width 24"),
        "take (--height 16 --width 24), or",
        "or (--encoding packed)",
    ),
    "color planes of padded odd sizes": usage(
        plain("--encoding yuv420 --resize keep-aspect --pad --min-dimension 9 --max-dimension 15"),
        "take (--max-dimension 16), or",
    ),
    "color planes of 16 bits": usage(
        pictures("--encoding yuv420 --dtype uint16"), "take (--encoding packed)"
    ),
    "color planes of gray pictures": usage(
        pictures("--encoding yuv420 --channels 1"), "take (--encoding packed)"
    ),
    "color planes of clips": usage(clips("--encoding yuv420"), "yuv420: clips.*take (--encoding packed)"),
    "color planes of volumes": usage(
        volumes(*SIZE, "--encoding yuv420"), "yuv420: volumes.*take (--encoding packed)"
    ),
    "JPEG of 16 bits": usage(pictures("--encoding jpeg --dtype uint16"), "take (--encoding png)"),
    "volumes": usage(volumes(*SIZE[2:]), "set its static shape with (--depth)", more=FULL, without=STRETCHED),
    "volumes without a size": usage(volumes(*SIZE[2:]), "(--dry-run) proposes one", without=STRETCHED),
    # volumes
    "a depth of class folders": usage(pictures("--depth 4"), "(--depth).*pictures.*leave"),
    "too many channels": refused(
        volumes(*SIZE, "--channels 3"), r"(?s)such as images/0.nii.gz.*expected 3.*(--channels 1)"
    ),
    "a depth of boxes": usage(source("coco", coco, "--depth 4"), "(--depth) is for volumes.*leave it out"),
    "two windows": usage(
        volumes(*SIZE, "--window lung --window-hu 0,100"),
        "(--window), --window-hu.*give one",
        "(--window-hu) and.*give one",
    ),
    "a third window": usage(
        volumes(*SIZE, "--window-percentiles 1,99 --window-hu 0,100"), "(--window-percentiles): give one"
    ),
    "a mask far off its scan": usage(
        volumes(*SIZE, "--mask-grid-tolerance 0.9"),
        "(--mask-grid resample)",
        without=("--mask-grid-tolerance",),
    ),
    "a window of scans normalized each": usage(
        volumes(*SIZE, "--normalize scan --window lung --dtype float32"),
        "leave the window out, or (--normalize)",
    ),
    "one standard for windows of their own": usage(
        volumes(*SIZE, "--normalize 3/4 --window-percentiles 1,99"),
        "(--window-percentiles); leave that out",
        "take (--normalize scan) in place of both",
        without=("--window-percentiles",),
    ),
    "an ignore label in sets of classes": usage(
        volumes(*SIZE, "--classes 1 --ignore-label 9 --class-overlap channels"),
        "(--ignore-label) and.*leave one out",
        "(--class-overlap) channels.*leave one out",
    ),
    "volumes for detection": usage(volumes(*SIZE, "--task detection"), "one of them, (--task segmentation)"),
    "volumes for classification": usage(
        volumes(*SIZE, "--task classification"), "goes with (--task segmentation)"
    ),
    "classes with a depth": usage(table("--task classification --depth 4"), "leave (--depth) out"),
    "boxes with a depth": usage(table("--task detection --depth 4"), "leave (--depth) out"),
    "volumes as PNG": usage(volumes(*SIZE, "--encoding png"), "png: volumes.*take (--encoding packed)"),
    "integers normalized": usage(
        volumes(*SIZE, "--normalize scan --dtype int16"), "take (--dtype float32)", "leave (--normalize) out"
    ),
    "bytes without a window": usage(volumes(*SIZE, "--dtype uint8"), "give (--window),", more=("lung",)),
    "bytes without a window of HU": usage(
        volumes(*SIZE, "--dtype uint8"), "--window, (--window-hu)", "(--window-percentiles)", more=("1,99",)
    ),
    "pictures with a depth": usage(label_images("--depth 4 --height 6 --width 6"), "leave (--depth) out"),
    "regions as classes and as channels": usage(
        regions("--regions combine --class-overlap channels"),
        "(--regions) combine.*leave one",
        "(--class-overlap) channels.*leave one",
    ),
    # without effect
    "an idle height": usage(pictures("--resize none --encoding png"), "without (--resize fixed-shape)"),
    "a height of volumes in no shape": usage(
        volumes(*SIZE[2:], "--resize none --encoding png"),
        "fixed-shape or (--depth)",
        more=FULL,
        without=(*STRETCHED, "--resize", "--encoding"),
    ),
    "limits of sides of stretched pictures": usage(
        plain("--min-dimension 32"),
        r"without (--resize keep-aspect) \(with (--pad)",
        r"without (--resize keep-aspect) .* or (--encoding jpeg)",
    ),
    "interpolation of pictures as they are": usage(
        plain("--resize none --encoding png --interpolation tf1-area"), "without (--resize fixed-shape)"
    ),
    "what pads stretched pictures": usage(
        pictures("--pad-value 9"), "without (--resize keep-aspect --pad)", without=STRETCHED
    ),
    "what pads volumes": usage(volumes("--pad-value 9"), "or (--depth)", more=FULL),
    "transparency of volumes": usage(volumes(*SIZE, "--alpha blend"), "(--alpha) has no effect.*leave one"),
    "transparency of labels": usage(
        label_images("--depth 4 --height 6 --width 6 --alpha blend"), "with (--depth); leave one"
    ),
    "options of clips": usage(unframed_clips("--frame-stride 2"), "without (--frames), or", more=(2,)),
    "options of volumes": usage(volumes("--mask-grid voxels"), "without (--depth);", more=FULL),
    "a unit alone": usage(volumes(*SIZE, "--window-unit any"), "without (--window) or", more=("lung",)),
    "a unit alone of HU": usage(volumes(*SIZE, "--window-unit any"), "or (--window-hu);", more=("0,100",)),
    "an idle center": usage(volumes(*SIZE, "--fit stretch --center label"), "without (--fit crop-or-pad)"),
    "tiles that overlap without any": usage(volumes(*SIZE, "--tile-overlap 1,1,1"), "without (--fit tiles)"),
    "the order of no channels": usage(
        channels("images/{id}_0.nii.gz", "--channel-order 1,0"),
        "without {channel} in (--image-pattern)",
        more=("images/{id}_{channel}.nii.gz",),
    ),
    "transparency kept and blended": usage(pictures("--channels 4 --alpha blend"), "without (--channels 1)"),
    "a background that nothing is put on": usage(pictures("--background 9,9,9"), "without (--alpha blend)"),
    "the quality of PNG": usage(pictures("--encoding png --jpeg-quality 50"), "without (--encoding jpeg)"),
    "boxes of a class table": usage(table("--task classification --max-boxes 5"), "and (--task detection);"),
    "kept classes": usage(table("--task detection --class-separator |"), "and (--task classification);"),
    "several classes of class folders": usage(
        plain("--class-separator |"), "(--layout csv), jsonl", first=as_table, more=("--task classification",)
    ),
}
