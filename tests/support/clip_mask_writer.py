"""How tests draw clips with masks: two shapes that move, a class each, as videos, animations or folders of frames."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.support.clip_writer import BACKGROUND, HEIGHT, RATE, WIDTH, write_clip, write_folder
from tests.support.conversions import run_convert

Frames = list[NDArray[np.uint8]]
FRAMES = 12
COLORS = {1: (220, 120, 60), 2: (40, 90, 230)}
PALETTE = [0, 0, 0, 255, 0, 0, 0, 255, 0]
FORMS = ("folder", "png", "gif", "webp")


def draw_masked(generator: np.random.Generator, frames: int = FRAMES) -> tuple[Frames, Frames]:
    """Frames uint8 [HEIGHT, WIDTH, 3] and class indices [HEIGHT, WIDTH]: a square goes right, a bar grows down."""
    top, left = int(generator.integers(2, 20)), int(generator.integers(0, 12))
    column = int(generator.integers(44, 56))
    pictures, masks = [], []
    for frame in range(frames):
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        mask[top : top + 14, left + 2 * frame : left + 2 * frame + 12] = 1
        mask[1 : 6 + 2 * frame, column : column + 6] = 2
        picture = np.full((HEIGHT, WIDTH, 3), BACKGROUND, np.uint8)
        for value, color in COLORS.items():
            picture[mask == value] = color
        pictures.append(picture)
        masks.append(mask)
    return pictures, masks


def write_masks(path: Path, masks: Frames, form: str, duration_ms: int = 1000 // RATE) -> Path:
    """The masks as a folder of PNG files with a palette, or as an animation; returns its path."""
    if form == "folder":
        write_folder(path, [with_palette(mask) for mask in masks])
        return path
    path = path.with_suffix(f".{form}")
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *others = [with_palette(mask) if form == "png" else Image.fromarray(mask) for mask in masks]
    how = {"lossless": True} if form == "webp" else {}
    first.save(path, save_all=True, append_images=others, duration=duration_ms, **how)
    return path


def with_palette(mask: NDArray[np.uint8]) -> Image.Image:
    """The mask as tools of annotation write it: indices of a palette of colors."""
    image = Image.fromarray(mask)
    image.putpalette(PALETTE)
    return image


def write_masked_clips(root: Path, each: int = 1, frames: int = FRAMES) -> dict[str, tuple[NDArray, NDArray]]:
    """`images` and `labels`: clips and masks of every form; the frames and masks of each by its name."""
    generator = np.random.default_rng(0)
    drawn = {}
    for number in range(each):
        for kind in ("folder", "gif", "mp4"):
            for form in FORMS:
                pictures, masks = draw_masked(generator, frames)
                name = f"{kind}{number}/{form}"
                path = root / "images" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_clip(path, kind, pictures)
                write_masks(root / "labels" / name, masks, form)
                drawn[name] = np.array(pictures), np.array(masks)
    return drawn


def convert_masked_clips(folder: Path) -> Path:
    """A data set of two windows of 5 frames of each of those clips, [5, HEIGHT, WIDTH], in two shards."""
    write_masked_clips(folder / "in")
    given = {"layout": "pairs", "frames": 5, "height": HEIGHT, "width": WIDTH, "shards": 2}
    return Path(run_convert(folder / "in", folder / "out", **given).folder)
