"""Drawn large pictures with known objects: any band of rows is drawn without the rows above it.

The objects are the shapes of the demo, as large as in its records, so that a detector trained on the demo finds them.
A picture of 20,000 x 20,000 needs the memory of the rows that are asked for and of one band of the background.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from halofeed.demo import SHAPES

PERIOD = 512
"""The background repeats after so many rows, so that most tiles without an object are encoded once."""
PERIOD_ACROSS = 22 * PERIOD
"""It repeats after so many columns, which are more bytes than the 32 KiB in which deflate finds repetitions."""
RADIUS = (9.0, 28.0)
"""Of the objects, in pixels: 0.12 to 0.22 of the shorter side of the demo's pictures, whose records have 128 pixels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnObject:
    """One object of a picture.

    Args:
        category: number of its shape in SHAPES.
        corners: [n, 2] of its outline as x, y in pixels, from the corner of the first pixel.
        color: red, green and blue.
    """

    category: int
    corners: NDArray[np.float64]
    color: tuple[int, int, int]

    @cached_property
    def box(self) -> tuple[float, float, float, float]:
        """Its box as ymin, xmin, ymax, xmax."""
        (left, top), (right, bottom) = self.corners.min(0).tolist(), self.corners.max(0).tolist()
        return top, left, bottom, right

    @property
    def window(self) -> tuple[int, int, int, int]:
        """Top, left, bottom and right of whole pixels around the object; its drawn outline may leave its box by one."""
        top, left, bottom, right = self.box
        return math.floor(top) - 1, math.floor(left) - 1, math.ceil(bottom) + 1, math.ceil(right) + 1

    def inside(self) -> NDArray[np.bool_]:
        """[height, width] of its window: True on the object."""
        top, left, bottom, right = self.window
        drawn = Image.new("L", (right - left, bottom - top))
        points = [(x - left, y - top) for x, y in self.corners]
        ImageDraw.Draw(drawn).polygon(points, fill=1)
        return np.array(drawn, bool)


