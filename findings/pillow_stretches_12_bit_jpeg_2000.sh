#!/usr/bin/env bash
# Pillow returns 12-bit JPEG 2000 times 16, in mode I;16: 100 becomes 1600; OpenCV and imagecodecs return 100.
# Pillow 12.3.0, OpenCV 4.14.0, imagecodecs 2026.3.6. One expects the samples, as Pillow returns those of a 12-bit picture in a 16-bit PNG.
# Source: Pillow's decoder shifts samples of fewer than 16 bits up (Jpeg2KDecode).
# Why here: pixel data taken out of DICOM and opened with Pillow have another scale, and a window in HU clips them all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pillow==12.3.0 opencv-python-headless==4.14.0.94 imagecodecs==2026.3.6 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import io

import cv2
import imagecodecs
import numpy as np
from PIL import Image

stored = np.random.default_rng(0).integers(0, 4096, (32, 32), dtype=np.uint16)
stored[0, :2] = 100, 4095
coded = imagecodecs.jpeg2k_encode(stored, level=0, reversible=True, bitspersample=12)
pillow = Image.open(io.BytesIO(coded))
found = {
    "pillow": np.asarray(pillow),
    "opencv-python-headless": cv2.imdecode(np.frombuffer(coded, np.uint8), cv2.IMREAD_UNCHANGED),
    "imagecodecs": imagecodecs.jpeg2k_decode(coded),
}
for name, array in found.items():
    print(name, version(name), array.dtype, "100 and 4095 are read as", array[0, :2])
assert pillow.mode == "I;16" and np.array_equal(found["pillow"], stored * 16)
assert np.array_equal(found["opencv-python-headless"], stored) and np.array_equal(found["imagecodecs"], stored)
END
