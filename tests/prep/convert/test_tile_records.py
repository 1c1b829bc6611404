"""Tiles of a picture against slow oracles: the complete picture, converted and scaled at once, and then cut."""

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

from halofeed.errors import SourceError, UsageError
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert import tile_records
from halofeed.prep.convert.tile_records import TileConverter
from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.prep.formats.picture.image import apply_orientation
from halofeed.prep.formats.region.tiff_blocks import PageBlocks
from halofeed.prep.geometry.picture_tiles import plan_picture_tiles, scale_size
from halofeed.prep.geometry.resize import ResizePlan
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.kernels import resize_image, triangle_taps
from halofeed.schemas import keys
from halofeed.schemas.tfexample import decode_example
from halofeed.system.memory import no_memory_limit
from halofeed.system.threads import OrderedThreads

HEIGHT, WIDTH = 131, 203
TILE, OVERLAP = (48, 40), (8, 6)
LABELS = LabelMap(entries=((1, "a"),), first_id=1)


def draw(bands: int, dtype: str = "uint8", most: int | None = None) -> np.ndarray:
    limit = most or (np.iinfo(dtype).max if np.dtype(dtype).kind == "u" else 1000)
    drawn = np.random.default_rng(bands).integers(0, limit + 1, (HEIGHT, WIDTH, bands))
    return drawn.astype(dtype)


def write(path: Path, pixels: np.ndarray, *, orientation: int = 1, **options) -> None:
    bands = pixels.shape[2]
    options.setdefault(
        "photometric", "rgb" if bands in (3, 4) and pixels.dtype != np.float32 else "minisblack"
    )
    if bands == 4 and options["photometric"] == "rgb":
        options.setdefault("extrasamples", ["unassalpha"])
    if bands > 1:
        options.setdefault("planarconfig", "contig")
    tags = [*options.pop("extratags", ()), (274, 3, 1, orientation, True)]
    tifffile.imwrite(path, pixels if bands > 1 else pixels[..., 0], extratags=tags, **options)


def tiles_of(path: Path, threads: int = 1, reserve=no_memory_limit, **options) -> list[dict]:
    """Convert a picture, and return its records, decoded."""
    given = {"height": TILE[0], "width": TILE[1], "tile_overlap": OVERLAP, "encoding": "raw"} | options
    recipe = Recipe(layout="csv", task="classification", fit="tiles", **given)
    converter = TileConverter(recipe=recipe, task="classification", labels=LABELS)
    reference = SourceExample(source=path.name, key=path.name, labels=("a",))
    ordered = OrderedThreads(threads)
    try:
        records = list(converter.stream(reference, LocalFiles(path.parent), reserve, ordered.map, threads))
    finally:
        ordered.close()
    return [
        decode_example(memoryview(b"".join(map(bytes, record.example.chunks)))) | {"id": record.id}
        for record in records
    ]


def pixels_of(record: dict, channels: int, dtype: str = "uint8", tile=TILE) -> np.ndarray:
    return np.frombuffer(bytes(record[keys.ENCODED][0]), dtype).reshape(*tile, channels)


def as_text(record: dict) -> str:
    return str(
        {name: bytes(value[0]) if isinstance(value, list) else value for name, value in record.items()}
    )


def check_crops(
    records: list[dict], whole: np.ndarray, *, tile=TILE, overlap=OVERLAP, worst: int = 0
) -> None:
    """Compare tiles with crops of the whole; at most one in 200 values differs, and by `worst`."""
    plans = {one.number: one.plan for one in plan_picture_tiles(whole.shape[:2], tile, overlap)}
    assert sorted(int(record[keys.TILE][0]) for record in records) == sorted(plans)
    differing = 0
    for record in records:
        plan = plans[int(record[keys.TILE][0])]
        (top, left), (height, width) = plan.origin, plan.resized_size
        assert record[keys.TILE_ORIGIN].tolist() == [top, left]
        assert record[keys.TILE_WHOLE].tolist() == list(whole.shape[:2])
        found = pixels_of(record, whole.shape[2], whole.dtype.name, tile)
        expected = whole[top : top + height, left : left + width].astype(np.int64)
        difference = np.abs(found[:height, :width] - expected)
        assert difference.max(initial=0) <= worst, (plan.origin, np.argwhere(difference)[:3])
        differing += np.count_nonzero(difference)
        assert not found[height:].any() and not found[:, width:].any()
    assert differing <= whole.size / 200


