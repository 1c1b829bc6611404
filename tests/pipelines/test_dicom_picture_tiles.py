"""Single DICOM pictures are cut into tiles, whose pixels are those of the complete picture."""

from pathlib import Path

import numpy as np
import pytest
from pydicom.uid import (
    CTImageStorage,
    DigitalMammographyXRayImageStorageForPresentation,
    JPEG2000Lossless,
    SecondaryCaptureImageStorage,
    UltrasoundMultiFrameImageStorage,
)

from halofeed.prep.formats.picture.image import BURNED_IN_TEXT
from halofeed.prep.formats.region.slide_headers import SlideIndex
from halofeed.prep.sources.files import LocalFiles
from tests.support.conversions import halofeed_here, read_all, read_split
from tests.support.dicom_writer import ExplicitVRLittleEndian, image_dataset, save

SIZE, SIDE = (70, 90), 32
NONE = {"position": None, "orientation": None, "rescale": None}


def mammogram(path: Path, at: int, syntax: str = ExplicitVRLittleEndian, **more: object) -> None:
    """A picture of 12 bits with a dark part, which alone would look like one of fewer bits."""
    pixels = np.random.default_rng(at).integers(0, 4096, SIZE).astype(np.uint16)
    pixels[:, :40] //= 64
    kind = {"SOPClassUID": DigitalMammographyXRayImageStorageForPresentation, "PixelSpacing": [0.1, 0.2]}
    dataset = image_dataset(pixels, bits_stored=12, modality="MG", patient=f"P{at}", more=kind | more, **NONE)
    save(dataset, path, syntax)


def converted(root: Path, name: str, *words: object) -> tuple[Path, str]:
    run = halofeed_here(
        *("convert", "--source", root / "s", "--out", root / "out", "--name", name, "--channels", 1, *words)
    )
    assert run.returncode == 0, run.stderr
    return root / "out" / name / "1.0.0", run.stdout + run.stderr


TILES = ["--fit", "tiles", "--height", SIDE, "--width", SIDE]


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_tiles_have_the_pixels_of_the_complete_picture(tmp_path, dtype):
    mammogram(tmp_path / "s/a/0.dcm", 0)
    mammogram(tmp_path / "s/b/1.dcm", 1, JPEG2000Lossless, PhotometricInterpretation="MONOCHROME1")
    mammogram(tmp_path / "s/a/2.dicom", 2, WindowCenter="900", WindowWidth="700", BurnedInAnnotation="YES")
    folder, printed = converted(tmp_path, "tiles", *TILES, "--dtype", dtype)
    assert BURNED_IN_TEXT[:40] in printed
    whole, _ = converted(tmp_path, "whole", "--height", SIZE[0], "--width", SIZE[1], "--dtype", dtype)
    pictures = {
        name: np.frombuffer(record["image/encoded"][0], dtype).reshape(SIZE)
        for name, record in read_all(whole, ["train"]).items()
    }
    assert len(pictures) == 3
    covered = {name: np.zeros(SIZE, bool) for name in pictures}
    for record in read_split(folder, "train"):
        name = bytes(record["image/filename"][0]).decode()
        top, left = record["image/tile/origin"]
        tile = np.frombuffer(record["image/encoded"][0], dtype).reshape(SIDE, SIDE)
        assert np.array_equal(tile, pictures[name][top : top + SIDE, left : left + SIDE])
        covered[name][top : top + SIDE, left : left + SIDE] = True
        np.testing.assert_allclose(record["image/spacing_mm"], (0.1, 0.2), rtol=1e-6)
    assert all(part.all() for part in covered.values())
    assert halofeed_here("verify", folder).returncode == 0


def test_the_spacing_of_a_tile_follows_the_scale_and_gsd_reads_that_of_the_file(tmp_path):
    for at in range(2):
        mammogram(tmp_path / "s" / "ab"[at] / f"{at}.dcm", at)
    folder, _ = converted(tmp_path, "half", *TILES, "--scale", 0.5)
    for record in read_split(folder, "train"):
        whole = record["image/tile/whole"]
        np.testing.assert_allclose(record["image/spacing_mm"] * whole, np.array(SIZE) * (0.1, 0.2), rtol=1e-6)
    folder, _ = converted(tmp_path, "gsd", *TILES, "--gsd-m", 0.0002)
    for record in read_split(folder, "train"):
        assert list(record["image/tile/whole"]) == [SIZE[0] // 2, SIZE[1]]


def test_all_tiles_of_a_patient_are_in_one_split(tmp_path):
    for at in range(12):
        mammogram(tmp_path / "s" / "ab"[at % 2] / f"{at}.dcm", at // 2)
    folder, printed = converted(tmp_path, "split", *TILES, "--split-shares", "train=0.5,test=0.5")
    assert "no DICOM picture has a patient" not in printed
    patients = {
        split: {
            int(Path(bytes(record["image/filename"][0]).decode()).stem) // 2
            for record in read_split(folder, split)
        }
        for split in ("train", "test")
    }
    assert patients["train"] and patients["test"] and not patients["train"] & patients["test"]


def test_each_frame_is_cut_into_tiles_of_its_own(tmp_path):
    mammogram(tmp_path / "s/a/0.dcm", 0)
    kind = {"SOPClassUID": UltrasoundMultiFrameImageStorage, "NumberOfFrames": 3}
    pixels = np.random.default_rng(5).integers(0, 256, (3, *SIZE)).astype(np.uint8)
    save(image_dataset(pixels, modality="US", more=kind, patient="U", **NONE), tmp_path / "s/b/cine.dcm")
    folder, printed = converted(tmp_path, "t", *TILES)
    assert "rejected" not in printed
    covered = np.zeros(pixels.shape, bool)
    for record in read_split(folder, "train"):
        key = bytes(record["image/key/source"][0]).decode()
        if not key.startswith("b/cine.dcm#"):
            continue
        frame = int(key.rpartition("#")[2]) - 1
        top, left = record["image/tile/origin"]
        part = frame, slice(top, top + SIDE), slice(left, left + SIDE)
        tile = np.frombuffer(record["image/encoded"][0], np.uint8).reshape(SIDE, SIDE)
        assert np.array_equal(tile, pixels[part])
        covered[part] = True
    assert covered.all() and halofeed_here("verify", folder).returncode == 0


def test_slices_and_pictures_beside_slides_are_no_pictures_to_cut(tmp_path):
    mammogram(tmp_path / "mg/0.dcm", 0)
    pixels = np.zeros(SIZE, np.uint8)
    save(image_dataset(pixels, more={"SOPClassUID": CTImageStorage}), tmp_path / "ct/0.dcm")
    save(image_dataset(pixels, more={"SOPClassUID": SecondaryCaptureImageStorage}), tmp_path / "sc/0.dcm")
    (tmp_path / "mg/1.dcm").write_bytes(b"no DICOM" * 40)
    slides = SlideIndex(LocalFiles(tmp_path))
    assert "mg/0.dcm" in slides and "sc/0.dcm" in slides
    assert "ct/0.dcm" not in slides and "mg/1.dcm" not in slides
