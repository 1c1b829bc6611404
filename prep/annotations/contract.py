"""Which texts of annotations can be written into records: all but those with a lone surrogate.

JSON can hold "\ud800", half of a pair of code units, which has no bytes in UTF-8. Names of files that are not UTF-8
have lone surrogates too, U+DC80 to U+DCFF; those stand for bytes (see `halofeed.system.atomic_files`) and pass.

What every annotation layout shares: its form, its options, split names, and the check of a box.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from halofeed.errors import AnnotationsError, SourceError, UsageError
from halofeed.prep.annotations.class_names import ClassChoice
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.file_names import is_image_name, is_scan_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.reference import Box, SourceExample
from halofeed.schemas.tasks import task_named
from halofeed.system.atomic_files import can_be_named

if TYPE_CHECKING:
    from halofeed.prep.formats.dicom.series_listing import SeriesListing


LONE_SURROGATE = "text holds a lone surrogate"


def with_written_texts(examples: Iterable[SourceExample]) -> Iterator[SourceExample]:
    """The examples; one of which a text cannot be written has that for its problem, and escapes in its place.

    >>> (found,) = with_written_texts([Reference(source="a.jpg", key="a\\ud800")])
    >>> print(*found.problem, sep="; ")
    annotation; text holds a lone surrogate; id 'a\\ud800' is no Unicode text: correct it
    """
    for example in examples:
        if _is_plain(example):
            yield example
            continue
        fault = next((one for one in _texts(example) if not can_be_named(one[1])), None)
        fault = fault or next((one for one in _verbatim_texts(example) if not can_be_encoded(one[1])), None)
        if fault is None:
            yield _with_escaped_messages(example)
            continue
        what, text = fault
        yield SourceExample(
            source=escape_surrogates(example.source),
            key=escape_surrogates(example.key) if isinstance(example.key, str) else example.key,
            split=escape_surrogates(example.split),
            problem=("annotation", LONE_SURROGATE, f"{what} {text!r} is no Unicode text: correct it"),
        )


def _is_plain(example: SourceExample) -> bool:
    """Whether a example is that of an image with at most its class, and is written in ASCII, as most are."""
    return (
        example.source.isascii()
        and str(example.key).isascii()
        and example.split.isascii()
        and (example.label or "").isascii()
        and (example.group or "").isascii()
        and not (example.boxes or example.labels or example.mask or example.class_masks)
        and not (example.members or example.channels or example.more_masks)
        and not (example.problem or example.notes or example.bad_objects)
    )


def can_be_encoded(text: str) -> bool:
    """Whether a text is Unicode, without the lone surrogates of file names as well."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escape_surrogates(text: str) -> str:
    """A text that can be written, in which escapes stand for lone surrogates.

    >>> escape_surrogates("hat"), escape_surrogates("a\\ud800")
    ('hat', 'a\\\\ud800')
    """
    return text if can_be_named(text) else text.encode("utf-8", "backslashreplace").decode()


def _texts(example: SourceExample) -> Iterator[tuple[str, str]]:
    """What each text of a example is, and the text, of those that stand for bytes where they are no UTF-8."""
    yield "file name", example.source
    yield "id", str(example.key)
    yield "split", example.split
    if example.group is not None:
        yield "group", example.group
    for label in (*example.classes, *(box.label for box in example.boxes or ())):
        yield "class", label
    for name, path in example.class_masks:
        yield "class", name
        yield "file name", path
    frames = (file for _, files in example.mask_members for file in files)
    for path in (*example.members, *example.channels, *example.masks, *frames):
        yield "file name", path


def _verbatim_texts(example: SourceExample) -> Iterator[tuple[str, str]]:
    """The same of texts that are written as they stand."""
    for box in example.boxes or ():
        if box.view is not None:
            yield "view", box.view
        for point in box.keypoints:
            yield "keypoint", point.name


def _with_escaped_messages(example: SourceExample) -> SourceExample:
    """The example with escapes in what is said of it, which often repeats what the annotations hold."""
    remarks = [
        *(example.problem or ()),
        *example.notes,
        *(part for bad in example.bad_objects for part in bad),
    ]
    if all(map(can_be_named, remarks)):
        return example
    stage, reason, detail = map(escape_surrogates, example.problem or ("", "", ""))
    return replace(
        example,
        problem=(stage, reason, detail) if example.problem else None,
        notes=tuple(map(escape_surrogates, example.notes)),
        bad_objects=tuple(
            (escape_surrogates(reason), escape_surrogates(detail)) for reason, detail in example.bad_objects
        ),
    )


