#!/usr/bin/env bash
# With masked=True, a boundless read of rasterio masks the outside; with fill_value=255 nothing, and with 0 also valid pixels of 0.
# rasterio 1.4.4. One expects fill_value to set the values below the mask, as in numpy.ma, and the mask to stay.
# Source: the mask of a dataset without nodata is then made of values that equal 0 (github.com/rasterio/rasterio/issues/3245).
# Why here: padding of tiles at the rim is trained as ground, and valid pixels of 0 are masked; we clip windows and pad ourselves.
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
from rasterio.windows import Window

pixels = np.full((8, 8), 7, np.uint8)
pixels[7, 7] = 0  # a dark pixel, valid as the file declares no nodata
with rasterio.open("a.tif", "w", driver="GTiff", height=8, width=8, count=1, dtype="uint8") as target:
    target.write(pixels, 1)
masked = {}
with rasterio.open("a.tif") as source:
    for fill in (None, 0, 255):
        read = source.read(1, window=Window(4, 4, 8, 8), boundless=True, masked=True, fill_value=fill)
        mask = np.ma.getmaskarray(read)
        masked[fill] = (int(mask[4:].sum() + mask[:4, 4:].sum()), int(mask[:4, :4].sum()))
print("rasterio", version("rasterio"), "masked of 48 outside and of 16 inside, by fill_value:", masked)
assert masked == {None: (48, 0), 0: (48, 1), 255: (0, 0)}
END
