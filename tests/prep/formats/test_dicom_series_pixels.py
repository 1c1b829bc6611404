"""Compressed pixels come out as they went in; damaged ones end in a SourceError and never in a large allocation."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from halofeed.prep.formats.dicom import headers as dicom_headers
from halofeed.prep.formats.dicom.pixels import compressed_frames
from halofeed.prep.formats.dicom.series import group_series
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import SourceError
from tests.support.allocations import traced
from tests.support.dicom_folders import open_folder
from tests.support.dicom_writer import image_dataset, multi_frame_dataset, save, write_series

UNCOMPRESSED = [
    *(ImplicitVRLittleEndian, ExplicitVRLittleEndian),
    *(ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian),
]
LOSSLESS = [JPEG2000Lossless, JPEGLSLossless, JPEGLosslessSV1, RLELossless]
KINDS: list[tuple[type, int]] = [
    (np.uint8, 8),
    *((dtype, n) for n in (12, 16) for dtype in (np.uint16, np.int16)),
]


def stored_pixels(dtype: Any, bits: int, shape: tuple[int, ...] = (40, 35)) -> np.ndarray[Any, Any]:
    """Noise on a ramp that uses all bits, in words whose unused bits repeat the sign."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if np.dtype(dtype).kind == "i" else (0, 2**bits)
    pixels = np.linspace(low, high - 1, int(np.prod(shape))).reshape(shape)
    noise = np.random.default_rng(bits).normal(0, 2 ** (bits - 5), shape)
    return np.clip(pixels + noise, low, high - 1).astype(dtype)


def read_one(folder: Path) -> np.ndarray[Any, Any]:
    voxels = open_folder(folder).read()
    return voxels[0, ..., 0] if len(voxels) == 1 else voxels[..., 0]


@pytest.mark.parametrize("syntax", UNCOMPRESSED + LOSSLESS, ids=lambda syntax: syntax.name)
@pytest.mark.parametrize(("dtype", "bits"), KINDS)
def test_every_lossless_syntax_gives_the_values(tmp_path: Path, syntax: Any, dtype: Any, bits: int) -> None:
    pixels = stored_pixels(dtype, bits)
    dataset = image_dataset(pixels, bits_stored=bits, modality="MR", rescale=None)
    if syntax == ExplicitVRBigEndian and bits == 8:
        dataset["PixelData"].VR = "OB"
    save(dataset, tmp_path / "a.dcm", syntax)
    np.testing.assert_array_equal(read_one(tmp_path), pixels)


def test_8_bit_pixels_in_big_endian_words_are_put_back_in_order(tmp_path: Path) -> None:
    frames = stored_pixels(np.uint8, 8, (2, 5, 7))
    positions = [(0, 0, 0), (0, 0, 1)]
    dataset = multi_frame_dataset(frames, positions, rescales=[(1, 0)] * 2, modality="MR")
    dataset.PixelData = np.frombuffer(frames.tobytes(), "<u2").byteswap().tobytes()
    dataset["PixelData"].VR = "OW"
    save(dataset, tmp_path / "a.dcm", ExplicitVRBigEndian)
    np.testing.assert_array_equal(read_one(tmp_path), frames)


def test_jpeg_baseline_comes_out_nearly_as_it_went_in(tmp_path: Path) -> None:
    pixels = np.add.outer(np.arange(40), np.arange(35)).astype(np.uint8) * 2
    save(image_dataset(pixels, modality="MR", rescale=None), tmp_path / "a.dcm", JPEGBaseline8Bit)
    assert np.abs(read_one(tmp_path).astype(int) - pixels).max() <= 3


def test_pixels_of_12_bits_in_a_jpeg_that_no_free_plug_in_decodes_are_refused_by_name(tmp_path: Path) -> None:
    path = save(image_dataset(stored_pixels(np.uint8, 8)), tmp_path / "a.dcm", JPEGBaseline8Bit)
    data = path.read_bytes().replace(JPEGBaseline8Bit.encode(), JPEGExtended12Bit.encode())
    start = data.index(b"\xff\xc0\x00\x0b\x08")
    path.write_bytes(data[: start + 4] + b"\x0c" + data[start + 5 :])
    with pytest.raises(SourceError, match="transfer syntax is not supported") as caught:
        read_one(tmp_path)
    assert caught.value.stage == "decode"


