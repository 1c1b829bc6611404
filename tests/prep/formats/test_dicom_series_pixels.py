"""Compressed pixels come out as they went in; damaged ones end in a SourceError and never in a large allocation."""

import contextlib
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom import uid
from pydicom.encaps import encapsulate

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom import headers as dicom_headers
from halofeed.prep.formats.dicom.jpeg_xl import jpeg_xl_size
from halofeed.prep.formats.dicom.mask_files import open_dicom_mask
from halofeed.prep.formats.dicom.pixels import compressed_frames, decode_rle
from halofeed.prep.formats.dicom.series import group_series
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.sources.files import LocalFiles
from tests.support.allocations import traced
from tests.support.dicom_folders import last_wins, open_folder
from tests.support.dicom_mask_writer import saved, segmentation
from tests.support.dicom_writer import image_dataset, multi_frame_dataset, save, write_series

UNCOMPRESSED = [
    *(uid.ImplicitVRLittleEndian, uid.ExplicitVRLittleEndian),
    *(uid.ExplicitVRBigEndian, uid.DeflatedExplicitVRLittleEndian),
]
LOSSLESS = [uid.JPEG2000Lossless, uid.JPEGLSLossless, uid.JPEGLosslessSV1, uid.RLELossless]
KINDS = [(np.uint8, 8), *((dtype, n) for n in (12, 16) for dtype in (np.uint16, np.int16))]


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
def test_every_lossless_syntax_gives_the_values(tmp_path, syntax, dtype, bits):
    pixels = stored_pixels(dtype, bits)
    dataset = image_dataset(pixels, bits_stored=bits, modality="MR", rescale=None)
    if syntax == uid.ExplicitVRBigEndian and bits == 8:
        dataset["PixelData"].VR = "OB"
    save(dataset, tmp_path / "a.dcm", syntax)
    np.testing.assert_array_equal(read_one(tmp_path), pixels)


def test_8_bit_pixels_in_big_endian_words_or_jpeg_baseline_come_out(tmp_path):
    frames = stored_pixels(np.uint8, 8, (2, 5, 7))
    dataset = multi_frame_dataset(frames, [(0, 0, 0), (0, 0, 1)], rescales=[(1, 0)] * 2, modality="MR")
    dataset.PixelData = np.frombuffer(frames.tobytes(), "<u2").byteswap().tobytes()
    dataset["PixelData"].VR = "OW"
    save(dataset, tmp_path / "a.dcm", uid.ExplicitVRBigEndian)
    np.testing.assert_array_equal(read_one(tmp_path), frames)
    pixels = np.add.outer(np.arange(40), np.arange(35)).astype(np.uint8) * 2
    save(image_dataset(pixels, modality="MR", rescale=None), tmp_path / "a.dcm", uid.JPEGBaseline8Bit)
    assert np.abs(read_one(tmp_path).astype(int) - pixels).max() <= 3


def test_pieces_of_frames_are_joined_as_the_table_says():
    pieces = [b"abcd", b"ef", b"gh", b"ijkl"]
    starts, body = [0, 22], b""
    for piece in [struct.pack("<2I", *starts), *pieces]:
        body += struct.pack("<HHI", 0xFFFE, 0xE000, len(piece)) + piece
    body += struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)

    def joined(count, data=body):
        frames = compressed_frames(data, 0, count)
        return [b"".join(data[at : at + size] for at, size in frame) for frame in frames]

    assert joined(2) == [b"abcdef", b"ghijkl"]
    assert joined(1) == [b"abcdefghijkl"] and joined(4) == pieces
    for count, data in ((3, body), (5, body), (2, body[:-22])):
        with pytest.raises(SourceError):
            joined(count, data)


SIZES = {"Rows": 0x00280010, "Columns": 0x00280011}


@pytest.mark.parametrize("syntax", [uid.ExplicitVRLittleEndian, *LOSSLESS], ids=lambda syntax: syntax.name)
def test_a_header_that_claims_65535_rows_and_columns_allocates_nothing(tmp_path, syntax):
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
def test_a_file_cut_off_anywhere_is_refused(tmp_path, syntax):
    whole = save(image_dataset(stored_pixels(np.uint16, 12)), tmp_path / "a.dcm", syntax).read_bytes()
    # Compressed pixels end with marks of 8 bytes, and padding, without which all frames are there.
    for length in [*range(0, len(whole) - 12, 97), len(whole) - 12]:
        (tmp_path / "a.dcm").write_bytes(whole[:length])
        with pytest.raises(SourceError):
            read_one(tmp_path)


