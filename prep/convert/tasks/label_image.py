"""How label images, one of all classes or a mask for each, become class indices, and these the stored picture's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import PngImagePlugin

from halofeed.prep.formats.picture import DecodedImage
from halofeed.prep.formats.picture.image import check_pixel_count, undecodable
from halofeed.prep.formats.picture.pillow import decoder_failures, open_with, plan_pillow, take_pixels
from halofeed.prep.formats.picture.pixels import apply_orientation
from halofeed.prep.formats.picture.png import GRAY, PALETTE, SIGNATURE, Header, read_header
from halofeed.prep.geometry.resize import ResizePlan, displayed_size
from halofeed.prep.geometry.scan import Overlap
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.memory import Need, unlimited, with_margin
from halofeed.prep.sources.reference import Reference
from halofeed.prep.statistics.pictures import count_labels
from halofeed.prep.tasks.labels import LabelMap
from halofeed.prep.voxels.kernels import resize_mask
from halofeed.prep.voxels.merge import merge_class_masks, merge_labels
from halofeed.schemas.errors import SourceError

OVERLAPPED = "pixels of several classes are those of the {} one, as --class-overlap says"
VOC_VOID = 255
_DEPTHS = {"1": np.uint8, "L": np.uint8, "P": np.uint8, "I;16": np.uint16, "I": np.int32}


def read_label_image(data: bytes, max_pixels: int, need: Need = unlimited) -> NDArray[Any]:
    """The class indices [height, width] of a PNG: its gray values, or the indices of its palette.

    Args:
        need: told how many bytes this takes, the file among them, before the pixels are decoded.

    Raises:
        SourceError: not a PNG, damaged, too large, or in color without a palette.
    """
    if not data.startswith(SIGNATURE):
        raise undecodable("label image is not a PNG", f"begins with {data[:8].hex(' ') or 'nothing'}")
    header = read_header(data)
    check_pixel_count(header.size, max_pixels, " in the label")
    image = open_with(PngImagePlugin.PngImageFile, data)
    check_mode(image.mode)
    dtype = np.dtype(_DEPTHS[image.mode])
    planned = plan_pillow(header.size, {"I": 4, "I;16": 2}.get(image.mode, 1), 1, dtype.itemsize)
    need(with_margin(len(data) + planned.peak_bytes))
    with decoder_failures():
        image.load()
        values = take_pixels(image, lambda part: np.asarray(part).astype(dtype)[..., None], 1, dtype.name)
    return class_indices(values[..., 0], header)


def has_voc_palette(data: bytes) -> bool:
    """Whether a file is a PNG of indices with the palette of PASCAL VOC, whose void is 255.

    The bits of an index, three at a time, are the highest bits of red, green and blue.
    """
    if not data.startswith(SIGNATURE):
        return False
    header = read_header(data)
    palette = header.payload(data, b"PLTE") if header.color_type == PALETTE else None
    expected = bytearray(3 * 256)
    for index in range(256):
        for bit in range(8):
            expected[3 * index + bit % 3] |= (index >> bit & 1) << (7 - bit // 3)
    return palette == bytes(expected)


def check_mode(mode: str) -> None:
    """Refuse a PNG that Pillow reads as color or with transparency; SourceError."""
    if mode not in _DEPTHS:
        raise undecodable("label image is in color", f"mode {mode}; expected gray values or a palette")


def class_indices(values: NDArray[Any], header: Header) -> NDArray[Any]:
    """The numbers that a PNG holds, of the values that Pillow makes of them, which may be changed in place."""
    if header.color_type == GRAY and header.depth in (2, 4):
        values //= 255 // (2**header.depth - 1)  # Pillow spreads 0 to 3, and 0 to 15, over 0 to 255
    return values


def label_on_grid(
    labels: NDArray[Any], orientation: int, image: DecodedImage, plan: ResizePlan, fill: int = 0
) -> NDArray[Any]:
    """Class indices of a source's label on the stored picture's grid: turned as it, nearest, padded with `fill`.

    Args:
        orientation: the EXIF orientation that lies between the label's grid and the displayed picture.

    Raises:
        SourceError: the label has neither the stored nor the displayed size.
    """
    if orientation != 1:
        labels = apply_orientation(labels[..., None], orientation)[..., 0]
    if labels.shape != displayed_size(image.orientation, image.stored_size):
        height, width = image.stored_size
        detail = f"label {labels.shape[1]}x{labels.shape[0]}, picture {width}x{height}"
        raise SourceError("annotation", "label image is of another size than the picture", detail)
    return resize_mask(labels, plan, fill)


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


def read_picture_labels(
    recipe: Recipe, labels: LabelMap, reference: Reference, files: SourceFiles, need: Need = unlimited
) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """The class indices [height, width], None where the picture has none; and what a person should know of them.

    Args:
        need: told how many bytes this takes, before pixels are decoded.

    Raises:
        SourceError: a label image cannot be read, holds unknown classes, or they overlap where that is refused.
    """
    several = len(reference.mask_paths) > 1

    def read(path: str) -> NDArray[Any]:
        # What is merged is held beside the next one; of their classes there are copies while they are counted.
        return read_label_image(
            files.read(path), recipe.max_pixels, lambda alone: need((3 if several else 2) * alone)
        )

    found, overlapped = merged_labels(recipe, labels, reference, read)
    return found, (OVERLAPPED.format(recipe.class_overlap),) if overlapped else ()


def merged_labels(
    recipe: Recipe, labels: LabelMap, reference: Reference, read: Callable[[str], NDArray[Any]]
) -> tuple[NDArray[Any] | None, int]:
    """The class indices [height, width] of all masks, None where there are none; and how many pixels have several.

    Args:
        read: the values of the mask of a path.

    Raises:
        SourceError: as `read_picture_labels`.
    """
    overlap: Overlap = recipe.class_overlap  # type: ignore[assignment]
    overlapped = 0
    found: NDArray[Any] | None = None
    if reference.class_masks:
        masks = ((labels.id_of(name), read(path)[None]) for name, path in reference.class_masks)
        merged, overlapped = merge_class_masks(masks, overlap, may_repeat=bool(recipe.map_classes))
        found = merged[0]
    for path in reference.masks:
        image = read(path)
        present = count_labels(image) if image.dtype == np.uint8 else np.unique(image).tolist()
        image = renumbered(image, labels.ids_of_values(present), labels.dtype)
        if found is not None:
            image, voxels = merge_labels(found, image, overlap)
            overlapped += voxels
        found = image
    return found, overlapped
