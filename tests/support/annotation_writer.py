"""The one writer of pictures with boxes for tests: the same rows as a table, as lines of JSON, as COCO and as VOC."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDES = ("xmin", "ymin", "xmax", "ymax")
Row = Mapping[str, Any]


def draw(root: Path, *names: str, size: tuple[int, int] = (16, 24), value=90, orientation=1) -> Path:
    """Pictures of one gray, of (height, width) as they are stored; the folder, which is made."""
    root.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((*size, 3), value, np.uint8)).save(root / name, exif=exif)
    return root


def boxed(name: str, box: Sequence[Any], label: str = "hat", **more: Any) -> Row:
    """One box (xmin, ymin, xmax, ymax) on a picture; more are columns, such as its width and height."""
    return {"filename": name, "class": label, **dict(zip(SIDES, box, strict=True)), **more}


def write_annotations(root: Path, layout: str, rows: Sequence[Row], **keys: Any) -> str:
    """Write the rows; the file's name, which is none for VOC, whose files lie beside their pictures.

    Args:
        keys: more of each object of COCO, and attributes of each of VOC.
    """
    if layout == "voc":
        for row in rows:
            name, size = Path(row["filename"]), (row.get("width"), row.get("height"))
            text = voc_text(name.name, voc_object(row, **keys), *size)
            (root / name).with_suffix(".xml").write_text(text)
        return ""
    lines = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in rows]
    name, text = {
        "csv": ("boxes.csv", "\n".join([",".join(rows[0]), *lines]) + "\n"),
        "jsonl": ("boxes.jsonl", "".join(json.dumps(row) + "\n" for row in rows)),
        "coco": ("instances.json", json.dumps(coco_document(rows, **keys))),
    }[layout]
    (root / name).write_text(text)
    return name


def coco_document(rows: Sequence[Row], **keys: Any) -> dict[str, Any]:
    """Instances of one class, each picture and each object numbered from 1 as they come."""
    names = list(dict.fromkeys(row["filename"] for row in rows))
    images = [{"id": number, "file_name": name} for number, name in enumerate(names, start=1)]
    annotations = []
    for number, row in enumerate(rows, start=1):
        image = images[names.index(row["filename"])]
        image |= {side: row[side] for side in ("width", "height") if row.get(side) is not None}
        x, y, right, bottom = (row[side] for side in SIDES)
        outline = [x, y, right, y, right, bottom, x, bottom]
        bbox = {"bbox": [x, y, right - x, bottom - y], "area": (right - x) * (bottom - y)}
        ids = {"id": number, "image_id": image["id"], "category_id": 1}
        annotations.append({**ids, **bbox, "segmentation": [outline], "iscrowd": 0, **keys})
    return {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "hat"}]}


def coco_of_one(*objects: Row, name: str = "a.png", **changes: Any) -> dict[str, Any]:
    """Instances of the class `hat` on one picture, objects with these keys; `changes` are of the whole document."""
    annotations = [
        {"image_id": 1, "category_id": 1, "id": number, **one} for number, one in enumerate(objects, 1)
    ]
    picture, category = {"id": 1, "file_name": name}, {"id": 1, "name": "hat"}
    return {"images": [picture], "annotations": annotations, "categories": [category], **changes}


def voc_object(row: Row, inside: str = "", **attributes: Any) -> str:
    """One object as VOC has it, with what else stands inside of it."""
    named = [f"<name>{name}</name><value>{value}</value>" for name, value in attributes.items()]
    said = "".join(f"<attribute>{each}</attribute>" for each in named)
    corners = "".join(f"<{side}>{row[side]}</{side}>" for side in SIDES)
    more = f"{inside}<attributes>{said}</attributes>" if said else inside
    return f"<object><name>{row['class']}</name>{more}<bndbox>{corners}</bndbox></object>"


def voc_text(name: str, objects: str, width: int | None = None, height: int | None = None) -> str:
    """The whole of a file of VOC; without a size where it is not known."""
    size = "" if width is None else f"<size><width>{width}</width><height>{height}</height></size>"
    return f"<annotation><filename>{name}</filename>{size}{objects}</annotation>"
