"""Levels, planes, masks, missing pixels and places of TIFF files, beside tifffile, rasterio and openslide."""

import sys
import tracemalloc
import warnings
from pathlib import Path

import imagecodecs
import numpy as np
import openslide
import pytest
import rasterio
import tifffile
from rasterio.enums import Resampling
from rasterio.shutil import copy as copy_raster

from halofeed.errors import MissingExtraError, SourceError
from halofeed.prep.convert.label_image import read_label_image
from halofeed.prep.formats.picture import picture_formats
from halofeed.prep.formats.picture.picture_formats import FIRST_OF_SEVERAL
from halofeed.prep.formats.region import tiff_regions
from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.formats.region.tiff_regions import open_tiff_regions
from halofeed.prep.sources.files import LocalFiles
from tests.support.drawn_tiffs import check_windows, draw, facts_of, opened, read_whole
from tests.support.ndpi_writer import write_ndpi

UTM = {"crs": "EPSG:32633", "transform": rasterio.Affine(10.0, 0.0, 500000.0, 0.0, -10.0, 5200000.0)}


def write_raster(path: Path, picture: np.ndarray, **options) -> None:
    """Write [height, width, band] by GDAL."""
    height, width, count = picture.shape
    form = {"driver": "GTiff", "height": height, "width": width, "count": count, "dtype": picture.dtype}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path, "w", **{**form, **options}) as raster:
            raster.write(np.moveaxis(picture, -1, 0))


def read_raster(path: Path, **options) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path, **options) as raster:
            return np.moveaxis(raster.read(), 0, -1)


def halves(picture: np.ndarray, count: int) -> list[np.ndarray]:
    return [picture[:: 2**level, :: 2**level] for level in range(count)]


def test_each_level_of_a_cloud_optimized_geotiff_is_that_of_rasterio(tmp_path):
    picture, path = draw(4, "uint16"), tmp_path / "cog.tif"
    write_raster(tmp_path / "plain.tif", picture, **UTM)
    copy_raster(
        tmp_path / "plain.tif",
        path,
        driver="COG",
        blocksize=64,
        compress="deflate",
        overview_resampling="average",
    )
    facts = facts_of(path)
    assert facts.levels == ((203, 307), (101, 153), (50, 76), (25, 38))
    assert facts.color == "bands"
    check_windows(path, picture)
    for level in (1, 2, 3):
        check_windows(path, read_raster(path, overview_level=level - 1), level=level)


def test_ome_pyramid_in_pages_below_the_first_has_its_levels_and_no_thumbnail(tmp_path):
    path, levels = tmp_path / "a.ome.tif", halves(draw(3), 3)
    with tifffile.TiffWriter(path, bigtiff=True) as file:
        options = {"tile": (64, 64), "photometric": "rgb", "compression": "deflate"}
        metadata = {
            "axes": "YXS",
            "PhysicalSizeX": 0.25,
            "PhysicalSizeXUnit": "µm",
            "PhysicalSizeY": 500,
            "PhysicalSizeYUnit": "nm",
        }
        file.write(levels[0], subifds=2, metadata=metadata, **options)
        for level in levels[1:]:
            file.write(level, subfiletype=1, **options)
        file.write(draw(3, seed=4)[:50, :50], photometric="rgb", metadata={"Name": "label"})
    facts = facts_of(path)
    assert facts.levels == tuple(level.shape[:2] for level in levels)
    assert facts.pixel_size_m == pytest.approx((0.5e-6, 0.25e-6))
    for number, level in enumerate(levels):
        check_windows(path, level, level=number)


def test_three_planes_of_an_ome_picture_are_its_bands(tmp_path):
    path, planes = tmp_path / "planes.ome.tif", draw(3, "uint16")
    tifffile.imwrite(
        path,
        np.moveaxis(planes, -1, 0),
        photometric="minisblack",
        metadata={"axes": "CYX"},
        rowsperstrip=20,
        compression="zstd",
    )
    assert facts_of(path).color == "bands"
    assert facts_of(path).notes == ()
    check_windows(path, planes)


