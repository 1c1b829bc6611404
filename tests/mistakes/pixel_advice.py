"""Advice about the pixels, label images and frames of pictures and clips."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image

from halofeed.pipelines import beam_options as options
from halofeed.system.memory import MEBIBYTE
from tests.mistakes.option_advice import label_images
from tests.mistakes.test_table_mistakes import HEADER, ROW, draw, table
from tests.support.advice import Advice, noted, refused
from tests.support.annotation_writer import boxed, write_annotations
from tests.support.clip_mask_writer import draw_masked, write_masks
from tests.support.clip_samples import TRANSPARENT_VP9
from tests.support.clip_writer import moving_square, write_gif, write_video
from tests.support.memory_cases import even_png
from tests.support.mistakes import preparing

SIDES = ("--height", 16, "--width", 24)
FRAMES = moving_square("left", 4, np.random.default_rng(0))


@preparing
def classes(root: Path, write: Callable[[Path], object], *more: object) -> list[object]:
    """Two class folders with a file each."""
    for name in ("hat", "cap"):
        (root / name).mkdir()
        write(root / name)
    sides = () if {"none", "keep-aspect"} & set(more) else SIDES
    return ["--layout", "folders", "--source", root, *sides, *more]


def gray(most: int) -> Callable[[Path], object]:
    """A picture of 16 bits whose values go up to `most`."""
    pixels = np.linspace(0, most, 16 * 24).reshape(16, 24).astype(np.uint16)
    return lambda folder: Image.fromarray(pixels).save(folder / "a.png")


def long(width: int) -> Callable[[Path], object]:
    """A picture of one row."""
    return lambda folder: Image.new("L", (width, 1)).save(folder / "a.png")


@preparing
def beside_a_large_one(root: Path, *more: object) -> list[object]:
    draw(root, "hat/a.png", "cap/a.png")
    (root / "cap/large.png").write_bytes(even_png(2000, 2000, 8, 2))
    return ["--layout", "folders", "--source", root, *more]


@preparing
def turned(root: Path, *more: object) -> list[object]:
    """A box on a picture that its EXIF orientation turns upside down."""
    draw(root, "a.png", orientation=3)
    name = write_annotations(root, "csv", [boxed("a.png", (1, 2, 9, 9))])
    return ["--layout", "csv", "--source", root / name, *SIDES, *more]


@preparing
def blended(root: Path) -> list[object]:
    """Label images whose edges were blended."""
    given = label_images()(root)
    ring = np.zeros((72, 96), np.uint8)
    ring[20:50, 30:70] = 100
    for name in "ab":
        Image.fromarray(ring).rotate(20, Image.Resampling.BILINEAR).save(root / f"labels/{name}.png")
        draw(root, f"images/{name}.png", size=(72, 96))
    return given


@preparing
def turned_frames(root: Path) -> list[object]:
    """A folder of frames that are turned, and their masks."""
    frames, masks = draw_masked(np.random.default_rng(0), 2)
    (root / "images/a").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 3
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(root / f"images/a/{number}.png", exif=exif)
    write_masks(root / "labels/a", masks, "folder")
    return ["--layout", "pairs", "--source", root, "--frames", 2, *SIDES]


def transparent(folder: Path) -> None:
    (folder / "a.webm").write_bytes(TRANSPARENT_VP9)


def frame_file(folder: Path) -> None:
    (folder / "0").mkdir()
    Image.fromarray(FRAMES[0]).save(folder / "0/0.png")


def cut_video(folder: Path) -> None:
    write_video(folder / "a.avi", FRAMES * 4)
    data = (folder / "a.avi").read_bytes()
    (folder / "a.avi").write_bytes(data[: len(data) * 2 // 3])


ADVICE: dict[str, Advice] = {
    "several pictures in a file": noted(
        classes(lambda folder: write_gif(folder / "a.gif", FRAMES)),
        "with (--frames)",
        more=(2,),
        proves=r"train +4 records",
    ),
    "12 bits of 16, bright": noted(classes(gray(10_000)), "(--sample-bits) says", more=(14,)),
    "12 bits of 16": refused(classes(gray(4000)), r"use (--sample-bits \d+) if", "with (--dtype uint16)"),
    "more bits than said": refused(classes(gray(4000), "--sample-bits 10"), r"use (--sample-bits \d+), or"),
    "16 bits in place of fewer": refused(
        classes(gray(4000), "--sample-bits 10"), "it (--dtype uint16) in place", without=("--sample-bits",)
    ),
    "a transparent video": refused(classes(transparent, "--frames 2 --alpha blend"), "(--alpha drop) leaves"),
    "too long": refused(classes(long(65_600), "--resize none --encoding jpeg"), "take (--encoding png)"),
    "a picture too long for PNG": refused(
        classes(long(1_000_100), "--resize none --encoding png"), "take (--encoding raw --resize fixed-shape)"
    ),
    "a picture that takes the memory of two workers": noted(
        beside_a_large_one("--workers 2 --shards 2 --resize none --encoding png"),
        "take fewer (--workers)",
        more=(1,),
        throughout=lambda: patch.object(options, "machine_memory", lambda: 50 * MEBIBYTE),
    ),
    "a picture that lies upside down": noted(turned(), "use (--annotation-grid stored)"),
    "a box without an area": noted(
        table([HEADER, ROW, "a.png,hat,5,5,5,9"]), "use (--boxes-zero-area keep)", proves=r"detection"
    ),
    "blended label images": refused(blended(), r"with (--classes \d+)"),
    "a void that may be a class": refused(
        label_images(values=(0, 1, 2, 255)), "; (--ignore-label 255) ignores", "(--map-classes 255=255) makes"
    ),
    "frames that lie upside down": refused(turned_frames(), "use (--annotation-grid displayed)"),
    "too long and thin": refused(
        classes(long(3000), "--resize keep-aspect --encoding jpeg"), "with (--resize fixed-shape)"
    ),
    "frames without time stamps": refused(
        classes(frame_file, "--frames 1 --frame-rate 5"),
        ("with (--folder-frame-rate)", "10", "--frame-rate 5"),
        ("use (--frame-stride)", "2"),
        without=("--frame-rate",),
    ),
    "a video that was cut off": refused(classes(cut_video, "--frames 2"), "(--incomplete-clips keep) takes"),
}
