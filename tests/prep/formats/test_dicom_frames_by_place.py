"""A frame of a DICOM file is read by its place, and is the frame that reading the complete file gives."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom.encaps import encapsulate
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
    UltrasoundMultiFrameImageStorage,
)

from halofeed.prep.formats.dicom import picture_frames
from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.prep.formats.picture.dicom_picture import frame_of_file
from halofeed.prep.sources.files import LocalFiles
from halofeed.system.errors import SourceError
from tests.support.dicom_writer import image_dataset, item, save

FRAMES, SIZE = 5, (41, 37)
NOISE = np.random.default_rng(3)


class CountedFiles(LocalFiles):
    """Files that count the bytes that are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.counted = 0

    def read_range(self, path: str, start: int, stop: int | None) -> bytes:
        data = super().read_range(path, start, stop)
        self.counted += len(data)
        return data


def cine(path: Path, dtype: type = np.uint16, syntax: str = ExplicitVRLittleEndian, **more: Any) -> None:
    top = min(int(np.iinfo(dtype).max), 4095)
    pixels = NOISE.integers(0, top + 1, (FRAMES, *SIZE)).astype(dtype)
    kind = {"SOPClassUID": UltrasoundMultiFrameImageStorage, "NumberOfFrames": FRAMES} | more
    dataset = image_dataset(
        pixels,
        position=None,
        orientation=None,
        modality="XA",
        rescale=None,
        bits_stored=top.bit_length(),
        more=kind,
    )
    save(dataset, path, syntax)


def colors(path: Path, interpretation: str = "RGB", planar: int = 0) -> None:
    pixels = NOISE.integers(0, 256, (FRAMES, *SIZE, 3)).astype(np.uint8)
    more = {"SamplesPerPixel": 3, "PhotometricInterpretation": interpretation, "PlanarConfiguration": planar}
    cine(path, np.uint8, PixelData=pixels.tobytes() + b"\0" * (pixels.size % 2), **more)


