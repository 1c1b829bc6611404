"""Windows of DICOM whole-slide images, beside Pillow and OpenSlide."""

import io
from pathlib import Path

import numpy as np
import openslide
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian

from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.formats.region.slide_headers import is_slide
from halofeed.prep.sources.files import LocalFiles
from halofeed.system.errors import SourceError
from tests.support.conversions import run_convert
from tests.support.slide_writer import SlideLevel, write_level

SIDE = 64


def smooth(height: int, width: int) -> np.ndarray:
    """Return a picture whose every pixel differs from its neighbors by little, as JPEG keeps it."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows % 251, columns % 241, (rows + columns) % 239], axis=2).astype(np.uint8)


def tiles_of(picture: np.ndarray) -> list[np.ndarray]:
    height, width = picture.shape[:2]
    padded = np.pad(picture, ((0, -height % SIDE), (0, -width % SIDE), (0, 0)), mode="edge")
    return [
        padded[top : top + SIDE, left : left + SIDE]
        for top in range(0, height, SIDE)
        for left in range(0, width, SIDE)
    ]


def jpeg(tile: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(tile).save(stream, "JPEG", quality=90, subsampling=2)
    return stream.getvalue()


def draw_slide(folder: Path, sizes=((150, 200), (75, 100))) -> Path:
    """Write a slide with a file for each size; return the largest."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (height, width) in enumerate(sizes):
        level = SlideLevel(
            height=height, width=width, side=SIDE, spacing_mm=0.0005 * 2**number, number=number
        )
        write_level(folder / f"{number}.dcm", level, map(jpeg, tiles_of(smooth(height, width))))
    return folder / "0.dcm"


def change(path: Path, edit) -> None:
    data = pydicom.dcmread(path)
    edit(data)
    data.save_as(path)


