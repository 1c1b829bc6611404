"""NIfTI and Analyze files for tests: written by nibabel, then bent as a test wants them."""

from collections.abc import Mapping
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.volume_formats import ScanOptions, open_mask, open_scan
from halofeed.prep.geometry.scan import Grid, MaskScan, Scan

AFFINE = np.array([[-2.0, 0, 0, 40], [0, 0, 3, -50], [0, -1.5, 0, 60], [0, 0, 0, 1]])
"""Left, inferior, anterior; sides of 2, 1.5 and 3 mm."""


class MemoryFiles:
    root = "memory"

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def sizes(self) -> Mapping[str, int]:
        return {name: len(data) for name, data in sorted(self.files.items())}

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise SourceError("read", "file cannot be read", "no such file")
        return self.files[path]

    def head(self, path: str, size: int) -> bytes:
        return self.read(path)[:size]


def open_nifti(source: bytes | Mapping[str, bytes], path: str = "a.nii", **options: Any) -> Scan:
    """The scan of a file, or of one among several."""
    files = MemoryFiles({path: source} if isinstance(source, bytes) else source)
    return open_scan(files, path, (), ScanOptions(**options))


def open_nifti_mask(data: bytes) -> MaskScan:
    return open_mask(MemoryFiles({"a.nii": data}), "a.nii", Grid(shape=(1, 1, 1), affine=np.eye(4)))


def write_header(shape: tuple[int, ...], dtype, order="<", version=1, kind="single", **fields: Any) -> bytes:
    """A header with an sform and a qform of AFFINE; `fields` overwrite what they name."""
    classes: dict[tuple[int, str], Any] = {
        (1, "single"): nibabel.Nifti1Header,
        (2, "single"): nibabel.Nifti2Header,
        (1, "pair"): nibabel.nifti1.Nifti1PairHeader,
        (2, "pair"): nibabel.nifti2.Nifti2PairHeader,
        (1, "analyze"): nibabel.Spm2AnalyzeImage.header_class,
    }
    header = classes[version, kind](endianness=order)
    header.set_data_dtype(dtype)
    header.set_data_shape(shape)
    if kind != "analyze":
        header.set_qform(AFFINE, 1)
        header.set_sform(AFFINE, 1)
        header["xyzt_units"] = 2
        header["vox_offset"] = {("single", 1): 352, ("single", 2): 544}.get((kind, version), 0)
    for name, value in fields.items():
        place, _, index = name.partition("__")
        if index:
            header[place][int(index)] = value
        else:
            header[place] = value
    extension_flag = b"" if kind == "analyze" else b"\0" * 4
    return bytes(header.binaryblock) + extension_flag


def write_nifti(stored: NDArray[Any], order: str = "<", version: int = 1, **fields: Any) -> bytes:
    """A .nii file of stored values indexed [i, j, k, ...]."""
    swapped = stored.astype(stored.dtype.newbyteorder(order))
    return write_header(stored.shape, stored.dtype, order, version, **fields) + swapped.tobytes("F")
