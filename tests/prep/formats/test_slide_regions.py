"""Windows of DICOM whole-slide images, beside Pillow and OpenSlide."""

import io
import json
from pathlib import Path

import imagecodecs
import numpy as np
import openslide
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.sequence import Sequence
from pydicom.uid import JPEG2000, ExplicitVRLittleEndian, JPEG2000Lossless, JPEGLSLossless

from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.formats.region.slide_headers import SlideIndex
from halofeed.prep.sources.files import LocalFiles
from halofeed.system.errors import SourceError
from tests.support.conversions import boxes_in_source, read_split, run_convert
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


def fragments_without_table(data: Dataset) -> None:
    frames = list(generate_frames(data.PixelData, number_of_frames=data.NumberOfFrames))
    del data.ExtendedOffsetTable, data.ExtendedOffsetTableLengths
    data.PixelData = encapsulate(frames, fragments_per_frame=3, has_bot=False)


@pytest.mark.parametrize("edit", [with_basic_table, with_fragments, without_table, fragments_without_table])
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


def test_places_are_read_where_a_slide_states_no_type_of_organization(tmp_path):
    """Slides of the Leica GT450 list the places of frames instead of the type TILED_FULL."""
    path = draw_slide(tmp_path / "slide")
    expected = assembled(path)

    def edit(data: Dataset) -> None:
        sparse(data)
        del data.DimensionOrganizationType

    change(path, edit)
    reader = open_regions(LocalFiles(str(path.parent)), path.name)
    assert np.array_equal(reader.read(0, 0, 64, 40, 20), np.full((40, 20, 3), 255))
    assert np.array_equal(reader.read(0, 64, 0, 40, 20), expected[64:104, :20])
    assert np.array_equal(reader.read(0, 0, 128, 40, 20), expected[:40, 128:148])
    reader.close()


def encoded_anew(path: Path, syntax: str, color: str, encode) -> None:
    """Replace the frames by those of another encoder."""

    def edit(data: Dataset) -> None:
        data.file_meta.TransferSyntaxUID = syntax
        data.PhotometricInterpretation = color
        del data.ExtendedOffsetTable, data.ExtendedOffsetTableLengths
        data.PixelData = encapsulate([encode(tile) for tile in tiles_of(smooth(150, 200))], has_bot=True)

    change(path, edit)


def lossless_2000(tile: np.ndarray) -> bytes:
    return bytes(imagecodecs.jpeg2k_encode(tile, codecformat="j2k", reversible=True, mct=True))


def luma_2000(tile: np.ndarray) -> bytes:
    luma = np.asarray(Image.fromarray(tile).convert("YCbCr"))
    return bytes(imagecodecs.jpeg2k_encode(luma, codecformat="j2k", reversible=True, mct=False))


def red_jpeg(tile: np.ndarray) -> bytes:
    """Return a JPEG of red, green and blue without a marker that says so."""
    return bytes(
        imagecodecs.jpeg8_encode(tile, level=95, colorspace="RGB", outcolorspace="RGB", subsampling="444")
    )


@pytest.mark.parametrize(
    ("syntax", "color", "encode", "most"),
    [
        (JPEG2000Lossless, "YBR_RCT", lossless_2000, 0),
        (JPEGLSLossless, "RGB", imagecodecs.jpegls_encode, 0),
        (JPEG2000, "YBR_ICT", luma_2000, 3),
        (JPEG2000, "YBR_FULL", luma_2000, 3),
    ],
)
def test_photometric_interpretation_and_codestream_decide_the_color(tmp_path, syntax, color, encode, most):
    path = draw_slide(tmp_path / "slide", sizes=((150, 200),))
    encoded_anew(path, syntax, color, encode)
    reader = open_regions(LocalFiles(str(path.parent)), path.name)
    found = reader.read(0, 0, 0, 150, 200)
    reader.close()
    assert np.abs(found.astype(int) - smooth(150, 200)).max() <= most


def test_red_green_and_blue_in_jpeg_need_no_marker(tmp_path):
    path = draw_slide(tmp_path / "slide", sizes=((150, 200),))
    encoded_anew(path, "1.2.840.10008.1.2.4.50", "RGB", red_jpeg)
    with openslide.OpenSlide(path) as slide:
        expected = np.array(slide.read_region((0, 0), 0, slide.dimensions).convert("RGB"))
    check_windows(path, expected)


def test_windows_equal_wsidicom(tmp_path):
    wsidicom = pytest.importorskip("wsidicom")
    path = draw_slide(tmp_path / "slide")
    with wsidicom.WsiDicom.open(path.parent) as slide:
        expected = np.array(slide.read_region((0, 0), 0, (200, 150)))
    check_windows(path, expected)


def test_a_truncated_slide_names_the_frame(tmp_path):
    path = draw_slide(tmp_path / "slide")
    path.write_bytes(path.read_bytes()[:-2000])
    reader = open_regions(LocalFiles(str(path.parent)), path.name)
    with pytest.raises(SourceError, match=r"frame \d+ of 0.dcm"):
        reader.read(0, 0, 0, 150, 200)
    reader.close()


def as_label(data: Dataset) -> None:
    data.ImageType = ["ORIGINAL", "PRIMARY", "LABEL", "NONE"]


def without_rows(data: Dataset) -> None:
    del data.Rows


