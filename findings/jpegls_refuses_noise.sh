#!/usr/bin/env bash
# imagecodecs refuses to encode noise as lossless JPEG-LS ("destination buffer is too small"); pyjpegls needs 1.07 of its bytes.
# imagecodecs 2026.3.6 (CharLS 2.4.3), pyjpegls 1.5.1. One expects a result that is some percent larger, as that of PNG.
# Source: CharLS estimates the size as the pixels' bytes and about 1 KiB (estimated_destination_size), which is no upper bound.
# Why here: one picture that does not compress stops an export or a comparison of codecs; `out=2 * pixels.nbytes` encodes it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check imagecodecs==2026.3.6 pyjpegls==1.5.1 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import imagecodecs
import jpeg_ls
import numpy as np

noise = np.random.default_rng(0).integers(0, 256, (512, 512), np.uint8)
messages = {}
for name, encode in {"imagecodecs": imagecodecs.jpegls_encode, "pyjpegls": jpeg_ls.encode_array}.items():
    try:
        messages[name] = f"{len(encode(noise)) / noise.nbytes:.3f} of the pixels"
    except Exception as error:
        messages[name] = f"{type(error).__name__}: {error}"
    print(name, version(name), messages[name])
larger = imagecodecs.jpegls_encode(noise, out=2 * noise.nbytes)
print(f"with out=: {len(larger) / noise.nbytes:.3f} of the pixels; PNG {len(imagecodecs.png_encode(noise)) / noise.nbytes:.3f}")
assert np.array_equal(imagecodecs.jpegls_decode(larger), noise)
assert "too small" in messages["imagecodecs"] and messages["pyjpegls"].startswith("1.0")
END
