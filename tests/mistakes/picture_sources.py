"""Small sources of pictures: COCO, Pascal VOC, class folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.annotation_writer import boxed, draw, voc_object, voc_text
from tests.support.mistakes import preparing


def write(root: Path, name: str, content: object) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def coco(root: Path, **changes: Any) -> None:
    """Two pictures in images/ and a box of the class `hat` on each."""
    draw(root, "images/a.png", "images/b.png")
    box = {"category_id": 1, "bbox": [2, 3, 8, 6], "area": 48, "iscrowd": 0}
    document = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "annotations": [{"id": number, "image_id": number, **box} for number in (1, 2)],
        "categories": [{"id": 1, "name": "hat"}],
    }
    write(root, "instances.json", document | changes)


def voc(root: Path, name: str = "a") -> None:
    text = voc_text(f"{name}.png", voc_object(boxed(f"{name}.png", (3, 2, 20, 8))))
    write(root, f"Annotations/{name}.xml", text)
    draw(root, f"JPEGImages/{name}.png")


def folders(root: Path) -> None:
    draw(root, "hat/a.png", "coat/b.png")


@preparing
def source(root: Path, layout: str, draw: Callable[[Path], object], *more, below: str = "") -> list[object]:
    """What `draw` draws, converted with these options."""
    draw(root)
    return ["--layout", layout, "--source", root / below, "--height", 16, "--width", 24, *more]


def voc_lists(root: Path, **lists: str) -> None:
    for name in "abc":
        voc(root, name)
    for name, entries in lists.items():
        write(root, f"ImageSets/Main/{name}.txt", "\n".join(entries.split()) + "\n")
