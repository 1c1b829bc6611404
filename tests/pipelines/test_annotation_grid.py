"""Are boxes and labels of turned pictures put on the grid on which they were drawn, and is a guess ever silent?"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halofeed.pipelines.summary import summary
from tests.support.annotation_writer import boxed, write_annotations
from tests.support.conversions import edited, read_all, run_convert

ORIENTATION = 0x0112
UNPROVEN = "nothing shows whether it was annotated as stored or as displayed"
OBJECT = (slice(4, 12), slice(8, 24))
"""Rows and columns of the white object on each displayed picture of 32 x 48."""


def displayed_picture(side: tuple[int, int] = (32, 48)) -> np.ndarray:
    picture = np.zeros((*side, 3), np.uint8)
    picture[OBJECT] = 255
    return picture


def store(displayed: np.ndarray, orientation: int) -> np.ndarray:
    """The pixels that a file of this orientation holds, so that viewers show `displayed`."""
    found = {
        1: displayed,
        2: displayed[:, ::-1],
        3: displayed[::-1, ::-1],
        4: displayed[::-1],
        5: displayed.swapaxes(0, 1),
        6: np.rot90(displayed, 1),
        7: displayed[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(displayed, -1),
    }
    return np.ascontiguousarray(found[orientation])


def save(path: Path, displayed: np.ndarray, orientation: int, kind: str = "JPEG") -> tuple[int, int]:
    """Write the picture; the (height, width) that the file stores."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    stored = store(displayed, orientation)
    Image.fromarray(stored).save(path, kind, exif=exif, **({"quality": 100} if kind == "JPEG" else {}))
    return stored.shape[0], stored.shape[1]


def coco(root: Path, pictures: list[tuple[int, str]], grid: str, side: tuple[int, int] = (32, 48)) -> Path:
    """Pictures of (orientation, which size is declared: "own", "none"), annotated on one grid."""
    boxes = []
    for number, (orientation, declares) in enumerate(pictures, start=1):
        save(root / f"{number}.jpg", displayed_picture(side), orientation)
        drawn = displayed_picture(side)
        drawn = drawn if grid == "displayed" else store(drawn, orientation)
        rows, columns = (found.tolist() for found in np.nonzero(drawn[..., 0]))
        size = {"height": drawn.shape[0], "width": drawn.shape[1]} if declares == "own" else {}
        box = (min(columns), min(rows), max(columns) + 1, max(rows) + 1)
        boxes.append(boxed(f"{number}.jpg", box, **size))
    write_annotations(root, "coco", boxes)
    return root


