"""Do masks cover the pixels that pycocotools gives them, follow their pictures, and come out of PNG again?"""

import contextlib
import io
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from halofeed.errors import SourceError
from halofeed.prep.geometry.resize import displayed_size, plan_fixed_shape, plan_keep_aspect, plan_unchanged
from halofeed.prep.voxels.label_volumes import merge_class_masks
from halofeed.prep.voxels.masks import (
    decode_coco_run_lengths,
    draw_mask,
    encode_mask_png,
    fill_polygons,
    mask_bytes,
    stored_mask,
)
from tests.support.dicom_mask_writer import inside_polygon

# pycocotools 2.0.11 warns of its own __array__ under NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def coco() -> Any:
    return pytest.importorskip("pycocotools.mask")


def real_annotations(test_data: Path) -> list[tuple[Any, tuple[int, int], float]]:
    document = json.loads((test_data / "detection" / "coco_ccby" / "instances.json").read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in document["images"]}
    return [(a["segmentation"], sizes[a["image_id"]], a["area"]) for a in document["annotations"]]


def test_real_polygons_and_crowds_are_those_of_pycocotools(coco, test_data):
    overlaps = []
    for polygons, size, area in real_annotations(test_data):
        if isinstance(polygons, list) and area > 200:
            theirs = coco.decode(coco.merge(coco.frPyObjects(polygons, *size)))
            ours = fill_polygons(polygons, size)
            overlaps.append((ours & theirs).sum() / (ours | theirs).sum())
    assert len(overlaps) > 400
    assert min(overlaps) >= 0.95 and np.mean(overlaps) >= 0.99
    crowds = [(mask, size) for mask, size, _ in real_annotations(test_data) if isinstance(mask, dict)]
    assert len(crowds) == 10
    for mask, size in crowds:
        compressed = coco.frPyObjects(mask, *size)
        theirs = coco.decode(compressed)
        assert np.array_equal(decode_coco_run_lengths(mask, size), theirs)
        assert np.array_equal(decode_coco_run_lengths(compressed, size), theirs)
        text = {**compressed, "counts": compressed["counts"].decode()}
        assert np.array_equal(decode_coco_run_lengths(text, size), theirs)
    mask = decode_coco_run_lengths({"size": [2, 3], "counts": [0, 1, 2, 3]}, (2, 3))
    assert mask.tolist() == [[1, 0, 1], [0, 1, 1]] and mask.dtype == np.uint8


coordinates = st.floats(-10, 30).map(lambda value: round(value, 2))


@given(polygon=st.lists(st.tuples(coordinates, coordinates), min_size=3, max_size=9))
def test_a_polygon_covers_the_pixels_whose_centers_lie_inside(polygon):
    flat = [value + 0.003 * (i + 1) for i, value in enumerate(v for point in polygon for v in point)]
    size = (17, 23)
    assert np.array_equal(fill_polygons([flat], size), inside_polygon(flat, size))


def test_polygons_of_one_object_unite_and_a_stored_mask_fills_its_stored_box():
    square = [2.0, 1.0, 5.0, 1.0, 5.0, 4.0, 2.0, 4.0]
    assert np.argwhere(fill_polygons([square], (6, 8))).min(axis=0).tolist() == [1, 2]
    assert fill_polygons([square], (6, 8)).sum() == 9
    assert fill_polygons([square, square], (6, 8)).sum() == 9
    assert fill_polygons([square, [v + 1 for v in square]], (6, 8)).sum() == 14
    assert fill_polygons([[-50, -50, 50, -50, 50, 50, -50, 50]], (6, 8)).all()
    assert fill_polygons([[10, 10, 20, 10, 20, 20]], (6, 8)).sum() == 0
    assert fill_polygons([], (6, 8)).sum() == 0
    plan = plan_keep_aspect((100, 200), 50, 100, pad=True)
    mask = stored_mask([[20, 10, 120, 10, 120, 60, 20, 60]], plan)
    expected = np.zeros((100, 100), np.uint8)
    expected[5:30, 10:60] = 1
    assert np.array_equal(mask, expected)
    assert stored_mask({"size": [100, 200], "counts": [0, 20000]}, plan).sum() == 50 * 100


