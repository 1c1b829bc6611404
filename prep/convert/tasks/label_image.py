"""How a picture's label image becomes class indices on the grid of the stored picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import PngImagePlugin, UnidentifiedImageError

from halofeed.prep.formats.picture import DecodedImage
from halofeed.prep.formats.picture.image import check_pixel_count
from halofeed.prep.formats.picture.pillow import decoder_failures, plan_pillow, take_pixels
from halofeed.prep.formats.picture.pixels import apply_orientation
from halofeed.prep.formats.picture.png import GRAY, SIGNATURE, Header, read_header
from halofeed.prep.geometry.resize import ResizePlan, displayed_size
from halofeed.prep.sources.memory import Need, unlimited, with_margin
from halofeed.prep.voxels.kernels import resize_mask
from halofeed.schemas.errors import SourceError

_DEPTHS = {"1": np.uint8, "L": np.uint8, "P": np.uint8, "I;16": np.uint16, "I": np.int32}


def read_label_image(data: bytes, max_pixels: int, need: Need = unlimited) -> NDArray[Any]:
    """The class indices [height, width] of a PNG: its gray values, or the indices of its palette.

    Args:
        need: told how many bytes this takes, the file among them, before the pixels are decoded.

    Raises:
        SourceError: not a PNG, damaged, too large, or in color without a palette.
    """
    if not data.startswith(SIGNATURE):
        raise SourceError(
            "decode", "label image is not a PNG", f"begins with {data[:8].hex(' ') or 'nothing'}"
        )
    header = read_header(data)
    check_pixel_count(header.size, max_pixels, " in the label")
    try:
        image = PngImagePlugin.PngImageFile(io.BytesIO(data))
    except (UnidentifiedImageError, SyntaxError, OSError, ValueError) as error:
        raise SourceError("decode", "file is damaged", str(error)[:80]) from error
    check_mode(image.mode)
    dtype = np.dtype(_DEPTHS[image.mode])
    planned = plan_pillow(header.size, {"I": 4, "I;16": 2}.get(image.mode, 1), 1, dtype.itemsize)
    need(with_margin(len(data) + planned.peak_bytes))
    with decoder_failures():
        image.load()
        values = take_pixels(image, lambda part: np.asarray(part).astype(dtype)[..., None], 1, dtype.name)
    return class_indices(values[..., 0], header)


def check_mode(mode: str) -> None:
    """Refuse a PNG that Pillow reads as color or with transparency; SourceError."""
    if mode not in _DEPTHS:
        raise SourceError(
            "decode", "label image is in color", f"mode {mode}; expected gray values or a palette"
        )


def class_indices(values: NDArray[Any], header: Header) -> NDArray[Any]:
    """The numbers that a PNG holds, of the values that Pillow makes of them, which may be changed in place."""
    if header.color_type == GRAY and header.depth in (2, 4):
        values //= 255 // (2**header.depth - 1)  # Pillow spreads 0 to 3, and 0 to 15, over 0 to 255
    return values


def label_on_grid(
    labels: NDArray[Any], orientation: int, image: DecodedImage, plan: ResizePlan
) -> NDArray[Any]:
    """Class indices of a source's label on the stored picture's grid: turned as it, nearest, padding 0.

    Args:
        orientation: the EXIF orientation that lies between the label's grid and the displayed picture.

    Raises:
        SourceError: the label has neither the stored nor the displayed size.
    """
    if orientation != 1:
        labels = apply_orientation(labels[..., None], orientation)[..., 0]
    if labels.shape != displayed_size(image.orientation, image.stored_size):
        height, width = image.stored_size
        raise SourceError(
            "annotation",
            "label image is of another size than the picture",
            f"label {labels.shape[1]}x{labels.shape[0]}, picture {width}x{height}",
        )
    return resize_mask(labels, plan)


def renumbered(values: NDArray[Any], ids: Mapping[int, int], dtype: str) -> NDArray[Any]:
    """The values of a label image or volume as ids, of which there is one for each value."""
    if all(value == identity for value, identity in ids.items()):
        return values
    numbers = sorted(ids)
    chosen = np.array([ids[number] for number in numbers], dtype)
    renumbered = np.empty(values.shape, dtype)
    for target, plane in zip(renumbered, values, strict=True):  # an index takes 8 bytes a voxel
        target[...] = chosen[np.searchsorted(numbers, plane)]
    return renumbered
