#!/usr/bin/env bash
# minAreaRect of OpenCV 4.13 gives angles of -90 to 0 where 4.12 gave 0 to 90, with width and height exchanged: 45 became -45.
# opencv-python-headless 4.12.0.88, 4.13.0.92 and 4.14.0.94. One expects a minor release to keep the numbers that files store.
# Source: cv2.minAreaRect returns ((x, y), (width, height), angle); cv2.boxPoints gives the same four corners of both.
# Why here: records, batches and exports hold the corners of oriented boxes and no angle.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check numpy==2.2.6
for version in 4.12.0.88 4.13.0.92 4.14.0.94; do
    env/bin/python -m pip install --quiet --disable-pip-version-check --no-deps opencv-python-headless==$version
    env/bin/python -I - <<'END'
import cv2
import numpy as np

corners = np.array([[20, 0], [40, 20], [30, 30], [10, 10]], np.float32)
rectangle = cv2.minAreaRect(corners)
_, (width, height), angle = rectangle
again = sorted(map(tuple, cv2.boxPoints(rectangle).round().tolist()))
print("OpenCV", cv2.__version__, f"width {width:.1f} height {height:.1f} angle {angle:.0f}")
is_new = tuple(map(int, cv2.__version__.split(".")[:2])) >= (4, 13)
assert round(angle) == (-45 if is_new else 45) and (width < height) == is_new
assert again == sorted(map(tuple, corners.tolist()))
END
done
