"""Tiles show the objects of their picture as cuts of the whole show them."""

import io
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from halofeed.errors import SourceError
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.loss_findings import Converted, loss_findings
from halofeed.prep.convert.tallies import PictureFacts
from halofeed.prep.convert.tile_objects import IGNORED, PIECES, TileObjects
from halofeed.prep.convert.tile_tasks import TiledPicture
from halofeed.prep.formats.picture import DecodedImage
from halofeed.prep.geometry.picture_tiles import plan_picture_tiles, scale_size
from halofeed.prep.geometry.resize import (
    ResizePlan,
    apply_affine,
    apply_to_boxes,
    displayed_size,
    stored_to_file,
)
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import Box, Keypoint, SourceExample
from halofeed.prep.voxels.masks import stored_mask
from halofeed.schemas import keys
from halofeed.schemas.ledger import LedgerCounter
from halofeed.schemas.statistics import Statistics

LABELS = LabelMap(entries=((1, "ship"), (2, "car")), first_id=1)


def tiled(
    boxes: list[Box],
    size: tuple[int, int] = (40, 60),
    tile: tuple[int, int] = (16, 24),
    overlap: tuple[int, int] = (4, 8),
    scale: float = 1.0,
    orientation: int = 1,
    **options: Any,
) -> TiledPicture:
    """Return a picture of a displayed size, cut into tiles; boxes are in pixels of its file."""
    recipe = Recipe(fit="tiles", height=tile[0], width=tile[1], tile_overlap=overlap, scale=scale, **options)
    tiles = plan_picture_tiles(size, tile, overlap, scale_size(size, (scale, scale)))
    reference = SourceExample(source="a.png", key="a.png", boxes=tuple(boxes))
    image = DecodedImage(
        pixels=np.empty((0, 0, 1), np.uint8),
        orientation=orientation,
        stored_size=displayed_size(orientation, size),
        scale=1,
        notes=(),
    )
    return TiledPicture(
        recipe=recipe,
        labels=LABELS,
        reference=reference,
        image=image,
        tiles=tiles,
        grid=None,
        orientation=orientation,
        warning=None,
    )


def new_facts(plan: ResizePlan) -> PictureFacts:
    return PictureFacts(
        pixel_sums=None,  # type: ignore[arg-type]
        stored_size=plan.output_size,
        picture_size=plan.resized_size,
        source_size=plan.source_size,
        labels=[],
        boxes=None,
    )


def all_tiles(
    picture: TiledPicture,
) -> tuple[list[dict[str, Any]], list[PictureFacts], list[tuple[str, str]]]:
    """Return the features and the facts of each tile, and the dropped objects."""
    objects, found, facts = TileObjects(picture), [], []
    for tile in picture.tiles:
        found.append({})
        facts.append(new_facts(tile.plan))
        objects.add(tile, objects.cut(tile), found[-1], facts[-1])
    dropped = [*objects.finish(facts[-1])]
    return found, facts, dropped


def boxes_of(features: dict[str, Any], plan: ResizePlan) -> npt.NDArray[np.float64]:
    shares = np.stack([features[key] for key in keys.BOX_CORNERS], axis=1).astype(np.float64)
    return shares * np.array(plan.output_size * 2)


def pixels_of(png: bytes) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(png)))


def run_lengths_of(mask: npt.NDArray[Any]) -> dict[str, Any]:
    flat = np.concatenate([[0], mask.T.reshape(-1), [1 - mask.T.reshape(-1)[-1]]])
    ends = np.flatnonzero(flat[1:] != flat[:-1])
    return {"size": list(mask.shape), "counts": np.diff(ends, prepend=0).tolist()}


