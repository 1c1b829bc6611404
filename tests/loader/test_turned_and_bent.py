"""Voxels, labels, boxes and affines turn and bend in millimeters, compared with slow sampling of each point.

A deformation is a slow B-spline's; nothing folds, leaves its extent or loses its label.
"""

import itertools

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from halofeed.errors import UsageError
from halofeed.loader import ElasticDeformation, FlipLeftRight, Loader, RandomCrop, RandomRotation, Rotate90
from halofeed.loader.augment import Example, draw_uniform
from halofeed.loader.augment.warps import DeformationWarp, MatrixWarp, _rotation_matrix
from halofeed.loader.batch import join_id
from tests.support.volume_writer import draw_scans, write_scans

VOLUME = (14, 22, 22)
CHAINS = [
    [RandomRotation(25.0)],
    [RandomRotation((10, 0, 30))],
    [FlipLeftRight(1.0), RandomRotation(15.0), RandomCrop(9, 11, 13)],
    [Rotate90(1.0), RandomRotation(6.0), RandomRotation(6.0), FlipLeftRight(1.0)],
]


def smooth(shape, channels, seed=0):
    """Waves, between whose samples a line is nearly right."""
    rng = np.random.default_rng(seed)
    grid = np.indices(shape, dtype=np.float64)
    ways = [rng.uniform(-0.4, 0.4, len(shape)) for _ in range(channels)]
    waves = [np.sin(np.tensordot(way, grid, 1) + phase) for phase, way in enumerate(ways)]
    return np.stack(waves, axis=-1) * 1000


def volumes(tmp_path, dtype="int16", count=6):
    """Scans whose axes are at right angles, with spacings of their own."""
    rng = np.random.default_rng(5)
    scans = draw_scans({"train": count}, shape=VOLUME, dtype=dtype, channels=2)
    for number, scan in enumerate(scans):
        scan.image[...] = np.rint(smooth(VOLUME, 2, number)).astype(scan.image.dtype)
        axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        scan.affine[:3, :3] = axes * rng.uniform(0.5, 4, 3)
    return write_scans(tmp_path / "1.0.0", scans), {scan.id: scan for scan in scans}


def source_places(affine, stored_affine, shape):
    """Where each voxel shown lies in the stored volume, in voxels, by way of its millimeters."""
    seen = np.stack([*np.indices(shape).reshape(len(shape), -1), np.ones(np.prod(shape))])
    return (np.linalg.inv(stored_affine.astype(np.float64)) @ affine.astype(np.float64) @ seen)[:-1]


def linear(image, places):
    """What lies at places [axis, ...] of an image [..., channel], between its voxels."""
    channels = np.moveaxis(image.astype(np.float64), -1, 0)
    values = [map_coordinates(one, places, order=1, mode="nearest") for one in channels]
    return np.stack(values, axis=-1)


@pytest.mark.parametrize("dtype", ["int16", "float32"])
@pytest.mark.parametrize("chain", CHAINS, ids=["turn", "some axes", "flip, turn, crop", "turn twice"])
def test_each_voxel_is_what_lies_at_its_millimeter(tmp_path, chain, dtype):
    folder, scans = volumes(tmp_path, dtype)
    include = ["affine", "spacing_mm", "extent"]
    batch = Loader(folder, batch_size=6, seed=3, augment=chain, include=include).batch(0)
    shape = batch["image"].shape[1:4]
    turned = sum(isinstance(one, RandomRotation) for one in chain)
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        scan = scans[identity]
        places = source_places(batch["affine"][row], scan.affine, shape)
        inside = np.all((places >= 4) & (places <= np.array(VOLUME)[:, None] - 5), axis=0).reshape(shape)
        assert inside.mean() > 0.05
        difference = np.abs(batch["image"][row] - linear(scan.image, places).reshape(*shape, 2))[inside]
        # 1/64 voxel along height and width of waves that rise by up to 700 a voxel; a second turn blurs.
        assert difference.max() < 25 * turned**3, difference.max()
        nearest = np.rint(places)
        sure = inside & np.all(np.abs(places - nearest) < 0.45, axis=0).reshape(shape)
        stored = np.clip(nearest, 0, np.array(VOLUME)[:, None] - 1).astype(int)
        label = scan.label[tuple(stored)].reshape(shape)
        if turned == 1:
            assert np.array_equal(batch["label"][row][sure], label[sure])
        # A turn moves no millimeters closer together.
        lengths = np.linalg.norm(batch["affine"][row, :3, :3].astype(np.float64), axis=0)
        assert np.allclose(batch["spacing_mm"][row], lengths, rtol=1e-4)
        # All of the scan that is shown lies in the extent.
        low, high = (end[:, None] for end in scan.extent)
        in_scan = np.all((places >= low - 0.4) & (places <= high - 0.6), axis=0).reshape(shape)
        box = np.zeros(shape, bool)
        box[tuple(map(slice, *batch["extent"][row]))] = True
        assert (box | ~in_scan).all()


def test_what_comes_from_outside_is_filled(tmp_path):
    folder, scans = volumes(tmp_path)
    for fill, expected in ((None, None), (-7, -7)):
        chain = [RandomRotation((45, 0, 0), fill=fill)]
        batch = Loader(folder, batch_size=6, augment=chain, include=["affine"]).batch(0)
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            scan = scans[identity]
            places = source_places(batch["affine"][row], scan.affine, VOLUME)
            most = np.array(VOLUME)[:, None] - 0.5
            outside = np.any((places < -0.51) | (places > most + 0.01), axis=0).reshape(VOLUME)
            least = scan.image.min() if expected is None else expected
            assert (batch["image"][row][outside] == least).all() and not batch["label"][row][outside].any()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "bfloat16"])
