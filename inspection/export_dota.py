"""Exporter of DOTA: the four corners of each object, or those of its box.

    classes.json               class names by id, for which DOTA has no file; halofeed reads it again
    SPLIT/images/NAME.png
    SPLIT/labelTxt/NAME.txt    imagesource:null
                               gsd:null               or the side of a square pixel in meters, where it is known
                               x1 y1 x2 y2 x3 y3 x4 y4 class difficult    one row per object

Positions are pixels of the picture without padding, or of the source's file, and may be outside of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from halofeed.inspection.export_pictures import TURNED, BoxExporter
from halofeed.inspection.export_records import ExportedData, ExportRecord, text_names
from halofeed.inspection.stated_facts import gsd_of, stated_facts, stated_fields
from halofeed.prep.annotations.contract import is_split_name
from halofeed.schemas.kinds import SPACING
from halofeed.storage.paths import open_path, save_text

_BLANKS = re.compile(r"\s+")
# DOTA_devkit and mmrotate skip these lines, and mmrotate reads the second one, where null is no number.
_HEADER = "imagesource:null\ngsd:{gsd}\n"


def _names_without_blanks(labels: Mapping[int, str]) -> dict[int, str]:
    """Return a different class name by id that a value of a row may hold; DOTA writes large-vehicle.

    >>> _names_without_blanks({1: "large vehicle", 2: "large-vehicle"})
    {1: 'large-vehicle', 2: 'large-vehicle-2'}
    """
    return text_names({label: _BLANKS.sub("-", name.strip()) for label, name in labels.items()})


class DotaExporter(BoxExporter):
    """Exporter of DOTA. A difficult object has 1, and one that is truncated too has 2, as DOTA_devkit's splits have."""

    KEEPS = frozenset({"difficult flags", "truncated flags", TURNED})
    DISPLAYED = True

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        self._names = self._spelled(_names_without_blanks)
        names = {str(label): name for label, name in self._names.items()}
        save_text(folder / "classes.json", json.dumps(names, ensure_ascii=False) + "\n", encoding="utf-8")
        splits = list(data.manifest.splits)
        for split in splits:
            (folder / split / "labelTxt").mkdir(parents=True)
        if not all(map(is_split_name, splits)):
            self.notes.append(
                f"the splits {', '.join(splits)} are folders, and one of them has an unusual name: all are read as one "
                "split; --split-shares divides it"
            )

    def add(self, record: ExportRecord) -> None:
        """Write the picture and its label file."""
        objects = self._objects(record)
        self._write_picture(record, objects.grid, f"{record.split}/images")
        rows = []
        for box, (label, outline) in enumerate(zip(objects.labels, objects.outlines, strict=True)):
            flags = objects.flags(box, ("difficult", "truncated"))
            # The format has a place for truncated objects only among difficult ones.
            self.left_out["truncated flags"] += flags == ["truncated"]
            level = len(flags) if "difficult" in flags else 0
            sides = " ".join(map(_number, outline.reshape(-1).tolist()))
            rows.append(f"{sides} {self._names[label]} {level}\n")
        stated = stated_facts(record.features, stated_fields(self._manifest), objects.grid)
        gsd = gsd_of(stated.get(SPACING))
        with open_path(
            self._folder / record.split / "labelTxt" / f"{record.name}.txt", "x", encoding="utf-8"
        ) as file:
            file.write("".join([_HEADER.format(gsd=gsd or "null"), *rows]))


def _number(side: float) -> str:
    """Return a position with all its digits; whole ones as DOTA's files have them.

    >>> _number(12.0), _number(0.1)
    ('12', '0.1')
    """
    return str(int(side)) if side.is_integer() else repr(side)