def scaled_whole(pixels: np.ndarray, scale: float) -> np.ndarray:
    """Resize the complete picture, channel by channel, with the kernel of pictures that are not cut."""
    size = scale_size(pixels.shape[:2], (scale, scale))
    plan = ResizePlan(source_size=pixels.shape[:2], resized_size=size, output_size=size)
    channels = [resize_image(pixels[..., at : at + 1].copy(), plan) for at in range(pixels.shape[2])]
    return np.concatenate(channels, axis=2)


CASES = [(1, "uint8"), (3, "uint8"), (4, "uint8"), (5, "uint8"), (8, "uint8"), (13, "uint16"), (3, "uint16")]


@pytest.mark.parametrize(("bands", "dtype"), CASES)
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.37, 1.7, 2.0])
def test_tiles_are_crops_of_the_whole_scaled_picture(tmp_path, bands, dtype, scale):
    # An alpha of 0 marks a missing pixel, see below.
    pixels = np.maximum(draw(bands, dtype), 1)
    write(tmp_path / "a.tif", pixels, tile=(32, 48))
    records = tiles_of(tmp_path / "a.tif", channels=bands, dtype=dtype, scale=scale)
    # Pillow takes the position of a window in float32, see `scale_window`.
    worst = int(dtype == "uint8" and scale < 1)
    check_crops(records, scaled_whole(pixels, scale), worst=worst)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("name", "scale"), [("a.tif", 1.0), ("a.tif", 0.5), ("a.jpg", 1.0), ("a.jpg", 0.41)])
def test_tiles_are_crops_of_the_displayed_picture(tmp_path, orientation, name, scale):
    pixels = draw(3)
    if name == "a.tif":
        write(tmp_path / name, pixels, orientation=orientation, rowsperstrip=7)
    else:
        exif = Image.Exif()
        exif[274] = orientation
        Image.fromarray(pixels).save(tmp_path / name, exif=exif, quality=90)
    read = read_image((tmp_path / name).read_bytes(), ReadOptions())
    if name == "a.tif":
        np.testing.assert_array_equal(read.pixels, apply_orientation(pixels, orientation))
    records = tiles_of(tmp_path / name, scale=scale)
    check_crops(records, scaled_whole(read.pixels, scale), worst=int(scale < 1))


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_groups_of_columns_change_no_record_and_no_order(tmp_path, monkeypatch, orientation, scale):
    write(tmp_path / "a.tif", draw(3), orientation=orientation, tile=(16, 16))
    together = tiles_of(tmp_path / "a.tif", scale=scale)
    monkeypatch.setattr(tile_records, "BAND_BYTES", 1)
    apart = tiles_of(tmp_path / "a.tif", threads=3, scale=scale)
    assert [as_text(record) for record in apart] == [as_text(record) for record in together]


