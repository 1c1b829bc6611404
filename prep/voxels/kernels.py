"""Resizing of pictures and masks: the default antialiased kernel, and TensorFlow's kernels by name.

A kernel weights source pixels along rows and columns separately. With half-pixel centers, stored pixel i is at source
point (i + 0.5) · source / resized, so boxes scaled by resized / source match the picture exactly. The `tf1-`
kernels use i · source / resized, up to half a source pixel off; they reproduce models trained with them.

The default uses integer arithmetic, which releases the GIL and gives the same result on every processor. It enlarges
with OpenCV's exact bilinear kernel. It shrinks with Pillow's triangle filter, because OpenCV's area filter passes more
aliasing (benchmarks/resizers.py). The other kernels use NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from halofeed.prep.formats.picture.image import Extent, PixelArray
from halofeed.prep.geometry.resize import ResizePlan, Size
from halofeed.schemas.native.shrinking import shrink
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural

_Float32 = npt.NDArray[np.float32]
_Rows = tuple[int, int]
Kernel = Callable[[PixelArray, Size, _Rows], PixelArray]
"""Function from pixels [h, w, c], a target (height, width) and a range of its rows to these rows, float32 or final."""
BAND_BYTES: Final = 32 << 20
"""Working memory of a kernel for a band of rows; a single row may need more."""


def resize_image(
    pixels: PixelArray,
    plan: ResizePlan,
    kernel: str = "antialias",
    pad_value: int | Sequence[int] = 0,
    extent: Extent | None = None,
) -> PixelArray:
    """Resize and pad one image.

    Args:
        pixels: uint8 or uint16 [h, w, c]: the displayed image, or a reduced decode of it (a JPEG decoded at 1/2 or
            1/4). Only `plan.resized_size` and `plan.output_size` matter here.
        plan: sizes of the result.
        kernel: a name in `KERNELS`.
        pad_value: value of the padding at the bottom and right, one number or one per channel.
        extent: (top, left, bottom, right) of the picture in `pixels` if it does not cover all pixels: a reduced
            decode may exceed it by a fraction of a pixel. Only for the kernel "antialias" with uint8.

    Returns:
        Pixels of the same dtype, [*plan.output_size, c]; rounded half to even and clipped to the dtype. `pixels` itself
        if nothing changes.

    Raises:
        UsageError: an unknown kernel, another dtype or rank, or a pad_value or an extent that does not fit.
    """
    if kernel not in KERNELS:
        raise UsageError(f"kernel {kernel!r} is not known; choose from {', '.join(KERNELS)}")
    if pixels.ndim != 3 or pixels.dtype not in (np.uint8, np.uint16):
        raise UsageError(f"pixels: expected uint8 or uint16 [h, w, c], got {pixels.dtype} {pixels.shape}")
    fill = _fill(pad_value, pixels.shape[2], pixels.dtype)
    height, width = size = plan.resized_size
    part = extent if extent != (0.0, 0.0, float(pixels.shape[0]), float(pixels.shape[1])) else None
    if part is None and size == plan.output_size == pixels.shape[:2] and pixels.flags.c_contiguous:
        return pixels
    output = np.empty((*plan.output_size, pixels.shape[2]), pixels.dtype)
    _write_resized(pixels, kernel, part, output[:height, :width])
    if output.shape[:2] != size:
        # NumPy copies rows 25 times faster than it repeats a pixel.
        row = np.tile(fill, (output.shape[1], 1))
        output[:height, width:] = row[width:]
        output[height:] = row
    return output


def _write_resized(pixels: PixelArray, kernel: str, part: Extent | None, picture: PixelArray) -> None:
    """Write the resized pixels into `picture`; `part` is the extent of the picture in them, None for all."""
    size = (picture.shape[0], picture.shape[1])
    # Pillow takes 16 bits of one channel only, see `_antialias`.
    is_fast = kernel == "antialias" and pixels.dtype == np.uint8
    if part is not None:
        if not is_fast:
            raise UsageError(f"extent {part}: only the kernel antialias of uint8 takes a part of a picture")
        picture[...] = resize_by_pillow(pixels, size, part)
    elif pixels.shape[:2] == size:
        picture[...] = pixels
    elif is_fast:
        _antialias(pixels, size, picture)
    else:
        _write_bands(pixels, KERNELS[kernel], picture)


def _write_bands(pixels: PixelArray, kernel: Kernel, picture: PixelArray) -> None:
    """Write the resized pixels in bands of rows, which are independent, so that the memory has a limit."""
    height, width, _ = picture.shape
    step = max(1, BAND_BYTES // row_bytes(pixels.shape, (height, width)))
    for top in range(0, height, step):
        rows = (top, min(top + step, height))
        resized = kernel(pixels, (height, width), rows)
        if resized.dtype != pixels.dtype:
            resized = np.clip(np.rint(resized), 0, np.iinfo(pixels.dtype).max)
        picture[slice(*rows)] = resized


def row_bytes(shape: tuple[int, ...], size: Size) -> int:
    """Return an upper bound of the bytes that the NumPy kernels need per result row, for pixels of shape [h, w, c]."""
    height, width, channels = shape
    source_rows = height // size[0] + 2
    return channels * (14 * width + 36 * size[1] + source_rows * (2 * width + 18 * size[1]))


def resize_bytes(shape: tuple[int, ...], size: Size, kernel: str, sample_bytes: int) -> int:
    """Return the peak memory of resizing pixels [h, w, c] to (height, width), without these and the result."""
    height, width, channels = shape
    tables = sum(
        48 * out * (2 * _RADII.get(kernel, 1) * max(1, -(-source // out)) + 2)
        for source, out in zip(shape[:2], size, strict=True)
    )
    if size == shape[:2]:
        return 0
    if kernel != "antialias" or sample_bytes != 1:
        return tables + max(min(BAND_BYTES, size[0] * row_bytes(shape, size)), row_bytes(shape, size))
    # OpenCV writes an enlarged picture directly into the record.
    if size[0] >= height and size[1] >= width:
        return tables
    # Pillow's own image, the image after the horizontal pass, the result, and its bytes twice.
    pixel_bytes = 1 if channels == 1 else 4
    out = size[0] * size[1] * (pixel_bytes + 2 * channels)
    return tables + pixel_bytes * height * (width + size[1]) + out


def resize_mask(mask: npt.NDArray[Any], plan: ResizePlan, fill: int = 0) -> npt.NDArray[Any]:
    """Resize a mask [h, w] to the nearest source pixel, at half-pixel centers, and pad it with `fill`.

    The arithmetic is exact in integers: a center between two pixels selects the later one.
    >>> plan = ResizePlan(source_size=(1, 2), resized_size=(1, 4), output_size=(2, 5))
    >>> resize_mask(np.array([[1, 2]], np.uint8), plan).tolist()
    [[1, 1, 2, 2, 0], [0, 0, 0, 0, 0]]
    """
    if mask.ndim != 2:
        raise UsageError(f"mask: expected [h, w], got {mask.shape}")
    height, width = plan.resized_size
    rows, columns = plan_lines((mask.shape[0], mask.shape[1]), plan)
    output = np.full(plan.output_size, fill, mask.dtype)
    output[:height, :width] = mask[rows][:, columns]
    return output


def nearest_lines(source: Size, size: Size) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows and the columns of a source (height, width) that a resized mask copies."""
    rows, columns = (
        (2 * np.arange(out) + 1) * sides // (2 * out) for out, sides in zip(size, source, strict=True)
    )
    return rows, columns


