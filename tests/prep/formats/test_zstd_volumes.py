"""NIfTI files compressed by zstd, .nii.zst, are read as their .nii.gz are, or refused with a reason."""

import gzip
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import zstandard

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.volume_file import read_label_segments
from halofeed.prep.formats.volume_formats import open_mask, open_scan
from tests.support.conversions import run_convert
from tests.support.nifti_writer import MemoryFiles
from tests.support.small_scans import AFFINE, SIZE, image, mask
from tests.support.volume_support import IJK, by_name

TABLE = b"""<?xml version="1.0"?><CaretExtension><VolumeInformation Index="0"><LabelTable>
<Label Key="1" Red="1" Green="0" Blue="0" Alpha="1"><![CDATA[liver]]></Label>
<Label Key="2" Red="1" Green="0" Blue="0" Alpha="1"><![CDATA[spleen]]></Label></LabelTable></VolumeInformation>
</CaretExtension>"""


def nifti(voxels: Any, table: bytes = b"") -> bytes:
    made = nibabel.Nifti1Image(np.ascontiguousarray(voxels.T), AFFINE[:, IJK])
    if table:
        made.header.extensions.append(nibabel.nifti1.Nifti1Extension(30, table))
    return bytes(made.to_bytes())


def packed(data: bytes, frames: int = 1) -> bytes:
    """Frames without their size, as a stream is written, or several of them."""
    step = -(-len(data) // frames)
    parts = (data[at : at + step] for at in range(0, len(data), step))
    return b"".join(
        zstandard.ZstdCompressor(write_content_size=frames > 1, write_checksum=True).compress(part)
        for part in parts
    )


@pytest.mark.parametrize("frames", [1, 3])
def test_a_file_is_the_same_scan_as_its_gzip(frames: int) -> None:
    files = MemoryFiles(
        {"a.nii.zst": packed(nifti(image()), frames), "b.nii.gz": gzip.compress(nifti(image()))}
    )
    ours, theirs = (open_scan(files, name) for name in files.sizes())
    assert np.array_equal(ours.read(), theirs.read()) and np.array_equal(ours.read()[..., 0], image())
    assert np.array_equal(ours.grid.affine, theirs.grid.affine)


def test_its_label_table_names_classes() -> None:
    files = MemoryFiles({"a.nii.zst": packed(nifti(mask(), TABLE))})
    assert [(one.value, one.name) for one in read_label_segments(files, "a.nii.zst")] == [
        (1, "liver"),
        (2, "spleen"),
    ]
    label = open_mask(files, "a.nii.zst", open_scan(files, "a.nii.zst").grid)
    assert dict(label.names) == {1: "liver", 2: "spleen"} and np.array_equal(label.read(), mask())


def test_a_data_set_of_such_files_converts(tmp_path: Path) -> None:
    for name, voxels in (("images/a", image()), ("labels/a", mask())):
        (tmp_path / f"s/{name}.nii.zst").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"s/{name}.nii.zst").write_bytes(packed(nifti(voxels)))
    record = by_name(run_convert(tmp_path / "s", tmp_path / "o", layout="pairs", **SIZE))["images/a.nii.zst"]
    assert np.array_equal(record.image[..., 0], image()) and np.array_equal(record.label, mask())


def test_damaged_files_are_refused() -> None:
    whole = packed(nifti(np.random.default_rng(0).integers(0, 999, (20, 30, 40)).astype(np.int16)))
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 0xFF
    cases = {"cut": whole[:-9], "broken": bytes(broken), "trailer": whole + b"trailer", "head": whole[:20]}
    for name, data in cases.items():
        with pytest.raises(SourceError) as caught:
            open_scan(MemoryFiles({"a.nii.zst": data}), "a.nii.zst").read()
        assert caught.value.stage == "decode", name


def test_memory_does_not_grow_beyond_the_header() -> None:
    """A small file that unpacks to far more than its header says is refused after that many bytes."""
    data = packed(nifti(image()) + bytes(1 << 28))
    assert len(data) < 1 << 16
    with pytest.raises(SourceError, match="more"):
        open_scan(MemoryFiles({"a.nii.zst": data}), "a.nii.zst").read()