@pytest.mark.parametrize("axes", ["ZYX", "TYX", "CZYX", "ZCYX"])
def test_the_first_of_several_depths_or_times_is_read_with_a_note(tmp_path, axes):
    path = tmp_path / "stack.ome.tif"
    sizes = [{"Z": 3, "T": 3, "C": 2}[axis] for axis in axes[:-2]]
    stack = np.stack([draw(1, "uint16", seed)[..., 0] for seed in range(int(np.prod(sizes)))]).reshape(
        *sizes, 203, 307
    )
    tifffile.imwrite(path, stack, photometric="minisblack", metadata={"axes": axes}, compression="deflate")
    first = stack
    for position in reversed(range(len(axes) - 2)):
        if axes[position] != "C":
            first = first.take(0, axis=position)
    check_windows(path, np.moveaxis(first, 0, -1) if first.ndim == 3 else first)
    assert FIRST_OF_SEVERAL in facts_of(path).notes


def test_an_imagej_stack_of_channels_has_them_as_bands(tmp_path):
    path, planes = tmp_path / "imagej.tif", draw(2, "uint16")
    tifffile.imwrite(path, np.moveaxis(planes, -1, 0), imagej=True, metadata={"axes": "CYX"})
    check_windows(path, planes)


def test_further_pages_are_not_read_and_a_note_says_so(tmp_path):
    path = tmp_path / "pages.tif"
    with tifffile.TiffWriter(path) as file:
        for seed in range(3):
            file.write(draw(3, seed=seed), photometric="rgb", metadata=None, contiguous=False)
    check_windows(path, draw(3, seed=0))
    assert facts_of(path).notes == (FIRST_OF_SEVERAL,)


def write_slide(path: Path, levels: list[np.ndarray], compression="jpeg", **options) -> None:
    """Write a slide in Aperio's order: full resolution, thumbnail, levels, label, photograph."""
    description = (
        "Aperio Image Library v11\r\n{0}x{1} [0,0 {0}x{1}] ({2}x{2}) JPEG/RGB Q=70|AppMag = 20|MPP = 0.4990"
    )
    height, width = levels[0].shape[:2]
    with tifffile.TiffWriter(path) as file:
        tiled = {
            "tile": (64, 64),
            "photometric": "rgb",
            "compression": compression,
            "metadata": None,
            **options,
        }
        plain = {"photometric": "rgb", "metadata": None, "compression": "lzw", "rowsperstrip": 16}
        text = description.format(width, height, 64)
        file.write(levels[0], description=text, **tiled)
        file.write(levels[0][::3, ::3], description=text, **plain)
        for level in levels[1:]:
            file.write(level, description=text, **tiled)
        file.write(
            draw(3, seed=8)[:100, :100],
            subfiletype=1,
            description="Aperio Image Library v11\r\nlabel 100x100",
            **plain,
        )
        file.write(
            draw(3, seed=9)[:70, :200],
            subfiletype=9,
            description="Aperio Image Library v11\r\nmacro 200x70",
            **plain,
        )


def test_each_level_of_a_slide_is_that_of_openslide(tmp_path):
    path = tmp_path / "slide.svs"
    write_slide(path, [draw(3), draw(3)[:200:4, :304:4]])
    facts, slide = facts_of(path), openslide.OpenSlide(path)
    assert facts.levels == tuple((height, width) for width, height in slide.level_dimensions)
    assert facts.pixel_size_m == pytest.approx((0.499e-6, 0.499e-6))
    assert len(facts.levels) == 2
    for level, (width, height) in enumerate(slide.level_dimensions):
        expected = np.asarray(slide.read_region((0, 0), level, (width, height)))[..., :3]
        check_windows(path, expected, level=level)