def plan_lines(source: Size, plan: ResizePlan) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows and the columns of a source (height, width) that a record copies, which may be a tile."""
    lines = nearest_lines(source, plan.scaled_size)
    rows, columns = (
        line[start : start + part]
        for line, start, part in zip(lines, plan.origin, plan.resized_size, strict=True)
    )
    return rows, columns


# Weights along one axis
#
# Every kernel except nearest and bilinear is a table per axis: `indices` int64 [out, taps], the source pixels of
# an output pixel, and `weights` float32 [out, taps]. The float32 steps have the order of TensorFlow.

WeightTable = tuple[npt.NDArray[np.int64], _Float32]


def _scale(source: int, out: int) -> np.float32:
    return np.float32(source) / np.float32(out)


def _positions(source: int, out: int, half_pixel: bool) -> _Float32:
    index, scale = np.arange(out, dtype=np.float32), _scale(source, out)
    return (index + np.float32(0.5)) * scale - np.float32(0.5) if half_pixel else index * scale


def _neighbors(
    source: int, out: int, half_pixel: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], _Float32]:
    """Return lower and upper index and the weight of the upper: `compute_interpolation_weights` of TensorFlow."""
    position = _positions(source, out, half_pixel)
    floor = np.floor(position)
    lower = np.maximum(floor.astype(np.int64), 0)
    upper = np.minimum(np.ceil(position).astype(np.int64), source - 1)
    return lower, upper, position - floor


def _nearest_indices(source: int, out: int, half_pixel: bool) -> npt.NDArray[np.int64]:
    offset = np.float32(0.5 if half_pixel else 0)
    index = np.floor((np.arange(out, dtype=np.float32) + offset) * _scale(source, out)).astype(np.int64)
    return np.asarray(np.clip(index, 0, source - 1))


_CUBIC_STEPS = 1024


def _cubic_table(a: float) -> tuple[_Float32, _Float32]:
    """Return Keys' cubic at i / 1024 and at 1 + i / 1024, rounded like `InitCoeffsTable` of TensorFlow."""
    x = np.arange(_CUBIC_STEPS + 1, dtype=np.float64) / _CUBIC_STEPS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    x += 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return near.astype(np.float32), far.astype(np.float32)