ListSeries: TypeAlias = "Callable[[SourceFiles, SeriesPolicy, Sequence[str]], Mapping[str, SeriesListing]]"
T = TypeVar("T")
LEAST_BAD_OBJECTS = 10
"""Fewer objects that cannot be used are slips, whatever their share, unless they are all that there are."""
MIN_ALL_BAD = 3
INVERTED = "box is inverted"
_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
_SPLIT_NAME = re.compile(
    r"(train|training|trn|trainval|val|valid|validation|dev|development|eval|evaluation|test|testing|tst|holdout"
    r"|fold|split)([-_ ]?[0-9]{1,4})?",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """How to read the annotations.

    What has no line here is the option of that name of a `halofeed.prep.options.recipe.Recipe`, which says what it
    means, of which values and for which layouts.

    Args:
        task: "classification", "detection" or "segmentation"; None: what the annotations hold.
        box_origin: 1 (VOC's own rule, both ends inclusive) turns xmin into xmin - 1; 0 takes the numbers as they
            stand; None is 1 for VOC, unless boxes begin below it, and 0 for tables.
        voc_images: VOC: which image is meant where <filename> and the XML file's own name are those of two.
        keep: of the layout's `keeps`.
        takes: class folders and tables: whether a path is that of an image.
        takes_scan: pairs, class-masks and tables of masks: whether a path is that of an image, or of a mask.
        source_splits: whether the source says the splits; False where shares or lists of the user do.
        needs_groups: whether shares divide the images and no pattern says their groups.
        split_folders: whether the first folder is a split; None: decided by the names.
        image_pattern, label_pattern: see `halofeed.prep.annotations.patterns`.
        classes, map_classes: see `ClassChoice`.
        regions: "channels" as well: a voxel is in all regions that hold its value.
        series: DICOM: which series are taken, and the salt of the hashes that stand for patients and series.
        list_series: DICOM: finds the series below each of some folders; None: in this process.
    """

    task: str | None = None
    box_origin: int | None = None
    box_units: str = "auto"
    box_form: str = "auto"
    ignore_columns: tuple[str, ...] = ()
    annotation_grid: str = "auto"
    image_sets: tuple[str, ...] = ()
    voc_images: str = "auto"
    masks: bool = False
    keep: tuple[str, ...] = ()
    several_classes: str = "refuse"
    class_separator: str = "auto"
    on_bad_object: str = "drop"
    takes: Callable[[str], bool] = is_image_name
    takes_scan: Callable[[str], bool] = is_scan_name
    source_splits: bool = True
    needs_groups: bool = False
    split_folders: bool | None = None
    folders_are_classes: bool = False
    image_pattern: str | None = None
    label_pattern: str | None = None
    classes: tuple[str, ...] = ()
    channel_order: tuple[str, ...] = ()
    regions: str = "refuse"
    map_classes: tuple[str, ...] = ()
    several_masks: str = "refuse"
    missing_masks: str = "refuse"
    missing_classes: str = "refuse"
    series: SeriesPolicy = field(default_factory=SeriesPolicy)
    list_series: ListSeries | None = None

    @property
    def wants_boxes(self) -> bool | None:
        """Whether objects with boxes are asked for; None: what the annotations hold."""
        return None if self.task is None else task_named(self.task).has_boxes

    @property
    def wants_label_images(self) -> bool:
        """Whether a class for each pixel or voxel is asked for."""
        return self.task is not None and task_named(self.task).has_label_image

    @property
    def choice(self) -> ClassChoice:
        """Which classes of the source become which of the data set."""
        return ClassChoice.of(self.classes, self.map_classes)


class PartSummary(Protocol):
    """What is known of a part of a source."""

    def add(self, other: Any, /) -> None:
        """Add what is known of another part."""


@dataclass(frozen=True, kw_only=True)
class InParts:
    """How a layout of which each example depends on one path alone is listed in parts, in several processes.

    Args:
        look: from the paths of a part to what must be known of all parts.
        settle: (that, the paths of all files but images, files, options) to the rules of all examples; None where
            more must be known, so that the source is to be listed at once.
        references_of: (paths, rules, options) to their examples.
    """

    look: Callable[[Iterable[str], LayoutOptions], PartSummary]
    settle: Callable[[Any, Iterable[str], SourceFiles, LayoutOptions], Any]
    references_of: Callable[[Iterable[str], Any, LayoutOptions], Iterator[SourceExample]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way in which people lay out images and annotations.

    Args:
        name: as the user writes it.
        tasks: what its annotations can be used for.
        summary: one line for the help.
        list_references: (annotations, images, annotation_file, options) to every image and every annotation
            in a fixed order; a fault of one input is its Reference's `problem`, a fault of the whole an
            AnnotationsError.
        list_labels: (annotations, annotation_file) to the class names in the layout's own order, where it has
            one.
        has_masks: whether its annotations can hold a mask of each object.
        keeps: what else of each object it can read, of `halofeed.schemas.tasks.KEPT`.
        label_values: segmentation: (annotations, images, annotation_file, options) to the class name of each value
            of a label volume, as the layout gives it; 0 is the background, named or not.
        channel_names: segmentation: (annotations, annotation_file) to the names of an image's channels, such as
            ("CT",), as the layout gives them.
        regions: segmentation: (annotations, annotation_file) to the values of each class, where some have several or
            share one; else {}.
        in_parts: how it is listed in parts, which gives the same examples.
        chooses_classes: whether examples and `label_values` hold the data set's classes already.
    """

    name: str
    tasks: tuple[str, ...]
    summary: str
    list_references: Callable[[SourceFiles, SourceFiles, str | None, LayoutOptions], Iterator[SourceExample]]
    list_labels: Callable[[SourceFiles, str | None], tuple[str, ...]] | None = None
    has_masks: bool = False
    keeps: tuple[str, ...] = ()
    label_values: (
        Callable[[SourceFiles, SourceFiles, str | None, LayoutOptions], Mapping[int, str]] | None
    ) = None
    channel_names: Callable[[SourceFiles, str | None], tuple[str, ...]] | None = None
    regions: Callable[[SourceFiles, str | None], Mapping[str, tuple[int, ...]]] | None = None
    chooses_classes: bool = False
    takes_clips: bool = False
    in_parts: InParts | None = None

    def check(self, *, task: str | None, masks: bool = False, keep: Sequence[str] = ()) -> None:
        """Refuse a task, masks, or what else to keep of objects that this layout's annotations cannot give."""
        if task is not None and task not in self.tasks:
            raise UsageError(f"task {task!r}: layout {self.name} serves {', '.join(self.tasks)}")
        if masks and not self.has_masks:
            raise UsageError(f"--masks: layout {self.name} holds no masks; leave it out")
        if unknown := [name for name in keep if name not in self.keeps]:
            known = f"has {', '.join(self.keeps)}" if self.keeps else "has nothing to keep"
            raise UsageError(f"--keep {','.join(unknown)}: layout {self.name} {known}; leave it out")


def is_split_name(name: str) -> bool:
    """Whether a folder or a part of a file name is one that people give to a split.

    >>> [is_split_name(name) for name in ("train", "Test", "val2017", "fold_3", "trainer", "hat")]
    [True, True, True, True, False, False]
    """
    return _SPLIT_NAME.fullmatch(name) is not None


def split_in_file_name(path: str) -> str | None:
    """The split that a file's name names, as it is written there.

    >>> split_in_file_name("a/train_labels.csv"), split_in_file_name("instances_val2017.json")
    ('train', 'val2017')
    >>> split_in_file_name("instances.json") is None
    True
    """
    stem = path.rsplit("/", 1)[-1].split(".")[0]
    return next((part for part in re.split(r"[-_ ]", stem) if is_split_name(part)), None)


def read_required(annotations: SourceFiles, name: str) -> bytes:
    """The bytes of a file on which all examples depend; AnnotationsError where it cannot be read."""
    with report_unreadable(annotations, name):
        return annotations.read(name)


@contextmanager
def report_unreadable(annotations: SourceFiles, name: str) -> Iterator[None]:
    """Turn what a file on which all examples depend cannot be read for into an AnnotationsError."""
    try:
        yield
    except (SourceError, OSError) as error:
        raise AnnotationsError(
            f"{name} in {annotations.root}: {error}; name a file that can be read"
        ) from error


def parse_number(text: object, what: str) -> float:
    """A written number as a float; SourceError where it is none or is not finite.

    >>> parse_number(" 12.5 ", "xmin")
    12.5
    """
    try:
        if isinstance(text, bool) or "_" in str(text):
            raise ValueError
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        comma = "; write a point for the comma" if isinstance(text, str) and _COMMA.fullmatch(text) else ""
        raise SourceError("annotation", "not a number", f"{what} is {text!r:.80}{comma}") from None
    if not math.isfinite(value):
        raise SourceError("annotation", "number is not finite", f"{what} is {text!r}")
    return value


def usable_boxes(
    objects: Iterable[T], box_of: Callable[[T], Box | None], options: LayoutOptions
) -> tuple[tuple[Box, ...], tuple[tuple[str, str], ...]]:
    """The boxes of one image, and (reason, detail) of each of its objects that cannot be used.

    Args:
        box_of: the box of an object, None where it stands for "no objects"; SourceError where it cannot be used.

    Raises:
        SourceError: the first of these, if one bad object is to reject its image.
    """
    boxes: list[Box] = []
    bad: list[tuple[str, str]] = []
    for one in objects:
        try:
            box = box_of(one)
        except SourceError as error:
            if options.on_bad_object == "reject":
                raise
            bad.append((error.reason, error.detail))
        else:
            boxes += [] if box is None else [box]
    return tuple(boxes), tuple(bad)


def is_mostly_bad(bad: int, objects: int) -> bool:
    """Whether so many of all objects cannot be used that the annotations as a whole are at fault: most, or all.

    >>> is_mostly_bad(9, 10), is_mostly_bad(11, 20), is_mostly_bad(2, 2), is_mostly_bad(3, 3)
    (False, True, False, True)
    """
    return (bad >= LEAST_BAD_OBJECTS and 2 * bad > objects) or (bad == objects and bad >= MIN_ALL_BAD)


def check_box(box: Box, what: str) -> Box:
    """The box itself, or SourceError where it ends before it begins or its area is negative; no area passes.

    >>> try:
    ...     check_box(Box(ymin=0, xmin=5, ymax=1, xmax=4, label="hat"), "row 3")
    ... except SourceError as error:
    ...     print(error)
    annotation: box is inverted (row 3 'hat': x from 5 to 4, y from 0 to 1)
    """
    if box.xmax < box.xmin or box.ymax < box.ymin:
        extent = f"x from {box.xmin:g} to {box.xmax:g}, y from {box.ymin:g} to {box.ymax:g}"
        raise SourceError("annotation", INVERTED, f"{what} {box.label!r}: {extent}")
    if box.area is not None and box.area < 0:
        raise SourceError("annotation", "area is negative", f"{what} {box.label!r}: area {box.area:g}")
    return box


def check_rotation(value: object, what: str, options: LayoutOptions) -> None:
    """SourceError where an object's box is turned about its middle, as CVAT can; unless that shall be ignored."""
    if value in (None, "") or "rotation" in (name.lower() for name in options.ignore_columns):
        return
    angle = parse_number(value, f"{what} rotation")
    if angle % 180:
        detail = f"{what}: by {angle:g} degrees; --ignore-columns rotation takes the box as it is before it is turned"
        raise SourceError("annotation", "box is rotated", detail)


def declared_size(height: object, width: object) -> tuple[int, int] | None:
    """(height, width) as the annotations claim it; None where it is not given or written as 0.

    >>> declared_size("480", "640"), declared_size("0", "0"), declared_size(None, "")
    ((480, 640), None, None)
    """
    sides = [0.0 if side is None or side == "" else parse_number(side, "size") for side in (height, width)]
    if min(sides) < 0 or any(side != int(side) for side in sides):
        raise SourceError("annotation", "size is not whole pixels", f"height {height}, width {width}")
    return (int(sides[0]), int(sides[1])) if min(sides) > 0 else None


def sort_examples(examples: list[SourceExample]) -> list[SourceExample]:
    """The examples by source, then key: an order that does not depend on the order of the annotations."""
    return sorted(examples, key=sort_key)


def sort_key(example: SourceExample) -> tuple[str, str]:
    """The place of a example among all of a source."""
    return (example.source, str(example.key))