@st.composite
def pictures(draw: st.DrawFn) -> TiledPicture:
    size = draw(st.integers(8, 70)), draw(st.integers(8, 70))
    tile = draw(st.integers(5, 40)), draw(st.integers(5, 40))
    overlap = tuple(draw(st.integers(0, side - 1)) for side in tile)
    orientation = draw(st.integers(1, 8))
    height, width = displayed_size(orientation, size)
    generator = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    boxes = []
    for number in range(draw(st.integers(1, 5))):
        points = generator.uniform(-0.05, 1.05, (generator.integers(3, 9), 2)) * [width, height]
        ring = points.clip(0, [width, height])
        mask: Any = [ring.reshape(-1).tolist()]
        if number % 2:
            noise = generator.random((height, width)) < 0.5
            left, top = np.floor(ring.min(axis=0)).astype(int)
            noise[:top], noise[:, :left] = 0, 0
            mask = run_lengths_of(noise.astype(np.uint8))
            ring = np.array([[left, top], [width, height]], float)
        xmin, ymin = ring.min(axis=0).tolist()
        xmax, ymax = ring.max(axis=0).tolist()
        named = (("a", points[0]), ("b", points[1]), ("c", [0, 0]))
        keypoints = tuple(
            Keypoint(name=name, x=float(x), y=float(y), visibility=0 if name == "c" else 2)
            for name, (x, y) in named
        )
        boxes.append(
            Box(
                ymin=ymin,
                xmin=xmin,
                ymax=ymax,
                xmax=xmax,
                label=("ship", "car")[number % 2],
                mask=mask,
                is_crowd=number == 3,
                keypoints=keypoints,
            )
        )
    scale = draw(st.sampled_from([1.0, 0.5, 0.37, 1.7]))
    return tiled(boxes, size, tile, overlap, scale, orientation, masks=True, keep=("keypoints",))


@settings(deadline=None, max_examples=25)
@given(pictures())
def test_masks_of_tiles_are_cuts_of_the_mask_of_the_whole_picture(picture):
    whole, orientation = picture.whole, picture.orientation
    complete = [stored_mask(box.mask, whole, orientation) for box in picture.reference.boxes or ()]
    found, _, dropped = all_tiles(picture)
    shown: Counter[int] = Counter()
    for tile, features in zip(picture.tiles, found, strict=True):
        (top, left), (height, width) = tile.plan.origin, tile.plan.resized_size
        indices = features[keys.OBJECT_INDEX].tolist()
        assert indices == sorted(set(indices))
        for index, png in zip(indices, features[keys.OBJECT_MASK], strict=True):
            expected = np.zeros(tile.plan.output_size, np.uint8)
            expected[:height, :width] = complete[index][top : top + height, left : left + width]
            assert np.array_equal(pixels_of(png), expected)
            assert expected.any() or not complete[index].any()
            shown[index] += 1
    lost = {int(detail.split()[1]) - 1 for reason, detail in dropped if reason == "object is in no tile"}
    assert lost | shown.keys() == set(range(len(complete)))
    assert not lost & shown.keys()


@settings(deadline=None, max_examples=25)
@given(pictures())
def test_keypoints_of_tiles_are_those_inside_and_lead_back_to_the_source(picture):
    found, _, _ = all_tiles(picture)
    whole = stored_to_file(picture.whole, picture.orientation)
    for tile, features in zip(picture.tiles, found, strict=True):
        (top, left), (height, width) = tile.plan.origin, tile.plan.resized_size
        x, y, seen, num = (
            features[f"{keys.OBJECT_KEYPOINT}/{part}"] for part in ("x", "y", "visibility", "num")
        )
        at = 0
        for row, index in enumerate(features[keys.OBJECT_INDEX].tolist()):
            labeled = 0
            for point in picture.reference.boxes[index].keypoints:
                matrix = np.vstack([whole.reshape(2, 3), [0, 0, 1]])
                place = (np.linalg.inv(matrix) @ [point.y, point.x, 1])[:2]
                inside = all(
                    start - 1e-4 <= value <= start + side + 1e-4
                    for value, start, side in zip(place, (top, left), (height, width), strict=True)
                )
                if seen[at]:
                    labeled += 1
                    assert inside and point.visibility == seen[at]
                    moved = apply_affine(
                        stored_to_file(tile.plan, picture.orientation),
                        [y[at] * tile.plan.output_size[0], x[at] * tile.plan.output_size[1]],
                    )
                    assert moved.tolist() == pytest.approx([point.y, point.x], abs=1e-3)
                elif point.visibility:
                    assert (x[at], y[at]) == (0, 0)
                    near = np.abs(place - [top, left]).min() < 1e-3
                    near |= np.abs(place - [top + height, left + width]).min() < 1e-3
                    assert near or not inside
                at += 1
            assert num[row] == labeled


