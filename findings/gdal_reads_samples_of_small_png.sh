#!/usr/bin/env bash
# GDAL returns the stored samples of a gray PNG of 4 bits (1), where Pillow, OpenCV and SimpleITK return them scaled to 8 bits (17).
# rasterio 1.4.4 (GDAL in its wheel), Pillow 12.3.0, OpenCV 4.14, SimpleITK 2.5.7. One expects one value from all readers of PNG.
# Source: PNG specification, sample depth scaling (13.12); the PNG driver of GDAL leaves it out.
# Why here: a mask checked in GIS software has other classes than in training.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check rasterio==1.4.4 pillow==12.3.0 opencv-python-headless==4.14.0.94 SimpleITK==2.5.7 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import struct
import warnings
import zlib
import cv2
import numpy as np
import rasterio
import SimpleITK
from PIL import Image

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

rows = b"".join(b"\0" + bytes([0x11 * value] * 4) for value in (0, 0, 1, 1, 1, 1, 0, 0))
header = struct.pack(">IIBBBBB", 8, 8, 4, 0, 0, 0, 0)
with open("a.png", "wb") as file:
    file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
warnings.simplefilter("ignore")  # a PNG has no place on the earth
with rasterio.open("a.png") as opened:
    found = {"GDAL": opened.read().max(), "Pillow": np.array(Image.open("a.png")).max()}
found |= {"OpenCV": cv2.imread("a.png", cv2.IMREAD_UNCHANGED).max(), "SimpleITK": SimpleITK.GetArrayFromImage(SimpleITK.ReadImage("a.png")).max()}
print("rasterio", version("rasterio"), "GDAL", rasterio.__gdal_version__, {name: int(value) for name, value in found.items()})
assert [*found.values()] == [1, 17, 17, 17]
END
