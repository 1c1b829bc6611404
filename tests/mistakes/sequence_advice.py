"""Advice about tables of run lengths, frames of sequences, and classes beside boxes."""

from collections.abc import Sequence
from pathlib import Path

from tests.mistakes.picture_sources import write
from tests.mistakes.test_table_mistakes import draw
from tests.support.advice import Advice, noted, refused
from tests.support.mistakes import preparing

OBJECT = "845 6 885 6 925 6"
"""Runs down three columns of a picture of 40 x 60 pixels, height x width."""


@preparing
def runs(root: Path, rows: Sequence[str], *more: object, size: tuple[int, int] = (40, 60)) -> list[object]:
    """A table of run lengths and the picture a.png."""
    draw(root, "a.png", size=size)
    write(root, "masks.csv", "\n".join(rows))
    return ["--layout", "run-lengths", "--source", root / "masks.csv", *more]


@preparing
def elsewhere(root: Path, rows: Sequence[str]) -> list[object]:
    """A table whose pictures are in another folder than that of --images; this one has smaller ones."""
    draw(root, "right/b.png", size=(40, 60))
    draw(root, "wrong/b.png", size=(10, 15))
    draw(root, "none/c.png", size=(10, 15))
    write(root, "masks.csv", "\n".join(rows))
    return ["--layout", "run-lengths", "--source", root / "masks.csv"]


def with_images(rows: Sequence[str], folder: str):
    prepare = elsewhere(rows)
    return lambda root: [*prepare(root), "--images", root / folder]


@preparing
def two_tables(root: Path) -> list[object]:
    draw(root, "a.png", size=(40, 60))
    for name in ("one.csv", "two.csv"):
        write(root, name, f"image,rle\na.png,{OBJECT}\n")
    return ["--layout", "run-lengths", "--source", root]


@preparing
def sequence(root: Path) -> list[object]:
    draw(root, "img1/000001.png", size=(40, 60))
    write(root, "gt/gt.txt", "1,1,2.5,3,9,9,1,1,1\n")
    return ["--layout", "mot", "--source", root]


@preparing
def file_of_sequence(root: Path) -> list[object]:
    draw(root, "img1/000001.png", size=(40, 60))
    write(root, "gt/gt.txt", "1,1,2,3,9,9,1,1,1\n")
    return ["--layout", "mot", "--source", root / "gt" / "gt.txt", "--images", root]


def header(*rows: str) -> list[str]:
    return ["image,rle", *rows]


ADVICE: dict[str, Advice] = {
    "two columns of runs": refused(
        runs(["image,one,two", f"a.png,{OBJECT},{OBJECT}"]), "hold run lengths; (--ignore-columns two)"
    ),
    "a table of runs without its pictures": refused(
        with_images(header(f"b.png,{OBJECT}"), "none"), "pictures with (--images)", more=("{source}/right",)
    ),
    "runs of larger pictures": refused(
        with_images(header(f"b.png,{OBJECT}"), "wrong"),
        "annotated with (--images)",
        more=("{source}/right",),
    ),
    "runs without a class": noted(
        runs(header(f"a.png,{OBJECT}")), "(--one-class) names it", more=("ship",), proves="1 class"
    ),
    "runs of a square": noted(
        runs(header(f"a.png,{OBJECT}"), size=(40, 40)), "taken so; (--run-lengths rows) takes"
    ),
    "one row for each class": noted(
        runs(["image,rle,class", f"a.png,{OBJECT},1", "a.png,2 5,2"]), "(--task segmentation) takes"
    ),
    "two tables of one picture": refused(
        two_tables(), "take one of them with (--source)", more=("{source}/one.csv",)
    ),
    "the file of a sequence alone": refused(
        file_of_sequence(), "above both with (--source)", more=("{source}",)
    ),
    "MOT with fractions": noted(sequence(), "(--box-origin 1) shifts them"),
}
