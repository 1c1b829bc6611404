#!/usr/bin/env bash
# An array of 16-bit color is stored as a picture modulo 256: 255, 256 and 300 become 255, 0 and 44; 16-bit gray is kept.
# datasets 5.2.0 with Pillow 12.3.0 warns of a downcast. One expects an error or the high byte, as Pillow itself takes it from a file.
# Source: datasets.features.image, encode_np_array casts color arrays of integers to uint8.
# Why here: bright parts of microscopy and satellite pictures become dark, and the picture still looks plausible.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check datasets==5.2.0 pillow==12.3.0 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import warnings

warnings.simplefilter("ignore")
import datasets
import numpy as np

values = np.array([[255, 256, 300, 65535]], np.uint16)
feature = datasets.Image()
gray, color = (np.asarray(feature.decode_example(feature.encode_example(array))) for array in (values, np.stack([values] * 3, -1)))
print("datasets", version("datasets"), "gray", gray[0], gray.dtype, "color", color[0, :, 0], color.dtype)
assert gray[0].tolist() == values[0].tolist() and color[0, :, 0].tolist() == [255, 0, 44, 255]
END
