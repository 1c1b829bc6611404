"""Advice about tiles of pictures, their bands and values, and GeoJSON."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pyproj
import rasterio
import tifffile
from rasterio.transform import Affine

from tests.mistakes.command_advice import export, scans
from tests.mistakes.dicom_sources import scan
from tests.prep.layouts.test_layout_geojson import feature, save, square
from tests.support.advice import Advice, noted, refused, usage
from tests.support.annotation_writer import boxed, draw, write_annotations
from tests.support.large_picture_files import write_slide
from tests.support.large_pictures import LargePicture
from tests.support.mistakes import preparing
from tests.support.small_scans import mask

TILE = ("--height", 8, "--width", 12)
TILES = ("--fit tiles", *TILE)
UTM, DEGREES = Affine(0.5, 0, 500000, 0, -0.5, 5300000), Affine(1e-5, 0, 14.5, 0, -1e-5, 48.1)


def write_tiff(path: Path, bands: int = 3, dtype: str = "uint8") -> None:
    """A TIFF of 16 x 24 pixels of values that rise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.arange(16 * 24 * bands).reshape(16, 24, bands) % 250
    photometric = "rgb" if bands == 3 else "minisblack"
    extra = () if bands == 3 else (0,) * (bands - 1)
    tifffile.imwrite(
        path, values.astype(dtype), photometric=photometric, planarconfig="contig", extrasamples=extra
    )


@preparing
def tiffs(root: Path, *more: object, bands: int = 3, dtype: str = "uint8") -> list[object]:
    """Class folders, a TIFF in each."""
    for name in ("hat/a.tif", "coat/b.tif"):
        write_tiff(root / name, bands, dtype)
    return ["--layout", "folders", "--source", root, *more]


five = partial(tiffs, bands=5)
deep = partial(tiffs, dtype="uint16")


