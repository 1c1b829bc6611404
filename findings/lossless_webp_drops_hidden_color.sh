#!/usr/bin/env bash
# Lossless WebP of four channels is not lossless: where the fourth is 0 the other three become 0, in Pillow, OpenCV and imageio; imagecodecs keeps them.
# Pillow 12.3.0, OpenCV 4.14.0, imageio 2.38.1, imagecodecs 2026.3.6. One expects the array that was written.
# Source: libwebp changes color under transparent pixels unless 'exact' is set (cwebp, -exact); Pillow has exact=True, OpenCV has no such option.
# Why here: RGB with infrared or a mask as fourth channel loses its color outside the mask.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pillow==12.3.0 opencv-python-headless==4.14.0.94 imageio==2.38.1 imagecodecs==2026.3.6 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import io

import cv2
import imagecodecs
import imageio.v3
import numpy as np
from PIL import Image

picture = np.random.default_rng(0).integers(1, 256, (32, 32, 4), dtype=np.uint8)
picture[::2, :, 3] = 0


def by_pillow(**options):
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "WEBP", lossless=True, **options)
    return np.asarray(Image.open(stream))


found = {
    "pillow": by_pillow(),
    "pillow, exact": by_pillow(exact=True),
    "opencv-python-headless": cv2.imdecode(cv2.imencode(".webp", picture, [cv2.IMWRITE_WEBP_QUALITY, 101])[1], cv2.IMREAD_UNCHANGED),
    "imageio": imageio.v3.imread(imageio.v3.imwrite("<bytes>", picture, extension=".webp", lossless=True)),
    "imagecodecs": imagecodecs.webp_decode(imagecodecs.webp_encode(picture, lossless=True)),
}
for name, array in found.items():
    print(name, version(name.split(",")[0]), "equal:", np.array_equal(array, picture), "hidden color:", array[0, 0], "of", picture[0, 0])
equal = {name for name, array in found.items() if np.array_equal(array, picture)}
assert equal == {"pillow, exact", "imagecodecs"} and not any(found[name][::2, :, :3].any() for name in set(found) - equal)
END