class LargePicture:
    """An 8-bit RGB picture of shapes that do not overlap, the same for each seed.

    Args:
        height, width: of the picture in pixels.
        count: number of objects, each in a cell of a regular grid.
        seed: of what is drawn.

    Raises:
        ValueError: so many objects do not fit.

    >>> picture = LargePicture(300, 400, count=6)
    >>> picture.rows(100, 120).shape
    (20, 400, 3)
    """

    def __init__(self, height: int, width: int, *, count: int, seed: int = 0) -> None:
        self.height, self.width = height, width
        generator = np.random.default_rng(seed)
        self.texture = _draw_texture(generator, min(-(-width // PERIOD) * PERIOD, PERIOD_ACROSS))
        self.objects: Sequence[DrawnObject] = _draw_objects(generator, height, width, count)
        self._windows = np.array([drawn.window for drawn in self.objects], np.int64).reshape(-1, 4)

    @cached_property
    def _background(self) -> NDArray[np.uint8]:
        return np.tile(self.texture, (1, -(-self.width // self.texture.shape[1]), 1))[:, : self.width]

    def numbers_in(self, top: int, left: int, bottom: int, right: int) -> NDArray[np.int64]:
        """Return the numbers of the objects whose windows reach into a window."""
        reaches = (self._windows[:, :2] < (bottom, right)) & (self._windows[:, 2:] > (top, left))
        return np.flatnonzero(reaches.all(1))

    def rows(self, top: int, bottom: int) -> NDArray[np.uint8]:
        """Return [rows, width, 3], the rows from `top` to before `bottom`."""
        band = self._background[np.arange(top, bottom) % PERIOD]
        for number in self.numbers_in(top, 0, bottom, self.width):
            drawn = self.objects[number]
            first, left, last, right = drawn.window
            shown = slice(max(first, top), min(last, bottom))
            inside = drawn.inside()[shown.start - first : shown.stop - first]
            band[shown.start - top : shown.stop - top, left:right][inside] = drawn.color
        return band

    def shrunk_rows(self, factor: int, top: int, bottom: int) -> NDArray[np.uint8]:
        """Return rows of the picture shrunk by area; rows and columns that fill no whole pixel are left out."""
        if factor == 1:
            return self.rows(top, bottom)
        width, step = self.width // factor, max(1, PERIOD // factor)
        shrunk = np.empty((bottom - top, width, 3), np.uint8)
        for first in range(top, bottom, step):
            last = min(first + step, bottom)
            band = self.rows(first * factor, last * factor)[:, : width * factor]
            target = shrunk[first - top : last - top]
            cv2.resize(band, (width, last - first), dst=target, interpolation=cv2.INTER_AREA)
        return shrunk

    def bands(self, rows: int, factor: int = 1) -> Iterator[NDArray[np.uint8]]:
        """Iterate over bands of so many rows, the last one shorter."""
        height = self.height // factor
        for top in range(0, height, rows):
            yield self.shrunk_rows(factor, top, min(top + rows, height))


def _draw_texture(generator: np.random.Generator, width: int) -> NDArray[np.uint8]:
    """[PERIOD, width, 3]: waves that repeat without an edge, and the noise that the demo's shrunk pictures have."""
    turns_down, turns_across = (np.arange(side) / PERIOD * 2 * np.pi for side in (PERIOD, width))
    shades = np.zeros((PERIOD, width), np.float32)
    for down, across in ((1, 0), (0, 1), (1, 2), (2, -1)):
        phase = generator.uniform(0, 2 * np.pi)
        shades += 7 * np.cos(down * turns_down[:, None] + across * turns_across + phase)
    noise = 5 * generator.standard_normal((PERIOD, width, 3), np.float32)
    background = generator.integers(105, 136, 3)
    return np.clip(background + shades[..., None] + noise, 60, 190).astype(np.uint8)


def _draw_objects(
    generator: np.random.Generator, height: int, width: int, count: int
) -> tuple[DrawnObject, ...]:
    """One object in each of `count` cells of a grid, at a place of the cell that keeps it inside."""
    if not count:
        return ()
    side = math.sqrt(height * width / count)
    down, across = max(1, round(height / side)), max(1, round(width / side))
    while down * across < count:
        down, across = (down + 1, across) if height / down > width / across else (down, across + 1)
    cell_height, cell_width = height / down, width / across
    if min(cell_height, cell_width) < 2 * RADIUS[1] + 4:
        raise ValueError(f"{count} objects do not fit into {height} x {width} pixels")
    objects = []
    for cell in np.sort(generator.choice(down * across, count, replace=False)):
        row, column = divmod(int(cell), across)
        category = int(generator.integers(len(SHAPES)))
        radius = generator.uniform(*RADIUS)
        reach = radius + 2
        y = row * cell_height + generator.uniform(reach, cell_height - reach)
        x = column * cell_width + generator.uniform(reach, cell_width - reach)
        points = {"disc": 48, "square": 4, "triangle": 3}[SHAPES[category]]
        turns = np.arange(points) / points * 2 * np.pi + generator.uniform(0, 2 * np.pi)
        corners = np.stack([x + radius * np.cos(turns), y + radius * np.sin(turns)], 1)
        shade, blue = (int(value) for value in generator.choice([30, 225], 2))
        objects.append(DrawnObject(category=category, corners=corners, color=(shade, shade, blue)))
    return tuple(objects)


def coco_document(pictures: dict[str, LargePicture]) -> dict[str, Any]:
    """Return the COCO document of pictures by file name: ids from 1, boxes as x, y, width, height, and outlines."""
    images, annotations = [], []
    for number, (name, picture) in enumerate(pictures.items(), 1):
        images.append({"id": number, "file_name": name, "width": picture.width, "height": picture.height})
        for drawn in picture.objects:
            top, left, bottom, right = drawn.box
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": 1 + drawn.category,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top),
                    "iscrowd": 0,
                    "segmentation": [drawn.corners.ravel().tolist()],
                }
            )
    categories = [{"id": 1 + number, "name": shape} for number, shape in enumerate(SHAPES)]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_coco(file: Path, pictures: dict[str, LargePicture]) -> None:
    """Write the COCO document of pictures."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(coco_document(pictures)))