def _cubic_taps(source: int, out: int, half_pixel: bool) -> WeightTable:
    """Return four taps; with half-pixel centers, taps beyond the border have weight 0 and the rest is rescaled."""
    near, far = _cubic_table(-0.5 if half_pixel else -0.75)
    position = _positions(source, out, half_pixel)
    floor = np.floor(position)
    offset = np.rint((position - floor) * np.float32(_CUBIC_STEPS)).astype(np.int64)
    wanted = floor.astype(np.int64)[:, None] + np.arange(-1, 3)
    indices = np.clip(wanted, 0, source - 1)
    back = _CUBIC_STEPS - offset
    weights = np.stack([far[offset], near[offset], near[back], far[back]], axis=1)
    if half_pixel:
        weights = np.where(indices == wanted, weights, np.float32(0))
        total = weights[:, 0] + weights[:, 1] + weights[:, 2] + weights[:, 3]
        weights = weights * (np.float32(1) / total)[:, None]
    return indices, weights


def _area_taps(source: int, out: int) -> WeightTable:
    """Return the part of each source pixel that an output pixel covers: `ResizeAreaOp` of TensorFlow, undivided."""
    scale = _scale(source, out)
    start = np.arange(out, dtype=np.float32) * scale
    end = np.arange(1, out + 1, dtype=np.float32) * scale
    first, last = np.floor(start).astype(np.int64), np.ceil(end).astype(np.int64)
    wanted = first[:, None] + np.arange(int((last - first).max()))
    pixel, low, high = wanted.astype(np.float32), start[:, None], end[:, None]
    right = pixel + np.float32(1)
    starts_before, ends_after = pixel < low, right > high
    weights = np.where(
        starts_before,
        np.where(ends_after, scale, right - low),
        np.where(ends_after, high - pixel, np.float32(1)),
    )
    weights = np.where(wanted < last[:, None], weights, np.float32(0))
    return np.clip(wanted, 0, source - 1), weights.astype(np.float32)


def _triangle(x: _Float32) -> _Float32:
    return np.maximum(np.float32(1) - np.abs(x), np.float32(0))


def _keys_cubic(x: _Float32) -> _Float32:
    x = np.abs(x)
    c = np.float32
    inner = (c(1.5) * x - c(2.5)) * x * x + c(1)
    outer = ((c(-0.5) * x + c(2.5)) * x - c(4)) * x + c(2)
    return np.where(x < 1, inner, np.where(x < 2, outer, c(0)))


def _lanczos(x: _Float32, radius: int) -> _Float32:
    wide = np.abs(x.astype(np.float64))
    safe = np.maximum(wide, 1e-3)
    value = radius * np.sin(np.pi * safe) * np.sin(np.pi * safe / radius) / (np.pi * np.pi * safe * safe)
    return np.where(wide > radius, 0, np.where(wide <= 1e-3, 1, value)).astype(np.float32)


def _span_taps(
    source: int, out: int, shape: Callable[[_Float32], _Float32], radius: float, antialias: bool
) -> WeightTable:
    """Return a filter widened by the shrinking factor: `ComputeSpansCore` of TensorFlow's ScaleAndTranslate."""
    inverse = np.float32(1) / (np.float32(out) / np.float32(source))
    widening = max(inverse, np.float32(1)) if antialias else np.float32(1)
    reach = np.float32(radius) * widening
    sample = (np.arange(out, dtype=np.float32) + np.float32(0.5)) * inverse
    half = np.float32(0.5)
    first = np.clip(np.ceil(sample - reach - half).astype(np.int64), 0, source - 1)
    last = np.clip(np.floor(sample + reach - half).astype(np.int64), 0, source - 1) + 1
    wanted = first[:, None] + np.arange(int((last - first).max()))
    weights = shape(((wanted.astype(np.float32) + half) - sample[:, None]) / widening)
    weights = np.where(wanted < last[:, None], weights, np.float32(0))
    total = np.zeros(out, np.float32)
    for tap in weights.T:  # sequential, like TensorFlow; np.sum would add pairs
        total += tap
    return np.minimum(wanted, source - 1), weights * (np.float32(1) / total)[:, None]


