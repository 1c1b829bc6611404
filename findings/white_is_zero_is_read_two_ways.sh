#!/usr/bin/env bash
# A gray TIFF in which white is 0: Pillow and OpenCV return 255 - value, tifffile and rasterio (GDAL) the stored value. With 16 bits, all four return the stored value.
# tifffile 2026.3.3, rasterio 1.4.4, Pillow 12.3.0, opencv-python-headless 4.13.0.90. One expects either all or none to apply the photometric interpretation.
# Source: TIFF 6.0, section 8, PhotometricInterpretation 0 (WhiteIsZero).
# Why here: tiles by tifffile and whole pictures by Pillow had opposite values; the reader of regions inverts, so that both are equal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check tifffile==2026.3.3 rasterio==1.4.4 pillow==12.3.0 opencv-python-headless==4.13.0.90 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import warnings
import cv2
import numpy as np
import rasterio
import tifffile
from PIL import Image

warnings.simplefilter("ignore")
seen = {}
for dtype in ("uint8", "uint16"):
    tifffile.imwrite("a.tif", np.array([[0, 10, 20]] * 3, dtype), photometric="miniswhite")
    try:
        pillow = np.asarray(Image.open("a.tif"))[0].tolist()
    except Exception as error:
        pillow = type(error).__name__
    seen[dtype] = {
        "tifffile": tifffile.imread("a.tif")[0].tolist(),
        "rasterio": rasterio.open("a.tif").read(1)[0].tolist(),
        "Pillow": pillow,
        "OpenCV": cv2.imread("a.tif", cv2.IMREAD_UNCHANGED)[0].tolist(),
    }
for name in ("tifffile", "rasterio", "pillow", "opencv-python-headless"):
    print(name, version(name))
for dtype, values in seen.items():
    print(dtype, values)
stored, inverted = [0, 10, 20], [255, 245, 235]
assert seen["uint8"] == {"tifffile": stored, "rasterio": stored, "Pillow": inverted, "OpenCV": inverted}
assert set(map(tuple, seen["uint16"].values())) == {tuple(stored)}
END
