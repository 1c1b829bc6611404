"""Pictures of a page as data: URIs, and layers over them: classes as fills with outlines, boxes with tags."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.contact_sheet import rgb_of
from halofeed.prep.formats.picture.image import scale_depth
from halofeed.prep.voxels.encode import encode_jpeg, encode_png

_FULL_SIZE_PICTURES = 24
"""Most pictures at full size; more are drawn smaller, so that a page stays below 5 MB."""
_JPEG_QUALITY = 84
_COLORS = 3
_EXACT_PIXELS = 96 * 96
"""Pictures up to this many pixels are shown as PNG, because blocks of JPEG would be visible."""
_FILL = 80
"""Opacity inside a class, of 255; the outline has 255."""
_MIN_SIDE = 240
_TAG_WIDTH, _TAG_LETTER, _TAG_HEIGHT = 0.055, 0.024, 0.065
"""Size of a tag on a picture of width 1: least width, width of each letter, and height."""


def overlay(label: NDArray[Any], ranks: Mapping[int, int], size: tuple[int, int]) -> str | None:
    """Draw class indices [height, width] as a PNG with alpha.

    Args:
        ranks: color number of each class.
        size: (height, width) of the picture, to which labels are scaled by nearest neighbor. A tiny picture is
            enlarged by an integer, so that outlines stay thin.

    Returns:
        a data: URI; None if all is background.
    """
    enlarged = math.ceil(_MIN_SIDE / max(size))
    return overlay_exact(classes_at(label, (size[0] * enlarged, size[1] * enlarged)), ranks)


def classes_at(label: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Scale class indices [height, width] to `size` by nearest neighbor."""
    rows, columns = (
        np.minimum(((np.arange(to) + 0.5) * have / to).astype(np.int64), have - 1)
        for have, to in zip(label.shape, size, strict=True)
    )
    return np.asarray(label[rows[:, None], columns])


def overlay_exact(shown: NDArray[Any], ranks: Mapping[int, int]) -> str | None:
    """Draw class indices as `overlay` does, each as one pixel."""
    if not shown.any():
        return None
    pixels = np.zeros((*shown.shape, 4), np.uint8)
    inside = shown > 0
    for value in np.unique(shown[inside]).tolist():
        pixels[shown == value, :3] = rgb_of(ranks.get(int(value), 0))
    pixels[inside, 3] = _FILL
    pixels[inside & _borders(shown), 3] = 255
    return png_uri(pixels)


def png_uri(pixels: NDArray[np.uint8]) -> str:
    """Encode uint8 pixels [height, width, channel] as a data: URI of a PNG."""
    return f"data:image/png;base64,{base64.b64encode(bytes(encode_png(pixels, 0))).decode()}"