def test_compressed_strips_are_decoded_once_however_wide_they_are(tmp_path, monkeypatch):
    write(tmp_path / "a.tif", draw(3), compression="lzw", rowsperstrip=7)
    monkeypatch.setattr(tile_records, "BAND_BYTES", 1)
    decode, decoded = PageBlocks._decode, []
    monkeypatch.setattr(
        PageBlocks,
        "_decode",
        lambda self, data, block: (decoded.append(block.number), decode(self, data, block))[1],
    )
    tiles_of(tmp_path / "a.tif")
    assert sorted(decoded) == list(range(-(-HEIGHT // 7)))


@pytest.mark.parametrize(
    ("options", "channels"),
    [
        ({"channels": 1}, 1),
        ({"channels": 4}, 4),
        ({"alpha": "blend", "background": (255, 0, 128)}, 3),
        ({"dtype": "uint16"}, 3),
    ],
)
def test_values_are_converted_before_they_are_scaled_as_in_a_picture_that_is_not_cut(
    tmp_path, options, channels
):
    Image.fromarray(np.maximum(draw(4), 1)).save(tmp_path / "a.png")
    read = read_image((tmp_path / "a.png").read_bytes(), ReadOptions(**{"channels": channels} | options))
    for scale in (1.0, 0.5):
        records = tiles_of(tmp_path / "a.png", scale=scale, **options)
        check_crops(records, scaled_whole(read.pixels, scale), worst=int(scale < 1))


def test_twelve_bits_in_sixteen_are_scaled_as_in_other_pictures(tmp_path):
    pixels = draw(3, "uint16", most=4095)
    write(tmp_path / "a.tif", pixels)
    read = read_image((tmp_path / "a.tif").read_bytes(), ReadOptions(sample_bits=12))
    check_crops(tiles_of(tmp_path / "a.tif", sample_bits=12), read.pixels)
    check_crops(tiles_of(tmp_path / "a.tif", dtype="uint16"), pixels)
    pixels[-1, -1] = 5000
    write(tmp_path / "a.tif", pixels)
    with pytest.raises(SourceError, match=r"largest value is 5000.*--sample-bits 14"):
        tiles_of(tmp_path / "a.tif", sample_bits=12)


@pytest.mark.parametrize("scale", [0.5, 0.25, 0.3, 0.51, 0.7])
def test_a_pyramid_is_read_at_the_smallest_level_that_is_enough(tmp_path, scale):
    levels = [np.full((256 >> level, 512 >> level, 3), 50 * level, np.uint8) for level in range(3)]
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        for number, level in enumerate(levels):
            more = {"subifds": 2} if number == 0 else {"subfiletype": 1}
            writer.write(level, tile=(32, 32), photometric="rgb", **more)
    records = tiles_of(tmp_path / "a.tif", scale=scale, tile_overlap=(0, 0))
    enough = max(level for level in range(3) if 1 / 2**level >= scale)
    assert {int(pixels_of(record, 3).max()) for record in records} == {50 * enough}


def test_ground_sample_distance_decides_the_scale(tmp_path):
    pixels = draw(3)
    # ModelPixelScale, ModelTiepoint, and a projected CRS (UTM 33N): 0.5 m a column and 1 m a row.
    tags = [
        (33550, "d", 3, (0.5, 1.0, 0.0), True),
        (33922, "d", 6, (0, 0, 0, 500000.0, 5200000.0, 0), True),
        (
            34735,
            "H",
            20,
            (1, 1, 0, 4, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633, 3076, 0, 1, 9001),
            True,
        ),
    ]
    for orientation in (1, 6):
        write(tmp_path / "a.tif", pixels, orientation=orientation, extratags=tags)
        (first, *_) = tiles_of(tmp_path / "a.tif", gsd_m=2.0)
        scaled = (round(HEIGHT / 2 + 1e-9), round(WIDTH / 4))
        assert first[keys.TILE_WHOLE].tolist() == list(scaled[:: 1 if orientation == 1 else -1])
    write(tmp_path / "b.tif", pixels)
    with pytest.raises(SourceError, match=r"no ground sample distance.*--scale"):
        tiles_of(tmp_path / "b.tif", gsd_m=2.0)


def weighed_mean(pixels: np.ndarray, valid: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the existing pixels under each scaled one, and the weight of those, pixel by pixel."""
    size = scale_size(pixels.shape[:2], (scale, scale))
    (rows, down), (columns, across) = (
        triangle_taps(side, scaled) for side, scaled in zip(pixels.shape[:2], size, strict=True)
    )
    means, weights = np.zeros((*size, pixels.shape[2])), np.zeros(size)
    for y, x in np.ndindex(*size):
        weight = np.outer(down[y], across[x]) * valid[np.ix_(rows[y], columns[x])]
        weights[y, x] = weight.sum()
        values = np.nan_to_num(pixels[np.ix_(rows[y], columns[x])])
        means[y, x] = np.einsum("ij,ijc->c", weight, values) / max(weights[y, x], 1e-30)
    return means, weights


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_missing_pixels_become_padding_and_do_not_darken_their_neighbors(tmp_path, dtype, scale):
    pixels = np.maximum(draw(3, dtype, most=200), np.array(50, dtype))
    missing = np.tri(HEIGHT, WIDTH, -20, bool)
    fill = "nan" if dtype == "float32" else "0"
    pixels[missing] = np.array(fill, dtype)
    tags = [(42113, "s", 0, fill, True)]
    write(tmp_path / "a.tif", pixels, extratags=tags, tile=(32, 32))
    ranged = dtype == "float32"
    options = {"value_range": (0.0, 255.0)} if ranged else {"dtype": dtype}
    records = tiles_of(tmp_path / "a.tif", scale=scale, pad_value=(7,), **options)
    means, weights = weighed_mean(pixels, ~missing, scale)
    plans = {one.number: one.plan for one in plan_picture_tiles(weights.shape, TILE, OVERLAP)}
    seen = set()
    for record in records:
        plan = plans[int(record[keys.TILE][0])]
        (top, left), (height, width) = plan.origin, plan.resized_size
        part = np.s_[top : top + height, left : left + width]
        found = pixels_of(record, 3, "uint8" if ranged else dtype).astype(float)
        exists = weights[part] > 0.5 + 1e-5
        gone = weights[part] < 0.5 - 1e-5
        assert (found[gone] == 7).all()
        assert np.abs(found[exists] - means[part][exists]).max(initial=0) <= 1.01
        seen |= {bool(gone.any()), not gone.any()}
    assert seen == {True, False}


def test_transparent_pixels_of_a_tiff_are_missing_unless_alpha_is_used(tmp_path):
    pixels = draw(4)
    pixels[:60, :60, 3] = 0
    write(tmp_path / "a.tif", pixels)
    data = (tmp_path / "a.tif").read_bytes()
    dropped = np.where(pixels[..., 3:] > 0, pixels[..., :3], 0)
    check_crops(tiles_of(tmp_path / "a.tif"), dropped)
    for options in ({"alpha": "blend", "background": (9, 8, 7)}, {"channels": 4}):
        read = read_image(data, ReadOptions(**options))
        check_crops(tiles_of(tmp_path / "a.tif", **options), read.pixels)


def test_percentiles_are_those_of_all_existing_pixels(tmp_path):
    pixels = draw(5, "uint16", most=9000)
    pixels[:40] = 0
    write(tmp_path / "a.tif", pixels, extratags=[(42113, "s", 0, "0", True)], tile=(32, 32))
    records = tiles_of(tmp_path / "a.tif", channels=3, bands=(4, 1, 2), window_percentiles=(2.0, 98.0))
    chosen = pixels[..., [3, 0, 1]].astype(float)
    existing = chosen[pixels.any(axis=2)]
    low, high = np.percentile(existing, (2, 98), axis=0)
    for record in records:
        np.testing.assert_allclose(record[keys.INTENSITY_OFFSET], low, rtol=1e-6)
        np.testing.assert_allclose(record[keys.INTENSITY_SCALE], (high - low) / 255, rtol=1e-6)
    whole = np.clip(np.rint((chosen - low) * 255 / (high - low)), 0, 255).astype(np.uint8)
    whole[~pixels.any(axis=2)] = 0
    check_crops(records, whole, worst=1)


def test_a_stated_range_becomes_bytes(tmp_path):
    pixels = draw(3, "float32") - 300
    write(tmp_path / "a.tif", pixels)
    whole = np.clip(np.rint((pixels.astype(float) + 100) * 255 / 500), 0, 255).astype(np.uint8)
    check_crops(tiles_of(tmp_path / "a.tif", value_range=(-100.0, 400.0)), whole, worst=1)


@pytest.mark.parametrize(
    ("bands", "dtype", "options", "message", "fix"),
    [
        (5, "uint8", {}, "5 bands and --channels is 3", {"channels": 5}),
        (5, "uint8", {}, "such as --bands 1,2,3", {"bands": (1, 2, 3)}),
        (3, "uint8", {"bands": (4,)}, "--bands 4: the file has 3 bands", {"bands": (3,)}),
        (3, "uint16", {}, "16 bits; take --value-range", {"value_range": (0.0, 3000.0)}),
        (3, "uint16", {}, "--window-percentiles 2,98", {"window_percentiles": (2.0, 98.0)}),
        (3, "uint16", {}, "--dtype uint16 to keep them", {"dtype": "uint16"}),
        (3, "uint16", {}, "--sample-bits 16 if", {"sample_bits": 16}),
        (5, "uint16", {"channels": 5}, "--dtype uint16", {"channels": 5, "dtype": "uint16"}),
        (5, "uint8", {"channels": 5, "dtype": "uint16"}, "take --dtype uint8", {"channels": 5}),
        (3, "float32", {}, "holds float32; take --value-range", {"value_range": (0.0, 3000.0)}),
        (
            1,
            "int16",
            {"channels": 1},
            "--window-percentiles",
            {"channels": 1, "window_percentiles": (2.0, 98.0)},
        ),
    ],
)
def test_values_that_do_not_fit_are_refused_with_a_fix_that_works(
    tmp_path, bands, dtype, options, message, fix
):
    write(tmp_path / "a.tif", draw(bands, dtype, most=200))
    with pytest.raises(SourceError) as raised:
        tiles_of(tmp_path / "a.tif", **options)
    assert message in str(raised.value)
    assert tiles_of(tmp_path / "a.tif", **fix)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "--dtype float32: expected uint8 or uint16"),
        ({"channels": 300}, "--channels 300: expected 1 to 256"),
        ({"bands": (1, 1)}, "--bands 1,1: expected different numbers"),
        ({"channels": 5, "encoding": "png"}, "--encoding png holds 1, 3 or 4 channels"),
        ({"value_range": (3.0, 3.0)}, "--value-range 3,3"),
        ({"value_range": (0.0, 9.0), "window_percentiles": (1.0, 99.0)}, "give one of them"),
        ({"scale": 0.5, "gsd_m": 1.0}, "--scale and --gsd-m both scale"),
        ({"empty_tiles": "some"}, "--empty-tiles some"),
        ({"tile_overlap": (48, 0)}, "--tile-overlap 48,0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Recipe(
            layout="csv",
            task="classification",
            fit="tiles",
            **{"height": 48, "width": 40, "encoding": "raw"} | options,
        )


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_picture_smaller_than_a_tile_is_padded_at_its_end(tmp_path, orientation):
    pixels = np.maximum(draw(3)[:20, :30], 1)
    write(tmp_path / "a.tif", pixels, orientation=orientation)
    (record,) = tiles_of(tmp_path / "a.tif", pad_value=(9,))
    shown = apply_orientation(pixels, orientation)
    found = pixels_of(record, 3)
    np.testing.assert_array_equal(found[: len(shown), : shown.shape[1]], shown)
    assert (found[len(shown) :] == 9).all() and (found[:, shown.shape[1] :] == 9).all()
    assert [int(record[key][0]) for key in keys.UNPADDED_SIDES] == list(shown.shape[:2])


def test_ids_are_unique_and_do_not_depend_on_options_of_the_pixels(tmp_path):
    write(tmp_path / "a.tif", draw(3))
    ids = [
        [record["id"] for record in tiles_of(tmp_path / "a.tif", **options)]
        for options in ({}, {"channels": 1})
    ]
    assert ids[0] == ids[1] and len({*ids[0]}) == len(ids[0]) > 20


def test_jpeg_and_png_are_encoded_from_the_same_pixels(tmp_path):
    write(tmp_path / "a.tif", draw(3))
    raw = tiles_of(tmp_path / "a.tif")
    for record, expected in zip(tiles_of(tmp_path / "a.tif", encoding="png"), raw, strict=True):
        found = np.asarray(Image.open(io.BytesIO(bytes(record[keys.ENCODED][0]))))
        np.testing.assert_array_equal(found, pixels_of(expected, 3))
    assert (
        cv2.imdecode(
            np.frombuffer(tiles_of(tmp_path / "a.tif", encoding="jpeg")[0][keys.ENCODED][0], np.uint8), 1
        )
        is not None
    )


def test_bits_of_samples_are_no_fix_for_bands(tmp_path):
    write(tmp_path / "a.tif", draw(5, "uint16", most=200))
    with pytest.raises(SourceError) as raised:
        tiles_of(tmp_path / "a.tif", channels=5)
    assert "--sample-bits" not in str(raised.value)
