#!/usr/bin/env bash
# tifffile returns luma and chroma for a slide in Aperio's JPEG 2000 with YCbCr (compression 33003), as three bands of uint8; for JPEG with YCbCr it returns RGB. OpenSlide returns RGB for both.
# tifffile 2026.3.3, imagecodecs 2026.3.6, openslide-python 1.4.7, openslide-bin 4.0.1.2. One expects the photometric interpretation to count for both codecs.
# Source: TIFF 6.0, section 21 (YCbCr); openslide/openslide.github.io pull request 138 ("33003 uses YCbCr without MCT").
# Why here: such tiles look like green and violet pictures of the right shape and type; the reader of regions converts them, by the equations of JFIF.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check tifffile==2026.3.3 imagecodecs==2026.3.6 openslide-python==1.4.7 openslide-bin==4.0.1.2 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import imagecodecs
import numpy as np
import openslide
import tifffile

red = np.zeros((64, 64, 3), np.uint8)
red[..., 0] = 255
text = "Aperio Image Library v11\r\n64x64 [0,0 64x64] (64x64) J2K/YUV16 Q=70|AppMag = 20|MPP = 0.5"
form = {"shape": (64, 64, 3), "dtype": "uint8", "tile": (64, 64), "photometric": "ycbcr", "metadata": None}
ycbcr = np.full((64, 64, 3), (76, 85, 255), np.uint8)  # red, by JFIF
block = imagecodecs.jpeg2k_encode(ycbcr, mct=False, codecformat="j2k")
with tifffile.TiffWriter("j2k.svs") as file:
    file.write(iter([block]), compression=33003, description=text, subsampling=(1, 1), **form)
with tifffile.TiffWriter("jpeg.svs") as file:
    file.write(red, tile=(64, 64), photometric="rgb", compression="jpeg", subsampling=(1, 1), description=text, metadata=None)
for name in ("tifffile", "imagecodecs", "openslide-python", "openslide-bin"):
    print(name, version(name))
seen = {}
for name in ("j2k", "jpeg"):
    with openslide.OpenSlide(f"{name}.svs") as slide:
        shown = slide.read_region((0, 0), 0, (64, 64)).getpixel((9, 9))[:3]
    seen[name] = tuple(map(int, tifffile.imread(f"{name}.svs")[9, 9])), shown
    print(name, "tifffile", seen[name][0], "openslide", seen[name][1])
assert seen["j2k"] == ((76, 85, 255), (254, 0, 0)), seen
assert seen["jpeg"] == ((254, 0, 0), (254, 0, 0)), seen
END
