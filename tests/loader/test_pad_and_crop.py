"""A padded and cropped image is a window of NumPy's padding; boxes, masks, the transform and volumes follow it."""

import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.loader import FlipLeftRight, Loader, PadAndCrop
from halofeed.loader.batch import join_id
from tests.support.volume_writer import draw_scans, write_scans

PADDING = 5


def shifted(array, shift, fill, axes):
    """Pad by NumPy, and cut the window that begins at padding + shift."""
    padded = np.pad(array, [(PADDING, PADDING)] * axes + [(0, 0)] * (array.ndim - axes), constant_values=fill)
    return padded[
        tuple(
            slice(PADDING + one, PADDING + one + size) for one, size in zip(shift, array.shape, strict=False)
        )
    ]


def test_pixels_boxes_masks_and_transform_of_pictures_follow_the_window(draw, write):
    examples = draw(12, frame=(40, 48), vary=False)
    folder = write(examples, frame=(40, 48), encoding="raw", pad=True, max_boxes=8, masks=True)
    originals = {example["id"]: example for example in examples}
    plain = Loader(folder, batch_size=12, seed=5, include=["masks"])
    loader = Loader(
        folder, batch_size=12, seed=5, augment=[PadAndCrop(PADDING, fill=7)], include=["transform", "masks"]
    )
    shifts = set()
    for step in range(4):
        stored, batch = plain.batch(step), loader.batch(step)
        np.testing.assert_array_equal(stored["id"], batch["id"])
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            # The stored picture's transform to its source is y * 2 + 1 and x * 2 - 3.
            matrix = batch["transform"][row].astype(np.float64)
            np.testing.assert_allclose(matrix[:, :2], [[2, 0], [0, 2]], atol=1e-6)
            shift = np.rint((matrix[:, 2] - [1, -3]) / 2).astype(int)
            shifts.add(tuple(shift.tolist()))
            np.testing.assert_array_equal(batch["image"][row], shifted(stored["image"][row], shift, 7, 2))
            expected = []
            for number, box in enumerate(originals[identity]["boxes"]):
                moved = np.asarray(box, float) - np.tile(shift, 2)
                cut = np.clip(moved, 0, [40, 48, 40, 48])
                if np.prod((cut[2:] - cut[:2]).clip(0)) / np.prod(moved[2:] - moved[:2]) >= 0.3:
                    expected.append((number, cut))
            assert batch["num_boxes"][row] == len(expected)
            for place, (number, box) in enumerate(expected):
                np.testing.assert_allclose(batch["boxes"][row, place] * [40, 48, 40, 48], box, atol=1e-3)
                mask = shifted(stored["masks"][row, number], shift, 0, 2)
                np.testing.assert_array_equal(batch["masks"][row, place], mask)
    assert {one for shift in shifts for one in shift} == set(range(-PADDING, PADDING + 1))


def test_voxels_labels_and_affines_of_volumes_follow_the_window(tmp_path):
    scans = draw_scans({"train": 6}, shape=(8, 10, 12), channels=2)
    folder = write_scans(tmp_path / "1.0.0", scans)
    chain = [FlipLeftRight(1.0), PadAndCrop(PADDING, fill=-9)]
    batch = Loader(folder, batch_size=6, seed=3, augment=chain, include=["affine", "spacing_mm"]).batch(0)
    by_id = {scan.id: scan for scan in scans}
    seen = set()
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        scan = by_id[identity]
        flip = np.diag([1.0, 1.0, -1.0, 1.0])
        flip[2, 3] = 11
        shift = (np.linalg.inv(scan.affine.astype(np.float64) @ flip) @ batch["affine"][row])[:3, 3]
        shift = np.rint(shift).astype(int)
        seen.add(tuple(shift.tolist()))
        np.testing.assert_array_equal(batch["image"][row], shifted(scan.image[:, :, ::-1], shift, -9, 3))
        np.testing.assert_array_equal(batch["label"][row], shifted(scan.label[:, :, ::-1], shift, 0, 3))
    assert len(seen) > 1


def test_what_cannot_be_padded_says_why(draw, write):
    for padding in (0, 1.5):
        with pytest.raises(UsageError, match="PadAndCrop: padding: expected a whole number of at least 1"):
            PadAndCrop(padding)
    folder = write(draw(4, frame=(16, 20)), frame=(16, 20))
    with pytest.raises(UsageError, match="pad by less than 16"):
        Loader(folder, batch_size=4, augment=[PadAndCrop(16)])
