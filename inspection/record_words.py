"""How is each kind of record, and each task, spoken of and shown? One entry each, which what shows them looks up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from halofeed.loader.picture import sheet_of_classes, sheet_of_frames
from halofeed.schemas.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class KindWords:
    """One kind of record.

    Args:
        noun: what one record shows, and several.
        part: the same where a source may have several records.
        unit: what its label map is made of.
        whole: what is split over cores.
        sections: of its report, in order.
        splits_by_rows: whether cutting rows is the first choice.
        caption: what a picture of one shows.
        in_planes, is_sheet: whether one is shown as planes along each axis, or as a sheet of its frames.
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
        """An image as one picture [height, width, channel]."""
        if self.is_sheet:
            return sheet_of_frames(image)
        return image[len(image) // 2] if self.in_planes else image

    def flat_classes(self, label: NDArray[Any]) -> NDArray[Any]:
        """The classes at the pixels of that picture."""
        return sheet_of_classes(label) if self.is_sheet else label


@dataclass(frozen=True, kw_only=True)
class TaskWords:
    """One task.

    Args:
        has_background: whether id 0 is the background, which is no class of its own.
        has_boxes, has_label_map: what records hold.
        trains: whether the report shows a command that trains on it.
        classes: what the number of classes is called.
        counted: what a class is counted in; "" records, by their noun.
        lead, extremes: how often classes occur, and the most frequent and the rarest of them, in a sentence.
        per_class: the heading above the classes; "" none.
        empty, unlabelled: of a record without a class, and of one without a label.
        in_batch: what a batch holds beside the image, as a comment of code; `label` is the label map's shape.
        samples: what the samples' lead adds.
    """

    has_background: bool = False
    has_boxes: bool = False
    has_label_map: bool = False
    trains: bool = True
    classes: str = "classes"
    counted: str = ""
    lead: str = "{classes} with {unit}"
    extremes: str = ": the most frequent, {most}, has {most_count}; the rarest, {least}, {least_count}"
    per_class: str = ""
    empty: str = ""
    unlabelled: str = ""
    in_batch: str = '"label"'
    samples: str = ""


_ENDING = ("partitions", "plan", "recipe", "use")
_FLAT_SECTIONS = ("conversion", "samples", "labels", "boxes", "sizes", "pixels", *_ENDING)
_VOLUME_SECTIONS = ("conversion", "scans", "labels", "findings", "grids", "values", *_ENDING)

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
    "classification": TaskWords(),
    "several classes": TaskWords(
        trains=False,
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
        samples=" The boxes on the source are the stored ones mapped back through each record's transform, so both "
        "must fit.",
    ),
    "segmentation": TaskWords(
        has_background=True,
        has_label_map=True,
        trains=False,
        classes="classes beside the background",
        lead="{classes} occur in {unit}",
        extremes=": the most frequent, {most}, in {most_count}; the rarest, {least}, in {least_count}",
        per_class="{records} that a class is in",
        empty="nothing but background",
        unlabelled="no label: for prediction",
        in_batch='"label": {label}, "labelled"',
        samples=" Over the stored picture lie the classes of its label.",
    ),
}


def kind_words(manifest: Manifest) -> KindWords:
    """How the records of a data set are spoken of."""
    return KIND_WORDS[manifest.kind.name]


def task_words(manifest: Manifest) -> TaskWords:
    """How the task of a data set is spoken of."""
    several = any(field.encoding == "classes" for field in manifest.fields)
    return TASK_WORDS["several classes" if several else manifest.task]
