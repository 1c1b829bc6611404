"""Shared contract of the annotation layouts: `Layout`, `LayoutOptions`, split names, and examples of rejected files.

A layout turns annotations and images into `SourceExample`s. A fault of one input becomes the `problem` of its
example. A fault that affects the complete source raises AnnotationsError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from halofeed.prep.annotations.class_names import ClassChoice
from halofeed.prep.annotations.class_rows import ClassTable
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import is_image_name, is_scan_name
from halofeed.prep.sources.files import SourceFiles, pointer_kind
from halofeed.schemas.tasks import task_named
from halofeed.storage.atomic_files import is_valid_name
from halofeed.system.errors import AnnotationsError, Problem, SourceError, UsageError

if TYPE_CHECKING:
    from halofeed.prep.formats.dicom.series_listing import SeriesListing


ListSeries: TypeAlias = "Callable[[SourceFiles, SeriesPolicy, Sequence[str]], Mapping[str, SeriesListing]]"
_SPLIT_NAME = re.compile(
    r"(train|training|trn|trainval|val|valid|validation|dev|development|eval|evaluation|test|testing|tst|holdout"
    r"|fold|split)([-_ ]?[0-9]{1,4})?",
    re.IGNORECASE,
)
K = TypeVar("K")
V = TypeVar("V")
_MAX_ATTRIBUTE_CHARACTERS = 200
"""Values that name a group are short; others may be texts, addresses or data."""
_LONE_SURROGATE = "text holds a lone surrogate"


@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """Options for reading annotations.

    Fields without an entry below are the options of the same name in `halofeed.prep.options.recipe.Recipe`, which
    documents their meaning, values and layouts.

    Args:
        task: "classification", "detection" or "segmentation"; None accepts what the annotations hold.
        box_origin: number of the first pixel. 1 (VOC's rule, both ends inclusive) turns xmin into xmin - 1; 0 keeps
            the numbers; None is 1 for VOC, unless boxes begin below 1, and 0 for tables.
        voc_images: VOC: image to use where <filename> and the name of the XML file match two different images.
        keep: additional object fields to keep, from the layout's `keeps`.
        takes: class folders and tables: returns whether a path is an image.
        takes_scan: pairs, class-masks and tables of masks: returns whether a path is an image or a mask.
        source_splits: whether the source defines the splits; False if the user gives shares or lists.
        needs_groups: whether shares or folds divide the images and no pattern defines their groups; a layout then
            gives the columns and keys that it does not read as `SourceExample.attributes`.
        split_folders: whether the first folder is a split; None decides by the folder names.
        image_pattern, label_pattern: path patterns, see `halofeed.prep.annotations.patterns`.
        classes, map_classes, drop_classes: selection and renaming of classes, see `ClassChoice`.
        regions: "refuse", "combine" or "channels". With "channels" a voxel belongs to all regions that contain its
            value.
        series: DICOM: selection of series, and the salt of the hashes that replace patient and series ids.
        class_names: container files: name of each class number, from --label-map.
        list_series: DICOM: function that lists the series below given folders; None lists them in this process.
    """

    task: str | None = None
    box_origin: int | None = None
    box_units: str = "auto"
    scan_box_units: str = "auto"
    min_readers: int = 1
    box_form: str = "auto"
    ignore_columns: tuple[str, ...] = ()
    column: tuple[str, ...] = ()
    class_marks: tuple[str, ...] = ()
    annotation_grid: str = "auto"
    image_sets: tuple[str, ...] = ()
    voc_images: str = "auto"
    masks: bool = False
    keep: tuple[str, ...] = ()
    several_classes: str = "refuse"
    class_separator: str = "auto"
    on_bad_object: str = "drop"
    oriented_boxes: str = "upright"
    class_property: str | None = None
    one_class: str | None = None
    person_box: str = "full"
    coordinates: str = "auto"
    empty_classes: tuple[str, ...] = ()
    run_lengths: str = "auto"
    frame_stride: int | None = None
    takes: Callable[[str], bool] = is_image_name
    takes_scan: Callable[[str], bool] = is_scan_name
    source_splits: bool = True
    needs_groups: bool = False
    group_column: str | None = None
    split_folders: bool | None = None
    fit: str = "crop-or-pad"
    folders_are_classes: bool = False
    image_pattern: str | None = None
    label_pattern: str | None = None
    classes: tuple[str, ...] = ()
    channel_order: tuple[str, ...] = ()
    regions: str = "refuse"
    map_classes: tuple[str, ...] = ()
    drop_classes: tuple[str, ...] = ()
    several_masks: str = "refuse"
    missing_masks: str = "refuse"
    missing_classes: str = "refuse"
    mask_references: str = "check"
    series: SeriesPolicy = field(default_factory=SeriesPolicy)
    class_names: Mapping[int, str] = field(default_factory=dict)
    list_series: ListSeries | None = None

    @property
    def wants_boxes(self) -> bool | None:
        """Return whether the task needs objects with boxes; None if the annotations decide."""
        return None if self.task is None else task_named(self.task).has_boxes

    @property
    def wants_label_images(self) -> bool:
        """Return whether the task needs a class for each pixel or voxel."""
        return self.task is not None and task_named(self.task).has_label_image

    @property
    def choice(self) -> ClassChoice:
        """Return the mapping from source classes to data set classes."""
        return ClassChoice.of(self.classes, self.map_classes, self.drop_classes)


def attributes_of(entry: Mapping[str, Any], known: Container[str]) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of the keys of an image entry that a layout does not read; keys of objects have dots.

    >>> attributes_of({"id": 1, "video_id": 3, "meta": {"place": "x"}, "boxes": []}, ("id",))
    (('video_id', '3'), ('meta.place', 'x'))
    """
    found = []
    for name, value in entry.items():
        if name in known:
            continue
        # Metadata are often one level below, such as meta.place.
        if isinstance(value, dict):
            found += [(f"{name}.{inner}", text) for inner, text in attributes_of(value, ())]
        # A list is no name of a group, and a flag divides images into two at most.
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            found.append((name, str(value)[:_MAX_ATTRIBUTE_CHARACTERS]))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class PartwiseListing:
    """Functions that list a layout in parts, in several processes.

    They apply to a layout in which each example depends on one path only.

    Args:
        summarize: maps the paths of a part to a summary, whose `add` merges the summary of another part into it.
        resolve_rules: resolves the rules of all examples from (merged summary, paths of all files except images, files,
            options); None if the source must be listed in one process.
        references_of: maps (paths, rules, options) to the examples of these paths.
    """

    summarize: Callable[[Iterable[str], LayoutOptions], Any]
    resolve_rules: Callable[[Any, Iterable[str], SourceFiles, LayoutOptions], Any]
    references_of: Callable[[Iterable[str], Any, LayoutOptions], Iterator[SourceExample]]


ListedClasses: TypeAlias = Callable[[], Mapping[int, str]]
"""Function that returns the class name of each value, in the layout's own order, from what the listing has read.

A document with classes and objects takes as much time to read as the listing itself, so a layout of such documents does
not read them again for the classes. It is a function because classes that contradict each other raise AnnotationsError,
and --label-map makes them irrelevant.
"""
Listing: TypeAlias = Generator[SourceExample, None, ListedClasses | None]
"""Examples of a source, and classes that are known at their end."""


def as_listing(examples: Iterator[SourceExample]) -> Listing:
    """Return the examples typed for `yield from`, whose value is None for an iterator that returns nothing."""
    return cast("Listing", examples)


def keep_classes(
    examples: Iterator[SourceExample], keep: Callable[[ListedClasses], None]
) -> Iterator[SourceExample]:
    """Yield the examples of a listing; pass the classes that it returns at its end to `keep`."""
    classes = yield from as_listing(examples)
    if classes is not None:
        keep(classes)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One convention for storing images and annotations.

    Args:
        name: name of the layout in options.
        tasks: tasks that its annotations support.
        summary: one line for the help text.
        list_references: maps (annotations, images, annotation_file, options) to the examples, in a fixed order. There
            is one for every image and every annotation. A faulty input has a `problem`; a fault of the complete
            source raises AnnotationsError. A generator may return `ListedClasses`, which then replaces `list_labels`
            and `label_values`.
        list_labels: maps (annotations, annotation_file) to the class names in the layout's own order, if it has one.
        has_masks: whether its annotations can contain a mask for each object.
        keeps: additional object fields that it can read, from `halofeed.schemas.tasks.OPTIONAL_ATTRIBUTES`.
        label_values: segmentation: maps (annotations, images, annotation_file, options) to the class name of each
            value in a label volume; 0 is the background, with or without a name.
        default_task: task of pictures if the user names none; None if what the annotations hold decides.
        unlabeled: segmentation: value of pixels without a class, which are ignored; None if all pixels have one.
        color_table: segmentation: maps the arguments of `label_values` to the classes of the colors of label images;
            None where they have no colors.
        ignored_values: segmentation: maps the arguments of `label_values` to the named values that are no classes
            unless the user chooses them.
        channel_names: segmentation: maps (annotations, annotation_file) to the channel names of an image, such as
            ("CT",).
        regions: segmentation: maps (annotations, annotation_file) to the values of each class, if a class has several
            values or shares one; otherwise returns {}.
        takes_clips: whether its images can be clips.
        takes_volumes: whether its images for segmentation can be volumes.
        takes_scan_boxes: whether its boxes are in volumes; those of other layouts are in pictures.
        has_containers: whether it reads container files, whose class numbers --label-map may name.
        has_own_files: whether its files belong to no other layout, as those of annotation tools, so that each error of
            another layout names them.
        in_parts: functions that list it in parts, with the same examples as `list_references`.
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
    default_task: str | None = None
    unlabeled: int | None = None
    color_table: Callable[[SourceFiles, SourceFiles, str | None, LayoutOptions], ClassTable | None] | None = (
        None
    )
    ignored_values: (
        Callable[[SourceFiles, SourceFiles, str | None, LayoutOptions], Collection[int]] | None
    ) = None
    channel_names: Callable[[SourceFiles, str | None], tuple[str, ...]] | None = None
    regions: Callable[[SourceFiles, str | None], Mapping[str, tuple[int, ...]]] | None = None
    takes_clips: bool = False
    takes_volumes: bool = True
    takes_scan_boxes: bool = False
    has_containers: bool = False
    has_own_files: bool = False
    in_parts: PartwiseListing | None = None

    def check(self, *, task: str | None, masks: bool = False, keep: Sequence[str] = ()) -> None:
        """Raise UsageError if this layout cannot provide the task, the masks, or the object fields to keep."""
        if task is not None and task not in self.tasks:
            raise UsageError(
                f"task {task!r}: layout {self.name} serves {' and '.join(self.tasks)}; take {' or '.join(self.tasks)}, "
                "or the layout of the annotations"
            )
        if masks and not self.has_masks:
            raise UsageError(f"--masks: layout {self.name} holds no masks; leave it out")
        if unknown := [name for name in keep if name not in self.keeps]:
            known = f"has {', '.join(self.keeps)}" if self.keeps else "has nothing to keep"
            raise UsageError(f"--keep {','.join(unknown)}: layout {self.name} {known}; leave it out")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in the order of the pairs.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def is_split_name(name: str) -> bool:
    """Return whether a folder or a part of a file name is a usual name of a split.

    >>> [is_split_name(name) for name in ("train", "Test", "val2017", "fold_3", "trainer", "hat")]
    [True, True, True, True, False, False]
    """
    return _SPLIT_NAME.fullmatch(name) is not None


def split_in_file_name(path: str) -> str | None:
    """Return the split that a file name contains, in the original spelling, or None.

    >>> split_in_file_name("a/train_labels.csv"), split_in_file_name("instances_val2017.json")
    ('train', 'val2017')
    >>> split_in_file_name("instances.json") is None
    True
    """
    stem = path.rsplit("/", 1)[-1].split(".")[0]
    return next((part for part in re.split(r"[-_ ]", stem) if is_split_name(part)), None)


def splits_by_folders(paths: Sequence[str]) -> list[str]:
    """Return the split of each path: the first folder with a split's name if every path has one, otherwise "train".

    >>> splits_by_folders(["val/images/a.jpg", "images/train/b.jpg"]), splits_by_folders(["val/a.jpg", "b.jpg"])
    (['val', 'train'], ['train', 'train'])
    """
    found = [next(filter(is_split_name, path.split("/")[:-1]), None) for path in paths]
    return [split or "train" for split in found] if all(found) else ["train"] * len(found)


def read_required(annotations: SourceFiles, name: str) -> bytes:
    """Return the bytes of a file that all examples depend on; raise AnnotationsError if it is unreadable."""
    with report_unreadable(annotations, name):
        content = annotations.read(name)
    # Git LFS and similar tools leave a small text in place of a file that was not downloaded.
    if (pointer := pointer_kind(content)) is not None:
        raise AnnotationsError(f"{name} in {annotations.root}: it is {pointer}")
    return content


@contextmanager
def report_unreadable(annotations: SourceFiles, name: str) -> Iterator[None]:
    """Convert a read error of a file that all examples depend on to AnnotationsError."""
    try:
        yield
    except (SourceError, OSError) as error:
        raise AnnotationsError(
            f"{name} in {annotations.root}: {error}; name a file that can be read"
        ) from error


def refuse_annotation_file(annotation_file: str | None, advice: str) -> None:
    """Raise AnnotationsError if the user named an annotation file for a layout that has none."""
    if annotation_file is not None:
        raise AnnotationsError(f"{annotation_file}: {advice}")


def rejected_example(path: str, problem: Problem, split: str = "train") -> SourceExample:
    """Return the example of a file, or of a place in a file, that is rejected under its own name."""
    return SourceExample(source=path, key=path, split=split, problem=problem)


def sort_examples(examples: list[SourceExample]) -> list[SourceExample]:
    """Return the examples sorted by source, then key, independent of the order of the annotations."""
    return sorted(examples, key=sort_key)


def sort_key(example: SourceExample) -> tuple[str, str]:
    """Return the sort key of an example."""
    return (example.source, str(example.key))


def reject_lone_surrogates(examples: Iterable[SourceExample]) -> Iterator[SourceExample]:
    """Yield the examples; replace one with a text that records cannot store by an example with a problem.

    JSON can contain "\\ud800", half of a surrogate pair, which UTF-8 cannot encode. Names of files that are not UTF-8
    contain lone surrogates too, U+DC80 to U+DCFF. Those represent bytes and are valid (see
    `halofeed.storage.atomic_files`).

    >>> (found,) = reject_lone_surrogates([SourceExample(source="a.jpg", key="a\\ud800")])
    >>> print(*found.problem, sep="; ")
    annotation; text holds a lone surrogate; id 'a\\ud800' is no Unicode text: correct it
    """
    for example in examples:
        if _is_plain(example):
            yield example
            continue
        # Texts that are names of files may hold bytes as lone surrogates; others are stored as they are.
        fault = next((one for one in _texts(example) if not is_valid_name(one[1])), None)
        fault = fault or next((one for one in _verbatim_texts(example) if not can_be_encoded(one[1])), None)
        # Only a message quotes such a text, so that the message can be repaired.
        if fault is None:
            yield _with_escaped_messages(example)
            continue
        what, text = fault
        yield SourceExample(
            source=_escape_surrogates(example.source),
            key=_escape_surrogates(example.key) if isinstance(example.key, str) else example.key,
            split=_escape_surrogates(example.split),
            problem=("annotation", _LONE_SURROGATE, f"{what} {text!r} is no Unicode text: correct it"),
        )


def _is_plain(example: SourceExample) -> bool:
    """Return whether an example has at most a class and only ASCII texts, as most have (a fast path)."""
    # One expression, since it runs for each of up to 10^8 images: 0.4 µs. It takes 0.6 µs as `any` over a tuple of the
    # fields (2 cores, 2026-11-29).
    return (
        example.source.isascii()
        and str(example.key).isascii()
        and example.split.isascii()
        and (example.label or "").isascii()
        and (example.group or "").isascii()
        and not (example.boxes or example.labels or example.mask or example.class_masks or example.class_runs)
        and not (example.members or example.channels or example.more_masks)
        and not (example.problem or example.notes or example.bad_objects)
    )


def can_be_encoded(text: str) -> bool:
    """Return whether a text is valid Unicode, without the lone surrogates that file names may contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escape_surrogates(text: str) -> str:
    """Return the text with escape sequences in place of invalid lone surrogates.

    >>> _escape_surrogates("hat"), _escape_surrogates("a\\ud800")
    ('hat', 'a\\\\ud800')
    """
    return text if is_valid_name(text) else text.encode("utf-8", "backslashreplace").decode()


def _texts(example: SourceExample) -> Iterator[tuple[str, str]]:
    """Yield (description, text) of the texts in an example in which lone surrogates may represent bytes."""
    yield "file name", example.source
    yield "id", str(example.key)
    yield "split", example.split
    if example.group is not None:
        yield "group", example.group
    for label in (*example.classes, *(box.label for box in example.boxes or ())):
        yield "class", label
    for name, _ in example.class_runs or ():
        yield "class", name
    for name, path in example.class_masks:
        yield "class", name
        yield "file name", path
    frames = (file for _, files in example.mask_members for file in files)
    for path in (*example.members, *example.channels, *example.masks, *frames):
        yield "file name", path


def _verbatim_texts(example: SourceExample) -> Iterator[tuple[str, str]]:
    """Yield (description, text) of the texts that records store unchanged."""
    for box in example.boxes or ():
        if box.view is not None:
            yield "view", box.view
        for point in box.keypoints:
            yield "keypoint", point.name


def _with_escaped_messages(example: SourceExample) -> SourceExample:
    """Return the example with escape sequences in its problem and notes, which often quote the annotations."""
    remarks = [
        *(example.problem or ()),
        *example.notes,
        *(part for bad in example.bad_objects for part in bad),
    ]
    if all(map(is_valid_name, remarks)):
        return example
    stage, reason, detail = map(_escape_surrogates, example.problem or ("", "", ""))
    return replace(
        example,
        problem=(stage, reason, detail) if example.problem else None,
        notes=tuple(map(_escape_surrogates, example.notes)),
        bad_objects=tuple(
            (_escape_surrogates(reason), _escape_surrogates(detail)) for reason, detail in example.bad_objects
        ),
    )
