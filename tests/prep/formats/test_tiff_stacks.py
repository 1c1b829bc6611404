"""Stacks of TIFF pages with their voxel size beside them are volumes, as nnU-Net reads them with tifffile."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from halofeed.errors import JobError, SourceError, UsageError
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.tiff_stack import open_tiff_stack
from halofeed.prep.sources.files import LocalFiles
from tests.support.conversions import run_convert
from tests.support.small_scans import SIZE, image, mask, nnunet_document, write_json
from tests.support.volume_support import by_name, rejected

SPACING = [3.0, 2.0, 1.5]


def write(path: Path, voxels: NDArray[Any], spacing: Any = None, **how: Any) -> bytes:
    """A stack, and its voxel size if it is given, under the name without the number of a channel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, voxels, **{"photometric": "minisblack", **how})
    if spacing is not None:
        stem = path.name.removesuffix(path.suffix).removesuffix("_0000")
        path.with_name(f"{stem}.json").write_text(json.dumps({"spacing": spacing}))
    return path.read_bytes()


def opened(root: Path, name: str = "a.tif", **options: Any) -> Any:
    return open_tiff_stack(LocalFiles(root), name, ScanOptions(**options)).scan(ScanOptions())


@pytest.mark.parametrize(
    ("dtype", "how"),
    [
        ("u1", {}),
        ("i2", {"byteorder": ">"}),
        ("u2", {"compression": "zlib", "predictor": True}),
        ("f4", {"compression": "lzw", "tile": (16, 16)}),
        ("i4", {"bigtiff": True, "rowsperstrip": 2}),
        ("u2", {"imagej": True}),
        ("f4", {"ome": True, "metadata": {"axes": "ZYX"}}),
    ],
)
def test_voxels_are_those_that_tifffile_reads(tmp_path: Path, dtype: str, how: dict[str, Any]) -> None:
    data = write(tmp_path / "a.tif", image().clip(0).astype(dtype), SPACING, **how)
    scan = opened(tmp_path)
    assert np.array_equal(scan.read()[..., 0], tifffile.imread(io.BytesIO(data)))
    assert scan.grid.spacing_mm == pytest.approx(SPACING)


def test_a_data_set_of_nnunet_converts_with_its_labels(tmp_path: Path) -> None:
    root = tmp_path / "s"
    write(root / "imagesTr/c_0000.tif", image(), SPACING)
    write(root / "labelsTr/c.tif", mask(), SPACING)
    write_json(root, nnunet_document(file_ending=".tif"))
    done = run_convert(root, tmp_path / "o", layout="nnunet", **SIZE)
    record = by_name(done)["imagesTr/c_0000.tif"]
    # A stack has no orientation: its rows run to posterior and its columns to the left, as for NumPy arrays.
    assert np.array_equal(record.image[..., 0], image()[:, ::-1, ::-1])
    assert np.array_equal(record.label, mask()[:, ::-1, ::-1])
    assert record.spacing_mm == pytest.approx(SPACING)
    with pytest.raises(
        UsageError, match=r"c_0000.tif is a volume: .*5 pages.*--depth 5 --height 8 --width 9"
    ):
        run_convert(root, tmp_path / "p", layout="nnunet")


def test_a_stack_without_a_voxel_size_takes_that_of_the_option(tmp_path: Path) -> None:
    root = tmp_path / "s"
    write(root / "images/a.tif", image())
    write(root / "labels/a.tif", mask())
    options = {
        "layout": "pairs",
        "image_pattern": "images/{id}.tif",
        "label_pattern": "labels/{id}.tif",
        **SIZE,
    }
    with pytest.raises(
        JobError, match=r"stack has no voxel size.*a\.json.*--array-spacing-mm 2\.5,0\.8,0\.8"
    ):
        run_convert(root, tmp_path / "o", **options)
    done = run_convert(root, tmp_path / "p", array_spacing_mm=(4, 3, 2), **options)
    assert by_name(done)["images/a.tif"].spacing_mm == pytest.approx([4, 3, 2])
    # The file's own statement counts before the option.
    (root / "images/a.json").write_text('{"spacing": [5, 3, 2], "origin": 1}')
    (root / "labels/a.json").write_text('{"author": "nobody"}')
    done = run_convert(root, tmp_path / "q", array_spacing_mm=(4, 3, 2), mask_grid="voxels", **options)
    assert by_name(done)["images/a.tif"].spacing_mm == pytest.approx([5, 3, 2])


@pytest.mark.parametrize(
    "spacing", [[1, 2], "1,2,3", [1, 0, 2], [1, 2, float("nan")], [1, 1, True], ["1", "2", "3"]]
)
def test_a_wrong_voxel_size_is_refused_by_file(tmp_path: Path, spacing: Any) -> None:
    write(tmp_path / "a.tif", image(), spacing)
    with pytest.raises(SourceError, match=r"voxel size of a stack is wrong.*a\.json"):
        opened(tmp_path)


def test_pages_that_are_no_slices_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "one.tif", image()[0], SPACING)
    write(tmp_path / "color.tif", np.zeros((5, 8, 9, 3), np.uint8), SPACING, photometric="rgb")
    write(tmp_path / "rgb.tif", np.zeros((8, 9, 3), np.uint8), SPACING, photometric="rgb")
    write(tmp_path / "four.tif", np.zeros((2, 5, 8, 9), np.uint8), SPACING)
    (tmp_path / "text.tif").write_text("no TIFF")
    for name, reason in (
        ("one", "not three axes"),
        ("color", "not three"),
        ("rgb", "not three"),
        ("four", "not three"),
        ("text", "not a TIFF"),
    ):
        with pytest.raises(SourceError, match=reason):
            opened(tmp_path, f"{name}.tif")
    data = write(tmp_path / "cut.tif", image(), SPACING, compression="zlib")
    (tmp_path / "cut.tif").write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError):
        opened(tmp_path, "cut.tif").read()


def test_pictures_of_one_page_stay_pictures(tmp_path: Path) -> None:
    write(tmp_path / "s/images/a.tif", image()[0].clip(0).astype(np.uint8), SPACING)
    write(tmp_path / "s/labels/a.tif", mask()[0])
    options = {"layout": "pairs", "image_pattern": "images/{id}.tif", "label_pattern": "labels/{id}.tif"}
    with pytest.raises(UsageError, match="is a picture"):
        run_convert(tmp_path / "s", tmp_path / "o", **options, **SIZE)
    done = run_convert(tmp_path / "s", tmp_path / "p", height=8, width=9, **options)
    assert not rejected(done)