def _borders(shown: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark pixels with a neighbor of another class above, below, left or right."""
    edges = np.zeros(shown.shape, bool)
    across, down = shown[:, 1:] != shown[:, :-1], shown[1:] != shown[:-1]
    edges[:, 1:] |= across
    edges[:, :-1] |= across
    edges[1:] |= down
    edges[:-1] |= down
    return edges


@dataclass(frozen=True, kw_only=True)
class PlacedBox:
    """A box in pixels of its picture, and the position of its tag.

    Args:
        name: text of the tag.
        rank: color number of its class.
        tag: CSS position of the tag; "" for no tag, because another one is there.
        dashed: whether the outline is dashed.
        corners: corners of its object as the points of an SVG polygon, which is drawn in place of the box; "" without.
        is_region: whether it is an ignored region, which is drawn gray.
    """

    name: str
    rank: int
    x: float
    y: float
    width: float
    height: float
    tag: str
    dashed: bool
    corners: str = ""
    is_region: bool = False


REGION_NAME = "ignored"
"""Text of the tag of an ignored region."""


def lay_out_regions(regions: NDArray[np.float64], size: tuple[int, int]) -> list[PlacedBox]:
    """Lay out ignored regions [region, 4] as `lay_out_boxes` does boxes; only the first one has a tag."""
    names = [(REGION_NAME, 0)] * len(regions)
    placed = lay_out_boxes(regions, names, size)
    return [replace(one, is_region=True, tag=one.tag if not at else "") for at, one in enumerate(placed)]


def lay_out_boxes(
    corners: NDArray[np.float64],
    names: Sequence[tuple[str, int]],
    size: tuple[int, int],
    *,
    dashed: Sequence[bool] = (),
    tags: bool = True,
    outlines: NDArray[np.float64] | None = None,
) -> list[PlacedBox]:
    """Lay out boxes over a picture of (height, width), with tags that do not overlap.

    Args:
        corners: ymin, xmin, ymax, xmax as shares of the sides, [box, 4].
        names: text of each tag, and the color number of its class.
        dashed: whether the outline of each box is dashed; default: none is.
        tags: whether to show tags.
        outlines: y and x of the four corners of each object as shares of the sides, [box, 4, 2]; None without.
    """
    height, width = size
    found = []
    taken: list[tuple[float, float, float, float]] = []
    for at, ((top, left, bottom, right), (name, rank)) in enumerate(
        zip(corners.tolist(), names, strict=False)
    ):
        length = min(0.6, _TAG_WIDTH + _TAG_LETTER * len(name))
        # A tag that would leave the picture ends at the right side of its box.
        fits = left + length <= 1
        start = max(0.0, left if fits else min(right, 1.0) - length)
        # Above the box where there is room, so that a small object is not covered.
        high = _TAG_HEIGHT * width / height
        foot = min(top, 1.0) if top >= high else min(max(top, 0.0), max(0.0, 1 - high)) + high
        room = (start, foot - high, start + length, foot)
        tag = ""
        if tags and not any(_overlap(room, other) for other in taken):
            taken.append(room)
            side = f"left:{100 * left:.2f}%" if fits else f"right:{100 * max(0.0, 1 - right):.2f}%"
            tag = f"{side};bottom:{100 * (1 - foot):.2f}%"
        found.append(
            PlacedBox(
                name=name,
                rank=rank,
                x=left * width,
                y=top * height,
                width=max(0.0, right - left) * width,
                height=max(0.0, bottom - top) * height,
                tag=tag,
                dashed=bool(dashed) and dashed[at],
                corners="" if outlines is None else _svg_points(outlines[at], size),
            )
        )
    return found


def _svg_points(points: NDArray[np.float64], size: tuple[int, int]) -> str:
    """Return points [n, 2], y and x as shares, as the points of an SVG polygon in a picture of (height, width).

    >>> _svg_points(np.array([[0, 0.5], [1, 1]]), (10, 20))
    '10.00,0.00 20.00,10.00'
    """
    return " ".join(f"{x:.2f},{y:.2f}" for y, x in (points * np.array(size)).tolist())


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def thumbnail_side(pictures: int, largest: int, smallest: int) -> int:
    """Return the longer side of each of `pictures` thumbnails; many thumbnails are smaller, to keep the page small."""
    shrunk = math.sqrt(min(1.0, _FULL_SIZE_PICTURES / max(1, pictures)))
    return max(smallest, round(largest * shrunk))


def thumbnail_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return the (height, width) of a thumbnail whose longer side is at most `side`."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def thumbnail(pixels: NDArray[Any], side: int) -> str:
    """Encode pixels [height, width, channel] as a data: URI whose longer side is at most `side`; see `shown_bands`."""
    pixels = shown_bands(pixels)
    channels = pixels.shape[2]
    small = scale_depth(np.ascontiguousarray(pixels), "uint8")
    size = thumbnail_size((pixels.shape[0], pixels.shape[1]), side)
    if size != pixels.shape[:2]:
        small = cv2.resize(small, size[::-1], interpolation=cv2.INTER_AREA).reshape(*size, channels)
    # JPEG has no transparency.
    if channels == 4:
        small = _over_checkerboard(small)
    return picture_uri(small)


def shown_bands(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return 1, 3 or 4 channels of pixels [height, width, channel]: of other numbers the first three, or the first.

    Bands of 16 bits are scaled from the least to the greatest value: sensors leave the high bits empty.
    """
    if pixels.shape[2] in (1, _COLORS, _COLORS + 1):
        return pixels
    chosen = pixels[..., : _COLORS if pixels.shape[2] > _COLORS else 1]
    return chosen if chosen.dtype == np.uint8 else scale_to_uint8(chosen)


def picture_uri(small: NDArray[np.uint8]) -> str:
    """Encode uint8 pixels [height, width, 1 or 3] as a data: URI."""
    if small.shape[0] * small.shape[1] <= _EXACT_PIXELS:
        return png_uri(small)
    return f"data:image/jpeg;base64,{base64.b64encode(encode_jpeg(small, _JPEG_QUALITY)).decode()}"


def image_thumbnail(image: NDArray[Any], side: int) -> tuple[str, tuple[int, int]]:
    """Return an image [height, width, channel] as a data: URI whose longer side is at most `side`, and its size.

    Three channels and more are shown as red, green and blue; of fewer, the first is shown. Numbers other than uint8
    and uint16 are scaled from black at the least to white at the greatest.
    """
    shown = image[..., :_COLORS] if image.shape[-1] >= _COLORS else image[..., :1]
    pixels = shown if shown.dtype in (np.uint8, np.uint16) else scale_to_uint8(shown)
    return thumbnail(pixels, side), (pixels.shape[0], pixels.shape[1])


def scale_to_uint8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Scale numbers to uint8, from the least to the greatest finite one."""
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    scaled = (np.nan_to_num(numbers, nan=low, posinf=high, neginf=low) - low) * (255 / max(high - low, 1e-12))
    return np.rint(scaled).astype(np.uint8)


def _over_checkerboard(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blend colors with alpha over a gray checkerboard."""
    rows, columns = (np.arange(length) // 8 for length in pixels.shape[:2])
    ground = np.where((rows[:, None] + columns) % 2, 205, 235)[..., None]
    alpha = pixels[..., 3:].astype(np.uint32)
    blended = (pixels[..., :3] * alpha + ground * (255 - alpha) + 127) // 255
    return np.ascontiguousarray(blended, np.uint8)