def assembled(path: Path) -> np.ndarray:
    """Return all pixels, frame by frame with Pillow; pydicom's own conversion of colors differs by one level."""
    data = pydicom.dcmread(path)
    encoded = generate_frames(data.PixelData, number_of_frames=data.NumberOfFrames)
    frames = [np.array(Image.open(io.BytesIO(frame))) for frame in encoded]
    across = -(-data.TotalPixelMatrixColumns // data.Columns)
    rows = [np.concatenate(frames[at : at + across], axis=1) for at in range(0, len(frames), across)]
    return np.concatenate(rows)[: data.TotalPixelMatrixRows, : data.TotalPixelMatrixColumns]


def windows(size, seed=0, count=12):
    random = np.random.default_rng(seed)
    for _ in range(count):
        top, left = (int(random.integers(side)) for side in size)
        yield (
            top,
            left,
            int(random.integers(1, size[0] - top + 1)),
            int(random.integers(1, size[1] - left + 1)),
        )


def check_windows(path: Path, expected: np.ndarray, level: int = 0) -> None:
    reader = open_regions(LocalFiles(str(path.parent)), path.name, threads=2)
    for top, left, height, width in windows(expected.shape[:2]):
        found = reader.read(level, top, left, height, width)
        assert np.array_equal(found, expected[top : top + height, left : left + width])
        assert reader.read_valid(level, top, left, height, width) is None
    reader.close()


def test_windows_of_jpeg_frames_equal_pillow_and_openslide(tmp_path):
    path = draw_slide(tmp_path / "slide")
    check_windows(path, assembled(path))
    with openslide.OpenSlide(path) as slide:
        other = np.array(slide.read_region((0, 0), 0, slide.dimensions).convert("RGB"))
    check_windows(path, other)
    reader = open_regions(LocalFiles(str(path.parent)), path.name)
    facts = reader.facts
    reader.close()
    assert facts.levels == ((150, 200), (75, 100)) and facts.color == "rgb"
    assert facts.pixel_size_m == pytest.approx((5e-7, 5e-7))
    check_windows(path, assembled(path.parent / "1.dcm"), level=1)


def without_compression(data: Dataset) -> None:
    frames = b"".join(tile.tobytes() for tile in tiles_of(smooth(150, 200)))
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.PhotometricInterpretation = "RGB"
    del data.ExtendedOffsetTable, data.ExtendedOffsetTableLengths
    data.PixelData = frames
    data["PixelData"].is_undefined_length = False


def in_planes(data: Dataset) -> None:
    without_compression(data)
    data.PlanarConfiguration = 1
    data.PixelData = b"".join(
        np.ascontiguousarray(np.moveaxis(tile, 2, 0)).tobytes() for tile in tiles_of(smooth(150, 200))
    )


@pytest.mark.parametrize("edit", [without_compression, in_planes])
def test_windows_of_frames_without_compression_are_the_stored_samples(tmp_path, edit):
    path = draw_slide(tmp_path / "slide")
    change(path, edit)
    check_windows(path, smooth(150, 200))


def with_basic_table(data: Dataset) -> None:
    frames = list(generate_frames(data.PixelData, number_of_frames=data.NumberOfFrames))
    del data.ExtendedOffsetTable, data.ExtendedOffsetTableLengths
    data.PixelData = encapsulate(frames, has_bot=True)


def with_fragments(data: Dataset) -> None:
    frames = list(generate_frames(data.PixelData, number_of_frames=data.NumberOfFrames))
    del data.ExtendedOffsetTable, data.ExtendedOffsetTableLengths
    data.PixelData = encapsulate(frames, fragments_per_frame=3, has_bot=True)


def without_table(data: Dataset) -> None:
    frames = list(generate_frames(data.PixelData, number_of_frames=data.NumberOfFrames))
    del data.ExtendedOffsetTable, data.ExtendedOffsetTableLengths
    data.PixelData = encapsulate(frames, has_bot=False)


@pytest.mark.parametrize("edit", [with_basic_table, with_fragments, without_table])
def test_frames_are_found_by_each_offset_table(tmp_path, edit):
    path = draw_slide(tmp_path / "slide")
    expected = assembled(path)
    change(path, edit)
    check_windows(path, expected)


def sparse(data: Dataset) -> None:
    """Keep every second tile, in reverse order, with their places."""
    frames = list(generate_frames(data.PixelData, number_of_frames=data.NumberOfFrames))
    across = -(-data.TotalPixelMatrixColumns // SIDE)
    kept = list(range(0, len(frames), 2))[::-1]
    groups = []
    for number in kept:
        place = Dataset()
        place.RowPositionInTotalImagePixelMatrix = number // across * SIDE + 1
        place.ColumnPositionInTotalImagePixelMatrix = number % across * SIDE + 1
        group = Dataset()
        group.PlanePositionSlideSequence = Sequence([place])
        groups.append(group)
    del data.ExtendedOffsetTable, data.ExtendedOffsetTableLengths
    data.PixelData = encapsulate([frames[number] for number in kept], has_bot=True)
    data.NumberOfFrames = len(kept)
    data.DimensionOrganizationType = "TILED_SPARSE"
    data.PerFrameFunctionalGroupsSequence = Sequence(groups)


def test_missing_tiles_of_a_sparse_slide_are_no_pixels(tmp_path):
    path = draw_slide(tmp_path / "slide")
    expected = assembled(path)
    change(path, sparse)
    reader = open_regions(LocalFiles(str(path.parent)), path.name)
    for window in windows((150, 200)):
        top, left, height, width = window
        rows, columns = np.mgrid[top : top + height, left : left + width]
        exists = (rows // SIDE * 4 + columns // SIDE) % 2 == 0
        found, valid = reader.read(0, *window), reader.read_valid(0, *window)
        assert (np.ones(exists.shape, bool) if valid is None else valid).tolist() == exists.tolist()
        shown = expected[top : top + height, left : left + width]
        assert np.array_equal(found[exists], shown[exists]) and (found[~exists] == 255).all()
    reader.close()


def test_a_truncated_slide_names_the_frame(tmp_path):
    path = draw_slide(tmp_path / "slide")
    path.write_bytes(path.read_bytes()[:-2000])
    reader = open_regions(LocalFiles(str(path.parent)), path.name)
    with pytest.raises(SourceError, match=r"frame \d+ of 0.dcm"):
        reader.read(0, 0, 0, 150, 200)
    reader.close()


def as_label(data: Dataset) -> None:
    data.ImageType = ["ORIGINAL", "PRIMARY", "LABEL", "NONE"]


def with_two_focal_planes(data: Dataset) -> None:
    data.TotalPixelMatrixFocalPlanes = 2


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (as_label, "label, an overview or a thumbnail"),
        (with_two_focal_planes, "focal planes or optical paths"),
    ],
)
def test_files_that_are_no_resolution_of_a_slide_are_refused(tmp_path, edit, words):
    path = draw_slide(tmp_path / "slide")
    change(path, edit)
    with pytest.raises(SourceError, match=words):
        open_regions(LocalFiles(str(path.parent)), path.name)


def test_only_the_largest_resolution_of_a_series_is_a_picture(tmp_path):
    path = draw_slide(tmp_path / "slide")
    files = LocalFiles(str(path.parent))
    assert [is_slide(files, name) for name in ("0.dcm", "1.dcm")] == [True, False]
    (tmp_path / "slide/2.dcm").write_bytes(b"no DICOM")
    assert not is_slide(files, "2.dcm")


def test_slides_in_class_folders_become_tiles_and_no_name_is_kept(tmp_path):
    for name in ("normal", "tumor"):
        draw_slide(tmp_path / "src" / name)
    done = run_convert(
        tmp_path / "src", tmp_path / "out", layout="folders", fit="tiles", height=SIDE, width=SIDE
    )
    assert done.manifest.split("train").records == 2 * 12
    stored = b"".join(path.read_bytes() for path in Path(done.folder).rglob("*") if path.is_file())
    assert b"Drawn^Slide" not in stored


def test_a_slide_without_tiles_is_refused_with_the_option(tmp_path):
    draw_slide(tmp_path / "src/tumor")
    with pytest.raises(Exception, match="--fit tiles"):
        run_convert(tmp_path / "src", tmp_path / "out", layout="folders")
