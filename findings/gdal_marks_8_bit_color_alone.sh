#!/usr/bin/env bash
# GDAL marks three bands as RGB when they are 8-bit and as gray with two unknown bands when they are 16-bit; Pillow cannot open the latter.
# rasterio 1.4.4, tifffile 2026.3.3, Pillow 12.3.0. One expects the number of bands to decide, or the bits not to.
# Source: GTiff driver of GDAL, creation option PHOTOMETRIC and its default for Byte.
# Why here: 16-bit satellite pictures need another reader or -co PHOTOMETRIC=RGB, although the 8-bit ones of the same program worked.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check rasterio==1.4.4 tifffile==2026.3.3 pillow==12.3.0 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import warnings
import numpy as np
import rasterio
import tifffile
from PIL import Image, UnidentifiedImageError

warnings.simplefilter("ignore")
seen = {}
for dtype in ("uint8", "uint16"):
    with rasterio.open("a.tif", "w", driver="GTiff", height=32, width=32, count=3, dtype=dtype) as file:
        file.write(np.ones((3, 32, 32), dtype))
    with tifffile.TiffFile("a.tif") as file:
        kind = file.pages[0].photometric.name
    try:
        seen[dtype] = kind, Image.open("a.tif").mode
    except UnidentifiedImageError:
        seen[dtype] = kind, "UnidentifiedImageError"
print("rasterio", version("rasterio"), "GDAL", rasterio.__gdal_version__, "Pillow", version("pillow"), seen)
assert seen == {"uint8": ("RGB", "RGB"), "uint16": ("MINISBLACK", "UnidentifiedImageError")}
END
