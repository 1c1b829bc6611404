#!/usr/bin/env bash
# A mask written as COG has overviews of invented classes by default, and reading by `nearest` takes them from a factor of 1.6 on.
# rasterio 1.4.4 (GDAL in its wheel). One expects nearest to return values of the file's pixels, whatever its overviews hold.
# Source: the COG driver resamples by CUBIC unless there is a palette (gdal.org, COG); RasterIO chooses the overview before it resamples.
# Why here: classes 0, 10 and 200 become 20 others; labels are read at full resolution and shrunk by ourselves.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check rasterio==1.4.4 numpy==2.3.5
env/bin/python -I -W ignore - <<'END'
from importlib.metadata import version
import numpy as np
import rasterio
from rasterio.enums import Resampling

mask = np.zeros((512, 512), np.uint8)
mask[100:300, 100:301] = 10
mask[200:400, 250:333] = 200
with rasterio.open("a.tif", "w", driver="COG", height=512, width=512, count=1, dtype="uint8", blocksize=128) as target:
    target.write(mask, 1)
values = {}
with rasterio.open("a.tif") as source:
    assert np.array_equal(source.read(1), mask)
    for side in (400, 340, 320, 256):
        values[side] = np.unique(source.read(1, out_shape=(side, side), resampling=Resampling.nearest))
print("rasterio", version("rasterio"), "GDAL", rasterio.__gdal_version__, "classes in the file:", np.unique(mask))
print({f"{side} x {side}": len(found) for side, found in values.items()}, values[256])
assert [len(values[side]) for side in (400, 340)] == [3, 3]
assert min(len(values[side]) for side in (320, 256)) > 10
END
