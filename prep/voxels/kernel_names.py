"""How pictures can be resized, by name: what an option offers without loading what resizes (`prep.kernels`)."""

from __future__ import annotations

from typing import Final

KERNEL_NAMES: Final = (
    "antialias",
    *("tf1-bilinear", "tf1-nearest", "tf1-bicubic", "tf1-area"),
    *("tf2-bilinear", "tf2-nearest", "tf2-bicubic", "tf2-area", "tf2-lanczos3", "tf2-lanczos5"),
    *("tf2-bilinear-antialias", "tf2-bicubic-antialias", "tf2-lanczos3-antialias", "tf2-lanczos5-antialias"),
)
