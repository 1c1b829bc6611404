"""Advice about tables, boxes and files that another layout reads."""

from collections.abc import Sequence
from pathlib import Path

from tests.mistakes.dicom_sources import drawn, scan
from tests.mistakes.picture_sources import write
from tests.mistakes.test_table_mistakes import HEADER, ROW, apart, coco, draw, rows, table, voc
from tests.mistakes.volume_sources import PATTERNS, SIZE, pair, pairs
from tests.support.advice import Advice, noted, refused, usage
from tests.support.annotation_writer import boxed, coco_document, write_annotations
from tests.support.mistakes import preparing

XYWH = ["filename,class,x,y,w,h", ROW]
CORNERS_IN_BBOX = ["filename,class,bbox", *['a.png,hat,"[31, 22, 55, 38]"'] * 3]
SIDES = [f"{HEADER},width,height", f"{ROW},40,60"]


def as_table(source: Path) -> None:
    write(source, "boxes.csv", f"{HEADER}\n{ROW}\n")


def as_coco(source: Path) -> None:
    write(source, "instances.json", coco_document([boxed("a.png", (1, 2, 9, 9))]))


def with_class(source: Path) -> None:
    write(source, "train.csv", WHEAT.replace("\n", ",class\n", 1).replace(']"\n', ']",hat\n'))


@preparing
def holding(root: Path, layout: str, *more: object, **contents: object) -> list[object]:
    """Pictures a and b, and files of these contents, whose names have their last underscore for a dot."""
    draw(root, "a.png", "b.png")
    for name, content in contents.items():
        write(root, ".".join(name.rsplit("_", 1)), content)
    return ["--layout", layout, "--source", root, *more]


@preparing
def beside(root: Path, lines: Sequence[str], size: tuple[int, int], *more: object) -> list[object]:
    """A table, and the pictures that were annotated, of another size, in a folder of their own."""
    draw(root, "other/a.png", "z/z.png", size=size)
    return table(lines, *more)(root)


@preparing
def turned(root: Path) -> list[object]:
    """VOC of a box that CVAT turned."""
    draw(root, "a.png")
    write_annotations(root, "voc", [boxed("a.png", (1, 2, 9, 9))], rotation=30)
    return ["--layout", "voc", "--source", root]


@preparing
def two_masks(root: Path) -> list[object]:
    pair(root, "ct/a.nii.gz", "seg/a_1.nii.gz")
    pair(root, "ct/a.nii.gz", "seg/a_2.nii.gz")
    patterns = ["--image-pattern", "ct/{id}.nii.gz", "--label-pattern", "seg/{id}_*.nii.gz"]
    return ["--layout", "pairs", "--source", root, *SIZE, *patterns, "--class-overlap", "last"]


@preparing
def two_rows(root: Path) -> list[object]:
    """A table with two rows of one image, each with a mask of its own."""
    pair(root, "ct/a.nii.gz", "seg/a_1.nii.gz")
    pair(root, "ct/a.nii.gz", "seg/a_2.nii.gz")
    write(root, "t.csv", "image,label\nct/a.nii.gz,seg/a_1.nii.gz\nct/a.nii.gz,seg/a_2.nii.gz\n")
    return ["--layout", "csv", "--source", root / "t.csv", *SIZE, "--class-overlap", "last"]


def two_classes(root: Path) -> list[object]:
    """Class folders, and a column of a table that is not there."""
    draw(root, "hat/a.png", "coat/b.png")
    return ["--source", root, "--column", "label=kind"]


CVAT = '<annotations><image name="a.png"><box label="hat" xtl="1" ytl="2" xbr="9" ybr="8"/></image></annotations>'
WEB_TOOL = "<annotation><filename>a.png</filename><object><name>hat</name><polygon><pt><x>1</x></pt></polygon></object>"
WHEAT = 'image_id,width,height,bbox\na,60,40,"[1, 2, 9, 9]"\n'

