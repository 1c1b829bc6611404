"""Pictures are moved as RandAugment's operations one after the other; boxes, masks and the transform follow."""

import math
from collections import Counter

import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.loader import Loader, RandAugmentMoves
from halofeed.loader.augment import draw_uniform
from halofeed.loader.augment.warps import move_matrix
from halofeed.loader.batch import join_id

FRAME = (48, 64)


def slow_source(point, numbers, magnitude):
    """Where a point (y, x) of the moved picture comes from: undo each operation, the last one first."""
    height, width = FRAME
    y, x = point
    for number in reversed(numbers):
        operation, sign = int(number * 14), 1 if number * 28 % 2 >= 1 else -1
        share = sign * magnitude / 10
        dy, dx = y - height / 2, x - width / 2
        if operation == 0:
            angle = math.radians(30 * share)
            y = height / 2 + math.cos(angle) * dy + math.sin(angle) * dx
            x = width / 2 - math.sin(angle) * dy + math.cos(angle) * dx
        elif operation == 1:
            y += 0.3 * share * dx
        elif operation == 2:
            x += 0.3 * share * dy
        elif operation == 3:
            y += share * 150 / 331 * height
        elif operation == 4:
            x += share * 150 / 331 * width
    return y, x


def test_boxes_masks_and_pixels_come_from_where_the_operations_say(draw, write):
    examples = draw(12, frame=FRAME, vary=False)
    folder = write(examples, frame=FRAME, encoding="raw", pad=True, max_boxes=8, masks=True)
    one = RandAugmentMoves(operations=4, magnitude=5.0, fill=3)
    plain = Loader(folder, batch_size=12, seed=5, include=["masks"])
    loader = Loader(folder, batch_size=12, seed=5, augment=[one], include=["transform", "masks"])
    originals = {example["id"]: example for example in examples}
    changed = kept = 0
    for epoch in range(3):
        stored, batch = plain.batch(epoch), loader.batch(epoch)
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            numbers = draw_uniform(5, epoch, identity, 0)[:4].tolist()
            matrix = batch["transform"][row].astype(np.float64)
            for point in ((0.5, 0.5), (10.0, 50.0), (40.25, 3.0)):
                y, x = slow_source(point, numbers, 5.0)
                # The stored picture's transform to its source is y * 2 + 1 and x * 2 - 3.
                np.testing.assert_allclose(matrix @ [*point, 1], [2 * y + 1, 2 * x - 3], atol=1e-3)
            changed += not np.allclose(matrix[:, :2], [[2, 0], [0, 2]])
            inverse = np.linalg.inv(np.vstack([(matrix - [[0, 0, 1], [0, 0, -3]]) / 2, [0, 0, 1]]))
            place = 0
            for number, box in enumerate(originals[identity]["boxes"]):
                corners = np.array([[box[a], box[b], 1] for a in (0, 2) for b in (1, 3)]) @ inverse.T
                around = np.concatenate([corners[:, :2].min(0), corners[:, :2].max(0)])
                cut = np.clip(around, 0, [*FRAME, *FRAME])
                share = np.prod((cut[2:] - cut[:2]).clip(0)) / np.prod(around[2:] - around[:2])
                if share < 0.3:
                    continue
                found = batch["boxes"][row, place] * [*FRAME, *FRAME]
                np.testing.assert_allclose(found, cut, atol=1e-2)
                mask = batch["masks"][row, place]
                for py, px in np.argwhere(mask)[::7]:
                    y, x = slow_source((py + 0.5, px + 0.5), numbers, 5.0)
                    near = stored["masks"][row, number][
                        max(0, int(y - 0.6)) : int(y + 0.6) + 1, max(0, int(x - 0.6)) : int(x + 0.6) + 1
                    ]
                    assert near.any()
                place, kept = place + 1, kept + 1
            assert batch["num_boxes"][row] == place
    assert changed > 5 and kept > 20


def test_each_move_is_drawn_as_often_as_in_rand_augment():
    uniforms = np.random.default_rng(0).random(28_000)
    counts = Counter((int(number * 28) // 2, int(number * 28) % 2) for number in uniforms)
    assert len(counts) == 28 and max(abs(count - 1000) for count in counts.values()) < 140


def test_a_strength_of_zero_moves_nothing_and_invalid_arguments_are_refused():
    for name in ("rotate", "shear rows", "shear columns", "shift rows", "shift columns"):
        np.testing.assert_allclose(move_matrix(name, 0.0, FRAME), np.eye(3), atol=1e-12)
        # The opposite strength is the way back for shifts and shears, and the other angle for a rotation.
        both = move_matrix(name, 0.7, FRAME) @ move_matrix(name, -0.7, FRAME)
        np.testing.assert_allclose(both, np.eye(3), atol=1e-9)
    for arguments in ({"operations": 0}, {"operations": 9}, {"magnitude": 11}, {"magnitude": -1}):
        with pytest.raises(UsageError, match=f"RandAugmentMoves: {next(iter(arguments))}: expected"):
            RandAugmentMoves(**arguments)