@settings(deadline=None, max_examples=25)
@given(pictures())
def test_pieces_and_complete_boxes_lead_back_to_the_source(picture):
    found, _, _ = all_tiles(picture)
    size = picture.tiles.source_size
    for tile, features in zip(picture.tiles, found, strict=True):
        source = np.stack([features[key] for key in keys.OBJECT_SOURCE_CORNERS], axis=1)
        moved = apply_to_boxes(stored_to_file(tile.plan, picture.orientation), boxes_of(features, tile.plan))
        for row, index in enumerate(features[keys.OBJECT_INDEX].tolist()):
            box = picture.reference.boxes[index]
            height, width = displayed_size(picture.orientation, size)
            clipped = [
                min(max(value, 0), limit)
                for value, limit in zip(
                    (box.ymin, box.xmin, box.ymax, box.xmax), (height, width) * 2, strict=True
                )
            ]
            assert source[row].tolist() == pytest.approx(clipped, abs=1e-3)
            assert (moved[row, :2] >= source[row, :2] - 1e-3).all()
            assert (moved[row, 2:] <= source[row, 2:] + 1e-3).all()
            share = np.prod(moved[row, 2:] - moved[row, :2]) / np.prod(source[row, 2:] - source[row, :2])
            visible = features[keys.OBJECT_VISIBLE][row]
            assert visible == pytest.approx(share, abs=1e-3)
            is_crowd = features[keys.OBJECT_IS_CROWD][row]
            assert is_crowd == (box.is_crowd or visible < picture.recipe.min_visible)
            assert features[keys.OBJECT_SOURCE_IS_CROWD][row] == box.is_crowd


@pytest.mark.parametrize("masks", [False, True])
def test_areas_of_pieces_in_a_grid_without_overlap_add_up_to_the_area(masks):
    ring = [3, 2, 50, 5, 55, 37, 20, 39]
    box = Box(ymin=2, xmin=3, ymax=39, xmax=55, label="ship", area=1234.0, mask=[ring])
    picture = tiled([box], size=(40, 60), tile=(10, 20), overlap=(0, 0), masks=masks)
    found, _, _ = all_tiles(picture)
    assert sum(features[keys.OBJECT_AREA].sum() for features in found) == pytest.approx(1234.0)
    assert {
        features[keys.OBJECT_SOURCE_AREA][0] for features in found if len(features[keys.OBJECT_AREA])
    } == {1234.0}


def test_an_object_below_the_visible_share_is_ignored_in_that_tile_and_counted():
    box = Box(ymin=2, xmin=10, ymax=8, xmax=30, label="car")
    found, facts, _ = all_tiles(tiled([box], size=(10, 40), tile=(10, 16), overlap=(0, 4), min_visible=0.5))
    shown = [
        (
            [round(float(one), 3) for one in features[keys.OBJECT_VISIBLE]],
            features[keys.OBJECT_IS_CROWD].tolist(),
        )
        for features in found
    ]
    assert shown == [([0.3], [1]), ([0.8], [0]), ([0.3], [1])]
    counts = sum((Counter(one.box_counts) for one in facts), Counter())
    assert (counts[PIECES], counts[IGNORED]) == (3, 2)
    assert [one.boxes for one in facts] == [1, 1, 1]


def test_an_object_that_every_tile_cuts_is_found_with_the_options_that_hold_it():
    boxes = [
        Box(ymin=2, xmin=3, ymax=8, xmax=38, label="car"),
        Box(ymin=2, xmin=3, ymax=8, xmax=9, label="car"),
        Box(ymin=0, xmin=0, ymax=10, xmax=40, label="car", is_crowd=True),
    ]
    picture = tiled(boxes, size=(10, 40), tile=(10, 16), overlap=(0, 4), min_visible=0.6)
    _, facts, _ = all_tiles(picture)
    ledger = LedgerCounter()
    for one in facts:
        ledger.add(one.ledger)
    converted = Converted(
        statistics=Statistics(ledger=ledger.ledger()),
        recipe=picture.recipe.to_json(),
        labels={},
        task="detection",
        kind="picture",
    )
    (finding,) = (one for one in loss_findings(converted) if one.name == "objects ignored in every tile")
    assert (finding.count, finding.of) == (1, 2)
    assert "a.png: object 1 of 35 x 6 pixels" in finding.text
    assert "--tile-overlap 0,35 --width 70" in finding.fix
    again = tiled(boxes[:2], size=(10, 400), tile=(10, 70), overlap=(0, 35), min_visible=1.0)
    assert not any(one.ledger.counts["cut_objects"] for one in all_tiles(again)[1])