def bits(path: Path) -> None:
    packed = np.packbits(
        NOISE.integers(0, 2, FRAMES * SIZE[0] * SIZE[1]).astype(np.uint8), bitorder="little"
    ).tobytes()
    more = {"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0}
    cine(path, np.uint8, PixelData=packed + b"\0" * (len(packed) % 2), **more)


def windows_of_frames(path: Path) -> None:
    """Each frame has its own window, in a header that is longer than the first read of a file."""
    groups = [
        item(
            FrameVOILUTSequence=[item(WindowCenter=str(400 * at + 300), WindowWidth="500")],
            FrameContentSequence=[item(FrameLabel="x" * 60) for _ in range(300)],
        )
        for at in range(FRAMES)
    ]
    cine(path, PerFrameFunctionalGroupsSequence=groups)


WRITERS = {
    "16 bits": cine,
    "8 bits": lambda path: cine(path, np.uint8),
    "without value representations": lambda path: cine(path, syntax=ImplicitVRLittleEndian),
    "big-endian": lambda path: cine(path, syntax=ExplicitVRBigEndian),
    "big-endian bytes": lambda path: cine(path, np.uint8, ExplicitVRBigEndian),
    "run lengths": lambda path: cine(path, syntax=RLELossless),
    "JPEG 2000": lambda path: cine(path, syntax=JPEG2000Lossless),
    "JPEG-LS": lambda path: cine(path, syntax=JPEGLSLossless),
    "one bit": bits,
    "colors": colors,
    "color planes": lambda path: colors(path, planar=1),
    "YBR_FULL": lambda path: colors(path, "YBR_FULL"),
    "windows of frames": windows_of_frames,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_frame_by_its_place_is_that_of_the_complete_file(tmp_path, name):
    path = tmp_path / "a.dcm"
    WRITERS[name](path)
    files, data = LocalFiles(tmp_path), path.read_bytes()
    for options in (ReadOptions(channels=1, dtype="uint16"), ReadOptions(window="100/50")):
        for frame in (3, 0, FRAMES - 1):
            expected = read_image(data, options, frame=frame)
            found = frame_of_file(files, "a.dcm", frame)
            assert found is not None
            image = read_image(found, options)
            assert np.array_equal(image.pixels, expected.pixels) and image.notes == expected.notes
            assert image.stated == expected.stated


def test_fragments_of_frames_are_found_by_the_offset_table(tmp_path):
    path = tmp_path / "a.dcm"
    cine(path, syntax=RLELossless)
    import pydicom
    from pydicom.encaps import generate_frames

    dataset = pydicom.dcmread(path)
    frames = list(generate_frames(dataset.PixelData, number_of_frames=FRAMES))
    dataset.PixelData = encapsulate(frames, fragments_per_frame=3, has_bot=True)
    dataset.save_as(path)
    found = frame_of_file(LocalFiles(tmp_path), "a.dcm", 2)
    image = read_image(found, ReadOptions(channels=1))
    assert np.array_equal(
        image.pixels, read_image(path.read_bytes(), ReadOptions(channels=1), frame=2).pixels
    )


def test_a_frame_reads_its_own_bytes_and_the_header(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_frames, "HEAD_BYTES", 2048)
    path = tmp_path / "a.dcm"
    pixels = NOISE.integers(0, 256, (200, 64, 64)).astype(np.uint8)
    kind = {"SOPClassUID": UltrasoundMultiFrameImageStorage, "NumberOfFrames": 200}
    save(image_dataset(pixels, position=None, modality="US", rescale=None, more=kind), path)
    files = CountedFiles(tmp_path)
    for frame in (150, 7):
        before = files.counted
        found = frame_of_file(files, "a.dcm", frame)
        assert np.array_equal(read_image(found, ReadOptions(channels=1)).pixels[..., 0], pixels[frame])
        assert files.counted - before <= 64 * 64 + 2 * 2048
    assert found.byte_count == 64 * 64


def test_the_places_are_kept_while_the_file_is_unchanged(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_frames, "settled_stamp", lambda files, path: files.stamp(path))
    path = tmp_path / "a.dcm"
    cine(path, syntax=RLELossless)
    files = CountedFiles(tmp_path)
    frame_of_file(files, "a.dcm", 1)
    before = files.counted
    again = frame_of_file(files, "a.dcm", 1)
    assert files.counted == before  # neither the header nor the fragments
    expected = read_image(path.read_bytes(), ReadOptions(channels=1), frame=1).pixels
    assert np.array_equal(read_image(again, ReadOptions(channels=1)).pixels, expected)
    cine(path, np.uint8)
    changed = read_image(frame_of_file(files, "a.dcm", 1), ReadOptions(channels=1)).pixels
    assert np.array_equal(changed, read_image(path.read_bytes(), ReadOptions(channels=1), frame=1).pixels)


def test_deflated_and_gzip_files_are_read_completely(tmp_path):
    cine(tmp_path / "a.dcm", syntax=DeflatedExplicitVRLittleEndian)
    (tmp_path / "b.dcm").write_bytes(gzip.compress((tmp_path / "a.dcm").read_bytes()))
    files = LocalFiles(tmp_path)
    assert frame_of_file(files, "a.dcm", 0) is None and frame_of_file(files, "b.dcm", 0) is None


def test_a_truncated_file_is_refused_for_every_frame_as_when_it_is_read_completely(tmp_path):
    for at, syntax in enumerate((ExplicitVRLittleEndian, RLELossless)):
        path = tmp_path / f"{at}.dcm"
        cine(path, syntax=syntax)
        path.write_bytes(path.read_bytes()[:-300])
        with pytest.raises(SourceError) as whole:
            read_image(path.read_bytes(), ReadOptions(channels=1), frame=0)
        with pytest.raises(SourceError) as placed:
            frame_of_file(LocalFiles(tmp_path), path.name, 0)
        assert placed.value.args == whole.value.args


def test_a_frame_beyond_those_of_the_file_is_an_error(tmp_path):
    cine(tmp_path / "a.dcm")
    with pytest.raises(SourceError, match="frame 6 of 5"):
        frame_of_file(LocalFiles(tmp_path), "a.dcm", FRAMES)
