"""Measure reading NRRD and MetaImage files here, and by SimpleITK and pynrrd where installed: MB/s of voxels.

Run: python benchmarks/text_header_readers.py VOLUME.nii.gz
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK

from halofeed.prep.formats.volume_formats import open_scan
from halofeed.prep.sources.files import LocalFiles

ROUNDS = 5


def main(volume: str) -> None:
    """Write the volume in each form, and read it in turns."""
    image: Any = SimpleITK.Cast(SimpleITK.ReadImage(volume), SimpleITK.sitkInt16)
    voxel_bytes = 2 * int(np.prod(image.GetSize()))
    with tempfile.TemporaryDirectory() as folder:
        for name, compress in (
            ("raw.nrrd", False),
            ("gzip.nrrd", True),
            ("raw.mha", False),
            ("zlib.mha", True),
        ):
            path = str(Path(folder) / name)
            SimpleITK.WriteImage(image, path, compress)
            readers: dict[str, Callable[[], Any]] = {
                "halofeed": lambda name=name: open_scan(LocalFiles(folder), name).read(),  # type: ignore[misc]
                "SimpleITK": lambda path=path: SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(path)),  # type: ignore[misc]
            }
            if name.endswith(".nrrd"):
                try:
                    import nrrd
                except ImportError:
                    pass
                else:
                    readers["pynrrd"] = lambda path=path: nrrd.read(path)[0]  # type: ignore[misc]
            best = dict.fromkeys(readers, float("inf"))
            for _ in range(ROUNDS):
                for reader, read in readers.items():
                    start = time.process_time()
                    read()
                    best[reader] = min(best[reader], time.process_time() - start)
            figures = ", ".join(f"{reader} {voxel_bytes / 1e6 / took:.0f}" for reader, took in best.items())
            print(f"{name}: {figures} MB/s of a processor")


if __name__ == "__main__":
    main(sys.argv[1])
