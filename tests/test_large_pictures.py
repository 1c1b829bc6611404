"""The drawn large pictures of tests and benchmarks: their pixels, objects and files, as other software reads them."""

import io
import itertools
import json
from math import ceil, floor

import cv2
import numpy as np
import pytest
import simplejpeg
import tifffile
from PIL import Image

from tests.support.large_picture_files import (
    BANDS,
    EPSG,
    MAP_CORNER,
    MICROMETERS,
    PIXEL_M,
    QUALITY,
    WRITERS,
    band_values,
    level_factors,
    valid_rows,
)
from tests.support.large_pictures import PERIOD, LargePicture, coco_document, write_coco

HEIGHT, WIDTH = 700, 530


@pytest.fixture(scope="module")
def picture():
    """Larger than the background's period, and no multiple of a tile."""
    return LargePicture(HEIGHT, WIDTH, count=40, seed=3)


@pytest.fixture(scope="module")
def pixels(picture):
    return picture.rows(0, HEIGHT)


@pytest.fixture
def written(tmp_path, picture):
    def write(form):
        name, writer = WRITERS[form]
        writer(tmp_path / name, picture)
        return tmp_path / name

    return write


@pytest.mark.parametrize("rows", [1, 37, 256, HEIGHT])
def test_bands_of_any_height_have_the_same_rows(picture, pixels, rows):
    np.testing.assert_array_equal(np.concatenate(list(picture.bands(rows))), pixels)


def test_a_seed_draws_the_same_picture(pixels):
    np.testing.assert_array_equal(LargePicture(HEIGHT, WIDTH, count=40, seed=3).rows(0, HEIGHT), pixels)
    assert (LargePicture(HEIGHT, WIDTH, count=40, seed=4).rows(0, HEIGHT) != pixels).any()


def test_objects_are_seen_inside_their_boxes_and_nowhere_else(picture, pixels):
    empty = LargePicture(HEIGHT, WIDTH, count=0, seed=3).rows(0, HEIGHT)
    changed = (pixels != empty).any(2)
    for drawn in picture.objects:
        top, left, bottom, right = drawn.box
        assert 0 <= top < bottom <= HEIGHT
        assert 0 <= left < right <= WIDTH
        x, y = drawn.corners.mean(0)
        assert tuple(pixels[int(y), int(x)]) == drawn.color
        window = changed[floor(top) - 1 : ceil(bottom) + 1, floor(left) - 1 : ceil(right) + 1]
        rows, columns = np.flatnonzero(window.any(1)), np.flatnonzero(window.any(0))
        assert abs(len(rows) - (bottom - top)) < 2
        assert abs(len(columns) - (right - left)) < 2
        window[:] = False
    assert not changed.any()


def test_objects_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="200 objects do not fit into 300 x 300 pixels"):
        LargePicture(300, 300, count=200)


def test_coco_lists_every_object_with_its_box(tmp_path, picture):
    write_coco(tmp_path / "annotations" / "all.json", {"a.tif": picture, "b.tif": picture})
    document = json.loads((tmp_path / "annotations" / "all.json").read_text())
    assert document == coco_document({"a.tif": picture, "b.tif": picture})
    assert [entry["id"] for entry in document["annotations"]] == list(range(1, 81))
    drawn_twice = itertools.chain(picture.objects, picture.objects)
    for entry, drawn in zip(document["annotations"], drawn_twice, strict=True):
        x, y, width, height = entry["bbox"]
        np.testing.assert_allclose((y, x, y + height, x + width), drawn.box)
        assert entry["category_id"] == 1 + drawn.category
        assert entry["segmentation"] == [drawn.corners.ravel().tolist()]


@pytest.mark.parametrize("form", ["lzw-strips", "cog"])
def test_lossless_tiff_has_the_drawn_pixels(written, pixels, form):
    if form == "cog":
        pytest.importorskip("rasterio")
    np.testing.assert_array_equal(tifffile.imread(written(form), key=0), pixels)