def test_pictures_of_every_dtype_turn_counterclockwise_about_their_center(dtype):
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    picture = (smooth((40, 50), 3) / 10 + 110).astype(kind)
    matrix = _rotation_matrix([np.radians(90)], (50, 50), (1.0, 1.0))
    square = np.concatenate([picture, picture[:10]])
    out = np.empty((50, 50, 3), kind)
    assert MatrixWarp((50, 50), matrix).image(square, (0, 0), ((0, 50), (0, 50)), out) is None
    assert np.array_equal(out, np.rot90(square))
    matrix = _rotation_matrix([np.radians(7)], (40, 50), (1.0, 1.0))
    out = np.empty((40, 50, 3), kind)
    outside = MatrixWarp((40, 50), matrix).image(picture, (0, 0), ((0, 40), (0, 50)), out)
    points = np.stack([*(np.indices((40, 50)) + 0.5).reshape(2, -1), np.ones(2000)])
    places = (matrix @ points)[:2] - 0.5
    inside = ~outside & np.all((places > 1) & (places < [[38], [48]]), axis=0).reshape(40, 50)
    assert np.abs(out.astype(np.float64) - linear(picture, places).reshape(40, 50, 3))[inside].max() < 2.5


@pytest.mark.parametrize(("encoding", "pad"), [("raw", True), ("png", False)])
def test_boxes_are_those_around_the_turned_corners_and_hold_their_masks(draw, write, encoding, pad):
    examples = draw(12, frame=(48, 64))
    folder = write(examples, frame=(48, 64), encoding=encoding, pad=pad, max_boxes=8, masks=True)
    turn = RandomRotation(30.0, minimum_visible=0.2)
    loader = Loader(folder, batch_size=12, augment=[turn], include=["masks", "transform", "size"])
    plain = Loader(folder, batch_size=12, augment=[RandomRotation(0.0)], include=["transform"])
    originals = {example["id"]: example for example in examples}
    before, batch = plain.batch(0), loader.batch(0)
    checked = 0
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        size = np.array(originals[identity]["pixels"].shape[:2])
        whole = np.vstack([before["transform"][row], [0, 0, 1]]).astype(np.float64)
        moved = np.linalg.inv(whole) @ np.vstack([batch["transform"][row], [0, 0, 1]]).astype(np.float64)
        expected = []
        for number, (top, left, bottom, right) in enumerate(originals[identity]["boxes"].tolist()):
            corners = np.array([[top, left, 1], [top, right, 1], [bottom, left, 1], [bottom, right, 1]]).T
            turned = (np.linalg.inv(moved) @ corners)[:2]
            box = np.concatenate([turned.min(axis=1), turned.max(axis=1)])
            cut = np.clip(box, 0, np.tile(size, 2))
            if np.prod(cut[2:] - cut[:2]) >= 0.2 * np.prod(box[2:] - box[:2]):
                expected.append((number, cut))
        assert batch["num_boxes"][row] == len(expected)
        for place, (number, box) in enumerate(expected):
            assert np.allclose(batch["boxes"][row, place] * [48, 64, 48, 64], box, atol=2e-2)
            assert batch["classes"][row, place] == originals[identity]["classes"][number]
            ys, xs = np.nonzero(batch["masks"][row, place])
            if len(ys):
                assert (np.array([ys.min(), xs.min()]) >= box[:2] - 1).all()
                assert (np.array([ys.max(), xs.max()]) + 1 <= box[2:] + 1).all()
                checked += 1
    assert checked > 15


def test_a_fill_that_no_pixel_can_be_is_refused(draw, write):
    with pytest.raises(UsageError, match="from 0 to 255"):
        Loader(write(draw(3)), batch_size=1, augment=[RandomRotation(3, fill=-1000)])
    assert Example.whole((3, 4)).shown_spacing_mm() == (1.0, 1.0)


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
    scene = Example(view=Example.whole(shape).view, extent=tuple((0, n) for n in shape), spacing_mm=spacing)
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
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
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
        straight = by_id[int(join_id(batch["id"][row]))].label[:height, :width]
        assert 0.2 < np.mean(label == straight) < 0.95


def test_a_turn_by_0_degrees_and_a_deformation_by_nothing_change_nothing(tmp_path, draw, write):
    folder, pictures = volumes(tmp_path)[0], write(draw(5))
    cases = [(folder, one, []) for one in (ElasticDeformation(0.0), ElasticDeformation(probability=0.0))]
    for one in (RandomRotation(0.0), RandomRotation(30.0, probability=0.0)):
        cases += [(folder, one, ["affine"]), (pictures, one, ["transform"])]
    for place, one, include in cases:
        plain, found = (
            Loader(place, batch_size=5, augment=augment, include=include).batch(1) for augment in ([], [one])
        )
        assert all(np.array_equal(array, found[name]) for name, array in plain.items())
    still = DeformationWarp((4, 5, 6), (2.0, 2.0, 2.0), np.zeros((3, 5, 6, 6), np.float32))
    source, out = smooth((4, 5, 6), 1), np.empty((4, 5, 6, 1))
    assert still.image(source, (0, 0, 0), ((0, 4), (0, 5), (0, 6)), out) is None
    assert np.allclose(out, source, atol=1e-3)


def test_deformations_that_cannot_be_are_refused(tmp_path, draw, write):
    with pytest.raises(UsageError, match="no boxes"):
        Loader(write(draw(3)), batch_size=1, augment=[ElasticDeformation()])
    folder, _ = volumes(tmp_path)
    with pytest.raises(UsageError, match="after ElasticDeformation no affine"):
        Loader(folder, batch_size=1, augment=[ElasticDeformation()], include=["affine"])
