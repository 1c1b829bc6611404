#!/usr/bin/env bash
# rasterio decodes a JPEG (file or tiles of TIFF) of half color resolution to other pixels than Pillow, OpenCV and tifffile: 31 levels here.
# rasterio 1.4.4 (GDAL with IJG libjpeg 9 in its wheel), Pillow 12.3.0, OpenCV 4.14, tifffile 2026.3.3 with imagecodecs 2026.3.6.
# One expects 1 level between decoders. Source: libjpeg 7 and later enlarge the colors in the DCT, libjpeg-turbo by a triangle filter.
# Why here: tiles from one decoder and whole pictures from another differ at the borders of objects; we take one decoder for both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check rasterio==1.4.4 pillow==12.3.0 opencv-python-headless==4.14.0.94 tifffile==2026.3.3 imagecodecs==2026.3.6 numpy==2.3.5
env/bin/python -I -W ignore - <<'END'
from importlib.metadata import version
import cv2
import numpy as np
import rasterio
import tifffile
from PIL import Image

pixels = np.full((256, 256, 3), 128, np.uint8)
for top in range(0, 256, 32):
    for left in range(0, 256, 32):
        color = [(230, 30, 30), (30, 30, 230), (30, 200, 30)][(top + left) // 32 % 3]
        pixels[top + 5 : top + 20, left + 7 : left + 22] = color
tiles = {"tile": (64, 64), "photometric": "rgb", "compression": "jpeg", "compressionargs": {"level": 95}, "subsampling": (2, 2)}
tifffile.imwrite("a.tif", pixels, **tiles)
Image.fromarray(pixels).save("a.jpg", quality=95)
far = {}
for name in ("a.tif", "a.jpg"):
    pillow = np.array(Image.open(name)).astype(int)
    with rasterio.open(name) as source:
        far[name] = [np.abs(np.moveaxis(source.read(), 0, 2) - pillow).max()]
    far[name].append(np.abs(cv2.imread(name)[..., ::-1] - pillow).max())
    if name == "a.tif":
        far[name].append(np.abs(tifffile.imread(name) - pillow).max())
far = {name: [int(value) for value in values] for name, values in far.items()}
print("rasterio", version("rasterio"), "Pillow", version("pillow"), "levels from Pillow (rasterio, OpenCV, tifffile):", far)
assert min(values[0] for values in far.values()) > 20
assert max(max(values[1:]) for values in far.values()) <= 1
END