def test_an_object_whose_mask_is_in_no_tile_with_its_box_is_listed():
    wrong = Box(ymin=0, xmin=0, ymax=5, xmax=5, label="car", mask=[[30, 30, 38, 30, 38, 38, 30, 38]])
    found, _, dropped = all_tiles(tiled([wrong], masks=True))
    assert not any(len(features[keys.OBJECT_INDEX]) for features in found)
    assert dropped == [("object is in no tile", "box 1 ('car'): x from 0 to 5, y from 0 to 5")]


def test_a_damaged_mask_is_listed_once_or_refuses_the_picture_before_its_first_tile():
    boxes = [
        Box(ymin=0, xmin=0, ymax=40, xmax=60, label="car", mask=[[0, 0, 1]]),
        Box(ymin=1, xmin=1, ymax=30, xmax=30, label="ship", mask=[[1, 1, 30, 1, 30, 30]]),
    ]
    found, _, dropped = all_tiles(tiled(boxes, masks=True))
    assert [reason for reason, _ in dropped] == ["mask has a polygon without three finite points"]
    assert {index for features in found for index in features[keys.OBJECT_INDEX].tolist()} == {1}
    with pytest.raises(SourceError, match="without three finite points"):
        TileObjects(tiled(boxes, masks=True, on_bad_object="reject"))


def test_rules_for_boxes_are_applied_once_on_the_whole_picture():
    boxes = [
        Box(ymin=-5, xmin=10, ymax=20, xmax=30, label="car"),
        Box(ymin=70, xmin=10, ymax=80, xmax=30, label="car"),
        Box(ymin=12, xmin=16, ymax=12, xmax=16, label="ship"),
    ]
    _, facts, dropped = all_tiles(tiled(boxes))
    counts = sum((Counter(one.box_counts) for one in facts), Counter())
    assert counts["clipped"] == counts["dropped outside"] == counts["dropped zero area"] == 1
    assert len(dropped) == 1 and "box 3 ('ship')" in dropped[0][1]
    found, _, dropped = all_tiles(tiled(boxes, boxes_zero_area="keep"))
    holders = [number for number, features in enumerate(found) if 2 in features[keys.OBJECT_INDEX]]
    assert len(holders) == 4 and not dropped  # it is within the overlaps of two rows and two columns


@pytest.mark.parametrize("orientation", range(1, 9))
def test_corners_of_a_piece_are_those_of_the_complete_object(orientation):
    random, boxes = np.random.default_rng(orientation), []
    for number in range(12):
        corners = random.uniform(-4, 44, 2) + random.uniform(-9, 9, (4, 2))
        (xmin, ymin), (xmax, ymax) = corners.min(axis=0), corners.max(axis=0)
        # Every third object has the corners of its box.
        given = tuple(corners.reshape(-1)) if number % 3 else ()
        boxes.append(Box(ymin=ymin, xmin=xmin, ymax=ymax, xmax=xmax, label="car", corners=given))
    picture = tiled(boxes, orientation=orientation, scale=0.8, keep=("corners",))
    found, _, _ = all_tiles(picture)
    seen = set()
    for features, tile in zip(found, picture.tiles, strict=True):
        shares = np.stack([features[key] for key in keys.CORNER_POINTS], axis=1).reshape(-1, 4, 2)
        to_file = stored_to_file(tile.plan, orientation)
        points = apply_affine(to_file, shares.astype(np.float64) * tile.plan.output_size)
        for index, own in zip(features[keys.OBJECT_INDEX].tolist(), points, strict=True):
            box = boxes[index]
            upright = (box.xmin, box.ymin, box.xmax, box.ymin, box.xmax, box.ymax, box.xmin, box.ymax)
            expected = np.reshape(box.corners or upright, (4, 2))
            np.testing.assert_allclose(own[:, ::-1], expected, atol=1e-4)
            seen.add(index)
    assert len(seen) > 6
