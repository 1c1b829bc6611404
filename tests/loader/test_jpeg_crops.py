"""Crops of JPEG pictures equal full decoding bit for bit, and only the restart intervals that they show are decoded."""

import contextlib
import io
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from halofeed.errors import CorruptFileError
from halofeed.loader import (
    FlipLeftRight,
    FlipUpDown,
    Loader,
    MixUp,
    Mosaic,
    RandomCrop,
    RandomCropImage,
    RandomResizedCrop,
    RandomRotation,
    Rotate90,
    ScaleJitter,
    jpeg_intervals,
)
from halofeed.loader.augment.crop_and_resize import ScaleWarp
from halofeed.loader.augment.view import Resampled, View
from halofeed.loader.batch import join_id
from halofeed.loader.jpeg_intervals import read_layout
from halofeed.loader.stored_jpeg import StoredJpeg
from halofeed.prep.voxels.encode import ENCODERS, encode_jpeg, restart_interval
from tests.support.picture_writer import example_of

RECORD = SimpleNamespace(place="a record", scratch=lambda size: np.empty(size, np.uint8))
SUBSAMPLINGS = {"4:2:0": 2, "4:2:2": 1, "4:4:4": 0}


def drawn(height, width, channels=3, seed=0):
    """A smooth picture with noise, so that blocks have many coefficients."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (5, 5, channels)).astype(np.uint8)
    smooth = cv2.resize(small, (width, height)).reshape(height, width, channels)
    return (smooth.astype(int) + rng.integers(-25, 26, smooth.shape)).clip(0, 255).astype(np.uint8)


def written(pixels, **options):
    """A JPEG file by Pillow, which writes restart markers and each subsampling."""
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[2] == 1 else pixels).save(stream, "JPEG", **options)
    return stream.getvalue()


def opened(file, *, channels=3, fast=False, largest=(1 << 14, 1 << 14)):
    field = SimpleNamespace(shape=(*largest, channels), encoding="jpeg", dtype="uint8")
    return StoredJpeg(RECORD, field, memoryview(file), fast=fast)


def decoded(file, channels=3, fast=False):
    return simplejpeg.decode_jpeg(file, "RGB" if channels == 3 else "GRAY", fastdct=fast, fastupsample=fast)


def seen(source, view):
    out = np.empty((*view.shape, source.shape[2]), np.uint8)
    source.copy(view, out)
    return out


def is_cut(file, box):
    return jpeg_intervals.cut(memoryview(file), read_layout(memoryview(file)), box) is not None


@st.composite
def crops(draw):
    """A JPEG file, and a view of it."""
    height, width = (draw(st.integers(1, 150)) for _ in range(2))
    channels = draw(st.sampled_from([1, 3]))
    options = {"quality": draw(st.sampled_from([40, 95, 100])), "optimize": draw(st.booleans())}
    if channels == 3:
        options["subsampling"] = draw(st.sampled_from(sorted(SUBSAMPLINGS)))
    kind = draw(st.sampled_from(["ours", "restart_marker_blocks", "restart_marker_rows"]))
    pixels = drawn(height, width, channels, seed=draw(st.integers(0, 5)))
    if kind == "ours":
        file = encode_jpeg(pixels, options["quality"])
    else:
        file = written(pixels, **options, **{kind: draw(st.integers(1, 4))})
    view = View.whole((height, width))
    if draw(st.booleans()):
        view = view.turn()
    if draw(st.booleans()):
        view = view.flip(draw(st.sampled_from([-1, -2])))
    starts, sizes = [], []
    for size in view.shape:
        starts.append(draw(st.integers(0, size - 1)))
        sizes.append(draw(st.integers(1, size - starts[-1])))
    return file, channels, view.crop(starts, sizes)


@given(crop=crops(), fast=st.booleans())
@settings(max_examples=120, deadline=None)
def test_what_a_view_shows_equals_full_decoding_and_the_view(crop, fast):
    file, channels, view = crop
    expected = view.shown(decoded(file, channels, fast))
    source = opened(file, channels=channels, fast=fast)
    assert np.array_equal(seen(source, view), expected)
    pixels, start, factor = source.decoded(view, 1)
    assert np.array_equal(pixels, expected) and (start, factor) == ((0, 0), 1)


@given(crops(), st.sampled_from([2, 4, 8]))
@settings(max_examples=100, deadline=None)
def test_a_reduced_view_equals_full_reduced_decoding_and_the_view(crop, factor):
    file, channels, view = crop
    complete = decoded(file, channels, True)
    sides = complete.shape[:2]
    pixels, start, used = opened(file, channels=channels, fast=True).decoded(view, factor)
    if min(sides) < 16:  # several scales of libjpeg give one size
        assert used == 1 and np.array_equal(pixels, view.shown(complete))
        return
    height, width = (-(-side // factor) for side in sides)
    options = {"fastdct": True, "fastupsample": True, "min_height": height, "min_width": width}
    whole = simplejpeg.decode_jpeg(file, "RGB" if channels == 3 else "GRAY", **options)
    assert used == factor and whole.shape[:2] == (height, width)
    held = tuple(slice(low // factor, -(-high // factor)) for low, high in view.box)
    part = whole[held].transpose(*view.order, 2)
    assert np.array_equal(
        pixels, part[tuple(slice(None, None, -1 if back else 1) for back in view.backwards)]
    )
    for first, size, shown, back, axis in zip(
        start, view.shape, pixels.shape[:2], view.backwards, view.order, strict=True
    ):
        low = view.box[axis][0]
        corner = size - (held[axis].stop * factor - low) if back else held[axis].start * factor - low
        assert first == corner and first <= 0 and first + shown * factor >= size


@given(st.integers(1, 3000), st.sampled_from([8, 16]))
@settings(max_examples=100, deadline=None)
def test_rows_of_blocks_hold_whole_intervals(width, unit):
    across = -(-width // unit)
    interval = restart_interval(width, unit)
    assert across % interval == 0 and interval <= 65_535
    assert interval == across or 2 <= interval <= 160 // unit


def without_intervals(file, kept):
    """The file with zeros instead of the compressed data of the rows of blocks that are not kept."""
    layout = read_layout(memoryview(file))
    ends = [*jpeg_intervals.interval_ends(memoryview(file), layout)]
    across = layout.units[1] // layout.interval
    damaged, start = bytearray(file), layout.start
    for number, end in enumerate(ends):
        if divmod(number, across) not in kept:
            damaged[start:end] = bytes(end - start)
        start = end + 2
    return bytes(damaged)


def test_intervals_outside_a_crop_are_not_decoded_and_damage_inside_is_an_error():
    pixels = drawn(160, 256)
    file = encode_jpeg(pixels, 95)
    assert read_layout(memoryview(file)).interval * 16 == 64
    view = View.whole((160, 256)).crop((50, 70), (40, 50))
    kept = {(row, column) for row in range(3, 6) for column in (1,)}
    assert np.array_equal(seen(opened(without_intervals(file, kept)), view), decoded(file)[50:90, 70:120])
    with pytest.raises(
        CorruptFileError, match=r"a record: the jpeg image cannot be decoded: .*halofeed verify"
    ):
        seen(opened(without_intervals(file, kept - {(4, 1)})), view)
    # The color of the first pixel of a block is mixed with that of the block before it.
    edge = View.whole((160, 256)).crop((48, 64), (32, 64))
    more = {(row, column) for row in range(2, 6) for column in range(3)}
    assert np.array_equal(seen(opened(without_intervals(file, more)), edge), decoded(file)[48:80, 64:128])


def changed(file, start, new):
    data = bytearray(file)
    data[start : start + len(new)] = new
    return bytes(data)


def unusual():
    pixels = drawn(96, 128)
    file = encode_jpeg(pixels, 95)
    layout = read_layout(memoryview(file))
    first, second = jpeg_intervals.interval_ends(memoryview(file), layout)[:2]
    cases = {
        "no markers": written(pixels),
        "progressive": written(pixels, progressive=True, restart_marker_rows=1),
        "intervals that begin within others' rows": written(pixels, restart_marker_blocks=3),
        "bytes after the end": file + b"video" + file,
    }
    broken = {
        "a number is wrong": changed(file, first + 1, b"\xd5"),
        "a marker is missing": file[:first] + file[second:],
        "an interval is too many": file[:-2] + b"\xff\xd7" + file[first + 2 : second] + b"\xff\xd9",
        "no end": file[:-2],
        "another marker": changed(file, first + 1, b"\xfe"),
    }
    return cases, broken


def test_a_frame_header_without_components_has_no_layout():
    frame, interval, scan = "ffc0 0008 08 0010 0010 00", "ffdd 0004 0001", "ffda 0003 00"
    assert read_layout(memoryview(bytes.fromhex(f"ffd8 {frame} {interval} {scan}"))) is None


@pytest.mark.parametrize("name", unusual()[0])
def test_files_that_are_unusual_are_decoded_completely(name):
    file = unusual()[0][name]
    layout = read_layout(memoryview(file))
    assert name == "bytes after the end" or layout is None or not is_cut(file, ((0, 16), (0, 16)))
    view = View.whole((96, 128)).crop((20, 30), (40, 50))
    assert np.array_equal(seen(opened(file), view), decoded(file)[20:60, 30:80])


@pytest.mark.parametrize("name", unusual()[1])
def test_markers_that_disagree_with_the_header_are_errors_of_the_complete_file(name):
    file = unusual()[1][name]
    assert not is_cut(file, ((20, 60), (30, 80)))
    with pytest.raises(ValueError):
        decoded(file)
    with pytest.raises(CorruptFileError, match="cannot be decoded"):
        seen(opened(file), View.whole((96, 128)).crop((70, 100), (4, 4)))


@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_a_damaged_file_gives_an_error_or_pixels_but_never_another_exception(data):
    file = bytearray(encode_jpeg(drawn(48, 160), 90))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(2, len(file) - 1))] = data.draw(st.integers(0, 255))
    del file[data.draw(st.integers(len(file) // 2, len(file))) :]
    with contextlib.suppress(CorruptFileError):
        source = opened(bytes(file), largest=(48, 160))
        height, width = source.shape[:2]
        view = View.whole((height, width)).crop((height // 4, width // 3), (-(-height // 2), -(-width // 2)))
        assert seen(source, view).shape == (*view.shape, 3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (37, 53), (200, 640), (64, 592)])
def test_every_decoder_reads_our_files_as_one_picture(size, channels):
    import tensorflow as tf

    pixels = drawn(*size, channels)
    file = encode_jpeg(pixels, 95)
    expected = decoded(file, channels)
    picture = JpegImageFile(io.BytesIO(file))
    assert np.array_equal(np.asarray(picture).reshape(expected.shape), expected)
    by_opencv = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED).reshape(expected.shape)
    assert np.array_equal(by_opencv[..., ::-1], expected)
    by_tensorflow = tf.io.decode_jpeg(file, dct_method="INTEGER_ACCURATE").numpy()
    assert np.array_equal(by_tensorflow, expected)
    assert np.abs(expected.astype(int) - pixels).mean() < 12
    # Coefficients are those of a file without markers.
    options = {} if channels == 1 else {"subsampling": "4:2:0"}
    assert np.array_equal(decoded(written(pixels, quality=95, **options), channels), expected)


# Batches -------------------------------------------------------------------------------------------------

AUGMENT = {
    "crop": [RandomCrop(40, 48)],
    "flips": [FlipLeftRight(), FlipUpDown(), RandomCrop(64, 64)],
    "turns": [RandomCrop(64, 64), Rotate90()],
    "resized": [FlipLeftRight(), RandomResizedCrop(32, 40)],
    "jitter": [ScaleJitter(48, 64, (0.3, 2.0)), FlipUpDown()],
    "stretched": [RandomCropImage(0.1)],
    "turned": [RandomCrop(50, 60), RandomRotation(30.0)],
    "mosaic": [RandomCrop(80, 90), Mosaic(64, 96, (0.3, 1.0)), MixUp()],
}


@pytest.fixture(scope="module")
def folder(write):
    boxes = [(10, 20, 50, 90), (60, 70, 90, 120)]
    sizes = [(96, 128), (96, 128), (70, 111), (96, 100), (81, 128), (96, 128)]
    examples = [
        example_of(1000 + number, drawn(*size, seed=number), boxes[: number % 3], *([1] * (number % 3),) * 2)
        for number, size in enumerate(sizes)
    ]
    return write(examples, frame=(96, 128), encoding="jpeg", pad=False, max_boxes=8)


def batches(folder, augment, **options):
    loader = Loader(folder, batch_size=3, seed=4, augment=augment, **options)
    return [loader.batch(step) for step in range(4)], loader


@pytest.mark.parametrize("decode", ["accurate", "fast"])
@pytest.mark.parametrize("name", AUGMENT)
def test_batches_are_the_same_whether_parts_or_complete_files_are_decoded(folder, monkeypatch, name, decode):
    cuts = []
    original = jpeg_intervals._assembled
    monkeypatch.setattr(jpeg_intervals, "_assembled", lambda *given: cuts.append(1) or original(*given))
    parts, loader = batches(folder, AUGMENT[name], decode=decode)
    assert cuts
    frame = loader.row_spec["image"].shape
    of_slab = loader.of_slab(((3, 20), (7, frame[1] - 2)))
    slabs = [of_slab.batch(step) for step in range(4)]
    monkeypatch.undo()
    monkeypatch.setattr(jpeg_intervals, "_MOST_KEPT", 0)
    cuts.clear()
    complete, _ = batches(folder, AUGMENT[name], decode=decode)
    assert not cuts
    for part, whole, slab in zip(parts, complete, slabs, strict=True):
        assert part.keys() == whole.keys()
        assert all(np.array_equal(part[key], whole[key]) for key in whole)
        assert np.array_equal(slab["image"], whole["image"][:, 3:20, 7 : frame[1] - 2])


def test_a_slab_of_rows_decodes_only_its_rows(folder, monkeypatch):
    loader = Loader(folder, batch_size=6, training=False)
    whole = loader.batch(0)["image"]
    kept = []
    original = jpeg_intervals.cut

    def cut(*given):
        kept.append(original(*given))
        return kept[-1]

    monkeypatch.setattr("halofeed.loader.stored_jpeg.cut", cut)
    slab = loader.of_slab(((32, 64), (0, 128))).batch(0)["image"]
    assert np.array_equal(slab, whole[:, 32:64]) and len(kept) == 6
    # One row of blocks more on both sides, whose colors are mixed with those of the slab.
    assert sorted(found[1][0] for found in kept) == [(16, 70)] + 5 * [(16, 80)]


@pytest.mark.parametrize("decode", ["accurate", "fast"])
def test_a_resized_crop_is_that_of_the_decoded_picture(folder, decode):
    """The rows are made again from the transform: the window of the decoded picture, and a slow triangle filter."""
    loader = Loader(
        folder,
        batch_size=6,
        seed=1,
        augment=[RandomResizedCrop(12, 16)],
        decode=decode,
        include=["transform"],
    )
    plain = {loader.stored(number).id: loader.stored(number) for number in range(loader.num_records)}
    worst, total = 0.0, []
    for step in range(5):
        batch = loader.batch(step)
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            (file,) = plain[identity].features(frozenset(["image/encoded"]))["image/encoded"]
            matrix = batch["transform"][row].astype(np.float64)
            # The stored picture's own transform is y * 2 + 1 and x * 2 - 3.
            scale = matrix[[0, 1], [0, 1]] / 2
            start = np.rint((matrix[:, 2] - [1, -3]) / 2).astype(int)
            size = np.rint(scale * [12, 16]).astype(int)
            window = decoded(bytes(file))[start[0] : start[0] + size[0], start[1] : start[1] + size[1]]
            assert window.shape[:2] == tuple(size)
            expected = np.asarray(Image.fromarray(window).resize((16, 12), Image.Resampling.BILINEAR))
            apart = np.abs(batch["image"][row].astype(int) - expected)
            worst = max(worst, apart.max())
            total.append(apart.mean())
    assert worst <= 1 if decode == "accurate" else (np.mean(total) < 6 and worst > 0)


def test_a_reduced_picture_has_the_place_of_the_complete_one():
    """A ramp keeps its values at every factor, offset and orientation, so a shift of a pixel would be seen."""
    down, across = np.mgrid[:128, :256]
    ramp = np.stack([across, 2 * down, (across + down) / 2], axis=-1).clip(0, 255).astype(np.uint8)
    source = opened(encode_jpeg(ramp, 100), fast=True)
    rng = np.random.default_rng(0)
    for number in range(40):
        view = View.whole((128, 256)).flip(-1 - number % 2)
        view = view.turn() if number % 3 == 0 else view
        size = [int(rng.integers(70, side + 1)) for side in view.shape]
        view = view.crop(
            [int(rng.integers(0, side - one + 1)) for side, one in zip(view.shape, size, strict=True)], size
        )
        warp = ScaleWarp(view.shape, (16, 16))
        assert warp.reduction >= 4
        box, out = ((0, 16), (0, 16)), np.empty((16, 16, 3), np.uint8)
        Resampled(source, view, warp, image=True).compute(box, out)
        window = np.ascontiguousarray(view.shown(ramp))
        expected = np.empty_like(out)
        warp.image(window, (0, 0), box, expected)
        # The filter at the window's edge has fewer pixels to mix.
        assert np.abs(out.astype(int) - expected)[1:-1, 1:-1].max() <= 3


def test_files_have_markers_whatever_their_quality():
    for quality in (1, 50, 100):
        assert read_layout(memoryview(ENCODERS["jpeg"](drawn(40, 320), quality))).interval == 4