@pytest.mark.parametrize(
    "syntax", UNCOMPRESSED + LOSSLESS + [uid.JPEGBaseline8Bit], ids=lambda syntax: syntax.name
)
def test_flipped_bits_raise_nothing_but_source_errors(tmp_path, syntax):
    dtype = np.uint8 if syntax == uid.JPEGBaseline8Bit else np.uint16
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


def test_a_damaged_slice_and_a_jpeg_that_no_free_plug_in_decodes_are_refused_by_name(tmp_path):
    for index in range(3):
        dataset = image_dataset(stored_pixels(np.uint16, 12), position=(0, 0, index))
        save(dataset, tmp_path / f"{index}.dcm", uid.RLELossless)
    data = (tmp_path / "1.dcm").read_bytes()
    (tmp_path / "1.dcm").write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match=r"1\.dcm"):
        read_one(tmp_path)
    path = save(image_dataset(stored_pixels(np.uint8, 8)), tmp_path / "b" / "a.dcm", uid.JPEGBaseline8Bit)
    data = path.read_bytes().replace(uid.JPEGBaseline8Bit.encode(), uid.JPEGExtended12Bit.encode())
    start = data.index(b"\xff\xc0\x00\x0b\x08")
    path.write_bytes(data[: start + 4] + b"\x0c" + data[start + 5 :])
    with pytest.raises(SourceError, match="transfer syntax is not supported") as caught:
        read_one(tmp_path / "b")
    assert caught.value.stage == "decode"


def test_deflated_bytes_without_end_are_refused(monkeypatch, tmp_path):
    dataset = image_dataset(np.zeros((500, 500), np.uint16))
    save(dataset, tmp_path / "a.dcm", uid.DeflatedExplicitVRLittleEndian)
    assert not (read_one(tmp_path) + 1024).any()
    monkeypatch.setattr(dicom_headers, "MAX_INFLATED_BYTES", 10_000)
    with pytest.raises(SourceError, match="DICOM file is too large"):
        read_one(tmp_path)


def test_reading_holds_one_volume_and_a_few_slices(tmp_path):
    count, side = 60, 128
    volume = np.zeros((count, side, side), np.int16)
    write_series(tmp_path, volume, [(0, 0, index) for index in range(count)], rescale=(1, 0))
    scan = open_folder(tmp_path)
    with traced() as memory:
        voxels = scan.read()
    assert voxels.nbytes == volume.nbytes and memory.peak < volume.nbytes + 6 * volume[0].nbytes


RAMP = (np.arange(64 * 64).reshape(64, 64) * 37 % 4096).astype(np.uint16)
AFFINE = np.array([[0, 0, 1.0, 0], [0, 1.0, 0, 0], [3.0, 0, 0, 0], [0, 0, 0, 1]])


def frame_of(*pieces: bytes) -> bytes:
    """A frame of run lengths with its header."""
    places = [64 + sum(map(len, pieces[:number])) for number in range(len(pieces))]
    return struct.pack("<16I", len(pieces), *places, *[0] * (15 - len(pieces))) + b"".join(pieces)


WHOLE = b"\x0f" + bytes(range(16))
BEYOND = {
    "a run beyond the end": bytes([14]) + bytes(15) + b"\xf0\x05",
    "values beyond the end": b"\x1f" + bytes(range(32)),
    "a run behind the end": WHOLE + b"\xff\x05",
}


@pytest.mark.parametrize("piece", BEYOND.values(), ids=BEYOND)
@pytest.mark.parametrize("place", [0, 1])
def test_runs_beyond_the_frame_are_refused_without_a_panic(piece, place, capfd):
    pieces = [WHOLE, WHOLE]
    pieces[place] = piece
    damaged = r"pixel data is damaged \(run lengths of \d+ values, expected 16\)"
    with pytest.raises(SourceError, match=damaged):
        decode_rle(frame_of(*pieces), 2, (4, 4))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("padding", [b"", b"\0", b"\0\0", b"\x80"])
def test_padding_behind_the_runs_is_left_out(padding):
    pixels = decode_rle(frame_of(bytes([0xF1, 2]) + padding, WHOLE + padding), 2, (4, 4))
    assert pixels.dtype == np.uint16
    assert pixels.tolist() == (512 + np.arange(16).reshape(4, 4)).tolist()


