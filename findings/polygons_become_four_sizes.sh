#!/usr/bin/env bash
# The polygon (10, 10) to (20, 20) has 100 pixels in pycocotools and rasterio, 121 in OpenCV, Pillow and scikit-image; the contour of its mask has 81.
# pycocotools 2.0.11, rasterio 1.4.4, OpenCV 4.14.0, Pillow 12.3.0, scikit-image 0.26.0. One expects scikit-image to agree with pycocotools.
# Source: corners are edges of pixels in COCO and GIS, and centers of pixels in drawing; findContours returns centers.
# Why here: a mask turned into a COCO polygon by OpenCV loses 19 % of a 10 x 10 object at each turn.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pycocotools==2.0.11 rasterio==1.4.4 opencv-python-headless==4.14.0.94 pillow==12.3.0 scikit-image==0.26.0 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version

import cv2
import numpy as np
from PIL import Image, ImageDraw
from pycocotools import mask as coco
from rasterio.features import rasterize
from skimage.draw import polygon2mask


def by_coco(points):
    return coco.decode(coco.frPyObjects([np.ravel(points).tolist()], 40, 40))[:, :, 0]


square = [(10, 10), (20, 10), (20, 20), (10, 20)]
picture = Image.new("L", (40, 40))
ImageDraw.Draw(picture).polygon(square, fill=1)
found = {
    "pycocotools": by_coco(square),
    "rasterio": rasterize([{"type": "Polygon", "coordinates": [square + square[:1]]}], (40, 40)),
    "opencv-python-headless": cv2.fillPoly(np.zeros((40, 40), np.uint8), [np.array(square)], 1),
    "pillow": np.asarray(picture),
    "scikit-image": polygon2mask((40, 40), square),
}
sizes = {name: int(mask.sum()) for name, mask in found.items()}
turns, mask = [], np.ascontiguousarray(found["pycocotools"])
for _ in range(3):
    turns.append(int(mask.sum()))
    mask = np.ascontiguousarray(by_coco(cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)[0][0]))
print({name + " " + version(name): size for name, size in sizes.items()}, "; mask to contour to mask:", turns)
assert list(sizes.values()) == [100, 100, 121, 121, 121] and turns == [100, 81, 64]
END
