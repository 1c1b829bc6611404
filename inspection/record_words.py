"""Words and report sections for each kind of image and each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from halofeed.loader.contact_sheet import class_contact_sheet, frame_contact_sheet
from halofeed.schemas.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class KindWords:
    """Words for one kind of image.

    Args:
        noun: singular and plural of what one record shows.
        part: the same if a source gives several records.
        unit: what a label map consists of.
        whole: noun for an image in text about splitting it over cores.
        sections: sections of the report, in order.
        splits_by_rows: whether the report suggests to split rows first.
        caption: caption of a picture of one record.
        in_planes: whether a record is shown as planes along each axis.
        is_sheet: whether a record is shown as a contact sheet of its frames.
    """

    noun: tuple[str, str]
    part: tuple[str, str] = ("tile", "tiles")
    unit: str
    whole: str
    sections: tuple[str, ...]
    splits_by_rows: bool
    caption: str = "image"
    in_planes: bool = False
    is_sheet: bool = False

    def flat(self, image: NDArray[Any]) -> NDArray[Any]:
        """Return an image as one picture [height, width, channel]."""
        if self.is_sheet:
            return frame_contact_sheet(image)
        return image[len(image) // 2] if self.in_planes else image

    def flat_classes(self, label: NDArray[Any]) -> NDArray[Any]:
        """Return the classes at the pixels of the picture from `flat`."""
        return class_contact_sheet(label) if self.is_sheet else label


@dataclass(frozen=True, kw_only=True)
class TaskWords:
    """Words for one task.

    Args:
        has_background: whether id 0 is the background, which is not counted as a class.
        has_boxes, has_label_map: whether records hold boxes or a label map.
        trains: whether the report shows a training command.
        classes: caption of the number of classes.
        counted: plural of what is counted for each class; "" for records.
        lead, extremes: sentence templates on the frequency of classes, and on the most and least frequent class.
        per_class: heading above the classes; "" for none.
        empty, unlabelled: remark on a record without a class, and on one without a label.
        in_batch: entries of a batch beside the image, for a code comment; `label` is the label map's shape.
        samples: further sentence above the samples.
        look_for: sentences above the examples of a run; `overlap` is the IoU from which boxes match.
    """

    has_background: bool = False
    has_boxes: bool = False
    has_label_map: bool = False
    trains: bool = True
    classes: str = "classes"
    counted: str = ""
    lead: str = "{classes} with {unit}"
    extremes: str = ": the most frequent, {most}, has {max_count}; the rarest, {least}, {least_count}"
    per_class: str = ""
    empty: str = ""
    unlabelled: str = ""
    in_batch: str = '"label"'
    samples: str = ""
    look_for: str = ""


_ENDING = ("partitions", "plan", "recipe", "use")
_FIRST = ("suspects", "contents")
_FLAT_SECTIONS = (*_FIRST, "conversion", "samples", "labels", "boxes", "sizes", "pixels", *_ENDING)
_VOLUME_SECTIONS = (
    *_FIRST,
    "conversion",
    "scans",
    "labels",
    "boxes",
    "findings",
    "grids",
    "values",
    *_ENDING,
)

KIND_WORDS = {
    "picture": KindWords(
        noun=("picture", "pictures"),
        unit="pixels",
        whole="image",
        sections=_FLAT_SECTIONS,
        splits_by_rows=True,
    ),
    "volume": KindWords(
        noun=("scan", "scans"),
        unit="voxels",
        whole="volume",
        sections=_VOLUME_SECTIONS,
        splits_by_rows=False,
        in_planes=True,
    ),
    "clip": KindWords(
        noun=("clip", "clips"),
        part=("clip", "clips"),
        unit="pixels",
        whole="clip",
        sections=_FLAT_SECTIONS,
        splits_by_rows=True,
        caption="frames",
        is_sheet=True,
    ),
}

TASK_WORDS = {
    "classification": TaskWords(
        look_for="The true class and the most probable classes. Look for mistakes with a high probability, and for "
        "examples with a wrong annotation.",
    ),
    "several classes": TaskWords(
        per_class="{records} that a class is in",
        empty="no class",
        unlabelled="no class",
        in_batch='"labels": uint8 {labels}, 1 for each class of a picture',
    ),
    "detection": TaskWords(
        has_boxes=True,
        counted="boxes",
        empty="no boxes",
        unlabelled="no boxes",
        in_batch='"boxes", "classes", "num_boxes"',
        samples=" Boxes on the source are the stored boxes, mapped back through the record's transform. Both pictures "
        "must show them at the same objects.",
        look_for="Left: annotated boxes. Right: predicted boxes with their scores. A class has the same color in both. "
        "Dashed boxes on the left were missed. Dashed boxes on the right match no annotated box with an IoU of "
        "{overlap:.0%} or more. Look for what missed objects have in common, and for objects that the annotation "
        "missed.",
    ),
    "segmentation": TaskWords(
        has_background=True,
        has_label_map=True,
        trains=False,
        classes="classes beside the background",
        lead="{classes} {occur} in {unit}",
        extremes=": the most frequent, {most}, in {max_count}; the rarest, {least}, in {least_count}",
        per_class="{records} that a class is in",
        empty="nothing but background",
        unlabelled="no label: for prediction",
        in_batch='"label": {label}, "labelled"',
        samples=" The stored picture shows the classes of its label.",
        look_for="Left: annotated classes. Right: predicted classes. Each class has its own color. Look for missing "
        "parts, islands, and outlines outside of the organ or object.",
    ),
}


def kind_words(manifest: Manifest) -> KindWords:
    """Return the words for the images of a data set."""
    return KIND_WORDS[manifest.kind.name]


def task_words(manifest: Manifest) -> TaskWords:
    """Return the words for the task of a data set."""
    several = any(field.encoding == "classes" for field in manifest.fields)
    return TASK_WORDS["several classes" if several else manifest.task]