@preparing
def boxes(root: Path, *more: object, size=(16, 24), box=(1, 2, 9, 9), empty: bool = False) -> list[object]:
    """A picture with a box, or two of which none has one."""
    draw(root, "a.png", "b.png", size=size)
    write_annotations(root, "coco", [boxed("a.png", box), boxed("b.png", box)])
    if empty:
        (path,) = root.glob("*.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | {"annotations": []}))
    return ["--layout", "coco", "--source", root, *more]


def write_map(path: Path, transform: Affine, crs: str) -> None:
    """A picture of 16 x 24 pixels with a place on the map."""
    path.parent.mkdir(parents=True, exist_ok=True)
    profile = {"driver": "GTiff", "height": 16, "width": 24, "count": 3, "dtype": "uint8"}
    with rasterio.open(path, "w", **profile, transform=transform, crs=crs) as file:
        file.write(np.zeros((3, 16, 24), np.uint8))


def on_map(transform: Affine, *, swapped: bool = False) -> list[list[float]]:
    """The corners of a square of 6 pixels on the map."""
    points = [list(transform @ tuple(point)) for point in square(3, 4, 6.0)]
    return [point[::-1] for point in points] if swapped else points


SQUARE = on_map(DEGREES)
TO_ZONE_34 = pyproj.Transformer.from_crs("EPSG:32633", "EPSG:32634", always_xy=True)
ZONE_34 = [list(TO_ZONE_34.transform(*point)) for point in on_map(UTM)]
Named = dict[str, object]
HATS: tuple[Named, ...] = ({"class": "hat"}, {"class": "coat"})


@preparing
def features(
    root: Path,
    *more: object,
    ring: list[list[float]] = SQUARE,
    named: tuple[Named, ...] = HATS,
    place: tuple[Affine, str] | None = (DEGREES, "EPSG:4326"),
    folder: str = "",
    file: str = "all.geojson",
    crs: str = "",
) -> list[object]:
    """A picture, and a file with an outline for each of these properties."""
    picture = root.parent / folder if folder else root
    if place:
        write_map(picture / "a.tif", *place)
    else:
        write_tiff(picture / "a.tif")
    members = {"crs": {"type": "name", "properties": {"name": crs}}} if crs else {}
    save(root / file, [feature([ring], **properties) for properties in named], **members)
    return ["--layout", "geojson", "--source", root, *TILES, *more]


@preparing
def slide(root: Path, *more: object) -> list[object]:
    """A slide in a class folder."""
    write_slide(root / "tumor", LargePicture(80, 100, count=0), side=64)
    return ["--source", root, *more]


@preparing
def package(root: Path, *more: object) -> list[object]:
    """A picture and outlines in a GeoPackage."""
    write_map(root / "a.tif", DEGREES, "EPSG:4326")
    (root / "roofs.gpkg").write_bytes(b"SQLite format 3\0")
    return ["--source", root, *TILES, *more]


def convert_package(root: Path) -> None:
    """What ogr2ogr writes."""
    save(root / "roofs.geojson", [feature([on_map(DEGREES)], **properties) for properties in HATS])


def draw_pictures(root: Path) -> None:
    """The picture with its place, in a folder of its own."""
    write_map(root.parent / "pictures/a.tif", DEGREES, "EPSG:4326")


@preparing
def corners(root: Path, *more: object, left: int = 5) -> list[object]:
    """Pictures with an oriented box each, as DOTA writes it."""
    draw(root / "images", "a.png", "b.png", "c.png", "d.png")
    for name in "abcd":
        row = f"{left} 4 {left + 4} 8 {left} 12 {left - 4} 8 ship 0\n"
        (root / "labelTxt").mkdir(exist_ok=True)
        (root / "labelTxt" / f"{name}.txt").write_text(row)
    return ["--layout", "dota", "--source", root, "--keep", "corners", *TILE, *more]


def read_exported(source: Path) -> list[object]:
    given = ("--layout", "dota", "--source", source.parent / "exported", *TILE)
    return ["convert", *given, "--out", source.parent / "read", "--name", "set"]


@preparing
def scan_in_table(root: Path, *more: object) -> list[object]:
    """A table of boxes that names slices of a scan as pictures."""
    scan(root)
    rows = [boxed(path.name, (1, 1, 4, 4)) for path in sorted(root.glob("*.dcm"))]
    write_annotations(root, "csv", rows)
    return ["--layout", "csv", "--source", root, *TILES, *more]


ADVICE: dict[str, Advice] = {
    # options that contradict each other
    "five bands in one record": usage(five(*TILE, "--channels 5"), r"other bands need (--fit tiles)"),
    "tiles that are resized": usage(
        tiffs(*TILES, "--resize none"),
        r"leave (--resize) out",
        r": (--fit tiles) keeps",
        (r"and (--scale) scales", "0.5"),
        without=("--resize",),
    ),
    "an overlap as high as the tile": usage(
        tiffs(*TILES, "--tile-overlap 8,4"), r"less than (--height) 8", more=("16",)
    ),
    "an overlap as wide as the tile": usage(
        tiffs(*TILES, "--tile-overlap 4,12"), r"and (--width) 12", more=("24",)
    ),
    "another interpolation of tiles": usage(
        tiffs(*TILES, "--scale 0.5 --interpolation tf2-nearest"), r"(--interpolation) \S+: .*leave it out"
    ),
    "bands and another number of channels": usage(
        tiffs(*TILES, "--bands 1,2 --channels 3"),
        r"(--channels) 3: .*leave one of them out",
        r"(--bands) names .*leave one of them out",
    ),
    "more channels than a record holds": usage(
        five(*TILES, "--channels 300"), r"choose bands with (--bands)", more=("1,2",), without=("--channels",)
    ),
    "five bands in PNG": usage(five(*TILES, "--channels 5 --encoding png"), r"take (--encoding raw)"),
    "two ranges of values": usage(
        deep(*TILES, "--value-range 0,3000 --window-percentiles 2,98"),
        r"(--value-range) and .*give one of them",
        r"and (--window-percentiles) both .*give one of them",
    ),
    "16 bits of a range": usage(
        deep(*TILES, "--value-range 0,3000 --dtype uint16"), r"leave (--dtype) or the range out"
    ),
    "tiles of floats": usage(
        deep(*TILES, "--dtype float32"),
        (r"by (--value-range) LOW,HIGH", "0,3000"),
        r"or (--window-percentiles 2,98)",
        without=("--dtype",),
    ),
    "padding of pictures of one size": usage(tiffs(*TILE, "--pad-value 3"), r"(--fit tiles)"),
    "a window of 16-bit pictures": usage(
        deep(*TILE, "--window-percentiles 2,98"), r"(--fit tiles) for pictures"
    ),
    "a fit of scans without their depth": usage(
        scans(mask(), more=("--fit stretch",), size=("--height", 8, "--width", 9)),
        r"without (--depth), or",
        more=("5",),
    ),
    "an overlap of nothing": usage(
        tiffs(*TILE, "--tile-overlap 4,4"),
        r"(--fit tiles)",
    ),
    "two scales": usage(
        features("--scale 0.5 --gsd-m 1", ring=on_map(UTM), place=(UTM, "EPSG:32633"), crs="EPSG:32633"),
        r"(--scale) and .*give one of them",
        r"and (--gsd-m) both .*give one of them",
    ),
    # what the files hold
    "no tile with an object": refused(
        boxes(*TILES, "--empty-tiles drop", empty=True),
        r"(--empty-tiles keep) converts them",
        proves="8 records",
    ),
    "a size of pixels that no file states": refused(
        tiffs(*TILES, "--gsd-m 0.5"),
        r"leave (--gsd-m) out",
        (r"with (--scale)", "0.5"),
        without=("--gsd-m",),
    ),
    "another number of bands": refused(
        five(*TILES, "--channels 3"),
        r"take (--channels 5),",
        r"such as (--bands 1,2,3)",
        without=("--channels",),
    ),
    "16 bits in 8": refused(
        deep(*TILES),
        r"take (--value-range) LOW,HIGH \(such as (0,3000)\)",
        r"or (--window-percentiles 2,98)",
        r"or (--dtype uint16) to keep",
        r"or (--sample-bits 16) if",
    ),
    "bands of 8 bits in 16": refused(five(*TILES, "--channels 5 --dtype uint16"), r"take (--dtype uint8)"),
    # slides and maps
    "a slide without tiles": refused(slide(), r"take (--fit tiles --height 1024 --width 1024),"),
    "slices of a scan as pictures": refused(
        scan_in_table(),
        r"with (--layout dicom) and (--depth);",
        more=("4",),
        without=("--fit",),
        proves="1 record ",
    ),
    "outlines in a GeoPackage": refused(
        package(), r"and take (--layout geojson)", first=convert_package, proves="detection"
    ),
    "features beside no picture": refused(
        features(folder="pictures"), r"folder with (--images)", more=("{folder}/pictures",)
    ),
    "latitude before longitude": refused(
        features(ring=on_map(DEGREES, swapped=True)), r"(--coordinates lat-lon) finds 2 features"
    ),
    "features of other pictures": refused(
        features(place=(UTM, "EPSG:32633")),
        r"pictures with (--images)",
        more=("{folder}/pictures",),
        first=draw_pictures,
        proves="detection, 2 classes",
    ),
    "features of another zone": refused(
        features(ring=ZONE_34, place=(UTM, "EPSG:32633")),
        r"system with (--coordinates)",
        more=("EPSG:32634",),
        proves="detection, 2 classes",
    ),
    "features of a picture without a place": refused(
        features(file="a.geojson", place=None),
        r"GeoTIFF with (--images)",
        more=("{folder}/pictures",),
        first=draw_pictures,
        proves="detection, 2 classes",
    ),
    "features in pixels across the rim": refused(
        features(ring=square(20, 4, 6.0), file="a.geojson", place=None),
        r"use (--coordinates pixels)",
        proves="detection, 2 classes",
    ),
    "two properties that may be the class": refused(
        features(named=({"class": "hat", "Class": "x"}, {"class": "coat", "Class": "y"})),
        r"choose with (--class-property \w+)",
    ),
    "no property that may be the class": refused(
        features(named=({"roof": "hat"}, {"roof": "coat"})),
        (r"name it with (--class-property)", "roof"),
        (r"one class with (--one-class) NAME", "roof"),
    ),
    "too small a scale": refused(
        tiffs(*TILES, "--scale 0.01"), (r"larger (--scale), or", "0.5"), proves="records"
    ),
    "too large a ground sample distance": refused(
        features("--gsd-m 500", ring=on_map(UTM), place=(UTM, "EPSG:32633"), crs="EPSG:32633"),
        (r"smaller (--gsd-m), which", "1"),
    ),
    # what a conversion and an export tell
    "tiny objects of scaled pictures": noted(
        boxes(*TILES, "--scale 0.25", size=(32, 48), box=(2, 2, 10, 10)),
        r"larger (--scale), such as ([\d.]*\d)",
    ),
    "tiny objects of a coarse distance": noted(
        features("--gsd-m 1", ring=on_map(UTM), place=(UTM, "EPSG:32633"), crs="EPSG:32633"),
        r"smaller (--gsd-m), such as ([\d.]*\d)",
    ),
    "objects larger than any tile": noted(
        boxes(*TILES, size=(32, 48), box=(1, 1, 40, 30)),
        r"of them as (--min-visible) says",
        more=("0",),
    ),
    "objects cut in every tile": noted(
        boxes(*TILES, size=(32, 48), box=(1, 1, 22, 14)),
        (r"down with (--scale)", "0.25"),
    ),
    "an export of five bands": usage(
        export(five(*TILES, "--channels 5"), "folders"),
        (r"with (--bands 1,2,3)", "--overwrite"),
        into=five(*TILES),
    ),
    "splits that DOTA's folders do not name": noted(
        export(corners("--split-shares a=0.5,b=0.5"), "dota"),
        (r"split; (--split-shares) divides", "train=0.5,validation=0.5"),
        into=read_exported,
        proves=r"train +\d records?",
    ),
    "corners that YOLO's files cannot hold": noted(
        export(corners(left=2), "yolo"),
        (r"(--to dota) keeps", "--out", "{folder}/dota"),
        without=("--out",),
    ),
}
