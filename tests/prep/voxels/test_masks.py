"""Do masks cover the pixels that pycocotools gives them, follow their pictures, and come out of PNG again?"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from halofeed.prep.geometry.resize import displayed_size, plan_fixed_shape, plan_keep_aspect, plan_unchanged
from halofeed.prep.voxels.masks import (
    decode_run_lengths,
    draw_mask,
    encode_mask_png,
    fill_polygons,
    mask_bytes,
    stored_mask,
)
from halofeed.schemas.errors import SourceError, UsageError

# pycocotools 2.0.11 warns of its own __array__ under NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def coco() -> Any:
    return pytest.importorskip("pycocotools.mask")


def real_annotations(test_data: Path) -> list[tuple[Any, tuple[int, int], float]]:
    document = json.loads((test_data / "detection" / "coco_ccby" / "instances.json").read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in document["images"]}
    return [(a["segmentation"], sizes[a["image_id"]], a["area"]) for a in document["annotations"]]


def test_real_polygons_cover_what_pycocotools_covers(coco: Any, test_data: Path) -> None:
    overlaps = []
    for polygons, size, area in real_annotations(test_data):
        if isinstance(polygons, list) and area > 200:
            theirs = coco.decode(coco.merge(coco.frPyObjects(polygons, *size)))
            ours = fill_polygons(polygons, size)
            overlaps.append((ours & theirs).sum() / (ours | theirs).sum())
    assert len(overlaps) > 400
    assert min(overlaps) >= 0.95 and np.mean(overlaps) >= 0.99


def test_real_crowds_decode_as_pycocotools_decodes_them(coco: Any, test_data: Path) -> None:
    crowds = [(mask, size) for mask, size, _ in real_annotations(test_data) if isinstance(mask, dict)]
    assert len(crowds) == 10
    for mask, size in crowds:
        compressed = coco.frPyObjects(mask, *size)
        theirs = coco.decode(compressed)
        assert np.array_equal(decode_run_lengths(mask, size), theirs)
        assert np.array_equal(decode_run_lengths(compressed, size), theirs)
        text = {**compressed, "counts": compressed["counts"].decode()}
        assert np.array_equal(decode_run_lengths(text, size), theirs)


@given(height=st.integers(1, 30), width=st.integers(1, 30), seed=st.integers(0, 9999), fill=st.floats(0, 1))
def test_any_mask_that_pycocotools_encodes_decodes(
    coco: Any, height: int, width: int, seed: int, fill: float
) -> None:
    mask = (np.random.default_rng(seed).random((height, width)) < fill).astype(np.uint8)
    assert np.array_equal(decode_run_lengths(coco.encode(np.asfortranarray(mask)), (height, width)), mask)


def test_counts_go_down_the_columns_zeros_first() -> None:
    mask = decode_run_lengths({"size": [2, 3], "counts": [0, 1, 2, 3]}, (2, 3))
    assert mask.tolist() == [[1, 0, 1], [0, 1, 1]] and mask.dtype == np.uint8


def inside_oracle(polygon: list[float], size: tuple[int, int]) -> npt.NDArray[Any]:
    """Asks each pixel's center how many edges lie to its left."""
    points = list(zip(polygon[::2], polygon[1::2], strict=True))
    mask = np.zeros(size, np.uint8)
    for row, column in np.ndindex(size):
        x, y, crossings = column + 0.5, row + 0.5, 0
        for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
            if (y0 >= y + 0.0) != (y1 >= y + 0.0) and x0 + (y - y0) / (y1 - y0) * (x1 - x0) <= x:
                crossings += 1
        mask[row, column] = crossings % 2
    return mask


coordinates = st.floats(-10, 30).map(lambda value: round(value, 2))


@given(polygon=st.lists(st.tuples(coordinates, coordinates), min_size=3, max_size=9))
def test_a_polygon_covers_the_pixels_whose_centers_lie_inside(polygon: list[tuple[float, float]]) -> None:
    flat = [value + 0.003 * (i + 1) for i, value in enumerate(v for point in polygon for v in point)]
    size = (17, 23)
    assert np.array_equal(fill_polygons([flat], size), inside_oracle(flat, size))


def test_polygons_of_one_object_unite_and_lie_on_the_boxes_grid() -> None:
    square = [2.0, 1.0, 5.0, 1.0, 5.0, 4.0, 2.0, 4.0]
    assert np.argwhere(fill_polygons([square], (6, 8))).min(axis=0).tolist() == [1, 2]
    assert fill_polygons([square], (6, 8)).sum() == 9
    assert fill_polygons([square, square], (6, 8)).sum() == 9
    assert fill_polygons([square, [v + 1 for v in square]], (6, 8)).sum() == 14
    assert fill_polygons([[-50, -50, 50, -50, 50, 50, -50, 50]], (6, 8)).all()
    assert fill_polygons([[10, 10, 20, 10, 20, 20]], (6, 8)).sum() == 0
    assert fill_polygons([], (6, 8)).sum() == 0


