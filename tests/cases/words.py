"""Options that the commands of the cases share, and a table that a fix by hand writes."""

import csv
from pathlib import Path

VOLUME = "--depth 16 --height 24 --width 24"
PICTURE = "--resize none --encoding png"
TABLE = "--layout csv --task segmentation"
PAIRS = "--layout pairs --task segmentation"
UNLABELED = "--missing-masks prediction"


def write_rows(drawn: Path, name: str, *rows: tuple[object, ...]) -> None:
    """Write a CSV file below a drawn source."""
    with (drawn / name).open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
