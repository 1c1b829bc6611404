#!/usr/bin/env bash
# simplejpeg.encode_jpeg(fastdct=False) takes the fast, less accurate transform below quality 96: the option changes nothing.
# simplejpeg 1.9.0 beside Pillow 12.3.0, both libjpeg-turbo. One expects "fastest DCT method" to be off unless it is asked for.
# Source: TurboJPEG's tjCompress2 takes JDCT_ISLOW only with TJFLAG_ACCURATEDCT or from quality 96 on; simplejpeg sets no flag.
# Why here: equal qualities give other coefficients than Pillow and OpenCV, larger files (0.6 %), and 2 % more error at 95.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check simplejpeg==1.9.0 pillow==12.3.0 numpy==2.3.5
env/bin/python -I - <<'END'
import io
import numpy as np
import simplejpeg
from PIL import Image

rng = np.random.default_rng(0)
small = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
pixels = np.asarray(small.resize((256, 256), Image.Resampling.BICUBIC))
for quality, is_equal in ((95, False), (96, True)):
    plain, fast = (simplejpeg.encode_jpeg(pixels, quality, colorsubsampling="420", fastdct=fast) for fast in (False, True))
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=quality, subsampling="4:2:0")
    error = [np.abs(simplejpeg.decode_jpeg(data).astype(int) - pixels).mean() for data in (plain, stream.getvalue())]
    print(f"quality {quality}: fastdct changes nothing: {plain == fast}; as Pillow: {plain == stream.getvalue()};",
          f"bytes {len(plain)} and {len(stream.getvalue())}; mean error {error[0]:.3f} and {error[1]:.3f}")
    assert plain == fast and (plain == stream.getvalue()) == is_equal
END
