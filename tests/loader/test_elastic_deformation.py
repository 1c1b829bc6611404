"""Is every point taken from where a slow B-spline says, and does nothing fold, leave its extent or lose its label?"""

import itertools

import numpy as np
import pytest

from halofeed.loader import ElasticDeformation, FlipLeftRight, Loader, RandomCrop, RandomRotation
from halofeed.loader.augment import Scene, draw_uniform
from halofeed.loader.augment.elastic_deformation import Bending
from halofeed.schemas.errors import UsageError
from tests.loader.test_random_rotation import VOLUME, linear, smooth, volumes
from tests.support.volume_writer import draw_scans, write_scans


def spline(distance):
    """The cubic B-spline."""
    x = abs(distance)
    return (4 - 6 * x**2 + 3 * x**3) / 6 if x < 1 else (2 - x) ** 3 / 6 if x < 2 else 0.0


def slow_positions(bending):
    """Every point's place, each control point's share added one by one."""
    places = np.indices(bending.source).astype(np.float64)
    counts = bending.nodes.shape[1:]
    tables = [
        np.array([[spline(voxel / step - (node - 1)) for node in range(count)] for voxel in range(size)])
        for size, step, count in zip(bending.source, bending.steps, counts, strict=True)
    ]
    for node in itertools.product(*map(range, counts)):
        weight = tables[0][:, node[0]]
        for table, at in zip(tables[1:], node[1:], strict=True):
            weight = weight[..., None] * table[:, at]
        for axis in range(len(counts)):
            places[axis] += weight * float(bending.nodes[(axis, *node)])
    return places


def bending_of(one, shape, uniform, spacing=()):
    """What the augmentation makes of a whole image."""
    scene = Scene(view=Scene.whole(shape).view, extent=tuple((0, size) for size in shape), spacing_mm=spacing)
    given = []

    def keep(warp, **_):
        given.append(warp)
        return scene

    object.__setattr__(scene, "resampled", keep)
    one.apply(scene, uniform)
    return given[0]


