#!/usr/bin/env bash
# tifffile.imwrite(path, volume, imagej=True) of an array of three axes writes its slices as ImageJ channels: the metadata have channels=5 and no slices, and tifffile reads the axes CYX, not ZYX, also if metadata give the spacing of slices.
# tifffile 2026.3.3. One expects slices, which microscopes, nnU-Net's Tiff3DIO and the option `spacing` mean; metadata={"axes": "ZYX"} is needed.
# Source: tifffile's documentation of imwrite (axes order TZCYXS for ImageJ); ImageJ's TiffDecoder (images, channels, slices, frames).
# Why here: a reader of stacks cannot refuse the axis C as channels, or it refuses volumes; the reader takes any axis but colors for depth.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check tifffile==2026.3.3 numpy==2.3.5
env/bin/python -I - <<'END'
import numpy as np
import tifffile

volume = np.arange(5 * 8 * 9, dtype=np.uint16).reshape(5, 8, 9)
seen = {}
for name, more in (("plain", {"spacing": 3.0, "unit": "mm"}), ("named", {"axes": "ZYX", "spacing": 3.0, "unit": "mm"})):
    tifffile.imwrite(f"{name}.tif", volume, imagej=True, metadata=more)
    with tifffile.TiffFile(f"{name}.tif") as file:
        about = file.imagej_metadata
        seen[name] = (file.series[0].axes, about.get("channels"), about.get("slices"))
    print(name, *seen[name])
assert seen == {"plain": ("CYX", 5, None), "named": ("ZYX", None, 5)}, seen
END
