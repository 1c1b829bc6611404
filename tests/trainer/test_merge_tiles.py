"""Boxes of overlapping tiles become one box for each object, whatever the order of the detections."""

import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.trainer.detection.box_pairs import intersecting_pairs, intersections, iou, over_smaller
from halofeed.trainer.detection.merge_tiles import (
    METHODS,
    MergeRule,
    TileDetections,
    merge_tiles,
    merge_with_pieces,
)

TILES = np.array([[top, left, top + 64, left + 64] for top in (0, 48, 96) for left in (0, 48, 96)], float)
SIZE = (160.0, 160.0)


def random_boxes(generator, count, most=160.0, longest=40.0):
    low = generator.random((count, 2)) * (most - longest)
    return np.concatenate([low, low + generator.uniform(1, longest, (count, 2))], 1)


def detections(boxes, scores=None, classes=None, tiles=None):
    count = len(boxes)
    scores = np.linspace(0.9, 0.1, count) if scores is None else scores
    classes = np.ones(count, int) if classes is None else classes
    tiles = np.arange(count) if tiles is None else tiles
    columns = {"scores": np.array(scores, float), "classes": np.array(classes), "tiles": np.array(tiles)}
    return TileDetections(boxes=np.array(boxes, float).reshape(-1, 4), **columns)


def seen_in_tiles(objects, noise=0.0, generator=None):
    """What a detector that sees every piece of at least a tenth of its object finds in each tile."""
    boxes, tiles = [], []
    for tile, frame in enumerate(TILES):
        for one in objects:
            piece = np.concatenate([np.maximum(one[:2], frame[:2]), np.minimum(one[2:], frame[2:])])
            if (piece[2:] <= piece[:2]).any() or intersections(piece, one) < 0.1 * np.prod(one[2:] - one[:2]):
                continue
            if generator is not None:
                piece = piece + generator.normal(0, noise, 4)
            boxes.append(np.clip(piece, np.tile(frame[:2], 2), np.tile(frame[2:], 2)))
            tiles.append(tile)
    return detections(boxes, tiles=tiles)


@pytest.mark.parametrize("longest", [3.0, 30.0, 120.0])
def test_pairs_are_those_of_comparing_all_boxes(longest):
    generator = np.random.default_rng(0)
    one, two = (random_boxes(generator, count, longest=longest) for count in (150, 90))
    expected = np.argwhere(intersections(one[:, None], two[None]) > 0)
    assert np.array_equal(np.stack(intersecting_pairs(one, two), 1), expected) and len(expected)
    assert [len(side) for side in intersecting_pairs(one, [])] == [0, 0]


def slow_suppression(found, overlap, threshold):
    kept = []
    for row in np.argsort(-found.scores):
        others = [
            k for k in kept if found.classes[k] == found.classes[row] and found.tiles[k] != found.tiles[row]
        ]
        if all(overlap(found.boxes[k], found.boxes[row]) < threshold for k in others):
            kept.append(row)
    return found.boxes[kept]


@pytest.mark.parametrize(("name", "overlap"), [("iou", iou), ("ios", over_smaller)])
@pytest.mark.parametrize("threshold", [0.2, 0.5])
def test_suppression_keeps_what_a_slow_loop_keeps(name, overlap, threshold):
    generator = np.random.default_rng(1)
    columns = generator.random(200), generator.integers(1, 3, 200), generator.integers(0, 9, 200)
    found = detections(random_boxes(generator, 200), *columns)
    rule = MergeRule(method="nms", overlap=name, threshold=threshold)
    assert np.array_equal(
        merge_tiles(found, TILES, SIZE, rule).boxes, slow_suppression(found, overlap, threshold)
    )


def test_an_object_over_many_tiles_is_one_box_and_no_object_is_counted_twice():
    generator = np.random.default_rng(2)
    objects = np.array(
        [[5, 5, 15, 155], [20, 40, 60, 70], [30, 100, 100, 130], [70, 10, 150, 90], [130, 130, 150, 155]]
    )
    for noise in (0.0, 0.7):
        found = merge_tiles(seen_in_tiles(objects, noise, generator), TILES, SIZE, MergeRule())
        assert len(found) == len(objects)
        matches = iou(objects[:, None].astype(float), found.boxes[None])
        assert matches.max(1).min() > (0.999 if noise == 0 else 0.7)


def test_a_small_object_inside_a_large_one_of_its_class_survives_on_a_border():
    objects = np.array([[10, 20, 60, 100], [30, 50, 38, 62]])
    found = merge_tiles(seen_in_tiles(objects), TILES, SIZE, MergeRule())
    assert sorted(found.boxes.tolist()) == objects.tolist()
    smaller = merge_tiles(seen_in_tiles(objects), TILES, SIZE, MergeRule(method="greedy-nmm", overlap="ios"))
    assert iou(smaller.boxes, objects[1:].astype(float)).max() < 0.5


def test_a_second_piece_of_a_cut_object_in_one_tile_is_left_out():
    boxes = [[10, 40, 40, 64], [14, 41, 50, 64], [10, 40, 40, 100], [70, 10, 90, 40], [72, 10, 92, 41]]
    found = merge_tiles(detections(boxes, tiles=[0, 0, 1, 3, 3]), TILES, SIZE, MergeRule())
    assert sorted(found.boxes.tolist()) == [[10, 40, 40, 100], [70, 10, 90, 40], [72, 10, 92, 41]]