def test_luma_and_chroma_in_jpeg_2000_become_the_colors_of_openslide(tmp_path):
    """Aperio's compression 33003; the tag of the subsampling says 4:2:0 by default, and the codestream has none."""
    picture, path = draw(3).astype(np.float64), tmp_path / "j2k.svs"
    luma = picture @ (0.299, 0.587, 0.114)
    chroma = (128 + (picture[..., 2] - luma) / 1.772, 128 + (picture[..., 0] - luma) / 1.402)
    stored = np.clip(np.rint(np.dstack([luma, *chroma])), 0, 255).astype(np.uint8)
    padded = np.pad(stored, ((0, -203 % 64), (0, -307 % 64), (0, 0)), mode="edge")
    tiles = [
        imagecodecs.jpeg2k_encode(
            np.ascontiguousarray(padded[top : top + 64, left : left + 64]), mct=False, codecformat="j2k"
        )
        for top in range(0, padded.shape[0], 64)
        for left in range(0, padded.shape[1], 64)
    ]
    text = "Aperio Image Library v11\r\n307x203 [0,0 307x203] (64x64) J2K/YUV16 Q=70|AppMag = 20|MPP = 0.4990"
    form = {
        "shape": (203, 307, 3),
        "dtype": "uint8",
        "tile": (64, 64),
        "photometric": "ycbcr",
        "metadata": None,
    }
    with tifffile.TiffWriter(path) as file:
        file.write(iter(tiles), compression=33003, description=text, subsampling=(2, 2), **form)
    with openslide.OpenSlide(path) as slide:
        expected = np.asarray(slide.read_region((0, 0), 0, (307, 203)))[..., :3]
    check_windows(path, expected)


