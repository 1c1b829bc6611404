"""How do the pictures and drawings of a run's report stand in their frames, each with a caption?"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.layout import colour_of
from halofeed.inspection.markup import Markup, element
from halofeed.inspection.samples import picture_uri, thumbnail_size
from halofeed.prep.readers.pixels import scale_depth

_COLORS = 3


def figure(title: str, drawing: Any, caption: str, *more: Any) -> Markup:
    """A drawing in a card, with a caption that says what to look for."""
    return element(
        "figure", "card", element("h3", None, title), *more, drawing, element("figcaption", None, caption)
    )


def picture_of(image: NDArray[Any], side: int) -> tuple[str, tuple[int, int]]:
    """An image [height, width, channel] as a data: URI whose longer side is at most `side`, and (height, width).

    Three channels and more are shown as red, green, blue; fewer by their first. Numbers that are no pixels run from
    black at the least to white at the greatest.
    """
    shown = image[..., :_COLORS] if image.shape[-1] >= _COLORS else image[..., :1]
    if shown.dtype in (np.uint8, np.uint16):
        pixels = scale_depth(np.ascontiguousarray(shown), "uint8")
    else:
        pixels = spread_out(shown)
    height, width, channels = pixels.shape
    size = thumbnail_size((height, width), side)
    if size != (height, width):
        pixels = np.asarray(cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA), np.uint8)
    return picture_uri(pixels.reshape(*size, channels)), (height, width)


def spread_out(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Any numbers as uint8, from the least to the greatest that is finite."""
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    scaled = (np.nan_to_num(numbers, nan=low, posinf=high, neginf=low) - low) * (255 / max(high - low, 1e-12))
    return np.rint(scaled).astype(np.uint8)


def framed(
    uri: str, size: tuple[float, float], alt: str, caption: str, *over: Any, mask: str | None = None
) -> Markup:
    """A picture of (height, width) with what lies over it.

    Args:
        mask: of the same size, a data: URI of classes with alpha.
    """
    small = " tiny" if max(size) <= 64 else ""
    frame = element(
        "div",
        {"class": f"picture{small}", "style": f"--ratio:{size[1] / size[0]:.5f}"},
        element("img", {"src": uri, "alt": alt}),
        element("img", {"class": "mask", "src": mask, "alt": f"classes over it: {alt}"}) if mask else None,
        *over,
    )
    return element("figure", None, frame, element("figcaption", None, caption))


def chip(name: str, rank: int | None, more: str = "") -> Markup:
    """A class in its color, or a plain remark."""
    small = element("small", None, f" {more}") if more else None
    if rank is None:
        return element("span", "chip plain", name, small)
    return element("span", {"class": "chip", "style": colour_of(rank)}, name, small)