# Pixels from weights


def _weigh_rows(rows: PixelArray, taps: WeightTable) -> _Float32:
    """Sum `weights[:, t] * rows[indices[:, t]]` over the taps t, in order, in float32."""
    indices, weights = taps
    shape = (-1,) + (1,) * (rows.ndim - 1)
    total = np.zeros((len(indices), *rows.shape[1:]), np.float32)
    for index, weight in zip(indices.T, weights.T, strict=True):
        total += rows[index] * weight.reshape(shape)
    return total


def _separable(
    pixels: PixelArray, size: Size, rows: _Rows, taps: Callable[[int, int], WeightTable]
) -> _Float32:
    """Resize rows first, then columns on the transposed image, where columns are contiguous."""
    vertical, horizontal = (taps(source, out) for source, out in zip(pixels.shape[:2], size, strict=True))
    tall = _weigh_rows(pixels, _cut(vertical, rows))
    across = _weigh_rows(np.ascontiguousarray(tall.swapaxes(0, 1)), horizontal)
    return np.ascontiguousarray(across.swapaxes(0, 1))


def _nearest(pixels: PixelArray, size: Size, rows: _Rows, half_pixel: bool) -> PixelArray:
    chosen = _nearest_indices(pixels.shape[0], size[0], half_pixel)[slice(*rows)]
    columns = _nearest_indices(pixels.shape[1], size[1], half_pixel)
    return pixels[chosen][:, columns]


def _bilinear(pixels: PixelArray, size: Size, rows: _Rows, half_pixel: bool) -> _Float32:
    """Interpolate horizontally, then vertically, each as left + (right - left) * share: TensorFlow's `compute_lerp`."""
    tops, bottoms, shares = _neighbors(pixels.shape[0], size[0], half_pixel)
    top, bottom, down = tops[slice(*rows)], bottoms[slice(*rows)], shares[slice(*rows)]
    left, right, across = _neighbors(pixels.shape[1], size[1], half_pixel)

    def lerp(low: _Float32, high: _Float32, share: _Float32) -> _Float32:
        return low + (high - low) * share

    def lines(index: npt.NDArray[np.int64]) -> _Float32:
        picked = pixels[index].astype(np.float32)
        return lerp(picked[:, left], picked[:, right], across[None, :, None])

    return lerp(lines(top), lines(bottom), down[:, None, None])


def _cut(taps: WeightTable, rows: _Rows) -> WeightTable:
    indices, weights = taps
    return indices[slice(*rows)], weights[slice(*rows)]


def _area(pixels: PixelArray, size: Size, rows: _Rows) -> _Float32:
    """Sum horizontally, then vertically, and divide by the area once, in the order of TensorFlow."""
    vertical, horizontal = (
        _area_taps(source, out) for source, out in zip(pixels.shape[:2], size, strict=True)
    )
    indices, weights = _cut(vertical, rows)
    first, last = int(indices.min()), int(indices.max())
    used = pixels[first : last + 1]
    across = _weigh_rows(np.ascontiguousarray(used.swapaxes(0, 1)), horizontal)
    total = _weigh_rows(np.ascontiguousarray(across.swapaxes(0, 1)), (indices - first, weights))
    down, right = (_scale(source, out) for source, out in zip(pixels.shape[:2], size, strict=True))
    return total * np.float32(np.float64(1) / np.float64(down * right))


def _bicubic(half_pixel: bool) -> Kernel:
    return partial(_separable, taps=partial(_cubic_taps, half_pixel=half_pixel))


def _spans(shape: Callable[[_Float32], _Float32], radius: float, antialias: bool = True) -> Kernel:
    return partial(_separable, taps=partial(_span_taps, shape=shape, radius=radius, antialias=antialias))


PILLOW_MODES: Final = {1: "L", 3: "RGB", 4: "CMYK"}  # modes without alpha: Pillow weighs RGBA by its alpha


def _antialias(pixels: PixelArray, size: Size, into: PixelArray) -> None:
    """Resize with a triangle filter as wide as the shrinking factor, bilinear when enlarging; half-pixel centers.

    For uint8 this is OpenCV's exact bilinear kernel if no side shrinks, else Pillow's filter. Both use integers and
    differ by at most one level from `tf2-bilinear-antialias`. For uint16, Pillow supports one channel only, so
    `resize_image` uses that kernel instead.
    """
    if size[0] >= pixels.shape[0] and size[1] >= pixels.shape[1]:
        # OpenCV writes directly to the pixels of the record if it can, which saves a copy.
        enlarged = cv2.resize(pixels, size[::-1], dst=into, interpolation=cv2.INTER_LINEAR_EXACT)
        if enlarged is not into:
            into[...] = enlarged.reshape(into.shape)
    else:
        into[...] = resize_by_pillow(pixels, size, None)