ADVICE: dict[str, Advice] = {
    # columns
    "a form of x, y, w, h": refused(
        table(XYWH),
        ("column x, y, w, h would not be read.*state with (--box-form) how", "corner-size"),
        "(--ignore-columns x,y,w,h)",
    ),
    "two classes in one cell": refused(
        table(["filename,class", "a.png,hat", "b.png,coat", "c.png,hat|coat"]),
        r"boxes\.csv:4: class 'hat\|coat' looks like 2.*use (--class-separator) '(\|)' (--several-classes keep) for",
    ),
    "two columns of classes": refused(
        table(["filename,label,category", "a.png,hat,cap"]), "or use (--ignore-columns category)"
    ),
    "a class in a column of another name": refused(
        table(["filename,kind", "a.png,hat", "b.png,coat"]),
        "name it with (--column) label=COLUMN",
        more=("label=kind",),
    ),
    "columns that may be classes": refused(
        table(["filename,age,hat,coat", "a.png,3,1,0", "b.png,4,0,1"]),
        "if these are the classes: (--column label=hat,label=coat)",
    ),
    "columns that may be several classes": refused(
        table(["filename,age,hat,coat", "a.png,3,1,1", "b.png,4,0,1"]),
        "if these are the classes: (--column label=hat,label=coat) (--several-classes keep)",
    ),
    "columns that may be several classes, with marks of two meanings": refused(
        table(["filename,age,hat,coat", "a.png,3,1,1", "b.png,4,-1,0"]),
        "if these are the classes: (--column label=hat,label=coat) (--several-classes keep) (--class-marks no=-1);",
    ),
    "marks of two meanings": refused(
        table(["filename,hat,coat", "a.png,1,", "b.png,0,1"]),
        "(--class-marks no=blank) takes it",
    ),
    "another mark": refused(
        table(["filename,hat,coat", "a.png,1,0", "b.png,0,x"], "--column label=hat,label=coat"),
        "such as (--class-marks yes=x)",
    ),
    "a mark that is given two meanings": usage(
        table(["filename,hat,coat", "a.png,1,0", "b.png,0,1"], "--class-marks no=-1,yes=-1"),
        "(--class-marks) yes=-1: -1 means no already; leave one of them out",
    ),
    "a meaning that is named twice": usage(
        table([HEADER, ROW], "--column label=class,label=class"),
        "(--column) label=class: label comes twice.*leave one of them out",
    ),
    "a column that is named twice": usage(
        table([HEADER, ROW], "--column label=class,image=class"),
        "(--column): 'class' is named as label and as image; leave one of them out",
    ),
    "columns of no table": refused(
        two_classes, "(--column) names columns of a table, and the source has none.*leave it out"
    ),
    "a form of no column": refused(table([HEADER, ROW], "--box-form center-size"), "leave (--box-form) out"),
    "a group that is not read": refused(
        table(
            ["filename,class,patient", "a.png,hat,1", "b.png,hat,2", "c.png,hat,2"],
            "--split-shares train=0.5,test=0.5",
            pictures=("a.png", "b.png", "c.png"),
        ),
        "use (--group-column patient) to keep",
        r"; (--group-pattern) '(\(\.\+\))' makes",
    ),
    "a table beside one that is none": refused(
        holding("csv", boxes_csv=f"{HEADER}\n{ROW}\n", notes_csv="a,b\n1,2\n"),
        "name the one to read with (--source)",
        more=("{source}/boxes.csv",),
    ),
    # sizes and units
    "other sizes": refused(beside(SIDES, (60, 40)), "annotated with (--images)", more=("{source}/other",)),
    "boxes of larger pictures": refused(
        beside([HEADER, *["a.png,hat,70,50,90,70"] * 3], (80, 120)),
        "or name with (--images)",
        more=("{source}/other",),
    ),
    "corners as sizes": refused(
        table(CORNERS_IN_BBOX, "--box-form corner-size"), "state with (--box-form) how", more=("corners",)
    ),
    "boxes that leave their pictures": refused(
        table(CORNERS_IN_BBOX, "--box-form corner-size"), "(--box-units pixels) takes them"
    ),
    "boxes of 0 and 1": refused(table(rows(1, "0,0,1,1")), "from 0 to 1.*(--box-units pixels)"),
    "corners under COCO's bbox": refused(
        coco([31, 22, 55, 38], [3, 4, 20, 30]), "all fit as corners; use (--box-form corners)"
    ),
    "VOC that counts from 0": refused(
        voc("0 3 9 9", "12 8 24 36"), "1 of 2 boxes begin below 1, the first in a.png.*(--box-origin 0)"
    ),
    "VOC with a box from 0": noted(voc(*["1 3 9 9"] * 120, "0 3 9 9"), "(--box-origin 0) takes"),
    "VOC with fractions": noted(voc("1.5 3 9 9"), "(--box-origin 1) shifts them"),
    "VOC with one fraction": noted(voc(*["1 3 9 9"] * 120, "2.5 3 9 9"), "(--box-origin 0) takes"),
    "VOC with some fractions": refused(
        voc(*["1 3 9 9"] * 20, "2.5 3 9 9"), "(--box-origin 0) to take", "or (--box-origin 1) to shift"
    ),
    "a box of shares among pixels": noted(
        table([*rows(8, "1,2,30,20"), "a.png,hat,0,0,0.5,0.5"]), "(--box-units) says", more=("pixels",)
    ),
    "turned boxes in COCO": refused(
        coco(annotations=[{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "rotation": 30}]),
        "annotations have rotation, which would not be read.*(--ignore-columns rotation)",
    ),
    "a turned box": noted(turned(), "(--oriented-boxes drop) leaves"),
    "corners of a turned box": noted(turned(), "(--keep corners) stores"),
    # patterns and pairs
    "labels alone": usage(pairs(*PATTERNS[2:]), "(--image-pattern) and .* give both", more=(PATTERNS[1],)),
    "images alone": usage(pairs(*PATTERNS[:2]), "and (--label-pattern) go .* give both", more=(PATTERNS[3],)),
    "splits of labels alone": usage(
        pairs("--image-pattern p1/ct.nii.gz --label-pattern {split}/seg.nii.gz"),
        "stands in (--image-pattern)",
        more=("{split}/ct.nii.gz",),
    ),
    "one pattern for both": usage(
        pairs(*PATTERNS[:2], "--label-pattern", PATTERNS[1]), "(--label-pattern) are", more=(PATTERNS[3],)
    ),
    "one pattern for both of labels": usage(
        pairs("--image-pattern", PATTERNS[3], *PATTERNS[2:]), "(--image-pattern) and", more=(PATTERNS[1],)
    ),
    "two rows of one image": refused(two_rows(), "(--several-masks merge) takes them", proves=r"3 classes"),
    "two masks of one image": refused(two_masks(), "(--several-masks merge) takes them", proves=r"3 classes"),
    # other layouts
    "a tool's own XML": refused(
        holding("folders", a_xml=f"{WEB_TOOL}</annotation>"),
        "take (--layout csv)",
        first=as_table,
        without=("--source",),
        more=("--source {source}/boxes.csv",),
        proves=r"detection, 1 class",
    ),
    "CVAT's XML": refused(holding("voc", annotations_xml=CVAT), "take (--layout cvat)"),
    "a table of image_id and bbox": refused(
        holding("coco", train_csv=WHEAT), "take (--layout csv) and (--box-form corner-size)", first=with_class
    ),
    "DICOM as VOC": refused(
        drawn(scan, "--layout voc"),
        "take (--layout dicom) with (--depth), --height",
        more=(4, "--height 4 --width 5"),
    ),
    "volumes as class folders": refused(
        lambda source: ["--layout folders", *pairs()(source)[2:4]],
        "take (--layout pairs), .* with (--depth), --height",
        more=(*SIZE[1:], *PATTERNS),
        proves=r"3 classes",
    ),
    "no picture beside the table": refused(
        apart("pictures/a.png", at="tables/boxes.csv"), "images with (--images)", more=("{source}/pictures",)
    ),
    "pictures outside of --images": refused(
        beside([HEADER, "other/a.png,hat,1,2,30,20"], (40, 60), "--images ROOT/z"),
        "(?:say|use) (--images)",
        more=("{source}",),
    ),
}