@pytest.mark.parametrize(("shape", "spacing"), [((13, 17, 22), (3.0, 1.0, 1.5)), ((31, 40), ())])
def test_points_are_where_a_slow_spline_puts_them_and_nothing_folds(shape, spacing):
    one = ElasticDeformation(magnitude=4.0, grid=10.0)
    for seed in range(3):
        bending = bending_of(one, shape, draw_uniform(seed, 0, 7, 0), spacing)
        expected = slow_positions(bending)
        whole = tuple((0, size) for size in shape)
        places = np.stack(bending.positions(whole))
        assert np.abs(places - expected).max() < 1e-4
        part = tuple((size // 4, size // 2) for size in shape)
        region = tuple(slice(*side) for side in part)
        assert np.abs(np.stack(bending.positions(part)) - expected[(slice(None), *region)]).max() < 1e-4
        # In millimeters no displacement is larger than the magnitude, and some are not small.
        sides_mm = np.reshape(spacing or (1,) * len(shape), (-1, *[1] * len(shape)))
        moved = (places - np.indices(shape)) * sides_mm
        assert 0.5 < np.abs(moved).max() <= 4.0
        gradient = np.stack([np.stack(np.gradient(place), axis=-1) for place in expected], axis=-2)
        assert (np.linalg.det(gradient) > 0).all()


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_voxels_and_labels_are_those_at_their_points(tmp_path, dtype):
    folder, scans = volumes(tmp_path, dtype)
    one = ElasticDeformation(magnitude=3.0, grid=9.0, fill=-9)
    batch = Loader(folder, batch_size=6, seed=2, augment=[one], include=["extent"]).batch(0)
    for row, identity in enumerate(batch["id"].tolist()):
        scan = scans[identity]
        bending = bending_of(one, VOLUME, draw_uniform(2, 0, identity, 0), tuple(map(float, scan.spacing_mm)))
        places = slow_positions(bending)
        most = np.reshape(VOLUME, (3, 1, 1, 1)) - 1
        inside = np.all((places >= 0) & (places <= most), axis=0)
        outside = np.any((places < -0.51) | (places > most + 0.51), axis=0)
        assert np.abs(batch["image"][row] - linear(scan.image, places))[inside].max() < 30
        assert (batch["image"][row][outside] == -9).all() and not batch["label"][row][outside].any()
        nearest = np.rint(places)
        sure = inside & np.all(np.abs(places - nearest) < 0.45, axis=0)
        label = scan.label[tuple(np.clip(nearest, 0, most).astype(int))]
        assert np.array_equal(batch["label"][row][sure], label[sure])
        low, high = (np.reshape(end, (3, 1, 1, 1)) for end in scan.extent)
        shows = np.all((nearest >= low) & (nearest < high), axis=0)
        box = np.zeros(VOLUME, bool)
        box[tuple(map(slice, *batch["extent"][row]))] = True
        assert (box | ~shows).all()


def test_a_crop_of_the_bent_whole_is_the_same(tmp_path):
    folder, _ = volumes(tmp_path)
    chain, sides = (
        [FlipLeftRight(1.0), RandomRotation(5.0), ElasticDeformation(2.0, 12.0, fill=0)],
        (8, 9, 10),
    )
    whole, crop = (
        Loader(folder, batch_size=6, augment=augment).batch(1)
        for augment in (chain, [*chain, RandomCrop(*sides, foreground=1.0)])
    )
    for row in range(6):
        starts = []
        for start in np.ndindex(*(np.array(VOLUME) - sides + 1)):
            window = tuple(slice(at, at + side) for at, side in zip(start, sides, strict=True))
            if np.array_equal(whole["label"][row][window], crop["label"][row]):
                difference = whole["image"][row][window].astype(float) - crop["image"][row]
                starts.append(np.abs(difference).max())
        assert min(starts) <= 40  # the first turn fills what it needs with the least around the box


@pytest.mark.parametrize(("encoding", "pad"), [("raw", True), ("png", False)])
def test_pictures_with_labels_are_bent_alike(tmp_path, encoding, pad):
    scans = draw_scans({"train": 6}, shape=(40, 48), dtype="uint8", channels=3)
    for scan in scans:
        scan.label[...] = np.kron(1 + np.indices((5, 6)).sum(axis=0) % 4, np.ones((8, 8), np.uint8))
        scan.image[...] = scan.label[..., None] * 20
    folder = write_scans(tmp_path / "1.0.0", scans, encoding=encoding, pad=pad)
    batch = Loader(folder, batch_size=6, augment=[ElasticDeformation(6.0, 20.0)], include=["size"]).batch(0)
    by_id = {scan.id: scan for scan in scans}
    for row in range(6):
        height, width = batch["size"][row]
        image, label = batch["image"][row, :height, :width, 0], batch["label"][row, :height, :width]
        assert np.mean(np.abs(image.astype(int) - 20 * label.astype(int)) < 11) > 0.7
        straight = by_id[int(batch["id"][row])].label[:height, :width]
        assert 0.2 < np.mean(label == straight) < 0.95


def test_by_nothing_nothing_changes(tmp_path):
    folder, _ = volumes(tmp_path)
    plain = Loader(folder, batch_size=6).batch(1)
    for one in (ElasticDeformation(0.0), ElasticDeformation(probability=0.0)):
        bent = Loader(folder, batch_size=6, augment=[one]).batch(1)
        assert all(np.array_equal(array, bent[name]) for name, array in plain.items())
    still = Bending((4, 5, 6), (2.0, 2.0, 2.0), np.zeros((3, 5, 6, 6), np.float32))
    source, out = smooth((4, 5, 6), 1), np.empty((4, 5, 6, 1))
    assert still.image(source, (0, 0, 0), ((0, 4), (0, 5), (0, 6)), out) is None
    assert np.allclose(out, source, atol=1e-3)


def test_what_cannot_be_is_refused(tmp_path, draw, write):
    with pytest.raises(UsageError, match="no boxes"):
        Loader(write(draw(3)), batch_size=1, augment=[ElasticDeformation()])
    folder, _ = volumes(tmp_path)
    with pytest.raises(UsageError, match="after ElasticDeformation no affine"):
        Loader(folder, batch_size=1, augment=[ElasticDeformation()], include=["affine"])
