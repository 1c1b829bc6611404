"""Which annotation layouts there are: one file each, one line each in the table."""

from __future__ import annotations

from halofeed.prep.annotations import coco, folders, table, voc
from halofeed.prep.annotations.layout import Layout, LayoutOptions
from halofeed.prep.annotations.reference import Box, Reference
from halofeed.schemas.errors import UsageError

__all__ = ["LAYOUTS", "Box", "Layout", "LayoutOptions", "Reference", "find_layout"]

_BOTH = ("classification", "detection")

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            name="folders",
            tasks=("classification",),
            summary="split/class/image or class/image",
            list_references=folders.list_references,
        ),
        Layout(
            name="csv",
            tasks=_BOTH,
            summary="a table: filename,class[,split,group], or one box a row in pixels",
            list_references=table.list_csv_references,
        ),
        Layout(
            name="jsonl",
            tasks=_BOTH,
            summary="the table of csv, one JSON object a line",
            list_references=table.list_jsonl_references,
        ),
        Layout(
            name="coco",
            tasks=("detection",),
            summary="COCO instances JSON",
            list_references=coco.list_references,
            list_labels=coco.list_labels,
            has_masks=True,
        ),
        Layout(
            name="voc",
            tasks=("detection",),
            summary="Pascal VOC XML, with ImageSets/Main or beside the images",
            list_references=voc.list_references,
        ),
    )
}


def find_layout(name: str) -> Layout:
    """The layout of this name; UsageError lists the known ones."""
    if name not in LAYOUTS:
        raise UsageError(f"layout {name!r} is not known; known: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]
