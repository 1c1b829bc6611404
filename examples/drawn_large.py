"""Draw small inputs for docs/large-pictures.md: aerial pictures on the map, label images, slides with levels.

`python drawn_large.py [FOLDER]` draws all of them into FOLDER, by default the working directory. Real pictures are
larger, and the commands are the same.
"""

import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyproj
import tifffile
from numpy.typing import NDArray

from halofeed.demo import SHAPES, draw_picture

CORNER, PIXEL_M, EPSG = (499980.0, 5300040.0), 0.5, 32633
"""East and north of the first pixel in meters, the side of a pixel, and the coordinate system: UTM zone 33N."""
MICROMETERS = 0.5
"""Side of a pixel of the slides."""


def draw_whole(
    generator: np.random.Generator, height: int, width: int, side: int = 150
) -> tuple[NDArray[np.uint8], list[tuple[str, NDArray[np.float64]]]]:
    """Draw [height, width, 3], which is made of pictures of the demo, and the shape and the corners of each object."""
    pixels = np.empty((height, width, 3), np.uint8)
    objects = []
    for top in range(0, height, side):
        for left in range(0, width, side):
            part, found = draw_picture(generator, side, side)
            shown = pixels[top : top + side, left : left + side]
            shown[...] = np.asarray(part)[: shown.shape[0], : shown.shape[1]]
            for one in found:
                corners = one["corners"] + (left, top)
                if (corners.max(0) < (width, height)).all():
                    objects.append((one["shape"], corners))
    return pixels, objects


def _geo_tags(east: float, north: float) -> list[tuple[int, int, int, Any, bool]]:
    """Tags of GeoTIFF 1.1 (OGC 19-008r4): the size of a pixel, the place of the first one, and the system."""
    keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, EPSG)
    tie = (0.0, 0.0, 0.0, east, north, 0.0)
    return [
        (33550, 12, 3, (PIXEL_M, PIXEL_M, 0.0), True),
        (33922, 12, 6, tie, True),
        (34735, 3, 16, keys, True),
    ]


def _feature(shape: str, corners: NDArray[np.float64], **properties: object) -> dict[str, Any]:
    ring = [*corners.tolist(), corners[0].tolist()]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    return {"type": "Feature", "properties": {**properties, "class": shape}, "geometry": geometry}


def _write_features(file: Path, features: list[dict[str, Any]]) -> None:
    file.write_text(json.dumps({"type": "FeatureCollection", "features": features}))


def draw_aerial(folder: Path, pictures: int = 5, height: int = 600, width: int = 750) -> int:
    """Draw folder/area_N.tif, GeoTIFF files beside each other, and objects.geojson in degrees; return its objects."""
    generator = np.random.default_rng(44)
    folder.mkdir(parents=True)
    to_degrees = pyproj.Transformer.from_crs(EPSG, 4326, always_xy=True)
    features = []
    for number in range(pictures):
        pixels, objects = draw_whole(generator, height, width)
        east, north = CORNER[0] + number * width * PIXEL_M, CORNER[1]
        tags = _geo_tags(east, north)
        file = folder / f"area_{number}.tif"
        tifffile.imwrite(file, pixels, tile=(256, 256), photometric="rgb", compression="zlib", extratags=tags)
        for shape, corners in objects:
            places = to_degrees.transform(east + corners[:, 0] * PIXEL_M, north - corners[:, 1] * PIXEL_M)
            features.append(_feature(shape, np.stack(places, 1)))
    _write_features(folder / "objects.geojson", features)
    return len(features)


def draw_fields(folder: Path, pictures: int = 4, height: int = 500, width: int = 600) -> None:
    """Draw folder/fields.csv, pictures/N.tif of four 16-bit bands with nodata, and labels/N.png of their classes."""
    generator = np.random.default_rng(45)
    for name in ("pictures", "labels"):
        (folder / name).mkdir(parents=True)
    lines = ["id,image,label,split"]
    for number in range(pictures):
        pixels, objects = draw_whole(generator, height, width)
        label = np.zeros((height, width), np.uint8)
        for shape, corners in objects:
            cv2.fillPoly(label, [corners.round().astype(np.int32)], 1 + SHAPES.index(shape))
        bands = np.concatenate([pixels, 255 - pixels[..., :1]], 2).astype(np.uint16) * 20 + 500
        bands[: height // 5, : width // 4] = label[: height // 5, : width // 4] = 0
        tags = [*_geo_tags(*CORNER), (42113, 2, 0, "0", True)]  # GDAL_NODATA
        image = folder / f"pictures/{number}.tif"
        layout = {
            "rowsperstrip": 16,
            "photometric": "minisblack",
            "planarconfig": "contig",
            "compression": "zlib",
        }
        tifffile.imwrite(image, bands, **layout, extratags=tags)
        cv2.imwrite(str(folder / f"labels/{number}.png"), label)
        lines.append(
            f"field_{number},pictures/{number}.tif,labels/{number}.png,{'test' if number == 3 else 'train'}"
        )
    (folder / "fields.csv").write_text("\n".join(lines) + "\n")


def draw_slides(folder: Path, slides: int = 3, height: int = 1200, width: int = 1600) -> None:
    """Draw folder/slide_N.ome.tif, OME-TIFF with smaller levels, and slide_N.geojson with QuPath's properties."""
    generator = np.random.default_rng(46)
    folder.mkdir(parents=True)
    size = {f"PhysicalSize{axis}": MICROMETERS for axis in "XY"}
    size |= {f"PhysicalSize{axis}Unit": "µm" for axis in "XY"}
    tiles = {"tile": (256, 256), "photometric": "rgb", "compression": "zlib"}
    for number in range(slides):
        pixels, objects = draw_whole(generator, height, width, side=400)
        with tifffile.TiffWriter(folder / f"slide_{number}.ome.tif", ome=True) as writer:
            writer.write(pixels, subifds=2, metadata={"axes": "YXS", **size}, **tiles)
            for factor in (2, 4):
                level = cv2.resize(pixels, (width // factor, height // factor), interpolation=cv2.INTER_AREA)
                writer.write(level, subfiletype=1, metadata=None, **tiles)
        features = [_feature(shape, corners) for shape, corners in objects]
        for one in features:
            name = one["properties"].pop("class")
            one["properties"] |= {
                "objectType": "annotation",
                "classification": {"name": name, "color": [200, 0, 0]},
            }
        _write_features(folder / f"slide_{number}.geojson", features)


def draw_large(folder: Path) -> None:
    """Draw the inputs of docs/large-pictures.md below the folder."""
    draw_aerial(folder / "aerial")
    draw_fields(folder / "fields")
    draw_slides(folder / "slides")
    print(f"drew aerial, fields and slides in {folder.resolve()}")


if __name__ == "__main__":
    draw_large(Path(*sys.argv[1:2]))
