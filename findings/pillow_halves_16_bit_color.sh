#!/usr/bin/env bash
# Pillow opens a PNG of 16-bit color as 8-bit RGB without a word and keeps the high byte alone: 300 becomes 1.
# Pillow 12.3.0; OpenCV 4.14 returns uint16. One expects a mode of 16 bits, as gray PNG has I;16, or an error.
# Source: Pillow has no mode for 16-bit color; its PNG plugin maps it to RGB;16B (modes in its documentation).
# Why here: a check of the decoded array cannot see that the file had more; the header has to be read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pillow==12.3.0 opencv-python-headless==4.14.0.94 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import warnings
import cv2
import numpy as np
from PIL import Image

warnings.simplefilter("error")
pixels = np.full((8, 8, 3), 300, np.uint16)
cv2.imwrite("a.png", pixels)
image = Image.open("a.png")
values = np.unique(np.array(image))
print("Pillow", version("pillow"), "mode", image.mode, "values", values, "; OpenCV", np.unique(cv2.imread("a.png", cv2.IMREAD_UNCHANGED)))
assert image.mode == "RGB" and values.tolist() == [1]
END