def test_tiles_without_overlap_join_what_touches_their_border():
    tiles = np.array([[0.0, 0, 64, 64], [0, 64, 64, 128]])
    boxes = [[10, 40, 30, 64], [10, 64, 30, 80], [40, 50, 60, 60], [40, 70, 60, 90]]
    found = merge_tiles(detections(boxes, tiles=[0, 1, 0, 1]), tiles, (64, 128), MergeRule())
    assert sorted(found.boxes.tolist()) == [[10, 40, 30, 80], [40, 50, 60, 60], [40, 70, 60, 90]]


@pytest.mark.parametrize("overlap", ["iou", "ios"])
@pytest.mark.parametrize("method", METHODS)
def test_the_pieces_of_a_detection_are_of_its_class_and_no_piece_is_in_two(method, overlap):
    generator = np.random.default_rng(4)
    columns = generator.permutation(300) / 300, generator.integers(1, 3, 300), generator.integers(0, 9, 300)
    found = detections(random_boxes(generator, 300), *columns)
    merged, pieces = merge_with_pieces(found, TILES, SIZE, MergeRule(method=method, overlap=overlap))
    assert len(merged) == len(pieces)
    rows = np.concatenate(pieces)
    assert len(np.unique(rows)) == len(rows) <= 300
    assert (max(map(len, pieces)) > 1) == (method in ("shared", "nmm", "greedy-nmm"))
    for number, own in enumerate(pieces):
        assert found.scores[own].max() == merged.scores[number]
        assert set(found.classes[own]) == {merged.classes[number]}
        assert iou(found.boxes[own], merged.boxes[number][None]).min() > 0
        if len(own) == 1:
            assert np.array_equal(found.boxes[own[0]], merged.boxes[number])
        assert len(set(found.tiles[own])) == len(own) or method != "shared"


def test_pieces_whose_sides_pass_each_other_are_joined_to_their_union():
    # The first and the last piece overlap through the others only, and each has a side that is not cut.
    boxes = [[55.5, 80, 64, 112], [48, 103, 112, 112], [34, 96, 64, 156], [48, 96, 53.5, 160]]
    tiles = [(0, 48), (48, 48), (0, 96), (48, 96)]
    numbers = [TILES[:, :2].tolist().index([*map(float, one)]) for one in tiles]
    found = detections(boxes, [0.98, 0.89, 0.72, 0.17], tiles=numbers)
    assert merge_tiles(found, TILES, SIZE, MergeRule()).boxes.tolist() == [[34, 80, 112, 160]]


@pytest.mark.parametrize("method", METHODS)
def test_classes_and_boxes_of_one_tile_stay_apart_and_order_does_not_matter(method):
    generator = np.random.default_rng(3)
    rule, boxes = MergeRule(method=method), random_boxes(generator, 120)
    same_tile = detections(boxes + 200, tiles=[0] * 120)
    assert len(merge_tiles(same_tile, TILES, SIZE, rule)) == 120
    twice = detections([boxes[0]] * 2, classes=[1, 2])
    assert len(merge_tiles(twice, TILES, SIZE, rule)) == 2
    found = detections(boxes, generator.permutation(120) / 120, tiles=generator.integers(0, 9, 120))
    shuffled = found.take(generator.permutation(120))
    one, two = (merge_tiles(each, TILES, SIZE, rule) for each in (found, shuffled))
    assert all(np.array_equal(getattr(one, name), getattr(two, name)) for name in vars(one))
    assert (np.diff(one.scores) <= 0).all() and len(merge_tiles(found.take([]), TILES, SIZE, rule)) == 0


def test_merging_takes_the_union_and_the_highest_score_also_through_others():
    chain = detections([[0, 0, 10, 10], [0, 4, 10, 14], [0, 6, 10, 16]], [0.9, 0.8, 0.7])
    through, direct = (
        merge_tiles(chain, TILES, SIZE, MergeRule(method=method, overlap="ios"))
        for method in ("nmm", "greedy-nmm")
    )
    assert through.boxes.tolist() == [[0, 0, 10, 16]] and through.scores.tolist() == [0.9]
    assert direct.boxes.tolist() == [[0, 0, 10, 14], [0, 6, 10, 16]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "max"}, "--merge max"),
        ({"overlap": "dice"}, "--merge-overlap"),
        ({"threshold": 0.0}, "above 0"),
    ],
)
def test_unknown_rules_are_named(wrong, message):
    with pytest.raises(UsageError, match=message):
        MergeRule(**wrong)


def test_an_uncertain_box_does_not_take_the_place_of_the_object_at_a_border():
    """The last row of tiles begins at 96: its piece looks cut, and an uncertain box of the other tile fits it best."""
    whole, piece, uncertain = [96.0, 70, 106, 80], [96.5, 70, 106, 80], [94.2, 70, 106, 80]
    found = detections([piece, whole, uncertain], scores=[0.95, 0.9, 0.05], tiles=[7, 4, 4])
    merged = merge_tiles(found, TILES, SIZE, MergeRule())
    assert merged.boxes.tolist() == [whole, uncertain]
    assert merged.scores.tolist() == [0.95, 0.05]