def misplaced(folder: str) -> list[str]:
    """The records whose boxes do not frame the white object of the stored picture."""
    found = []
    for name, record in read_all(Path(folder), ["train"]).items():
        height, width = int(record["image/height"][0]), int(record["image/width"][0])
        picture = np.frombuffer(bytes(record["image/encoded"][0]), np.uint8).reshape(height, width, 3)
        rows, columns = np.nonzero(picture[..., 0] > 127)
        expected = [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
        corners = ("ymin", "xmin", "ymax", "xmax")
        box = [record[f"image/object/bbox/{corner}"][0] for corner in corners]
        if not np.allclose(np.array(box) * [height, width, height, width], expected, atol=1.01):
            found.append(name)
    return found


def convert(root: Path, out: Path, **more: Any) -> Any:
    return run_convert(root, out, **{"layout": "coco", "height": 32, "width": 48} | more)


@pytest.mark.parametrize("grid", ["stored", "displayed"])
def test_a_declared_size_of_one_turned_picture_is_proof_for_all_of_its_file(tmp_path, grid):
    declares = {6: "own", 3: "own", 8: "none", 2: "none", 1: "own", 7: "none", 4: "own", 5: "none"}
    done = convert(coco(tmp_path / "src", [*declares.items()], grid), tmp_path / "out")
    assert misplaced(done.folder) == []
    assert "warning" not in summary(done)


@pytest.mark.parametrize("grid", ["stored", "displayed"])
def test_where_nothing_proves_the_grid_the_option_says_it_or_auto_warns(tmp_path: Path, grid: str) -> None:
    root = coco(tmp_path / "src", [(3, "own"), (6, "none"), (1, "own"), (8, "none")], grid)
    done = convert(root, tmp_path / "said", annotation_grid=grid)
    assert misplaced(done.folder) == [] and "warning" not in summary(done)
    guessed = convert(root, tmp_path / "guessed")
    ((text, count),) = guessed.manifest.splits["train"].statistics.warnings.items()
    assert count == 3 and UNPROVEN in text and "--annotation-grid" in text
    assert "3 inputs" in summary(guessed) and UNPROVEN in summary(guessed)
    assert len(misplaced(guessed.folder)) == (3 if grid == "displayed" else 0)


def test_turned_squares_follow_the_pictures_that_are_none(tmp_path: Path) -> None:
    done = convert(coco(tmp_path / "src", [(6, "own"), (3, "own")], "displayed", (48, 48)), tmp_path / "out")
    assert done.manifest.splits["train"].statistics.warnings and len(misplaced(done.folder)) == 2
    done = convert(tmp_path / "src", tmp_path / "said", annotation_grid="displayed")
    assert misplaced(done.folder) == []


def test_pictures_that_prove_both_grids_leave_the_others_open(tmp_path: Path) -> None:
    root = coco(tmp_path / "src", [(6, "own"), (3, "none")], "displayed")
    other = coco(tmp_path / "other", [(6, "own")], "stored")
    stored = json.loads((other / "instances.json").read_text())
    (other / "1.jpg").rename(root / "3.jpg")
    with edited(root / "instances.json") as document:
        document["images"].append({**stored["images"][0], "id": 3, "file_name": "3.jpg"})
        document["annotations"].append({**stored["annotations"][0], "id": 3, "image_id": 3})
    done = convert(root, tmp_path / "out")
    assert misplaced(done.folder) == ["2.jpg"]
    assert list(done.manifest.splits["train"].statistics.warnings.values()) == [1]


@pytest.mark.parametrize("layout", ["csv", "jsonl", "voc"])
def test_tables_and_voc_are_settled_like_coco(tmp_path: Path, layout: str) -> None:
    root = coco(tmp_path / "src", [(6, "own"), (3, "own"), (8, "none")], "displayed")
    document = json.loads((root / "instances.json").read_text())
    (root / "instances.json").unlink()
    rows = []
    for image, annotation in zip(document["images"], document["annotations"], strict=True):
        x, y, width, height = annotation["bbox"]
        size = {side: image.get(side) for side in ("width", "height")}
        rows.append(boxed(image["file_name"], (x, y, x + width, y + height), **size))
    write_annotations(root, layout, rows)
    done = convert(root, tmp_path / "out", layout=layout, **({"box_origin": 0} if layout == "voc" else {}))
    assert misplaced(done.folder) == [] and "warning" not in summary(done)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_orientation_of_every_format_is_a_proof(tmp_path: Path, kind: str) -> None:
    root = coco(tmp_path / "src", [(6, "own"), (3, "none")], "displayed")
    save(root / "1.jpg", displayed_picture(), 6, kind)
    done = convert(root, tmp_path / "out")
    assert misplaced(done.folder) == [] and "warning" not in summary(done)


@pytest.mark.parametrize("layout", ["pairs", "csv"])
def test_label_images_are_settled_like_boxes(tmp_path: Path, layout: str) -> None:
    rows = []
    for name, orientation in (("a", 6), ("b", 3), ("c", 1)):
        save(tmp_path / "src" / "images" / f"{name}.png", displayed_picture(), orientation, "PNG")
        label = tmp_path / "src" / "labels" / f"{name}.png"
        label.parent.mkdir(exist_ok=True)
        Image.fromarray((displayed_picture()[..., 0] > 0).astype(np.uint8)).save(label)
        rows.append(f"images/{name}.png,labels/{name}.png\n")
    if layout == "csv":
        (tmp_path / "src" / "t.csv").write_text("image,label\n" + "".join(rows))

    def wrong(**more: Any) -> tuple[list[str], bool]:
        more |= {"layout": layout, "task": "segmentation", "overwrite": True}
        done = convert(tmp_path / "src", tmp_path / "out", **more)
        differ = []
        for name, record in read_all(Path(done.folder), ["train"]).items():
            label = np.frombuffer(record["image/label"][0], np.uint8)
            picture = np.frombuffer(record["image/encoded"][0], np.uint8)
            if not np.array_equal(label > 0, picture[::3] > 127):
                differ.append(name)
        return differ, "warning" in summary(done)

    assert wrong() == ([], False)
    for part in ("images/a.png", "labels/a.png"):
        (tmp_path / "src" / part).unlink()
    if layout == "csv":
        (tmp_path / "src" / "t.csv").write_text("image,label\n" + "".join(rows[1:]))
    assert wrong() == (["images/b.png"], True)
    assert wrong(annotation_grid="displayed") == ([], False)