RUNS = {"size": [4, 6], "counts": [3, 5, 16]}
COUNTS: dict[str, tuple[Any, ...]] = {
    "has run lengths that do not add up": (
        *([3, 5, 17], [3, 5], [], [30, -6], [2**62, 2**62, 2**62, 2**62, 24], [2**70, -(2**70)]),
        *("35", "oooooooooooO" * 40),
    ),
    "has unreadable compressed counts": ("3P", "3 5", "3é", "o" * 20 + "0"),
    "has run lengths that are not whole numbers": ([3.5, 20.5], 24, [[1], [2, 3]], [True, "a"]),
}
OTHERS: dict[str, tuple[Any, ...]] = {
    "is of another size than the picture": ({"size": [6, 4], "counts": [3, 5, 16]},),
    "lacks a size or counts": ({"size": [4], "counts": [24]}, {"counts": [24]}, {"size": [4, 6]}),
    "is neither polygons nor run lengths": ("35", None, 10**400),
    "has a polygon without three finite points": (
        *([[0, 0, 1, 1]], [[0, 0, 1, 1, 2, 2, 3]], [[0, 0, 1, 1, 2, float("nan")]], [0, 0, 1, 1, 2, 2]),
    ),
    "has a polygon that is not numbers": (
        *([["a", "b", "c", "d", "e", "f"]], [{"x": 1}], [[0, 0, 1, 1, 2, 10**400]]),
    ),
}


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        *(({"size": [4, 6], "counts": one}, reason) for reason in COUNTS for one in COUNTS[reason]),
        *((mask, reason) for reason in OTHERS for mask in OTHERS[reason]),
    ],
)
def test_a_damaged_mask_is_a_fault_of_the_annotation(mask: Any, reason: str) -> None:
    assert draw_mask(RUNS, (4, 6)).sum() == 5
    assert mask_bytes(mask, plan_fixed_shape((4, 6), 4, 6)) > 0
    with pytest.raises(SourceError) as raised:
        draw_mask(mask, (4, 6))
    assert (raised.value.stage, raised.value.reason) == ("annotation", f"mask {reason}")
    assert raised.value.detail


@given(counts=st.text(st.characters(min_codepoint=32, max_codepoint=127), max_size=30))
def test_any_compressed_counts_are_decoded_or_refused(counts: str) -> None:
    with contextlib.suppress(SourceError):
        assert draw_mask({"size": [4, 6], "counts": counts}, (4, 6)).shape == (4, 6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_mask_turns_as_pillow_turns_the_picture(orientation: int) -> None:
    polygon = [3.0, 2.0, 17.0, 4.0, 9.0, 11.0]
    drawn = fill_polygons([polygon], (13, 19))
    image = Image.fromarray(drawn)
    image.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image))
    plan = plan_unchanged(displayed_size(orientation, (13, 19)))
    assert np.array_equal(stored_mask([polygon], plan, orientation), expected)


def test_a_stored_mask_fills_its_stored_box_and_no_padding() -> None:
    plan = plan_keep_aspect((100, 200), 50, 100, pad=True)
    mask = stored_mask([[20, 10, 120, 10, 120, 60, 20, 60]], plan)
    expected = np.zeros((100, 100), np.uint8)
    expected[5:30, 10:60] = 1
    assert np.array_equal(mask, expected)
    assert stored_mask({"size": [100, 200], "counts": [0, 20000]}, plan).sum() == 50 * 100


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_a_png_holds_the_mask_as_0_and_1(dtype: Any) -> None:
    mask = fill_polygons([[3.0, 2.0, 17.0, 4.0, 9.0, 11.0]], (13, 19)).astype(dtype)
    image = Image.open(io.BytesIO(encode_mask_png(mask)))
    assert (image.format, image.mode, image.size) == ("PNG", "L", (19, 13))
    assert np.array_equal(np.asarray(image), mask.astype(np.uint8))
    assert encode_mask_png(mask) == encode_mask_png(np.asfortranarray(mask))


@pytest.mark.parametrize(
    "mask", [np.full((2, 2), 255, np.uint8), np.zeros((2, 2), np.float32), np.zeros(4, np.uint8)]
)
def test_other_arrays_than_masks_are_refused(mask: npt.NDArray[Any]) -> None:
    with pytest.raises(UsageError, match=r"expected bool or uint8 \[h, w\] of 0 and 1"):
        encode_mask_png(mask)
