"""Records of tiles have the position of their source file on the map, with every digit."""

from pathlib import Path

import numpy as np
import pyproj
import rasterio
from PIL import Image
from rasterio.transform import Affine

import halofeed

NORTHING = 5300000.123456789
PLACE = Affine(0.1, 0, 500000.1, 0, -0.1, NORTHING)


def test_tiles_have_the_place_of_their_source_file(tmp_path: Path) -> None:
    for name in ("placed", "world", "none"):
        (tmp_path / "source" / name).mkdir(parents=True)
    profile = {
        "driver": "GTiff",
        "height": 70,
        "width": 90,
        "count": 3,
        "dtype": "uint8",
        "crs": "EPSG:32633",
    }
    with rasterio.open(tmp_path / "source/placed/a.tif", "w", **profile, transform=PLACE) as file:
        file.write(np.zeros((3, 70, 90), np.uint8))
    for name in ("world", "none"):
        Image.new("RGB", (90, 70)).save(tmp_path / f"source/{name}/a.png")
    (tmp_path / "source/world/a.pgw").write_text("0.5 0 0 -0.5 10.25 19.75")
    (tmp_path / "source/world/a.prj").write_text(pyproj.CRS("EPSG:32633").to_wkt("WKT1_ESRI"))
    options = {"fit": "tiles", "height": 64, "width": 64, "tile_overlap": (16, 16), "max_rejected": 2}
    halofeed.convert(
        layout="folders", source=tmp_path / "source", out=tmp_path / "out", name="tiles", **options
    )
    folder = tmp_path / "out/tiles/1.0.0"
    assert halofeed.verify(folder).ok
    loader = halofeed.Loader(
        folder, split="train", batch_size=12, shuffle=False, include=["crs", "geotransform", "source"]
    )
    batch = loader.batch(0)
    found = {
        str(source): (str(crs), str(numbers))
        for source, crs, numbers in zip(batch["source"], batch["crs"], batch["geotransform"], strict=True)
    }
    assert found["none/a.png"] == ("", "")
    crs, numbers = found["placed/a.tif"]
    assert crs == "EPSG:32633"
    assert tuple(map(float, numbers.split(", "))) == tuple(PLACE)[:6]
    crs, numbers = found["world/a.png"]
    assert pyproj.CRS(crs).to_epsg() == 32633
    assert numbers == "0.5, 0.0, 10.0, 0.0, -0.5, 20.0"