RUNS = {"size": [4, 6], "counts": [3, 5, 16]}
COUNTS = {
    "has run lengths that do not add up": (
        *([3, 5, 17], [3, 5], [], [30, -6], [2**62, 2**62, 2**62, 2**62, 24], [2**70, -(2**70)]),
        *("35", "oooooooooooO" * 40),
    ),
    "has unreadable compressed counts": ("3P", "3 5", "3é", "o" * 20 + "0"),
    "has run lengths that are not whole numbers": ([3.5, 20.5], 24, [[1], [2, 3]], [True, "a"]),
}
OTHERS = {
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
def test_a_damaged_mask_is_a_fault_of_the_annotation(mask, reason):
    assert draw_mask(RUNS, (4, 6)).sum() == 5
    assert mask_bytes(mask, plan_fixed_shape((4, 6), 4, 6)) > 0
    with pytest.raises(SourceError) as raised:
        draw_mask(mask, (4, 6))
    assert (raised.value.stage, raised.value.reason) == ("annotation", f"mask {reason}")
    assert raised.value.detail


@given(
    counts=st.text(st.characters(min_codepoint=32, max_codepoint=127), max_size=30),
    size=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    fill=st.floats(0, 1),
)
def test_what_pycocotools_encodes_is_decoded_and_any_counts_are_decoded_or_refused(coco, counts, size, fill):
    mask = (np.random.default_rng(size[0]).random(size) < fill).astype(np.uint8)
    assert np.array_equal(decode_coco_run_lengths(coco.encode(np.asfortranarray(mask)), size), mask)
    with contextlib.suppress(SourceError):
        assert draw_mask({"size": [4, 6], "counts": counts}, (4, 6)).shape == (4, 6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_mask_turns_as_pillow_turns_the_picture(orientation):
    polygon = [3.0, 2.0, 17.0, 4.0, 9.0, 11.0]
    drawn = fill_polygons([polygon], (13, 19))
    image = Image.fromarray(drawn)
    image.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image))
    plan = plan_unchanged(displayed_size(orientation, (13, 19)))
    assert np.array_equal(stored_mask([polygon], plan, orientation), expected)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_a_png_holds_the_mask_as_0_and_1(dtype):
    mask = fill_polygons([[3.0, 2.0, 17.0, 4.0, 9.0, 11.0]], (13, 19)).astype(dtype)
    image = Image.open(io.BytesIO(encode_mask_png(mask)))
    assert (image.format, image.mode, image.size) == ("PNG", "L", (19, 13))
    assert np.array_equal(np.asarray(image), mask.astype(np.uint8))
    assert encode_mask_png(mask) == encode_mask_png(np.asfortranarray(mask))


def mask_of(*voxels: int, dtype: str = "uint8") -> NDArray[Any]:
    return np.array(voxels, dtype).reshape(1, 1, -1)


def oracle(masks: list[tuple[int, NDArray[Any]]], overlap: str) -> tuple[list[int], int]:
    """Voxel by voxel: the first or last class that claims it, and how many claims were one too many."""
    chosen, surplus = [], 0
    for voxel in range(masks[0][1].size):
        claims = [value for value, mask in masks if mask.flat[voxel]]
        surplus += max(0, len(claims) - 1)
        chosen.append((claims[-1] if overlap == "last" else claims[0]) if claims else 0)
    return chosen, surplus


@given(
    seed=st.integers(0, 9999),
    values=st.lists(st.integers(1, 65535), min_size=1, max_size=5, unique=True),
    overlap=st.sampled_from(["first", "last"]),
    dtype=st.sampled_from(["bool", "uint8", "int32"]),
)
def test_every_voxel_gets_its_first_or_last_class(seed, values, overlap, dtype):
    rng = np.random.default_rng(seed)
    masks = [(value, (rng.random((2, 3, 4)) < 0.4).astype(dtype)) for value in values]
    expected, surplus = oracle(masks, overlap)
    labels, overlapped = merge_class_masks(masks, overlap)
    assert labels.ravel().tolist() == expected and overlapped == surplus
    assert labels.dtype == (np.uint16 if max(values) > 255 else np.uint8)


def test_overlaps_and_masks_that_cannot_be_are_refused_with_classes_and_voxels():
    with pytest.raises(SourceError, match="2 voxels of class 2 are in class 1 too") as caught:
        merge_class_masks([(1, mask_of(1, 1, 1)), (2, mask_of(0, 1, 1))])
    assert (caught.value.stage, caught.value.reason) == ("annotation", "masks of one scan overlap")
    masks = [(1, mask_of(1, 1, 1, 1)), (2, mask_of(1, 0, 0, 0)), (2, mask_of(0, 1, 1, 0))]
    labels, overlapped = merge_class_masks(masks, "last", may_repeat=True)
    assert labels.tolist() == [[[2, 2, 2, 1]]] and overlapped == 3
    with pytest.raises(SourceError, match="class 2: expected 1 x 1 x 3 voxels, got 1 x 1 x 2"):
        merge_class_masks([(1, mask_of(0, 1, 0)), (2, mask_of(1, 0))])
    for voxels in ((0, 1, 2), (-1, 0, 0), (3, 4, 4)):
        with pytest.raises(SourceError, match="mask of one class holds several values"):
            merge_class_masks([(1, mask_of(*voxels, dtype="int16"))])


def test_one_mask_is_alive_at_a_time():
    earlier = []

    def masks():
        for value in range(1, 5):
            assert all(reference() is None for reference in earlier)
            mask = np.zeros((4, 4, 4), np.bool_)
            mask[value - 1] = True
            earlier.append(weakref.ref(mask))
            pair = value, mask
            del mask
            yield pair
            del pair

    labels, _ = merge_class_masks(masks())
    assert labels[:, 0, 0].tolist() == [1, 2, 3, 4]