def resize_by_pillow(pixels: PixelArray, size: Size, extent: Extent | None) -> PixelArray:
    """Resize uint8 pixels of any number of channels with Pillow's triangle filter.

    Args:
        size: (height, width) of the result.
        extent: (top, left, bottom, right) of the part that is resized; None for all. Pillow rounds it to float32.
    """
    if pixels.shape[2] == 3 and (resized := _by_kernel(pixels, size, extent)) is not None:
        return resized
    parts, first = [], 0
    while first < pixels.shape[2]:
        # A mode of Pillow has one to four channels, and each of them is resized alone.
        count = max(channels for channels in PILLOW_MODES if channels <= pixels.shape[2] - first)
        parts.append(_pillow(pixels[..., first : first + count], size, extent))
        first += count
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


def _by_kernel(pixels: PixelArray, size: Size, extent: Extent | None) -> PixelArray | None:
    """Return what Pillow would, in a sixth of the time; None if the kernel is not built for this processor."""
    resized = np.empty((*size, pixels.shape[2]), pixels.dtype)
    box = extent or (0.0, 0.0, float(pixels.shape[0]), float(pixels.shape[1]))
    return resized if shrink(pixels, box, resized) else None


def _pillow(pixels: PixelArray, size: Size, extent: Extent | None) -> PixelArray:
    channels = pixels.shape[2]
    box = None if extent is None else (extent[1], extent[0], extent[3], extent[2])
    contiguous = np.ascontiguousarray(pixels)
    image = Image.frombytes(PILLOW_MODES[channels], pixels.shape[1::-1], contiguous.data.cast("B"))
    resized = image.resize(size[::-1], Image.Resampling.BILINEAR, box)
    return np.asarray(resized).reshape(*size, channels)


KERNELS: Final[Mapping[str, Kernel]] = {
    "antialias": _spans(shape=_triangle, radius=1),  # of uint16; of uint8 `_antialias`
    # tf.compat.v1.image.resize, which the TF Object Detection API calls: no half-pixel centers
    "tf1-bilinear": partial(_bilinear, half_pixel=False),
    "tf1-nearest": partial(_nearest, half_pixel=False),
    "tf1-bicubic": _bicubic(half_pixel=False),
    "tf1-area": _area,
    # tf.image.resize
    "tf2-bilinear": partial(_bilinear, half_pixel=True),
    "tf2-nearest": partial(_nearest, half_pixel=True),
    "tf2-bicubic": _bicubic(half_pixel=True),
    "tf2-area": _area,
    "tf2-lanczos3": _spans(shape=partial(_lanczos, radius=3), radius=3, antialias=False),
    "tf2-lanczos5": _spans(shape=partial(_lanczos, radius=5), radius=5, antialias=False),
    # tf.image.resize(antialias=True)
    "tf2-bilinear-antialias": _spans(shape=_triangle, radius=1),
    "tf2-bicubic-antialias": _spans(shape=_keys_cubic, radius=2),
    "tf2-lanczos3-antialias": _spans(shape=partial(_lanczos, radius=3), radius=3),
    "tf2-lanczos5-antialias": _spans(shape=partial(_lanczos, radius=5), radius=5),
}


def triangle_taps(source: int, out: int) -> WeightTable:
    """Return `indices` and `weights` [out, taps] of the kernel "antialias" for pixels that are not uint8."""
    return _span_taps(source, out, shape=_triangle, radius=1, antialias=True)


_RADII: Final = {"tf2-bicubic-antialias": 2, "tf2-lanczos3-antialias": 3, "tf2-lanczos5-antialias": 5}


def _fill(pad_value: int | Sequence[int], channels: int, dtype: np.dtype[Any]) -> PixelArray:
    values = [pad_value] * channels if isinstance(pad_value, int) else list(pad_value)
    highest = np.iinfo(dtype).max
    # A single number pads all channels; any other count would leave one without a value.
    if len(values) != channels:
        raise UsageError(
            f"pad_value: expected one number, or one for each of {plural(channels, 'channel')}, got {values}"
        )
    if any(not 0 <= value <= highest for value in values):
        raise UsageError(f"pad_value: expected 0 to {highest} for {dtype} pixels, got {values}")
    return np.array(values, dtype)
