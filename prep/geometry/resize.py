"""Plans for resizing pictures, and affine transforms between their pixel grids.

A source image has three pixel grids. Every point is (y, x) with the origin at the corner of the first pixel, so
pixel i covers [i, i + 1):

    file            displayed              stored
    ┌──────┐        ┌────┐                 ┌───────┬───┐
    │      │  EXIF  │    │   resize, pad   │resized│pad│
    └──────┘ ─────> │    │ ──────────────> ├───────┘   │
                    └────┘                 └───────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from halofeed.system.errors import SourceError, UsageError

KERNEL_NAMES: Final = (
    "antialias",
    *("tf1-bilinear", "tf1-nearest", "tf1-bicubic", "tf1-area"),
    *("tf2-bilinear", "tf2-nearest", "tf2-bicubic", "tf2-area", "tf2-lanczos3", "tf2-lanczos5"),
    *("tf2-bilinear-antialias", "tf2-bicubic-antialias", "tf2-lanczos3-antialias", "tf2-lanczos5-antialias"),
)
"""Names of the kernels in `prep.voxels.kernels`, which options list without loading that module."""
Size = tuple[int, int]
PixelAffine = npt.NDArray[np.float64]
"""float64 [6], row-major [2, 3]: (y, x) = A @ (y, x, 1)."""


@dataclass(frozen=True, kw_only=True)
class ResizePlan:
    """Sizes of one image, each (height, width) in pixels.

    A tile shows a part of the scaled picture:

        scaled_size
        ┌─────────────────┐
        │   origin        │
        │      ┌───────┐  │     resized_size is the part that the record shows,
        │      │ tile  │  │     output_size is the record
        │      └───────┘  │
        └─────────────────┘

    Args:
        source_size: displayed size, after the EXIF orientation is applied.
        resized_size: size after resizing, before padding; of a tile the size of its part of the scaled picture.
        output_size: size after padding at the bottom and right.
        scaled_size: size of the complete picture after resizing; default: `resized_size`.
        origin: (top, left) of the part in the scaled picture.
    """

    source_size: Size
    resized_size: Size
    output_size: Size
    scaled_size: Size = (0, 0)
    origin: Size = (0, 0)

    def __post_init__(self) -> None:
        if self.scaled_size == (0, 0):
            object.__setattr__(self, "scaled_size", self.resized_size)
        for name in ("source_size", "resized_size", "output_size"):
            if min(getattr(self, name)) < 1:
                raise UsageError(f"{name}: expected sides of at least 1 pixel, got {getattr(self, name)}")
        if any(out < resized for out, resized in zip(self.output_size, self.resized_size, strict=True)):
            raise UsageError(
                f"output_size {self.output_size} is smaller than resized_size {self.resized_size}"
            )
        for start, part, side in zip(self.origin, self.resized_size, self.scaled_size, strict=True):
            if not 0 <= start <= side - part:
                raise UsageError(
                    f"origin {self.origin}: a part of {self.resized_size} leaves the picture of {self.scaled_size}"
                )

    @property
    def scale(self) -> tuple[float, float]:
        """Stored pixels of a displayed source pixel along the height and the width."""
        (height, width), (source_height, source_width) = self.scaled_size, self.source_size
        return height / source_height, width / source_width


def plan_fixed_shape(source_size: Size, height: int, width: int) -> ResizePlan:
    """Plan to stretch the image to (height, width) with any aspect ratio (fixed_shape_resizer of the TF OD API)."""
    if height < 1 or width < 1:
        raise UsageError(f"fixed-shape: expected a height and width of at least 1, got {height} and {width}")
    return ResizePlan(source_size=source_size, resized_size=(height, width), output_size=(height, width))


def keep_aspect_sizes(
    heights: npt.ArrayLike, widths: npt.ArrayLike, min_dimension: int, max_dimension: int
) -> npt.NDArray[np.int64]:
    """Return the sizes that keep_aspect_ratio_resizer of the TF OD API gives, for many images at once.

    The scale is the largest factor at which the shorter side is at most `min_dimension` and the longer side at
    most `max_dimension`. The arithmetic is float32 with rounding half to even, as in
    `tf.compat.v1.image.resize(preserve_aspect_ratio=True)`. In float64 the height in the example would be 666.

    Args:
        heights: integers [...] that broadcast with `widths`.
        widths: integers [...] that broadcast with `heights`.
        min_dimension: maximum of the shorter side.
        max_dimension: maximum of the longer side.

    Returns:
        int64 [..., 2]: (height, width) before padding; 0 for a side that rounds to 0.

    >>> keep_aspect_sizes(73, 146, 800, 1333).tolist()
    [667, 1333]
    """
    if min_dimension < 1 or min_dimension > max_dimension:
        raise UsageError(
            f"keep-aspect: expected 1 <= min_dimension <= max_dimension, got {min_dimension}, {max_dimension}"
        )
    height, width = np.broadcast_arrays(np.asarray(heights, np.float32), np.asarray(widths, np.float32))
    short, long = np.float32(min_dimension), np.float32(max_dimension)
    landscape = height < width
    scale = np.minimum(np.where(landscape, short, long) / height, np.where(landscape, long, short) / width)
    return np.stack([np.rint(scale * height), np.rint(scale * width)], axis=-1).astype(np.int64)


def plan_keep_aspect(source_size: Size, min_dimension: int, max_dimension: int, pad: bool) -> ResizePlan:
    """Plan to scale the image without distortion, and with `pad` to pad it to (max_dimension, max_dimension).

    Raises:
        UsageError: min_dimension is below 1 or above max_dimension.
        SourceError: the image is so long and thin that its shorter side would round to 0 pixels.

    >>> plan_keep_aspect((480, 640), 600, 1024, pad=True).resized_size
    (600, 800)
    """
    if min(source_size) < 1:
        raise UsageError(f"source_size: expected sides of at least 1 pixel, got {source_size}")
    height, width = (int(side) for side in keep_aspect_sizes(*source_size, min_dimension, max_dimension))
    # float32 rounding gives 0 for the shorter side, where the Object Detection API fails inside TensorFlow.
    if min(height, width) < 1:
        raise SourceError(
            "resize",
            "image is too long and thin",
            f"{source_size[0]}×{source_size[1]} at {min_dimension}/{max_dimension} becomes {height}×{width}; "
            "crop it, or stretch it with --resize fixed-shape",
        )
    output = (max_dimension, max_dimension) if pad else (height, width)
    return ResizePlan(source_size=source_size, resized_size=(height, width), output_size=output)


def plan_unchanged(source_size: Size) -> ResizePlan:
    """Plan to keep the displayed image."""
    return ResizePlan(source_size=source_size, resized_size=source_size, output_size=source_size)


RESIZERS: Final[Mapping[str, Callable[..., ResizePlan]]] = {
    "fixed-shape": plan_fixed_shape,
    "keep-aspect": plan_keep_aspect,
    "none": plan_unchanged,
}


def resizer(name: str) -> Callable[..., ResizePlan]:
    """Return the planning function of a resizer; UsageError lists the known names."""
    if name not in RESIZERS:
        raise UsageError(f"resizer {name!r} is not known; choose from {', '.join(RESIZERS)}")
    return RESIZERS[name]


def stored_to_displayed(plan: ResizePlan) -> PixelAffine:
    """Return the affine from stored to displayed points; padding at the bottom and right does not change it.

    >>> stored_to_displayed(plan_fixed_shape((480, 640), 240, 160)).tolist()
    [2.0, 0.0, 0.0, 0.0, 4.0, 0.0]
    """
    (source_height, source_width), (height, width) = plan.source_size, plan.scaled_size
    down, across = source_height / height, source_width / width
    top, left = plan.origin
    return np.array([down, 0, top * down, 0, across, left * across], np.float64)


def displayed_size(orientation: int, file_size: Size) -> Size:
    """Return the size after an EXIF orientation; 5 to 8 swap the sides. The function is its own inverse."""
    _check_orientation(orientation)
    # EXIF 2.3, Orientation: 5 to 8 exchange rows and columns.
    return (file_size[1], file_size[0]) if orientation >= 5 else file_size


def displayed_to_file(orientation: int, file_size: Size) -> PixelAffine:
    """Return the affine from displayed points to points in the file's own grid, before its EXIF orientation.

    Args:
        orientation: 1 to 8, tag 0x0112 of EXIF 2.3.
        file_size: stored (height, width) of the file.

    Raises:
        UsageError: the orientation is not 1 to 8; pass 1 for such a file, as viewers do.
    """
    _check_orientation(orientation)
    height, width = (float(side) for side in file_size)
    rows: dict[int, list[float]] = {
        1: [1, 0, 0, 0, 1, 0],
        2: [1, 0, 0, 0, -1, width],
        3: [-1, 0, height, 0, -1, width],
        4: [-1, 0, height, 0, 1, 0],
        5: [0, 1, 0, 1, 0, 0],
        6: [0, -1, height, 1, 0, 0],
        7: [0, -1, height, -1, 0, width],
        8: [0, 1, 0, -1, 0, width],
    }
    return np.array(rows[orientation], np.float64)


def stored_to_file(plan: ResizePlan, orientation: int = 1) -> PixelAffine:
    """Return the affine from stored points to points in the source file; records keep it as `image/transform`."""
    file_size = displayed_size(orientation, plan.source_size)
    return compose_affines(displayed_to_file(orientation, file_size), stored_to_displayed(plan))


def compose_affines(second: PixelAffine, first: PixelAffine) -> PixelAffine:
    """Return the affine that applies `first`, then `second`.

    >>> compose_affines(np.array([2.0, 0, 0, 0, 2, 0]), np.array([1.0, 0, 5, 0, 1, 7])).tolist()
    [2.0, 0.0, 10.0, 0.0, 2.0, 14.0]
    """
    outer, inner = _matrix(second), _matrix(first)
    product = outer[:, :2] @ inner
    product[:, 2] += outer[:, 2]
    return np.asarray(product, np.float64).reshape(6)


def invert_affine(affine: PixelAffine) -> PixelAffine:
    """Return the inverse affine; UsageError if it does not exist."""
    matrix = _matrix(affine)
    (a, b), (c, d) = matrix[:, :2].tolist()
    determinant = a * d - b * c
    if determinant == 0:
        raise UsageError(
            f"affine {matrix.reshape(6).tolist()} maps the plane to a line and cannot be inverted"
        )
    inverse = np.array([[d, -b], [-c, a]], np.float64) / determinant
    return np.column_stack([inverse, -inverse @ matrix[:, 2]]).reshape(6)


def apply_affine(affine: PixelAffine, points: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Map points float64 [..., 2], each (y, x), to float64 [..., 2]."""
    matrix = _matrix(affine)
    return np.asarray(points, np.float64) @ matrix[:, :2].T + matrix[:, 2]


def apply_to_boxes(affine: PixelAffine, boxes: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Map boxes [..., 4] (ymin, xmin, ymax, xmax); after a flip or quarter turn, min is still below max.

    Raises:
        UsageError: the affine shears, or rotates by other than a quarter turn.
    """
    matrix = _matrix(affine)
    # The box around a sheared box is larger than what was drawn.
    if not (matrix[0, 1] == matrix[1, 0] == 0 or matrix[0, 0] == matrix[1, 1] == 0):
        raise UsageError(
            f"affine {matrix.reshape(6).tolist()} shears; boxes only follow scales and quarter turns"
        )
    corners = np.asarray(boxes, np.float64)
    first, second = apply_affine(affine, corners[..., :2]), apply_affine(affine, corners[..., 2:])
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def area_factor(affine: PixelAffine) -> float:
    """Return the factor by which the affine enlarges areas."""
    matrix = _matrix(affine)
    return float(abs(matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]))


def _matrix(affine: PixelAffine) -> npt.NDArray[np.float64]:
    return np.asarray(affine, np.float64).reshape(2, 3)


def _check_orientation(orientation: int) -> None:
    if not 1 <= orientation <= 8:
        raise UsageError(f"EXIF orientation: expected 1 to 8, got {orientation}")