def test_png_has_the_drawn_pixels(written, pixels):
    file = written("png")
    np.testing.assert_array_equal(Image.open(file), pixels)
    np.testing.assert_array_equal(cv2.imread(str(file))[..., ::-1], pixels)


def test_jpeg_written_in_bands_equals_one_written_whole(written, pixels):
    whole = simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorspace="RGB", colorsubsampling="420")
    expected = np.array(Image.open(io.BytesIO(whole)))
    file = written("jpeg")
    np.testing.assert_array_equal(Image.open(file), expected)
    np.testing.assert_array_equal(simplejpeg.decode_jpeg(file.read_bytes()), np.array(expected))


@pytest.mark.parametrize(("form", "side"), [("jpeg-tiles", 256), ("big", 512)])
def test_jpeg_tiles_show_the_drawn_pixels(written, pixels, form, side):
    with tifffile.TiffFile(written(form)) as opened:
        page = opened.pages.first
        assert (page.tilelength, page.tilewidth, page.compression.name) == (side, side, "JPEG")
        assert opened.is_bigtiff == (form == "big")
        difference = np.abs(page.asarray().astype(int) - pixels)
    assert difference.mean() < 5
    assert PERIOD % side == 0


def test_bands_have_their_values_and_their_place_on_the_map(written, pixels):
    rasterio = pytest.importorskip("rasterio")
    with rasterio.open(written("bands")) as opened:
        assert (opened.count, opened.dtypes[0], opened.crs.to_epsg()) == (BANDS, "uint16", EPSG)
        expected = (PIXEL_M, 0, MAP_CORNER[0], 0, -PIXEL_M, MAP_CORNER[1])
        assert tuple(opened.transform)[:6] == expected
        np.testing.assert_array_equal(np.moveaxis(opened.read(), 0, 2), band_values(pixels))


def test_rim_of_nodata_is_known_to_gdal(written, picture, pixels):
    rasterio = pytest.importorskip("rasterio")
    valid = valid_rows(picture, 0, HEIGHT)
    assert 0.5 < valid.mean() < 0.95
    assert not valid[[0, 0, -1, -1], [0, -1, 0, -1]].any()
    with rasterio.open(written("nodata")) as opened:
        np.testing.assert_array_equal(opened.dataset_mask() == 255, valid)
        np.testing.assert_array_equal(np.moveaxis(opened.read(), 0, 2), pixels * valid[..., None])


def test_overviews_of_the_cog_have_half_the_size_each(written):
    rasterio = pytest.importorskip("rasterio")
    with rasterio.open(written("cog")) as opened:
        assert opened.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert opened.overviews(1) == [2]
        assert opened.crs.to_epsg() == EPSG


def test_levels_of_the_ome_tiff_are_the_shrunk_picture(written, picture):
    factors = level_factors(picture, 256)
    assert factors == [1, 2, 4]
    with tifffile.TiffFile(written("ome")) as opened:
        assert opened.is_ome
        assert f'PhysicalSizeX="{MICROMETERS}"' in opened.ome_metadata
        levels = opened.series[0].levels
        assert [level.shape for level in levels] == [(HEIGHT // f, WIDTH // f, 3) for f in factors]
        for level, factor in zip(levels, factors, strict=True):
            expected = picture.shrunk_rows(factor, 0, HEIGHT // factor)
            assert np.abs(level.asarray().astype(int) - expected).mean() < 6


def test_wsidicom_opens_the_slide(written, pixels):
    wsidicom = pytest.importorskip("wsidicom")
    with wsidicom.WsiDicom.open(written("slide")) as opened:
        assert (opened.size.height, opened.size.width) == (HEIGHT, WIDTH)
        assert opened.mpp.width == pytest.approx(MICROMETERS)
        sizes = [level.size.to_tuple() for level in opened.pyramids[0]]
        assert sizes == [(WIDTH, HEIGHT), (WIDTH // 4, HEIGHT // 4)]
        shown = np.array(opened.read_region((100, 200), 0, (300, 400)).convert("RGB"))
    assert np.abs(shown.astype(int) - pixels[200:600, 100:400]).mean() < 5