@pytest.mark.parametrize("name", ["a.mrxs", "a.vms", "a.BIF"])
def test_slides_in_other_formats_are_refused_with_a_command(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xd8\xff\xe0")  # a MIRAX file is a JPEG thumbnail
    with pytest.raises(SourceError, match="vips copy"):
        open_regions(LocalFiles(tmp_path), name)


def test_associated_alpha_is_divided_as_in_the_picture_decoders(tmp_path):
    path, picture = tmp_path / "premultiplied.tif", draw(4)
    picture[..., :-1] = np.minimum(picture[..., :-1], picture[..., -1:] + 9)
    picture[:40, :, -1] = 0
    tifffile.imwrite(
        path, picture, photometric="rgb", extrasamples=["assocalpha"], metadata=None, rowsperstrip=16
    )
    check_windows(path, picture_formats.FORMATS["tiff"][1](path.read_bytes()).load(False, (1, 1)).pixels)
    check_valid(path, picture[..., -1] > 0)


def test_each_level_of_a_hamamatsu_slide_is_that_of_openslide_and_its_photograph_is_none(tmp_path):
    path, picture = tmp_path / "slide.ndpi", np.tile(draw(3), (2, 2, 1))[:384, :512]
    write_ndpi(path, [(picture, 20.0), (picture[::4, ::4], 5.0), (draw(3)[:64, :128], -1.0)], 0.5)
    facts = facts_of(path)
    assert facts.levels == ((384, 512), (96, 128))
    assert facts.pixel_size_m == pytest.approx((0.5e-6, 0.5e-6))
    with openslide.OpenSlide(path) as slide:
        for number, (height, width) in enumerate(facts.levels):
            level = slide.level_dimensions.index((width, height))
            expected = np.asarray(slide.read_region((0, 0), level, (width, height)))[..., :3]
            check_windows(path, expected, level=number)


def test_the_scan_of_a_leica_slide_is_read_and_not_the_photograph_before_it(tmp_path):
    path, picture = tmp_path / "slide.scn", draw(3)
    levels = [picture, picture[:200:4, :304:4]]
    pages = "<image><pixels>{}</pixels></image>"
    dimension = '<dimension r="{}" ifd="{}"/>'
    scan = dimension.format(0, 1) + dimension.format(1, 2)
    images = pages.format(dimension.format(0, 0)) + pages.format(scan)
    namespace = "http://www.leica-microsystems.com/scn/2010/10/01"
    text = f'<?xml version="1.0"?><scn xmlns="{namespace}"><collection>{images}</collection></scn>'
    options = {"tile": (64, 64), "photometric": "rgb", "metadata": None, "compression": "jpeg"}
    with tifffile.TiffWriter(path, bigtiff=True) as file:
        file.write(draw(3, seed=7)[:100, :60], description=text, **options)
        for level in levels:
            file.write(level, resolution=(20000, 20000), resolutionunit="centimeter", **options)
    facts = facts_of(path)
    assert facts.levels == tuple(level.shape[:2] for level in levels)
    assert facts.pixel_size_m == pytest.approx((0.5e-6, 0.5e-6))
    for number in range(2):
        check_windows(path, tifffile.imread(path, key=number + 1), level=number)


@pytest.mark.parametrize("bands", [1, 3])
def test_a_fluorescent_slide_has_its_channels_as_bands_at_each_level(tmp_path, bands):
    """PerkinElmer's order of pages: the channels, a thumbnail, the channels of each level, the photograph."""
    path, picture = tmp_path / "slide.qptiff", draw(bands, "uint8")
    text = "<PixelSizeMicrons>0.5</PixelSizeMicrons>"
    text = f'<?xml version="1.0"?><PerkinElmer-QPI-ImageDescription>{text}</PerkinElmer-QPI-ImageDescription>'
    options = {"photometric": "minisblack", "metadata": None, "compression": "lzw"}
    with tifffile.TiffWriter(path) as file:
        for band in range(bands):
            file.write(
                picture[..., band], tile=(64, 64), description=text, software="PerkinElmer-QPI", **options
            )
        file.write(draw(3, seed=3)[:60, :90], photometric="rgb", metadata=None, description=text)
        for step in (2, 4):
            for band in range(bands):
                level = picture[: 203 // step * step : step, : 307 // step * step : step, band]
                file.write(level, tile=(64, 64), subfiletype=1, description=text, **options)
        file.write(draw(3, seed=4)[:80, :150], photometric="rgb", metadata=None, description=text)
    facts = facts_of(path)
    assert facts.levels == ((203, 307), (101, 153), (50, 76))
    assert facts.pixel_size_m == pytest.approx((0.5e-6, 0.5e-6))
    check_windows(path, picture)
    check_windows(path, picture[:200:4, :304:4], level=2)


def test_nodata_nan_and_transparent_pixels_are_invalid_as_rasterio_says(tmp_path):
    for name, dtype, nodata in (
        ("a", "int16", -32768),
        ("b", "float32", -9999.5),
        ("c", "float32", np.nan),
        ("d", "uint8", 0),
    ):
        picture, path = draw(2, dtype), tmp_path / f"{name}.tif"
        picture[30:90, 100:] = nodata
        picture[:20, :20, 0] = nodata
        write_raster(path, picture, nodata=nodata, tiled=True, blockxsize=64, blockysize=64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            with rasterio.open(path) as raster:
                expected = raster.dataset_mask() != 0
        assert not expected.all()
        check_valid(path, expected)
        np.testing.assert_array_equal(facts_of(path).nodata, (nodata, nodata))
    picture = draw(4)
    picture[50:60, 40:60, 3] = 0
    write_raster(tmp_path / "alpha.tif", picture, photometric="RGB", alpha="YES")
    check_valid(tmp_path / "alpha.tif", picture[..., 3] > 0)
    whole = draw(1)
    write_raster(tmp_path / "whole.tif", whole)
    with opened(tmp_path / "whole.tif") as reader:
        assert reader.read_valid(0, 0, 0, 203, 307) is None


def check_valid(path: Path, expected: np.ndarray) -> None:
    """Compare the validity of windows, after a read of the same window and without one."""
    rng = np.random.default_rng(2)
    for number in range(8):
        top, left = int(rng.integers(100)), int(rng.integers(200))
        window = (0, top, left, int(rng.integers(1, 203 - top + 1)), int(rng.integers(1, 307 - left + 1)))
        with opened(path) as reader:
            if number % 2:
                reader.read(*window)
            found = reader.read_valid(*window)
        shown = expected[top : top + window[3], left : left + window[4]]
        np.testing.assert_array_equal(np.ones_like(shown) if found is None else found, shown)
        assert (found is None) == shown.all()


def test_the_mask_of_a_file_makes_pixels_invalid_at_each_level(tmp_path):
    path, valid = tmp_path / "mask.tif", draw(1)[..., 0] > 60
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        write_raster(
            path, draw(3), compress="jpeg", photometric="YCBCR", tiled=True, blockxsize=64, blockysize=64
        )
        with rasterio.open(path, "r+") as raster:
            raster.write_mask(valid)
            raster.build_overviews([2], Resampling.nearest)
        with rasterio.open(path, overview_level=0) as raster:
            expected = raster.dataset_mask() != 0
    check_valid(path, valid)
    assert len(facts_of(path).levels) == 2
    with opened(path) as reader:
        found = reader.read_valid(1, 0, 0, *expected.shape)
    np.testing.assert_array_equal(found, expected)


def test_blocks_that_a_sparse_file_lacks_are_invalid_and_hold_nodata(tmp_path):
    for options in (
        {"tiled": True, "blockxsize": 64, "blockysize": 64},
        {"blockysize": 16},
        {"blockysize": 16, "compress": "lzw"},
    ):
        path, picture = tmp_path / "sparse.tif", np.full((203, 307, 1), 7, np.int16)
        picture[64:128] = draw(1, "int16")[64:128]
        form = {"driver": "GTiff", "height": 203, "width": 307, "count": 1, "dtype": "int16", "nodata": 7}
        with rasterio.open(path, "w", SPARSE_OK="TRUE", **UTM, **form, **options) as raster:
            raster.write(picture[64:128, :, 0], 1, window=((64, 128), (0, 307)))
        check_windows(path, picture)
        check_valid(path, picture[..., 0] != 7)


@pytest.mark.parametrize("crs", ["EPSG:32633", "EPSG:2263", "EPSG:4326", "EPSG:3857"])
@pytest.mark.parametrize("point", [False, True])
def test_the_place_on_the_map_is_that_of_rasterio(tmp_path, crs, point):
    for transform in (UTM["transform"], rasterio.Affine(3.0, 0.5, 20.0, 0.25, -2.0, 40.0)):
        path = tmp_path / "map.tif"
        write_raster(path, draw(1), crs=crs, transform=transform)
        if point:
            with rasterio.open(path, "r+") as raster:
                raster.update_tags(AREA_OR_POINT="Point")
        with rasterio.open(path) as raster:
            expected, tags = raster.transform, raster.tags()
        assert tags["AREA_OR_POINT"] == ("Point" if point else "Area")
        facts = facts_of(path)
        assert facts.georeference.to_map == pytest.approx(tuple(expected)[:6], rel=1e-12)
        assert facts.georeference.crs == crs
        height, width = np.hypot(transform.b, transform.e), np.hypot(transform.a, transform.d)
        foot = {"EPSG:2263": 1200 / 3937}.get(crs, 1.0)
        if crs == "EPSG:4326":
            assert facts.pixel_size_m is None
        elif crs == "EPSG:3857":  # a degree of latitude is 111 km on the ground, and more on this map
            middle = facts.georeference.map_point(101.5, 153.5)[1]
            latitude = 2 * np.arctan(np.exp(middle / 6378137)) - np.pi / 2
            assert facts.pixel_size_m == pytest.approx((height * np.cos(latitude), width * np.cos(latitude)))
        else:
            assert facts.pixel_size_m == pytest.approx((height * foot, width * foot))


@pytest.mark.parametrize(
    ("code", "meters"), [(32633, 1.0), (2263, 1200 / 3937), (4326, None), (32767 - 2, None)]
)
def test_a_coordinate_system_of_a_code_needs_no_key_for_its_unit(tmp_path, code, meters):
    keys = (1, 1, 0, 3, 1024, 0, 1, 2 if code == 4326 else 1, 2048 if code == 4326 else 3072, 0, 1, code)
    tags = [
        (33550, 12, 3, (3.0, 2.0, 0.0), True),  # ModelPixelScale
        (33922, 12, 6, (0.0, 0.0, 0.0, 500.0, 900.0, 0.0), True),  # ModelTiepoint
        (34735, 3, len(keys), keys, True),  # GeoKeyDirectory
    ]
    tifffile.imwrite(tmp_path / "map.tif", draw(3), photometric="rgb", extratags=tags)
    expected = None if meters is None else pytest.approx((2 * meters, 3 * meters))
    assert facts_of(tmp_path / "map.tif").pixel_size_m == expected


def test_a_coordinate_system_of_parameters_is_unknown_and_a_note_says_so(tmp_path):
    path, crs = tmp_path / "own.tif", "+proj=laea +lat_0=52 +lon_0=11 +x_0=7 +y_0=9 +ellps=GRS80 +units=m"
    write_raster(path, draw(1), crs=crs, transform=UTM["transform"])
    facts = facts_of(path)
    assert facts.georeference.crs == ""
    assert any("gdalwarp -t_srs" in note for note in facts.notes)
    assert facts.pixel_size_m == (10.0, 10.0)


def test_the_resolution_of_a_print_is_no_size_on_the_ground(tmp_path):
    tifffile.imwrite(
        tmp_path / "print.tif", draw(3), photometric="rgb", resolution=(300, 300), resolutionunit="inch"
    )
    assert facts_of(tmp_path / "print.tif").pixel_size_m is None


def test_orientation_is_reported_and_not_applied(tmp_path):
    path = tmp_path / "turned.tif"
    tifffile.imwrite(path, draw(3), photometric="rgb", extratags=[(274, 3, 1, 6, True)], metadata=None)
    assert facts_of(path).orientation == 6
    check_windows(path, draw(3))


def test_an_ome_picture_in_several_files_is_refused(tmp_path):
    tifffile.imwrite(
        tmp_path / "a.ome.tif",
        np.zeros((2, 20, 30), np.uint8),
        metadata={"axes": "CYX"},
        photometric="minisblack",
    )
    text = (tmp_path / "a.ome.tif").read_bytes()
    with tifffile.TiffFile(tmp_path / "a.ome.tif") as file:
        metadata = file.ome_metadata
    uuid = '<TiffData IFD="0" PlaneCount="1" FirstC="{0}"><UUID FileName="{1}">urn:uuid:{0}</UUID></TiffData>'
    start, end = metadata.index("<TiffData"), metadata.index("</Pixels>")
    several = metadata[:start] + uuid.format(0, "a.ome.tif") + uuid.format(1, "b.ome.tif") + metadata[end:]
    assert text
    tifffile.imwrite(
        tmp_path / "a.ome.tif", np.zeros((20, 30), np.uint8), description=several.encode(), metadata=None
    )
    with pytest.raises(SourceError, match=r"several files.*bfconvert"):
        facts_of(tmp_path / "a.ome.tif")


def test_palette_indices_and_bits_of_label_images_stay(tmp_path):
    values = (draw(1)[..., 0] >> 4).astype(np.uint8)
    colors = np.random.default_rng(0).integers(0, 1 << 16, (3, 256), dtype=np.uint16)
    tifffile.imwrite(
        tmp_path / "labels.tif",
        values,
        photometric="palette",
        colormap=colors,
        compression="deflate",
        tile=(64, 64),
    )
    check_windows(tmp_path / "labels.tif", values, as_indices=True)
    path = tmp_path / "bits.tif"
    tifffile.imwrite(path, values > 7, photometric="minisblack", compression="deflate", rowsperstrip=8)
    check_windows(path, read_label_image(path.read_bytes(), 1 << 20), as_indices=True)


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("ambiguous", {"photometric": "miniswhite"}),
        ("with loss", {"photometric": "minisblack", "compression": "jpeg"}),
    ],
)
def test_label_images_are_refused_as_those_that_are_read_whole(tmp_path, reason, options):
    path = tmp_path / "labels.tif"
    tifffile.imwrite(path, draw(1)[..., 0], metadata=None, **options)
    with pytest.raises(SourceError, match=reason):
        read_label_image(path.read_bytes(), 1 << 20)
    with pytest.raises(SourceError, match=reason):
        facts_of(path, as_indices=True)


def test_several_threads_read_the_same_pixels(tmp_path):
    path = tmp_path / "threads.tif"
    tifffile.imwrite(path, draw(3), photometric="rgb", tile=(32, 32), compression="zstd")
    check_windows(path, draw(3), threads=3)


def test_a_file_that_changes_while_it_is_read_is_reported(tmp_path):
    path = tmp_path / "changing.tif"
    tifffile.imwrite(path, draw(3), photometric="rgb", tile=(32, 32))
    with opened(path) as reader:
        reader.read(0, 0, 0, 40, 40)
        with path.open("ab") as file:
            file.write(b"more")
        with pytest.raises(SourceError, match="changed"):
            reader.read(0, 40, 0, 40, 40)


@pytest.mark.parametrize("compression", ["none", "deflate", "zstd", "lzw", "jpeg", "packbits"])
def test_the_error_of_a_cut_file_names_the_block(tmp_path, compression):
    path = tmp_path / "cut.tif"
    options = {} if compression == "none" else {"compression": compression}
    with tifffile.TiffWriter(path) as file:
        file.write(draw(3), photometric="rgb", tile=(64, 64), metadata=None, **options)
    with tifffile.TiffFile(path) as file:
        offsets, counts = file.pages[0].dataoffsets, file.pages[0].databytecounts
    data = bytearray(path.read_bytes())
    # tifffile writes the directory first, so the file can be cut within its last tile.
    path.write_bytes(data[: offsets[-1] + counts[-1] // 2])
    with opened(path) as reader:
        assert reader.read(0, 0, 0, 64, 64).shape == (64, 64, 3)
        with pytest.raises(SourceError, match=f"tile {len(offsets) - 1} of the picture"):
            reader.read(0, 0, 0, 203, 307)


@pytest.mark.parametrize(
    "compression", ["deflate", "zstd", "lzw", "jpeg", "packbits", "jpeg2000", "webp", "lerc"]
)
def test_a_changed_byte_gives_an_error_or_pixels_and_with_a_checksum_no_others(tmp_path, compression):
    path = tmp_path / "flip.tif"
    tifffile.imwrite(path, draw(3), photometric="rgb", tile=(64, 64), compression=compression, metadata=None)
    whole = read_whole(path)
    with tifffile.TiffFile(path) as file:
        start, count = file.pages[0].dataoffsets[3], file.pages[0].databytecounts[3]
    data, rng, refused = path.read_bytes(), np.random.default_rng(0), []
    for _ in range(40):
        changed = bytearray(data)
        changed[start + int(rng.integers(count))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            found = read_whole(path)
        except SourceError as error:
            refused.append(str(error))
            continue
        if compression in ("deflate", "lerc"):  # Adler-32 and Fletcher-32
            np.testing.assert_array_equal(found, whole)
    assert all("tile 3 of the picture" in error for error in refused)
    assert refused or compression in ("jpeg", "webp", "zstd", "lzw")


def test_any_damage_of_the_directories_is_a_source_error(tmp_path):
    path = tmp_path / "header.tif"
    write_slide(path, [draw(3)[:64, :128], draw(3)[:64:4, :128:4]], compression="deflate")
    data, rng, reasons = path.read_bytes(), np.random.default_rng(0), set()
    for _ in range(150):
        changed = bytearray(data)
        at = int(rng.integers(600)) if rng.integers(2) else int(rng.integers(len(data)))
        changed[at] = int(rng.integers(256))
        path.write_bytes(changed)
        try:
            with opened(path) as reader:
                height, width = (min(side, 128) for side in reader.facts.size)
                if reader.read_bytes(0, height, width) < 1 << 26:
                    reader.read(0, 0, 0, height, width)
        except SourceError as error:
            reasons.add(error.reason)
    assert len(reasons) >= 3


def test_a_picture_in_one_compressed_strip_has_a_note_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(tiff_regions, "LARGE_BLOCK_BYTES", 100_000)
    for name, options in {
        "a": {"compression": "lzw"},
        "b": {},
        "c": {"compression": "lzw", "tile": (64, 64)},
    }.items():
        layout = options if "tile" in options else {"rowsperstrip": 203, **options}
        tifffile.imwrite(tmp_path / f"{name}.tif", draw(3), photometric="rgb", metadata=None, **layout)
        notes = facts_of(tmp_path / f"{name}.tif").notes
        assert (tiff_regions.LARGE_BLOCKS in notes) == (name == "a")


@pytest.mark.parametrize("library", ["tifffile", "imagecodecs"])
def test_a_missing_library_gives_the_command_that_installs_it(tmp_path, monkeypatch, library):
    tifffile.imwrite(tmp_path / "a.tif", draw(1), metadata=None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{library} is not installed; pip install .*\[large\]"):
        facts_of(tmp_path / "a.tif")


def test_opening_reads_the_header_only(tmp_path):
    path = tmp_path / "large.tif"
    form = {"driver": "GTiff", "height": 60000, "width": 60000, "count": 3, "dtype": "uint8"}
    with rasterio.open(
        path, "w", tiled=True, blockxsize=256, blockysize=256, BIGTIFF="YES", SPARSE_OK="TRUE", **UTM, **form
    ):
        pass
    reads = []

    class CountingFiles(LocalFiles):
        def open_ranges(self, path):
            ranges = super().open_ranges(path)
            read = ranges.read
            ranges.read = lambda start, stop: reads.append(stop - start) or read(start, stop)
            return ranges

    reader = open_tiff_regions(CountingFiles(tmp_path), "large.tif")
    reader.close()
    assert reader.facts.levels == ((60000, 60000),)
    assert sum(reads) < 1_500_000  # the positions of 55,225 blocks take 0.66 MB
    assert len(reads) < 40


def test_a_read_decodes_each_block_of_whole_rows_once(tmp_path, monkeypatch):
    path = tmp_path / "once.tif"
    tifffile.imwrite(path, draw(3), photometric="rgb", tile=(64, 64), compression="deflate")
    decoded = []
    with opened(path) as reader:
        blocks = reader._levels[0].pages[0]
        decode = blocks._decode
        monkeypatch.setattr(
            blocks, "_decode", lambda data, block: decoded.append(block.number) or decode(data, block)
        )
        step = reader.facts.row_steps[0]
        for top in range(0, 203, step):
            reader.read(0, top, 0, min(step, 203 - top), 307)
            reader.read_valid(0, top, 0, min(step, 203 - top), 307)
    assert sorted(decoded) == list(range(4 * 5))


@pytest.mark.parametrize(
    "options",
    [
        {"tile": (64, 64), "compression": "deflate", "predictor": 2},
        {"tile": (64, 64), "compression": "jpeg"},
        {"rowsperstrip": 5, "compression": "lzw"},
        {"rowsperstrip": 203},
        {"rowsperstrip": 203, "compression": "zstd"},
        {"tile": (64, 64), "compression": "deflate", "planarconfig": "separate"},
        {"tile": (64, 64), "photometric": "rgb", "extrasamples": ["assocalpha"], "compression": "lzw"},
    ],
)
def test_a_read_takes_at_most_the_memory_that_it_states(tmp_path, options):
    path, bands = tmp_path / "memory.tif", 4 if "extrasamples" in options else 3
    picture = np.tile(draw(bands), (1, 10, 1))
    data = np.moveaxis(picture, -1, 0) if "planarconfig" in options else picture
    tifffile.imwrite(path, data, **{"photometric": "rgb", "metadata": None, **options})
    with opened(path) as reader:
        reader.read(0, 0, 0, 1, 1)  # imports the decoder
        for height in (5, 64, 203):
            tracemalloc.start()
            found = reader.read(0, 0, 0, height, 3070)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak - found.nbytes <= reader.read_bytes(0, height, 3070)