def with_one_frame_less(data: Dataset) -> None:
    data.NumberOfFrames = 11


def in_other_colors(data: Dataset) -> None:
    data.PhotometricInterpretation = "YBR_PARTIAL_420"


def with_two_focal_planes(data: Dataset) -> None:
    data.TotalPixelMatrixFocalPlanes = 2


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (as_label, "label, an overview or a thumbnail.*most pixels, 1.dcm"),
        (without_rows, "file is damaged.*Rows"),
        (with_one_frame_less, "11 frames, expected 12 tiles"),
        (in_other_colors, "YBR_PARTIAL_420"),
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
    (tmp_path / "slide/2.dcm").write_bytes(b"no DICOM")
    slides = SlideIndex(files)
    assert [name for name in ("0.dcm", "1.dcm", "2.dcm") if name in slides] == ["0.dcm"]


def test_a_damaged_file_hides_no_slide_and_is_a_picture_whose_fault_is_reported(tmp_path):
    path = draw_slide(tmp_path / "slide")
    files = LocalFiles(str(path.parent))
    (tmp_path / "slide/1.dcm").write_bytes((tmp_path / "slide/1.dcm").read_bytes()[:600])
    slides = SlideIndex(files)
    assert [name for name in ("0.dcm", "1.dcm") if name in slides] == ["0.dcm", "1.dcm"]
    reader = open_regions(files, "0.dcm")
    assert reader.facts.levels == ((150, 200),) and len(reader.facts.notes) == 1
    reader.close()
    with pytest.raises(SourceError, match="damaged"):
        open_regions(files, "1.dcm")


def test_optical_paths_in_files_of_one_size_are_refused_and_copies_are_not(tmp_path):
    path = draw_slide(tmp_path / "slide")
    other = tmp_path / "slide/other.dcm"
    other.write_bytes(path.read_bytes())
    open_regions(LocalFiles(str(path.parent)), path.name).close()
    change(other, lambda data: setattr(data, "SOPInstanceUID", "1.2.3"))
    with pytest.raises(SourceError, match=r"other.dcm has the same series and size"):
        open_regions(LocalFiles(str(path.parent)), path.name)


def test_another_region_of_a_series_is_a_picture(tmp_path):
    path = draw_slide(tmp_path / "slide", sizes=((150, 200), (140, 70)))
    slides = SlideIndex(LocalFiles(str(path.parent)))
    assert "0.dcm" in slides and "1.dcm" in slides


def test_headers_of_a_folder_are_read_once(tmp_path, monkeypatch):
    path = draw_slide(tmp_path / "slide")
    files, opened = LocalFiles(str(path.parent)), []
    open_ranges = files.open_ranges
    monkeypatch.setattr(files, "open_ranges", lambda name: opened.append(name) or open_ranges(name))
    slides = SlideIndex(files)
    assert [name in slides for name in ("0.dcm", "1.dcm") * 3].count(True) == 3
    assert sorted(opened) == ["0.dcm", "1.dcm"]


@pytest.mark.parametrize(
    ("folder", "name"), [("", "0.geojson"), ("case", "case/0.geojson"), ("case", "case.geojson")]
)
def test_outlines_of_qupath_beside_a_slide_are_boxes(tmp_path, folder, name):
    draw_slide(tmp_path / "src" / folder)
    corners = [[30, 20], [90, 20], [90, 60], [30, 60], [30, 20]]
    feature = {
        "type": "Feature",
        "properties": {"objectType": "annotation", "classification": {"name": "Tumor"}},
        "geometry": {"type": "Polygon", "coordinates": [corners]},
    }
    (tmp_path / "src" / name).write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    check_boxes_of_tiles(tmp_path, "geojson")


def check_boxes_of_tiles(folder: Path, layout: str) -> None:
    """Convert a slide of 150 x 200 with one box; compare the box in pixels of the slide."""
    options = {"fit": "tiles", "height": SIDE, "width": SIDE}
    done = run_convert(folder / "src", folder / "out", layout=layout, **options)
    records = list(read_split(Path(done.folder), "train"))
    assert len(records) == 12
    boxes = np.concatenate([boxes_in_source(features) for features in records])
    corners = [*boxes.min(0)[:2], *boxes.max(0)[2:]]
    assert np.allclose(corners, (20, 30, 60, 90), atol=1e-3)


def test_normalized_boxes_of_a_slide_are_read(tmp_path):
    draw_slide(tmp_path / "src/images")
    (tmp_path / "src/labels").mkdir()
    (tmp_path / "src/labels/0.txt").write_text(f"0 0.3 {40 / 150} 0.3 {40 / 150}\n")
    (tmp_path / "src/classes.txt").write_text("tumor\n")
    check_boxes_of_tiles(tmp_path, "yolo")


def test_a_slide_and_its_label_image_are_a_pair(tmp_path):
    draw_slide(tmp_path / "src/images")
    (tmp_path / "src/masks").mkdir()
    Image.fromarray(np.tril(np.ones((150, 200), np.uint8))).save(tmp_path / "src/masks/0.png")
    done = run_convert(
        tmp_path / "src", tmp_path / "out", layout="pairs", fit="tiles", height=SIDE, width=SIDE
    )
    assert done.manifest.split("train").records == 12


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
