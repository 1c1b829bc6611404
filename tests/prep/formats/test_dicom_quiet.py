"""Does a damaged DICOM file say what it has to say in its reject alone, and nothing on standard error?"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from pydicom.uid import JPEG2000Lossless, JPEGLSLossless, RLELossless

from halofeed.prep.formats.dicom.masks import open_dicom_mask
from halofeed.prep.formats.dicom.run_lengths import decode_run_lengths
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import SourceError
from tests.support.dicom_folders import last_wins, open_folder
from tests.support.dicom_mask_writer import saved, segmentation
from tests.support.dicom_writer import image_dataset, save

PIXELS = (np.arange(64 * 64).reshape(64, 64) * 37 % 4096).astype(np.uint16)
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
def test_runs_beyond_the_frame_are_refused_without_a_panic(
    piece: bytes, place: int, capfd: pytest.CaptureFixture[str]
) -> None:
    pieces = [WHOLE, WHOLE]
    pieces[place] = piece
    damaged = r"pixel data is damaged \(run lengths of \d+ values, expected 16\)"
    with pytest.raises(SourceError, match=damaged):
        decode_run_lengths(frame_of(*pieces), 2, (4, 4))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("padding", [b"", b"\0", b"\0\0", b"\x80"])
def test_padding_behind_the_runs_is_left_out(padding: bytes) -> None:
    pixels = decode_run_lengths(frame_of(bytes([0xF1, 2]) + padding, WHOLE + padding), 2, (4, 4))
    assert pixels.dtype == np.uint16
    assert pixels.tolist() == (512 + np.arange(16).reshape(4, 4)).tolist()


def assert_said_in_rejects_alone(
    path: Path,
    places: Iterable[int],
    read: Callable[[], object],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
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


@pytest.mark.parametrize(
    "syntax", [RLELossless, JPEGLSLossless, JPEG2000Lossless], ids=lambda syntax: syntax.name
)
def test_damaged_slices_print_and_log_nothing(
    syntax: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = save(image_dataset(PIXELS, rescale=(1, 0)), tmp_path / "a.dcm", syntax)
    assert_said_in_rejects_alone(path, range(1, 400, 7), lambda: open_folder(tmp_path).read(), capfd, caplog)


@pytest.mark.parametrize("kind", ["FRACTIONAL", "LABELMAP"])
def test_damaged_masks_print_and_log_nothing(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pixels = np.tile(np.array([0, 1, 1, 0], np.uint8), (16, 4))
    bits, numbers = (16, {0: "rest", 1: "a"}) if kind == "LABELMAP" else (8, {1: "a"})
    stored = pixels.astype(np.uint16) if bits == 16 else pixels * 255
    dataset = segmentation(
        [(1, depth, stored) for depth in range(3)], AFFINE, numbers, kind=kind, bits=bits, syntax=RLELossless
    )
    path = tmp_path / "mask.dcm"
    path.write_bytes(saved(dataset))

    def read() -> None:
        grid = Grid(shape=(3, 16, 16), affine=AFFINE)
        last_wins(open_dicom_mask(LocalFiles(tmp_path), path.name, grid))

    assert_said_in_rejects_alone(path, range(9, 200, 3), read, capfd, caplog)