def test_pieces_of_frames_are_joined_as_the_table_says() -> None:
    pieces = [b"abcd", b"ef", b"gh", b"ijkl"]
    starts, body = [0, 22], b""
    for piece in [struct.pack("<2I", *starts), *pieces]:
        body += struct.pack("<HHI", 0xFFFE, 0xE000, len(piece)) + piece
    body += struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)

    def joined(count: int, data: bytes = body) -> list[bytes]:
        frames = compressed_frames(data, 0, count)
        return [b"".join(data[at : at + size] for at, size in frame) for frame in frames]

    assert joined(2) == [b"abcdef", b"ghijkl"]
    assert joined(1) == [b"abcdefghijkl"] and joined(4) == pieces
    for count, data in ((3, body), (5, body), (2, body[:-22])):
        with pytest.raises(SourceError):
            joined(count, data)


SIZES = {"Rows": 0x00280010, "Columns": 0x00280011}


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, *LOSSLESS], ids=lambda syntax: syntax.name)
def test_a_header_that_claims_65535_rows_and_columns_allocates_nothing(tmp_path: Path, syntax: Any) -> None:
    path = save(image_dataset(stored_pixels(np.uint16, 12)), tmp_path / "a.dcm", syntax)
    data = path.read_bytes()
    for tag in SIZES.values():
        element = struct.pack("<HH", tag >> 16, tag & 0xFFFF) + b"US\x02\x00"
        assert element in data
        at = data.index(element) + len(element)
        data = data[:at] + b"\xff\xff" + data[at + 2 :]
    path.write_bytes(data)
    with traced() as memory, pytest.raises(SourceError) as caught:
        read_one(tmp_path)
    assert memory.peak < 4_000_000
    assert caught.value.reason == "pixel data is truncated"


@pytest.mark.parametrize("syntax", UNCOMPRESSED + LOSSLESS, ids=lambda syntax: syntax.name)
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path, syntax: Any) -> None:
    whole = save(image_dataset(stored_pixels(np.uint16, 12)), tmp_path / "a.dcm", syntax).read_bytes()
    # Compressed pixels end with marks of 8 bytes, and padding, without which all frames are there.
    for length in [*range(0, len(whole) - 12, 97), len(whole) - 12]:
        (tmp_path / "a.dcm").write_bytes(whole[:length])
        with pytest.raises(SourceError):
            read_one(tmp_path)


@pytest.mark.parametrize(
    "syntax", UNCOMPRESSED + LOSSLESS + [JPEGBaseline8Bit], ids=lambda syntax: syntax.name
)
def test_flipped_bits_raise_nothing_but_source_errors(tmp_path: Path, syntax: Any) -> None:
    dtype = np.uint8 if syntax == JPEGBaseline8Bit else np.uint16
    bits = 8 * np.dtype(dtype).itemsize
    whole = save(image_dataset(stored_pixels(dtype, bits)), tmp_path / "a.dcm", syntax).read_bytes()
    draw = random.Random(5)
    files = LocalFiles(tmp_path)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 1, 3, 20])):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        (tmp_path / "a.dcm").write_bytes(damaged)
        group_series(files, ["a.dcm"])
        with contextlib.suppress(SourceError):
            open_folder(tmp_path).read()


def test_a_damaged_slice_is_named(tmp_path: Path) -> None:
    for index in range(3):
        dataset = image_dataset(stored_pixels(np.uint16, 12), position=(0, 0, index))
        save(dataset, tmp_path / f"{index}.dcm", RLELossless)
    data = (tmp_path / "1.dcm").read_bytes()
    (tmp_path / "1.dcm").write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match=r"1\.dcm"):
        read_one(tmp_path)


def test_deflated_bytes_without_end_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dataset = image_dataset(np.zeros((500, 500), np.uint16))
    save(dataset, tmp_path / "a.dcm", DeflatedExplicitVRLittleEndian)
    assert not (read_one(tmp_path) + 1024).any()
    monkeypatch.setattr(dicom_headers, "MAX_INFLATED_BYTES", 10_000)
    with pytest.raises(SourceError, match="DICOM file is too large"):
        read_one(tmp_path)


def test_reading_holds_one_volume_and_a_few_slices(tmp_path: Path) -> None:
    count, side = 60, 128
    volume = np.zeros((count, side, side), np.int16)
    write_series(tmp_path, volume, [(0, 0, index) for index in range(count)], rescale=(1, 0))
    scan = open_folder(tmp_path)
    with traced() as memory:
        voxels = scan.read()
    assert voxels.nbytes == volume.nbytes and memory.peak < volume.nbytes + 6 * volume[0].nbytes
