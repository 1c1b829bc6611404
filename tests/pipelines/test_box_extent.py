"""Do boxes that cannot be those of their pictures stop a conversion, or get counted, in place of being cut to fit?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halofeed.pipelines.summary import summary
from halofeed.schemas.errors import AnnotationsError, UsageError
from tests.support.annotation_writer import boxed, draw, write_annotations
from tests.support.conversions import boxes_in_source, read_all, run_convert

HEIGHT, WIDTH = 40, 60
EXCHANGED = [(2, 5, 20, 58), (10, 30, 25, 57), (1, 1, 9, 50)]
"""xmin, ymin, xmax, ymax of boxes whose x and y are exchanged."""


def write(
    root: Path, boxes: list[tuple[Any, ...]], *, layout: str = "csv", declare: bool = False, **more: Any
) -> Path:
    """A picture for each box."""
    size = {"width": WIDTH, "height": HEIGHT} if declare and layout == "coco" else {}
    rows = [boxed(f"{number}.png", box, **size) for number, box in enumerate(boxes)]
    draw(root, *(row["filename"] for row in rows), size=(HEIGHT, WIDTH))
    write_annotations(root, layout, rows, **more)
    return root


@pytest.mark.parametrize("declare", [True, False])
@pytest.mark.parametrize("layout", ["csv", "coco", "voc"])
def test_boxes_that_leave_their_pictures_are_refused_and_exchanged_sides_named(
    tmp_path: Path, layout: str, declare: bool
) -> None:
    source = write(tmp_path / "src", EXCHANGED, layout=layout, declare=declare)
    words = r"3 of 3 boxes leave .*0\.png .*with x and y exchanged all fit"
    with pytest.raises(AnnotationsError, match=words):
        run_convert(source, tmp_path / "out", layout=layout)
    assert not list(tmp_path.rglob("*.tfrecord*"))
    done = run_convert(source, tmp_path / "insisted", layout=layout, box_units="pixels")
    assert done.manifest.splits["train"].statistics.boxes["clipped"] == 3


def test_boxes_of_pictures_that_were_scaled_since_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "src", [(100 * n, 80 * n, 100 * n + 90, 80 * n + 70) for n in range(1, 30)])
    words = r"29 of 29 boxes leave .*name with --images the pictures that were"
    with pytest.raises(AnnotationsError, match=words):
        run_convert(source, tmp_path / "out", layout="csv")


def test_boxes_that_reach_over_the_border_are_clipped_as_ever(tmp_path: Path) -> None:
    boxes = [(-2, -1, 30, 41), *[(1, 1, 61, 41)] * 9, *[(2, 2, 90, 90)] * 9]
    done = run_convert(write(tmp_path / "src", boxes), tmp_path / "out", layout="csv")
    assert done.manifest.splits["train"].statistics.boxes["clipped"] == 19


def test_a_width_under_the_name_of_a_corner_is_refused_although_most_boxes_look_sound(tmp_path: Path) -> None:
    boxes = [(12, 12, 1 + n, 2 + n) for n in range(30)]
    source = write(tmp_path / "src", boxes)
    with pytest.raises(AnnotationsError, match=r"box is inverted.*say --box-form corner-size if"):
        run_convert(source, tmp_path / "out", layout="csv")
    done = run_convert(source, tmp_path / "cured", layout="csv", box_form="corner-size")
    assert boxes_in_source(read_all(Path(done.folder), ["train"])["4.png"])[0] == pytest.approx(
        [12, 12, 18, 17]
    )


def test_a_small_set_of_which_no_object_can_be_used_is_refused(tmp_path: Path) -> None:
    rows = [f'{n}.png;hat;"1,5";2;"9,5";8' for n in range(3)]
    source = write(tmp_path / "src", [(1, 2, 9, 8)] * 3)
    (source / "boxes.csv").write_text("\n".join(["filename;class;xmin;ymin;xmax;ymax", *rows]) + "\n")
    words = r"3 of 3 objects cannot be used .*write a point for the comma"
    with pytest.raises(AnnotationsError, match=words):
        run_convert(source, tmp_path / "out", layout="csv")


@pytest.mark.parametrize("layout", ["coco", "voc"])
def test_a_box_that_is_turned_is_dropped_and_named_unless_that_is_to_be_ignored(
    tmp_path: Path, layout: str
) -> None:
    boxes = [(1, 2, 9, 8), (1, 2, 9, 8)]
    attributes = {"attributes": {"rotation": 30.0}} if layout == "coco" else {"rotation": 30.0}
    source = write(tmp_path / "src", boxes, layout=layout, **attributes)
    done = run_convert(source, tmp_path / "out", layout=layout)
    assert done.manifest.rejected == {"object: box is rotated": 2}
    assert "--ignore-columns rotation" in Path(done.folder, "rejected.jsonl").read_text()
    said = run_convert(source, tmp_path / "said", layout=layout, ignore_columns=("rotation",))
    assert said.manifest.rejected == {}
    upright = {"attributes": {"rotation": 0.0}} if layout == "coco" else {"rotation": "180"}
    plain = run_convert(
        write(tmp_path / "up", boxes, layout=layout, **upright), tmp_path / "plain", layout=layout
    )
    assert plain.manifest.rejected == {}


def test_of_voc_nothing_else_can_be_ignored(tmp_path: Path) -> None:
    source = write(tmp_path / "src", [(1, 2, 9, 8)], layout="voc")
    with pytest.raises(UsageError, match="--ignore-columns pose: of VOC rotation alone can be ignored"):
        run_convert(source, tmp_path / "out", layout="voc", ignore_columns=("pose",))


def test_an_object_that_stands_there_twice_is_kept_and_warned_of(tmp_path: Path) -> None:
    source = write(tmp_path / "src", [(1, 2, 9, 8), (3, 2, 9, 8)])
    table = source / "boxes.csv"
    table.write_text(table.read_text() + "0.png,hat,1,2,9,8\n1.png,coat,3,2,9,8\n")
    done = run_convert(source, tmp_path / "out", layout="csv")
    assert "1 input: an object stands there twice, with one class and one box; both are kept" in summary(done)
    assert len(boxes_in_source(read_all(Path(done.folder), ["train"])["0.png"])) == 2
