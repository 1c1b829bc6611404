#!/usr/bin/env bash
# Pillow convert("L") of a 16-bit gray picture clips at 255 and does not scale: 3000 becomes white, where OpenCV gives 11.
# Pillow 12.3.0, OpenCV 4.14. One expects the high byte, as Pillow itself takes it for 16-bit color.
# Source: Pillow, conversion I;16 to L; the two rules differ within one library.
# Why here: whole sets of 12-bit pictures become white, and the mean of the set looks like bright pictures.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pillow==12.3.0 opencv-python-headless==4.14.0.94 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import cv2
import numpy as np
from PIL import Image

Image.fromarray(np.full((8, 8), 3000, np.uint16)).save("a.png")
clipped = np.unique(np.array(Image.open("a.png").convert("L")))
scaled = np.unique(cv2.imread("a.png", cv2.IMREAD_GRAYSCALE))
print("Pillow", version("pillow"), "of 3000:", clipped, "; OpenCV", scaled)
assert clipped.tolist() == [255] and scaled.tolist() == [11]
END