def assert_said_in_rejects_alone(path, places, read, capfd, caplog):
    """Of a file damaged at one place after the other, counted from its end, some are refused, and nothing is said."""
    whole, refused = path.read_bytes(), []
    capfd.readouterr()
    for place in places:
        damaged = bytearray(whole)
        damaged[-place] ^= 0x50
        path.write_bytes(damaged)
        try:
            read()
        except SourceError as error:
            refused.append(str(error))
    assert refused
    assert not [text for text in refused if "Error" in text or "Exception" in text]
    assert not caplog.records
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("syntax", [uid.RLELossless, uid.JPEGLSLossless, uid.JPEG2000Lossless])
def test_damaged_slices_print_and_log_nothing(syntax, tmp_path, capfd, caplog):
    path = save(image_dataset(RAMP, rescale=(1, 0)), tmp_path / "a.dcm", syntax)
    assert_said_in_rejects_alone(path, range(1, 400, 7), lambda: open_folder(tmp_path).read(), capfd, caplog)


@pytest.mark.parametrize("kind", ["FRACTIONAL", "LABELMAP"])
def test_damaged_masks_print_and_log_nothing(kind, tmp_path, capfd, caplog):
    pixels = np.tile(np.array([0, 1, 1, 0], np.uint8), (16, 4))
    bits, numbers = (16, {0: "rest", 1: "a"}) if kind == "LABELMAP" else (8, {1: "a"})
    stored = pixels.astype(np.uint16) if bits == 16 else pixels * 255
    dataset = segmentation(
        [(1, depth, stored) for depth in range(3)],
        AFFINE,
        numbers,
        kind=kind,
        bits=bits,
        syntax=uid.RLELossless,
    )
    path = tmp_path / "mask.dcm"
    path.write_bytes(saved(dataset))

    def read():
        grid = Grid(shape=(3, 16, 16), affine=AFFINE)
        last_wins(open_dicom_mask(LocalFiles(tmp_path), path.name, grid))

    assert_said_in_rejects_alone(path, range(9, 200, 3), read, capfd, caplog)


def save_jpeg_xl(dataset: pydicom.Dataset, frame: bytes, path: Path, number: int) -> None:
    """Write a file of this transfer syntax, which pydicom does not know, under one of equal length."""
    dataset.PixelData = encapsulate([frame])
    dataset["PixelData"].VR, dataset["PixelData"].is_undefined_length = "OB", True
    dataset.file_meta.TransferSyntaxUID = uid.HTJ2KLossless
    dataset.save_as(path, enforce_file_format=True)
    new = f"1.2.840.10008.1.2.4.{number}".encode()
    assert len(new) == len(uid.HTJ2KLossless)
    path.write_bytes(path.read_bytes().replace(uid.HTJ2KLossless.encode(), new))


@pytest.mark.parametrize("number", [110, 112])
@pytest.mark.parametrize(("dtype", "bits"), [(np.uint8, 8), (np.uint16, 12), (np.uint16, 16)])
def test_jpeg_xl_is_decoded_exactly_by_imagecodecs(tmp_path, number, dtype, bits):
    imagecodecs = pytest.importorskip("imagecodecs")
    pixels, path = stored_pixels(dtype, bits), tmp_path / "a.dcm"
    made = image_dataset(pixels, bits_stored=bits, modality="MR", rescale=None)
    save(made, path)
    frame = imagecodecs.jpegxl_encode(pixels, lossless=True, bitspersample=bits)
    save_jpeg_xl(made, frame, path, number)
    np.testing.assert_array_equal(read_one(tmp_path), pixels)
    other = imagecodecs.jpegxl_encode(np.zeros((3, 5), dtype), lossless=True)
    for damaged in (frame[: len(frame) // 2], b"\xff\x0a", b"\0\0", other):
        save_jpeg_xl(made, damaged, path, number)
        with pytest.raises(SourceError):
            read_one(tmp_path)
    made.PixelRepresentation = 1
    save_jpeg_xl(made, frame, path, number)
    with pytest.raises(SourceError, match="JPEG XL of 1 x signed"):
        read_one(tmp_path)


@pytest.mark.parametrize(
    "shape", [(1, 1), (8, 8), (64, 80), (256, 256), (300, 400), (513, 1), (2000, 1000), (40, 9000)]
)
@pytest.mark.parametrize("container", [False, True])
def test_the_size_of_a_jpeg_xl_is_read_from_its_first_bytes(shape, container):
    imagecodecs = pytest.importorskip("imagecodecs")
    frame = imagecodecs.jpegxl_encode(np.zeros(shape, np.uint8), usecontainer=container)
    assert jpeg_xl_size(frame) == shape
