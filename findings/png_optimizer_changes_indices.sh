#!/usr/bin/env bash
# A lossless PNG optimizer turns a gray mask into a gray palette: np.array(Pillow image) then has 1 where the mask had 2; OpenCV still has 2.
# pyoxipng 9.1.1, Pillow 12.3.0, OpenCV 4.14. It depends on the size: 256 x 256 pixels change, 64 x 64 stay 8-bit gray.
# Source: oxipng reduces gray to palette where that is smaller; Pillow returns indices of palettes.
# Why here: masks of one folder have several forms, and classes change file by file; see docs/how-halofeed-decides.md.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pyoxipng==9.1.1 pillow==12.3.0 opencv-python-headless==4.14.0.94 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import cv2
import numpy as np
import oxipng
from PIL import Image

seen = {}
for side in (64, 256):
    mask = np.zeros((side, side), np.uint8)
    mask[8:16, 10:50] = 2
    Image.fromarray(mask).save("mask.png")
    oxipng.optimize("mask.png", "small.png")
    image = Image.open("small.png")
    seen[side] = image.mode, np.unique(np.array(image)).tolist(), np.unique(cv2.imread("small.png", cv2.IMREAD_UNCHANGED)).tolist()
    print("pyoxipng", version("pyoxipng"), f"{side} x {side}: mode {image.mode}, Pillow {seen[side][1]}, OpenCV {seen[side][2]}")
assert seen == {64: ("L", [0, 2], [0, 2]), 256: ("P", [0, 1], [0, 2])}
END
