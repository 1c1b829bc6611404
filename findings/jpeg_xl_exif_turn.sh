#!/usr/bin/env bash
# Surprise: the turn of a picture that pillow-jxl-plugin saves with exif= is lost in decoders of JPEG XL, and that of a turned
# JPEG is kept: pixels have it in the Exif box alone, which decoders ignore; a recompressed JPEG has it in the codestream.
# Seen with pillow-jxl-plugin 1.3.8, imagecodecs 2026.3.6 (libjxl 0.11.2), Pillow 12.3.0. Source: ISO/IEC 18181-2, Exif box.
# It matters here: a reader that applies EXIF turns one of them, and one that follows the codestream turns the other.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check pillow==12.3.0 pillow-jxl-plugin==1.3.8 imagecodecs==2026.3.6 numpy==2.4.6
cd "$folder"
venv/bin/python -I - <<'END'
import io

import imagecodecs
import pillow_jxl  # noqa: F401
from PIL import Image

exif = Image.Exif()
exif[0x0112] = 6  # a quarter turn
Image.new("RGB", (24, 16), (200, 40, 40)).save("turned.jpg", exif=exif)
drawn = Image.new("RGB", (24, 16), (200, 40, 40))
drawn.save(pixels := io.BytesIO(), "JXL", lossless=True, exif=exif.tobytes())
with Image.open("turned.jpg") as image:
    image.save(recompressed := io.BytesIO(), "JXL", lossless_jpeg=True)
shapes = [imagecodecs.jpegxl_decode(one.getvalue()).shape[:2] for one in (pixels, recompressed)]
print("pixels with exif:", shapes[0], "recompressed JPEG:", shapes[1])
raise SystemExit(0 if shapes == [(16, 24), (24, 16)] else 1)
END
